//! Captures in the pcapng format (draft-ietf-opsawg-pcapng) for Wireshark: one section, little-endian, times in
//! nanoseconds. It does no I/O and appends bytes to a vector.

/// The maximum number of interfaces that a capture distinguishes; packets of further interfaces are assigned to the
/// last.
pub const MAX_INTERFACES: usize = 1024;
/// The maximum length of an option's text in bytes. It bounds a block's length.
const MAX_TEXT: usize = 1024;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// `opt_comment`, which any block may have.
const COMMENT: u16 = 1;
/// `shb_userappl`
const PROGRAM: u16 = 4;
/// `if_name`
const IF_NAME: u16 = 2;
/// `if_tsresol`: 10^-9 seconds.
const IF_RESOLUTION: u16 = 9;
/// `epb_flags`
const FLAGS: u16 = 2;
/// `isb_ifdrop`
const DROPPED: u16 = 5;

/// The header before a packet's network header.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Link {
    /// An Ethernet header (LINKTYPE_ETHERNET).
    Ethernet,
    /// No header. The packet is IPv4 or IPv6, depending on the first four bits (LINKTYPE_RAW).
    Raw,
    /// A header of four bytes, [`family`], followed by the packet as in [`Self::Raw`] (LINKTYPE_NULL). libpcap (1.10)
    /// can read captures of several interfaces only if its own number for the link type is the same as the file's. For
    /// Raw it is not, and libpcap then reports that the second interface has another type.
    Null,
}

/// Returns the header of a packet on [`Link::Null`]: the address family with BSD's numbers, in the byte order of the
/// capture.
pub fn family(packet: &[u8]) -> [u8; 4] {
    match packet.first() {
        Some(first) if first >> 4 == 6 => [24, 0, 0, 0],
        _ => [2, 0, 0, 0],
    }
}

impl Link {
    const fn number(self) -> u16 {
        match self {
            Self::Ethernet => 1,
            Self::Raw => 101,
            Self::Null => 0,
        }
    }
}

/// One captured packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// The time in nanoseconds since 1970.
    pub time: u64,
    /// The name of the interface on which the packet arrived.
    pub interface: &'a str,
    /// The header that the packet begins with.
    pub link: Link,
    /// The captured bytes from the start of the packet.
    pub bytes: &'a [u8],
    /// The packet's original length.
    pub length: u32,
    /// The comment.
    pub comment: &'a str,
}

/// A writer of captures.
#[derive(Debug)]
pub struct Writer {
    /// Interfaces in the order of their numbers.
    interfaces: Vec<(String, Link)>,
}

impl Writer {
    /// Begins a capture by `program`: appends the first block to `out`.
    pub fn new(program: &str, out: &mut Vec<u8>) -> Self {
        block(out, SECTION_HEADER, |body| {
            put32(body, BYTE_ORDER);
            put16(body, 1);
            put16(body, 0);
            // The section's length is unknown.
            body.extend_from_slice(&u64::MAX.to_le_bytes());
            option(body, PROGRAM, program.as_bytes());
            end_of_options(body);
        });
        Self { interfaces: Vec::new() }
    }

    /// Appends one packet, preceded by the description of its interface if it is new.
    pub fn packet(&mut self, packet: &Captured<'_>, out: &mut Vec<u8>) {
        let interface = self.interface(packet.interface, packet.link, out);
        block(out, ENHANCED_PACKET, |body| {
            put32(body, interface);
            put64_halves(body, packet.time);
            let captured = u32::try_from(packet.bytes.len()).unwrap_or(u32::MAX);
            put32(body, captured);
            put32(body, packet.length.max(captured));
            body.extend_from_slice(packet.bytes);
            pad(body);
            if !packet.comment.is_empty() {
                option(body, COMMENT, packet.comment.as_bytes());
            }
            // Inbound: labelled with the interface that it arrived on.
            option(body, FLAGS, &1u32.to_le_bytes());
            end_of_options(body);
        });
    }

    /// Appends the number of packets that were lost before they reached this capture since it began.
    pub fn lost(&mut self, time: u64, lost: u64, out: &mut Vec<u8>) {
        if self.interfaces.is_empty() {
            return;
        }
        block(out, INTERFACE_STATISTICS, |body| {
            put32(body, 0);
            put64_halves(body, time);
            option(body, DROPPED, &lost.to_le_bytes());
            end_of_options(body);
        });
    }

