use std::time::Duration;

use crate::negotiate::DataCipher;
use adit_crypto::BlockCipher;
use adit_engine::command::InnerMtu;
use adit_engine::{Instant, Link, UnixTime};

use super::settings::{Fragment, Mssfix, Settings};
use crate::data_format::{BlockSuite, Framing, FramingError, Protection};
use crate::keys::{Direction, Role};
use crate::negotiate::OptionsString;
use crate::wrap::WrapConfig;

/// The payload of a server's reset that asks a tls-crypt-v2 client to send its wrapped key again,
/// as type, length and value.
pub(crate) const RESEND_WRAPPED_KEY: [u8; 6] = [0, 1, 0, 2, 0, 1];
/// The first bytes of an OCC message on the data channel.
pub const OCC_MAGIC: [u8; 16] = [
    0x28, 0x7f, 0x34, 0x6b, 0xd4, 0xef, 0x7a, 0x81, 0x2d, 0x56, 0xb8, 0xd3, 0xaf, 0xc5, 0x45, 0x9c,
];
/// The OCC message of a sender that disconnects.
const OCC_EXIT: u8 = 6;

/// The length of the DATA_V2 header, packet id and tag, in bytes.
const AEAD_OVERHEAD: u16 = 4 + 4 + 16;
/// The same length in the epoch format, whose packet id is longer.
const EPOCH_OVERHEAD: u16 = 4 + 8 + 16;

/// The length of the length field before each packet on a stream, in bytes.
const STREAM_LENGTH: u16 = 2;

/// The length that OpenVPN assumes for an Ethernet frame's header, in bytes: more than any header has.
const ETHERNET_OVERHEAD: u16 = 32;

/// Returns the exit notice for the data channel.
pub(crate) fn exit_notice() -> Vec<u8> {
    let mut message = OCC_MAGIC.to_vec();
    message.push(OCC_EXIT);
    message
}

/// Returns whether a data channel message is an exit notice.
pub(crate) fn is_exit_notice(message: &[u8]) -> bool {
    message.strip_prefix(&OCC_MAGIC).is_some_and(|rest| rest.first() == Some(&OCC_EXIT))
}

/// Converts boot clock time to wall-clock time with an offset that is set at startup.
#[derive(Copy, Clone, Debug)]
pub(crate) struct WallClock {
    base: Instant,
    unix: UnixTime,
}

impl WallClock {
    pub(crate) fn new(base: Instant, unix: UnixTime) -> Self {
        Self { base, unix }
    }

    pub(crate) fn at(&self, now: Instant) -> UnixTime {
        UnixTime(self.unix.0.saturating_add(now.since(self.base).as_secs()))
    }
}

impl Settings {
    /// Returns the first retransmission timeout. It is half of `tls-timeout`, whose default of 2 s
    /// was chosen for modems.
    pub(crate) fn first_timeout(&self) -> Duration {
        self.tls_timeout / 2
    }
}

/// The only `tun-mtu` for which sizes of outer packets are computed. An operator who sets another
/// one has taken those sizes into account.
pub(crate) const DEFAULT_TUN_MTU: u16 = 1500;
/// The length of the fragment header in bytes.
const FRAGMENT_HEADER: u16 = 4;

/// The length of IPv6's and UDP's headers.
const IPV6_AND_UDP: u16 = 40 + 8;

/// Returns the length of the outer IP and UDP or TCP headers in bytes.
pub(crate) fn outer_headers(link: Link) -> u16 {
    let ip_header = if link.remote().ip().to_canonical().is_ipv4() { 20 } else { 40 };
    ip_header + if link.is_stream() { 20 } else { 8 }
}

/// Returns the largest inner packet that fits into `size` bytes after the outer headers.
pub(crate) fn inside(settings: &Settings, link: Link, protection: Protection, size: u16) -> u16 {
    let transport = if link.is_stream() { STREAM_LENGTH } else { 0 };
    let framing = match settings.framing {
        Framing::None | Framing::StubV2 => 0,
        Framing::LzoStub | Framing::SwapStub => 1,
    };
    let fragment = match settings.fragment {
        Some(_) if !link.is_stream() => FRAGMENT_HEADER,
        _ => 0,
    };
    let ethernet = if settings.ethernet { ETHERNET_OVERHEAD } else { 0 };
    protected(size.saturating_sub(transport), protection)
        .saturating_sub(framing + fragment + ethernet)
}

/// Returns the number of bytes that encapsulation adds to a packet. It is approximate with block
/// ciphers, whose padding varies.
pub(crate) fn overhead(settings: &Settings, link: Link, protection: Protection) -> u16 {
    const SIZE: u16 = 4096;
    let ethernet = if settings.ethernet { ETHERNET_OVERHEAD } else { 0 };
    let around = SIZE.saturating_sub(inside(settings, link, protection, SIZE));
    around.saturating_sub(ethernet)
}

/// Returns the maximum length of an encapsulated packet, if `fragment` limits it.
pub(crate) fn fragment_size(settings: &Settings, link: Link) -> Option<u16> {
    let Fragment { size, outer } = settings.fragment.filter(|_| !link.is_stream())?;
    Some(if outer { size.saturating_sub(outer_headers(link)) } else { size })
}

