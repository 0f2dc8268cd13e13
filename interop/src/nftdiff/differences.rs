//! Differences that are wanted. Each has its name and its reason in docs/filter.md.

use super::adit::Made;
use super::case::{Seen, Sent};

/// The name of the wanted difference that this one is, if it is one.
#[must_use]
pub fn wanted(sent: &Sent, kernel: Seen, adit: &Made) -> Option<&'static str> {
    let _ = kernel;
    if adit.why.starts_with("malformed") {
        return Some("malformed");
    }
    atomic(&sent.frame).then_some("atomic fragment")
}

/// An IPv6 packet in one piece (RFC 6946): the kernel takes its fragment header away, adit leaves it there.
fn atomic(frame: &[u8]) -> bool {
    let v6 = frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&44);
    v6 && frame.get(56..58).is_some_and(|word| word[0] == 0 && word[1] & !6 == 0)
}