    fn interface(&mut self, name: &str, link: Link, out: &mut Vec<u8>) -> u32 {
        let known = self.interfaces.iter().position(|(n, l)| n == name && *l == link);
        let at = known.unwrap_or_else(|| {
            if self.interfaces.len() >= MAX_INTERFACES
                && let Some(last) = self.interfaces.iter().rposition(|(_, l)| *l == link)
            {
                return last;
            }
            block(out, INTERFACE_DESCRIPTION, |body| {
                put16(body, link.number());
                put16(body, 0);
                // No limit: each packet states its captured length.
                put32(body, 0);
                option(body, IF_NAME, name.as_bytes());
                option(body, IF_RESOLUTION, &[9]);
                end_of_options(body);
            });
            self.interfaces.push((name.to_owned(), link));
            self.interfaces.len().saturating_sub(1)
        });
        u32::try_from(at).unwrap_or(0)
    }
}

/// Appends a block: its type, its length, the output of `fill`, padding, and its length again.
fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    fill(&mut body);
    pad(&mut body);
    let total = u32::try_from(body.len().saturating_add(12)).unwrap_or(u32::MAX);
    put32(out, kind);
    put32(out, total);
    out.extend_from_slice(&body);
    put32(out, total);
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let mut len = value.len().min(MAX_TEXT);
    // The text is UTF-8 and must not end in a partial character.
    while len < value.len() && value.get(len).is_some_and(|byte| byte & 0xc0 == 0x80) {
        len = len.saturating_sub(1);
    }
    let value = value.get(..len).unwrap_or(&[]);
    put16(body, code);
    put16(body, u16::try_from(value.len()).unwrap_or(0));
    body.extend_from_slice(value);
    pad(body);
}

fn end_of_options(body: &mut Vec<u8>) {
    put32(body, 0);
}

