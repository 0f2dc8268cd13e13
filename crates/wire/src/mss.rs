//! Clamping the MSS option of TCP SYNs, as `mssfix` does.

use std::net::IpAddr;

use crate::checksum::update;
use crate::field::{get8, get16, put16};
use crate::ip::{Ip, TCP};
use crate::transport::{Tcp, flags};

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;

/// Lowers the MSS announced by a SYN to `mss4` or `mss6` (0 leaves that family alone) and returns
/// whether it changed the packet.
///
/// Everything else passes unchanged: fragments, IPv6 with extension headers, truncated headers or
/// options. A missing MSS option is not added.
#[inline]
pub fn clamp(packet: &mut [u8], mss4: u16, mss6: u16) -> bool {
    // Three bytes suffice to decide the common case.
    let quick = match packet.first().map(|first| first >> 4) {
        Some(4) => get8(packet, 9) == Some(TCP) && mss4 != 0,
        Some(6) => get8(packet, 6) == Some(TCP) && mss6 != 0,
        _ => false,
    };
    quick && clamp_tcp(packet, mss4, mss6).is_some()
}

fn clamp_tcp(packet: &mut [u8], mss4: u16, mss6: u16) -> Option<()> {
    let ip = Ip::parse(packet)?;
    if ip.protocol != TCP || ip.fragment {
        return None;
    }
    let limit = match ip.source {
        IpAddr::V4(_) => mss4,
        IpAddr::V6(_) => mss6,
    };
    let segment = packet.get_mut(ip.header_len..ip.total_len)?;
    let tcp = Tcp::parse(segment)?;
    if limit == 0 || tcp.flags & flags::SYN == 0 {
        return None;
    }
    let at = find_mss(segment.get(..tcp.header_len)?)?;
    let announced = get16(segment, at)?;
    if announced <= limit {
        return None;
    }
    let sum = replace(get16(segment, 16)?, at, announced, limit);
    put16(segment, at, limit)?;
    put16(segment, 16, sum)
}

/// Returns the checksum after the field at `at` changed. At an odd offset, its two bytes belong to
/// two words of the sum, which is equivalent to changing one word with its bytes swapped.
fn replace(checksum: u16, at: usize, from: u16, to: u16) -> u16 {
    if at & 1 == 0 {
        update(checksum, from, to)
    } else {
        update(checksum, from.swap_bytes(), to.swap_bytes())
    }
}

/// Finds the value of the MSS option in a TCP header.
fn find_mss(header: &[u8]) -> Option<usize> {
    let mut at = crate::transport::TCP_LEN;
    loop {
        match get8(header, at)? {
            OPTION_END => return None,
            OPTION_NOP => at = at.checked_add(1)?,
            kind => {
                let len = usize::from(get8(header, at.checked_add(1)?)?);
                if len < 2 || at.checked_add(len)? > header.len() {
                    return None;
                }
                if kind == OPTION_MSS {
                    return if len == 4 { at.checked_add(2) } else { None };
                }
                at = at.checked_add(len)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TcpSpec, transport_checksum_ok};
    use proptest::prelude::*;

    fn syn(v6: bool, options: &[u8]) -> Vec<u8> {
        TcpSpec { v6, flags: flags::SYN, options: options.to_vec(), ..TcpSpec::default() }
            .build(&[])
    }

    #[test]
    fn lowers_but_never_raises() {
        for v6 in [false, true] {
            for (options, at) in [
                (vec![2, 4, 5, 0xb4], 2),
                (vec![1, 2, 4, 5, 0xb4, 1, 1, 1], 3),
                (vec![1, 1, 2, 4, 5, 0xb4, 0, 0], 4),
                (vec![3, 3, 7, 2, 4, 5, 0xb4, 1], 5),
            ] {
                let l4 = if v6 { 40 } else { 20 };
                let mut packet = syn(v6, &options);
                assert!(clamp(&mut packet, 1300, 1280));
                assert_eq!(
                    get16(&packet, l4 + 20 + at),
                    Some(if v6 { 1280 } else { 1300 }),
                    "{options:?}"
                );
                assert!(transport_checksum_ok(&packet), "v6 {v6}, {options:?}");
                let before = packet.clone();
                assert!(!clamp(&mut packet, 1400, 1400));
                assert_eq!(packet, before);
            }
        }
    }

    #[test]
    fn passes_odd_packets_untouched() {
        let good = syn(false, &[2, 4, 5, 0xb4]);
        let mut cases = vec![
            ("option cut short", syn(false, &[1, 1, 1, 2])),
            ("length beyond the header", syn(false, &[2, 40, 5, 0xb4])),
            ("length 0", syn(false, &[2, 0, 5, 0xb4])),
            ("MSS of 3 bytes", syn(false, &[2, 3, 5, 1])),
            ("after the end of options", syn(false, &[0, 2, 4, 5, 0xb4, 0, 0, 0])),
            ("no options", syn(false, &[])),
        ];
        let mut fragment = good.clone();
        fragment[7] = 1;
        cases.push(("a fragment", fragment));
        let mut no_syn = good.clone();
        no_syn[33] = flags::ACK;
        cases.push(("no SYN", no_syn));
        let mut data_offset = good.clone();
        data_offset[32] = 0xf0;
        cases.push(("a data offset beyond the end", data_offset));
        for (why, mut packet) in cases {
            let before = packet.clone();
            assert!(!clamp(&mut packet, 500, 500), "{why}");
            assert_eq!(packet, before, "{why}");
        }
        let mut off = good;
        assert!(!clamp(&mut off, 0, 500), "switched off");
    }

    proptest! {
        #[test]
        fn any_cut_of_a_syn_is_harmless(
            v6: bool, cut in 0usize..80, noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut options = noise;
            options.truncate(options.len() / 4 * 4);
            let mut packet = syn(v6, &options);
            packet.truncate(cut);
            let before = packet.clone();
            if !clamp(&mut packet, 100, 100) {
                prop_assert_eq!(packet, before);
            }
        }
    }
}
