//! The log lines of plain `log` statements, one per event, at a limited rate.

use adit_filter::firewall::LogRecord;
use adit_filter::packet::{Layer, Network, Packet, Transport};
use adit_filter::{IfName, Nanos};
use adit_wire::VnetHeader;

use crate::say;

/// The maximum number of lines per second on average, and in a burst.
const PER_SECOND: u64 = 10;
const BURST: u64 = 50;
const SECOND: u64 = 1_000_000_000;

/// Writes lines at a limited rate.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The time until which the rate is used up (generic cell rate algorithm).
    paid: u64,
    /// The number of omitted lines since the last report.
    left_out: u64,
    /// The number of omitted lines since the start.
    pub lost: u64,
    told: u64,
}

impl Lines {
    pub(super) fn write(&mut self, record: &LogRecord) {
        if self.may(record.at) {
            say!(1, "filter: {}", text(record));
        } else {
            self.left_out = self.left_out.saturating_add(1);
            self.lost = self.lost.saturating_add(1);
        }
    }

    fn may(&mut self, at: Nanos) -> bool {
        let owed = self.paid.max(at.0).saturating_add(SECOND / PER_SECOND);
        let within = owed.saturating_sub(at.0) <= BURST * SECOND / PER_SECOND;
        if within {
            self.paid = owed;
        }
        within
    }

    /// Logs the number of omitted lines, at most every ten seconds.
    pub(super) fn tell(&mut self, moment: Nanos) {
        if self.left_out > 0 && moment.0.saturating_sub(self.told) >= 10 * SECOND {
            self.told = moment.0;
            say!(1, "filter: {} lines more were left out", std::mem::take(&mut self.left_out));
        }
    }
}

/// Formats one record as a line. Its prefix comes from the rule file; everything else in it is a
/// number.
fn text(record: &LogRecord) -> String {
    let prefix: String = record.prefix.trim_end().chars().flat_map(char::escape_debug).collect();
    let space = if prefix.is_empty() { "" } else { " " };
    let (iif, oif) = (name(record.iif), name(record.oif));
    let what = summary(record);
    format!("{prefix}{space}{iif} > {oif}: {what}, {} bytes, rule {}", record.length, record.rule)
}

/// Returns an interface's name, or `?` if there is none.
pub(super) fn name(name: IfName) -> String {
    let bytes = name.0.to_be_bytes();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    match String::from_utf8_lossy(text).escape_debug().to_string() {
        none if none.is_empty() => "?".into(),
        some => some,
    }
}

/// Rebuilds the frame as it was on the wire, with its outermost VLAN tag.
pub(super) fn on_the_wire(record: &LogRecord) -> Vec<u8> {
    let (Some(vlan), Some((addresses, rest))) = (record.vlan, record.bytes.split_at_checked(12))
    else {
        return record.bytes.to_vec();
    };
    [addresses, &[0x81, 0], &vlan.to_be_bytes(), rest].concat()
}

/// Summarizes a packet in a few words. Only its first bytes were kept, which are sufficient.
fn summary(record: &LogRecord) -> String {
    let mut bytes = record.bytes.to_vec();
    bytes.resize(record.length, 0);
    let known = VnetHeader { needs_csum: true, ..VnetHeader::default() };
    match Packet::parse(&bytes, record.layer, record.vlan, &known) {
        Ok(packet) => describe(&packet),
        Err(_) if record.layer == Layer::Ethernet => "a frame".into(),
        Err(_) => "a packet".into(),
    }
}

fn describe(packet: &Packet<'_>) -> String {
    let Network::Ip(ip) = &packet.network else {
        let kind = packet.ether.map_or(0, |ether| ether.ethertype);
        return match packet.network {
            Network::Arp(_) => "ARP".into(),
            _ => format!("EtherType 0x{kind:04x}"),
        };
    };
    let (source, destination) = (ip.source, ip.destination);
    let ports = |ports: u32| (ports >> 16, ports & 0xffff);
    match &packet.transport {
        Transport::Tcp(tcp) => {
            let (from, to) = ports(tcp.ports);
            format!("TCP {source} {from} > {destination} {to}{}", flags(tcp.flags))
        }
        Transport::Udp(udp) => {
            let (from, to) = ports(udp.ports);
            format!("UDP {source} {from} > {destination} {to}")
        }
        Transport::Icmp(icmp) => {
            let version = if source.is_ipv4() { "ICMP" } else { "ICMPv6" };
            format!("{version} {source} > {destination} type {} code {}", icmp.kind, icmp.code)
        }
        Transport::Other | Transport::None => {
            format!("protocol {} {source} > {destination}", ip.protocol)
        }
    }
}

fn flags(flags: u8) -> String {
    let names = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
    let set = names.iter().enumerate().filter(|(bit, _)| flags & (1 << bit) != 0);
    set.fold(String::new(), |text, (_, name)| text + " " + name)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const UDP: [u8; 32] = [
        0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0x66, 0xcb, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0, 0,
        53, 0, 12, 0, 0, 1, 2, 3, 4,
    ];

    fn record(prefix: &str, kept: usize) -> LogRecord {
        LogRecord {
            at: Nanos(10 * SECOND),
            rule: 7,
            prefix: prefix.into(),
            group: None,
            layer: Layer::Ip,
            vlan: None,
            iif: IfName::new("tun0"),
            oif: IfName::new("host"),
            length: UDP.len(),
            bytes: UDP[..kept].into(),
        }
    }

    #[test]
    fn a_line_is_one_line_and_says_what_it_was() {
        assert_eq!(
            text(&record("a\nb\u{1b}[2J ", 28)),
            "a\\nb\\u{1b}[2J tun0 > host: UDP 10.0.0.1 4000 > 10.0.0.2 53, 32 bytes, rule 7"
        );
        assert_eq!(text(&record("", 10)), "tun0 > host: a packet, 32 bytes, rule 7");
        assert_eq!(name(IfName::default()), "?");
    }

    #[test]
    fn lines_keep_to_a_rate() {
        let mut lines = Lines::default();
        let taken = (0..1000).filter(|_| lines.may(Nanos(10 * SECOND))).count() as u64;
        assert_eq!(taken, BURST);
        assert_eq!((0..9).filter(|_| lines.may(Nanos(11 * SECOND))).count(), 9);
        (0..100).for_each(|_| lines.write(&record("", 28)));
        assert_eq!(lines.lost, 100);
    }

    #[test]
    fn a_tag_that_was_apart_from_the_frame_is_put_back() {
        let frame = [&[0xff; 12][..], &[0x86, 0xdd, 9]].concat();
        let record = LogRecord {
            layer: Layer::Ethernet,
            vlan: Some(5),
            length: 15,
            bytes: frame.clone().into(),
            ..record("", 0)
        };
        let whole = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
        assert_eq!(on_the_wire(&record), whole);
    }
}
