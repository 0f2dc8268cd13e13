//! Features of network interfaces (offloads), as `ethtool -k` and `-K` show and set them, without running a process for
//! each interface.
//!
//! Names are the kernel's (net/ethtool/common.c, `netdev_features_strings`): `tx-tcp-segmentation`, `rx-gro`, ... The
//! requests are those of include/uapi/linux/ethtool.h.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::tun::NAME_MAX;

/// The length of a feature's name, in 32-bit words.
const NAME_WORDS: usize = 8;
/// The set of strings with the names of features (`ETH_SS_FEATURES`).
const FEATURES: u32 = 4;

// A request consists of its command, a fixed header and as many elements as its count field states.
const GET_NAMES: u32 = 0x1b;
const GET_COUNT: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;

/// One feature of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name.
    pub name: String,
    /// Whether it is on.
    pub on: bool,
}

/// Returns the features of an interface in the network namespace of the calling thread.
pub fn features(interface: &str) -> io::Result<Vec<Feature>> {
    Control::new(interface)?.features()
}

/// Sets features of an interface in the network namespace of the calling thread. Names unknown to this kernel are
/// ignored; a feature that cannot take the requested value is an error.
pub fn set_features(interface: &str, wanted: &[(&str, bool)]) -> io::Result<()> {
    let control = Control::new(interface)?;
    let before = control.features()?;
    let blocks = before.len().div_ceil(32);
    // Per block of 32 features: the mask of the features to change, and their values.
    let mut request = vec![0; 2 + 2 * blocks];
    request[0] = SET_FEATURES;
    request[1] = blocks as u32;
    let pairs = request[2..].chunks_exact_mut(2);
    for (pair, block) in pairs.zip(before.chunks(32)) {
        for (bit, feature) in block.iter().enumerate() {
            let Some((_, on)) = wanted.iter().find(|(name, _)| *name == feature.name) else {
                continue;
            };
            pair[0] |= 1 << bit;
            pair[1] |= u32::from(*on) << bit;
        }
    }
    control.ask(&mut request)?;
    let after = control.features()?;
    let refused = after
        .iter()
        .find(|feature| wanted.iter().any(|(name, on)| *name == feature.name && *on != feature.on));
    match refused {
        None => Ok(()),
        Some(Feature { name, on }) => {
            let now = if *on { "on" } else { "off" };
            let text = format!("{interface}: {name} stays {now}, whatever is asked for");
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
    }
}

struct Control {
    socket: OwnedFd,
    interface: String,
}

impl Control {
    fn new(interface: &str) -> io::Result<Self> {
        if interface.is_empty() || interface.len() > NAME_MAX {
            let text = format!("{interface:?} cannot be an interface's name");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, interface: interface.to_owned() })
    }

    fn features(&self) -> io::Result<Vec<Feature>> {
        let names = self.names()?;
        let blocks = names.len().div_ceil(32);
        // Per block of 32 features: available, requested, active, never changed.
        let mut request = vec![0; 2 + 4 * blocks];
        request[0] = GET_FEATURES;
        request[1] = blocks as u32;
        self.ask(&mut request)?;
        let active = request[2..].chunks_exact(4).map(|block| block[2]);
        let bits = active.flat_map(|word| (0..32).map(move |bit| word >> bit & 1 == 1));
        Ok(names.into_iter().zip(bits).map(|(name, on)| Feature { name, on }).collect())
    }

    /// Returns all names in the order of their bits; unused bits have empty names.
    fn names(&self) -> io::Result<Vec<String>> {
        let [low, high] = halves(1 << FEATURES);
        let mut request = vec![GET_COUNT, 0, low, high, 0];
        self.ask(&mut request)?;
        let count = request[4];
        // The kernel fills in all of its names regardless of the count in the request, which has space for all of them.
        let mut request = vec![0; 3 + NAME_WORDS * count as usize];
        request[..3].copy_from_slice(&[GET_NAMES, FEATURES, count]);
        self.ask(&mut request)?;
        let read = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Ok(request[3..].chunks_exact(NAME_WORDS).map(read).collect())
    }

    /// Performs one request. The kernel overwrites it with its answer. The length of the request must match its command and its count
    /// fields.
    fn ask(&self, request: &mut [u32]) -> io::Result<()> {
        // SAFETY: ifreq is plain data for which all zeroes is a valid value.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        // zip stops at least one byte before the array's end, so the NUL remains.
        for (to, from) in ifreq.ifr_name[..NAME_MAX].iter_mut().zip(self.interface.bytes()) {
            *to = from as libc::c_char;
        }
        ifreq.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
        // SAFETY: SIOCETHTOOL reads the ifreq, and reads and writes the request. The request lives through the call,
        // and the callers above make it as long as the kernel's structure for that command and those counts.
        let rc =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut ifreq) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Splits a 64-bit field into two words in this machine's order.
fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;

    fn on(interface: &str, name: &str) -> bool {
        features(interface).unwrap().into_iter().find(|f| f.name == name).unwrap().on
    }

    #[test]
    fn switches_what_is_named_and_nothing_else() {
        adit_testbed::needs_root!();
        let (ns, other) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
        ns.connect("cable", &other, "cable").unwrap();
        ns.run(|| {
            let before = features("cable").unwrap();
            assert!(on("cable", "tx-udp-segmentation") && !on("cable", "rx-gro"));
            let wanted =
                [("tx-udp-segmentation", false), ("rx-gro", true), ("no-such-thing", true)];
            set_features("cable", &wanted).unwrap();
            assert!(!on("cable", "tx-udp-segmentation") && on("cable", "rx-gro"));
            let back = wanted.map(|(name, on)| (name, !on));
            set_features("cable", &back).unwrap();
            assert_eq!(features("cable").unwrap(), before);
        })
        .unwrap();
        other.run(|| assert!(on("cable", "tx-udp-segmentation"))).unwrap();
    }

    #[test]
    fn says_what_cannot_be_switched_and_who_is_missing() {
        adit_testbed::needs_root!();
        let ns = NetNs::unnamed().unwrap();
        ns.run(|| {
            let error = set_features("lo", &[("rx-checksum", false)]).unwrap_err();
            assert_eq!(error.to_string(), "lo: rx-checksum stays on, whatever is asked for");
            assert_eq!(features("none").unwrap_err().raw_os_error(), Some(libc::ENODEV));
            assert!(features("much-too-long-name").is_err());
        })
        .unwrap();
    }
}