/// Returns the inner MTU from which `mssfix` derives the maximum TCP segments, for a peer behind
/// `link`.
pub(crate) fn inner_mtu(settings: &Settings, link: Link, protection: Protection) -> InnerMtu {
    let mssfix = settings.mssfix.unwrap_or(match (settings.fragment, settings.tun_mtu) {
        // OpenVPN includes the outer headers here even if `fragment` does not.
        (Some(fragment), _) => Mssfix { size: fragment.size, outer: true, fixed: false },
        (None, DEFAULT_TUN_MTU) => Mssfix { size: 1492, outer: true, fixed: false },
        (None, other) => Mssfix { size: other, outer: false, fixed: true },
    });
    if mssfix.size == 0 {
        return InnerMtu::default();
    }
    let mut inner = mssfix.size;
    if !mssfix.fixed {
        if mssfix.outer {
            let least = if settings.changes_family { IPV6_AND_UDP } else { 0 };
            let headers = outer_headers(link).max(least);
            inner = inner.saturating_sub(headers);
        }
        inner = inside(settings, link, protection, inner);
    }
    InnerMtu {
        mss4: inner.saturating_sub(20 + 20),
        mss6: inner.saturating_sub(40 + 20),
        largest: 0,
    }
}

/// Returns the number of bytes that fit into a protected packet of `size` bytes.
fn protected(size: u16, protection: Protection) -> u16 {
    const BLOCK: u16 = BlockCipher::BLOCK_LEN as u16;
    let block = |suite: BlockSuite, header: u16, id: u16| {
        let digest = suite.digest.map_or(0, |digest| digest.output_len() as u16);
        let text = size.saturating_sub(header + digest);
        let plain = match suite.cipher {
            // The IV is followed by whole blocks, with at least one byte of padding.
            Some(_) => (text.saturating_sub(BLOCK) & !(BLOCK - 1)).saturating_sub(1),
            None => text,
        };
        plain.saturating_sub(id)
    };
    match protection {
        Protection::Aead(_) => size.saturating_sub(AEAD_OVERHEAD),
        Protection::Epoch(_) => size.saturating_sub(EPOCH_OVERHEAD),
        Protection::Block(suite) => block(suite, 4, 4),
        Protection::Static(suite) => block(suite, 0, 4 + 4),
    }
}

/// Returns the advice for packets that are not framed as agreed.
pub(crate) fn framing_action(wrong: FramingError) -> &'static str {
    match wrong {
        FramingError::Compressed => {
            "its packets are compressed in a way that this end does not expect, and are dropped: comp-lzo \
             and compress must be the same at both ends, without allow-compression no"
        }
        FramingError::Framing => {
            "its packets are not framed as this end expects and are dropped: comp-lzo and compress must \
             be the same at both ends"
        }
        FramingError::Fragment => {
            "its packets have no fragment header, or a wrong one, and are dropped: fragment must be \
             written at both ends, or at none"
        }
    }
}