/// Pads to a multiple of 4, the alignment of everything in a block and of a block's body.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a time as two halves, the high one first.
fn put64_halves(out: &mut Vec<u8>, value: u64) {
    put32(out, u32::try_from(value >> 32).unwrap_or(0));
    put32(out, u32::try_from(value & 0xffff_ffff).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reader that was written only from the specification.
    mod reader {
        #[derive(Debug, Default)]
        pub(super) struct Packet {
            pub interface: u32,
            pub time: u64,
            pub bytes: Vec<u8>,
            pub length: u32,
            pub options: Vec<(u16, Vec<u8>)>,
        }

        #[derive(Debug, Default)]
        pub(super) struct Capture {
            pub program: String,
            /// Link type, snapshot length, name, resolution.
            pub interfaces: Vec<(u16, u32, String, u8)>,
            pub packets: Vec<Packet>,
            pub dropped: Option<u64>,
        }

        fn le16(b: &[u8], at: usize) -> u16 {
            u16::from_le_bytes(b[at..at + 2].try_into().unwrap())
        }

        fn le32(b: &[u8], at: usize) -> u32 {
            u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
        }

        fn options(mut b: &[u8]) -> Vec<(u16, Vec<u8>)> {
            let mut all = Vec::new();
            loop {
                let (code, len) = (le16(b, 0), usize::from(le16(b, 2)));
                if code == 0 {
                    assert_eq!((len, b.len()), (0, 4), "the end is the end");
                    return all;
                }
                all.push((code, b[4..4 + len].to_vec()));
                b = &b[4 + len.next_multiple_of(4)..];
            }
        }

        fn of(options: &[(u16, Vec<u8>)], code: u16) -> Vec<u8> {
            options.iter().find(|(c, _)| *c == code).map(|(_, v)| v.clone()).unwrap_or_default()
        }

        pub(super) fn read(mut b: &[u8]) -> Capture {
            let mut capture = Capture::default();
            let mut first = true;
            while !b.is_empty() {
                let (kind, total) = (le32(b, 0), le32(b, 4) as usize);
                assert_eq!(total % 4, 0);
                assert_eq!(le32(b, total - 4) as usize, total, "the length stands twice");
                let body = &b[8..total - 4];
                assert_eq!(first, kind == 0x0a0d_0d0a);
                match kind {
                    0x0a0d_0d0a => {
                        assert_eq!(le32(body, 0), 0x1a2b_3c4d);
                        assert_eq!((le16(body, 4), le16(body, 6)), (1, 0));
                        assert_eq!(&body[8..16], &[0xff; 8]);
                        capture.program = String::from_utf8(of(&options(&body[16..]), 4)).unwrap();
                    }
                    1 => {
                        let options = options(&body[8..]);
                        let name = String::from_utf8(of(&options, 2)).unwrap();
                        let resolution = of(&options, 9)[0];
                        capture.interfaces.push((le16(body, 0), le32(body, 4), name, resolution));
                    }
                    5 => {
                        let dropped = of(&options(&body[12..]), 5);
                        capture.dropped = Some(u64::from_le_bytes(dropped.try_into().unwrap()));
                    }
                    6 => {
                        let len = le32(body, 12) as usize;
                        let interface = le32(body, 0);
                        assert!(
                            (interface as usize) < capture.interfaces.len(),
                            "described before"
                        );
                        capture.packets.push(Packet {
                            interface,
                            time: u64::from(le32(body, 4)) << 32 | u64::from(le32(body, 8)),
                            bytes: body[20..20 + len].to_vec(),
                            length: le32(body, 16),
                            options: options(&body[20 + len.next_multiple_of(4)..]),
                        });
                    }
                    other => panic!("block {other}"),
                }
                b = &b[total..];
                first = false;
            }
            capture
        }
    }

    #[test]
    fn a_capture_reads_back() {
        let mut out = Vec::new();
        let mut writer = Writer::new("adit 1.2.3", &mut out);
        let packet = Captured {
            time: 1_700_000_000_123_456_789,
            interface: "tun0",
            link: Link::Raw,
            bytes: &[0x45, 0, 0, 21, 9],
            length: 21,
            comment: "denied: rule 7",
        };
        writer.packet(&packet, &mut out);
        writer.packet(&Captured { interface: "eth1", link: Link::Ethernet, ..packet }, &mut out);
        writer.packet(&Captured { comment: "", time: 5, ..packet }, &mut out);
        writer.lost(9, 3, &mut out);
        let capture = reader::read(&out);
        assert_eq!(capture.program, "adit 1.2.3");
        let interfaces = [(101, 0, "tun0".to_owned(), 9), (1, 0, "eth1".to_owned(), 9)];
        assert_eq!(capture.interfaces, interfaces);
        let [a, b, c] = &capture.packets[..] else { panic!("{capture:?}") };
        assert_eq!((a.interface, b.interface, c.interface), (0, 1, 0));
        assert_eq!((a.time, c.time), (packet.time, 5));
        assert_eq!((&a.bytes[..], a.length), (packet.bytes, 21));
        assert_eq!(a.options, [(1, b"denied: rule 7".to_vec()), (2, vec![1, 0, 0, 0])]);
        assert_eq!(c.options, [(2, vec![1, 0, 0, 0])]);
        assert_eq!(capture.dropped, Some(3));
    }

    #[test]
    fn interfaces_and_texts_are_bounded() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&"ä".repeat(2000), &mut out);
        let names: Vec<String> = (0..MAX_INTERFACES + 36).map(|n| format!("eth{n}")).collect();
        for name in &names {
            let (link, comment) = (Link::Raw, "é€".repeat(1000));
            let packet = Captured {
                time: 0,
                interface: name,
                link,
                bytes: &[],
                length: 0,
                comment: &comment,
            };
            writer.packet(&packet, &mut out);
        }
        let capture = reader::read(&out);
        assert_eq!(capture.interfaces.len(), MAX_INTERFACES);
        let last = capture.packets.last().unwrap().interface;
        assert_eq!(usize::try_from(last).unwrap(), MAX_INTERFACES - 1);
        for packet in &capture.packets {
            let comment = std::str::from_utf8(&packet.options[0].1).unwrap();
            assert!(comment.len() <= MAX_TEXT && comment.len() > MAX_TEXT - 4);
        }
        assert!(capture.program.starts_with('ä') && capture.program.len() <= MAX_TEXT);
    }

    proptest! {
        #[test]
        fn whatever_is_written_reads_back(
            packets in proptest::collection::vec(
                (any::<u64>(), "[a-z0-9]{0,15}", any::<bool>(),
                 proptest::collection::vec(any::<u8>(), 0..90), any::<u16>(), "\\PC{0,40}"), 0..20),
        ) {
            let mut out = Vec::new();
            let mut writer = Writer::new("adit", &mut out);
            for (time, interface, ether, bytes, more, comment) in &packets {
                let link = if *ether { Link::Ethernet } else { Link::Raw };
                let length = bytes.len() as u32 + u32::from(*more);
                writer.packet(
                    &Captured { time: *time, interface, link, bytes, length, comment }, &mut out);
            }
            let capture = reader::read(&out);
            prop_assert_eq!(capture.packets.len(), packets.len());
            for (read, (time, name, ether, bytes, more, comment)) in
                capture.packets.iter().zip(&packets)
            {
                let interface = &capture.interfaces[read.interface as usize];
                prop_assert_eq!(&interface.2, name);
                prop_assert_eq!(interface.0 == 1, *ether);
                prop_assert_eq!((read.time, &read.bytes), (*time, bytes));
                prop_assert_eq!(read.length, bytes.len() as u32 + u32::from(*more));
                let said = read.options.iter().find(|(code, _)| *code == 1);
                prop_assert_eq!(said.map_or(&[][..], |(_, text)| text), comment.as_bytes());
            }
        }
    }
}
