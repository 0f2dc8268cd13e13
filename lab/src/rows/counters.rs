//! Counts the packets that passed, in a form that can be compared with the table: counts, and a sum of hashes that does not depend on the
//! order.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

/// The counters of one end.
#[derive(Debug, Default)]
pub struct Counters(Mutex<CounterValues>);

/// The current values of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterValues {
    /// The number of packets read from the device and stored in the database.
    pub sent: u64,
    /// The number of packets written to the device.
    pub delivered: u64,
    /// The number of bytes of the delivered packets.
    pub bytes: u64,
    /// The sum of the SHA-256 hashes of the delivered packets.
    pub hashes: u128,
    /// The number of packets dropped because the queue was full.
    pub dropped: u64,
}

/// Returns the first seven bytes of SHA-256, big endian. SQL can compute the same value with `sha256`, and it fits into
/// a bigint.
pub(super) fn hash(packet: &[u8]) -> u64 {
    let digest = adit_crypto::sha256(&[packet]);
    digest.iter().take(7).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Counters {
    pub(super) fn sent(&self) {
        self.with(|page| page.sent += 1);
    }

    pub(super) fn dropped(&self) {
        self.with(|page| page.dropped += 1);
    }

    pub(super) fn delivered(&self, packet: &[u8]) {
        let hash = hash(packet);
        self.with(|page| {
            page.delivered += 1;
            page.bytes += packet.len() as u64;
            page.hashes += u128::from(hash);
        });
    }

    /// Returns the current values.
    pub fn page(&self) -> CounterValues {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, change: impl FnOnce(&mut CounterValues)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The text that precedes the counters in the log.
pub(crate) const MARK: &str = "counters:";

impl fmt::Display for CounterValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, delivered, bytes, hashes, dropped } = self;
        write!(f, "{MARK} {sent} {delivered} {bytes} {hashes} {dropped}")
    }
}

impl FromStr for CounterValues {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no page of a counters");
        let words = text.strip_prefix(MARK).ok_or_else(wrong)?.split_whitespace();
        let numbers: Vec<u128> =
            words.map(|word| word.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
        let [sent, delivered, bytes, hashes, dropped] = *numbers else { return Err(wrong()) };
        let small = |number: u128| u64::try_from(number).map_err(|_| wrong());
        Ok(Self {
            sent: small(sent)?,
            delivered: small(delivered)?,
            bytes: small(bytes)?,
            hashes,
            dropped: small(dropped)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let counters = Counters::default();
        counters.sent();
        counters.dropped();
        counters.delivered(b"one");
        counters.delivered(b"other");
        let page = counters.page();
        assert_eq!((page.delivered, page.bytes), (2, 8));
        assert_eq!(page.hashes, u128::from(hash(b"one")) + u128::from(hash(b"other")));
        assert_eq!(page.to_string().parse(), Ok(page));
        assert!("counters: 1 2 3 4".parse::<CounterValues>().is_err());
        assert!("counters: 1 2 3 4 -5".parse::<CounterValues>().is_err());
        assert!("1 2 3 4 5".parse::<CounterValues>().is_err());
    }

    #[test]
    fn the_hash_is_that_which_sql_computes() {
        // select ('x' || encode(substr(sha256('abc'), 1, 7), 'hex'))::bit(56)::bigint
        assert_eq!(hash(b"abc"), 0x00ba_7816_bf8f_01cf);
    }
}