/// Returns the options string of key method 2. In an established session, `cipher` is the
/// negotiated one.
pub(crate) fn options_string(
    settings: &Settings,
    role: Role,
    link: Link,
    cipher: Option<DataCipher>,
) -> OptionsString<'_> {
    let (tls_auth, key_direction) = match settings.wrap.shared() {
        Some(WrapConfig::TlsAuth { direction, .. }) => {
            (true, direction.map(|direction| u8::from(direction == Direction::Inverse)))
        }
        _ => (false, None),
    };
    let named = DataCipher::from_name(&settings.occ_cipher);
    let allowed =
        |cipher| settings.ciphers.contains(&cipher) || settings.cipher_fallback == Some(cipher);
    OptionsString {
        server: role == Role::Server,
        listens: role == Role::Server,
        ethernet: settings.ethernet,
        stream: link.is_stream(),
        tun_mtu: settings.tun_mtu,
        cipher: match cipher {
            Some(cipher) => cipher.options_name(),
            None => match named {
                Some(DataCipher::Block(None)) => "[null-cipher]",
                _ => &settings.occ_cipher,
            },
        },
        announce: cipher.or(named).is_some_and(allowed),
        auth: &settings.auth,
        framing: settings.framing,
        fragment: settings.fragment.is_some() && !link.is_stream(),
        told_mtu: settings.occ_mtu,
        tls_auth,
        key_direction,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_crypto::{Cipher, Digest};

    const AEAD: Protection = Protection::Aead(Cipher::Aes256Gcm);

    fn mss(settings: &Settings, remote: &str) -> (u16, u16) {
        let remote = remote.parse().expect("an address");
        let link = Link::datagram(Default::default(), None, remote);
        let mtu = inner_mtu(settings, link, AEAD);
        (mtu.mss4, mtu.mss6)
    }

    #[test]
    fn mssfix_is_what_the_reference_implementation_makes_of_it() {
        let mut s = Settings::default();
        assert_eq!(mss(&s, "192.0.2.1:1194"), (1400, 1380), "1492 bytes outside by default");
        assert_eq!(mss(&s, "[2001:db8::1]:1194"), (1380, 1360));
        s.mssfix = Some(Mssfix { size: 1300, outer: false, fixed: false });
        assert_eq!(mss(&s, "192.0.2.1:1194"), (1236, 1216));
        s.mssfix = Some(Mssfix { size: 0, outer: false, fixed: false });
        assert_eq!(mss(&s, "192.0.2.1:1194"), (0, 0));
        s.mssfix = None;
        s.fragment = Some(Fragment { size: 1300, outer: false });
        assert_eq!(mss(&s, "192.0.2.1:1194"), (1204, 1184), "with the fragment header");
        s.fragment = None;
        s.tun_mtu = 1400;
        assert_eq!(mss(&s, "192.0.2.1:1194"), (1360, 1340), "the inner packet's own size");
    }

    #[test]
    fn segments_of_a_session_that_moves_between_families_fit_both() {
        let s = Settings { changes_family: true, ..Settings::default() };
        assert_eq!(mss(&s, "192.0.2.1:1194"), (1380, 1360));
        assert_eq!(mss(&s, "[2001:db8::1]:1194"), (1380, 1360));
    }

    /// For `--proto tcp-client`, OpenVPN prints mss_fix 1389 with DATA_V1, whose header is 3 bytes
    /// shorter.
    #[test]
    fn over_streams_the_headers_are_larger() {
        let mtu = |s: &Settings, remote: &str| {
            let mtu = inner_mtu(s, Link::stream(1, remote.parse().expect("an address")), AEAD);
            (mtu.mss4, mtu.mss6)
        };
        let mut s = Settings::default();
        assert_eq!(mtu(&s, "192.0.2.1:1194"), (1386, 1366));
        assert_eq!(mtu(&s, "[2001:db8::1]:1194"), (1366, 1346));
        s.mssfix = Some(Mssfix { size: 1300, outer: false, fixed: false });
        assert_eq!(mtu(&s, "192.0.2.1:1194"), (1234, 1214));
        s.mssfix = Some(Mssfix { size: 1300, outer: false, fixed: true });
        assert_eq!(mtu(&s, "192.0.2.1:1194"), (1260, 1240));
    }

    /// The output of openvpn 2.6.14 with `--data-ciphers`, `--auth` and `--verb 7` ("Data Channel
    /// MTU parms").
    #[test]
    fn formats_differ_in_what_they_add() {
        let mss = |protection, size, outer| {
            let mssfix = Some(Mssfix { size, outer, fixed: false });
            let s = Settings { mssfix, ..Settings::default() };
            let link = Link::datagram(Default::default(), None, ([192, 0, 2, 1], 1).into());
            inner_mtu(&s, link, protection).mss4
        };
        let suite = |cipher, digest| Protection::Block(BlockSuite { cipher, digest: Some(digest) });
        let (long, short) = (Some(BlockCipher::Aes256Cbc), Some(BlockCipher::Aes128Cbc));
        for (protection, plain, outer) in [
            (suite(long, Digest::Sha1), 1315, 1187),
            (suite(long, Digest::Sha512), 1267, 1139),
            (suite(None, Digest::Sha256), 1320, 1192),
            (AEAD, 1336, 1208),
        ] {
            let got = (mss(protection, 1400, false), mss(protection, 1300, true));
            assert_eq!(got, (plain, outer), "{protection:?}");
        }
        assert_eq!(mss(suite(short, Digest::Sha256), 1400, false), 1299);
        // These values are derived from the layouts. The epoch format has 4 more bytes of packet
        // id. The static format has a time but no header or peer-id.
        assert_eq!(mss(Protection::Epoch(Cipher::Aes256Gcm), 1400, false), 1336 - 4);
        let secret = BlockSuite { cipher: long, digest: Some(Digest::Sha256) };
        assert_eq!(mss(Protection::Static(secret), 1400, false), 84 * 16 - 1 - 8 - 40);
    }

    /// The output of openvpn 2.6.14 with `--dev tap --verb 7` ("Data Channel MTU parms").
    #[test]
    fn frames_need_room_for_their_header() {
        let mut s = Settings { ethernet: true, ..Settings::default() };
        let with = |size, outer, fixed| Some(Mssfix { size, outer, fixed });
        for (mssfix, tun_mtu, expected) in [
            (None, 1500, 1368),
            (with(1300, false, false), 1500, 1204),
            (with(1300, true, false), 1500, 1176),
            (with(1300, false, true), 1500, 1260),
            (None, 1400, 1360),
            (with(0, false, false), 1500, 0),
        ] {
            (s.mssfix, s.tun_mtu) = (mssfix, tun_mtu);
            assert_eq!(mss(&s, "192.0.2.1:1194").0, expected, "{mssfix:?} {tun_mtu}");
        }
    }

    #[test]
    fn only_exit_is_an_exit_notice() {
        assert!(is_exit_notice(&exit_notice()));
        let mut other = exit_notice();
        other[16] = 0;
        assert!(!is_exit_notice(&other));
        assert!(!is_exit_notice(&OCC_MAGIC));
        assert!(!is_exit_notice(b""));
    }
}
