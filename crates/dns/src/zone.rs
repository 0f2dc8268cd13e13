//! The names of a network that this machine itself knows, and answers about them.
//!
//! The zone answers for its own names and for the addresses in its networks. Everything else is for another server.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use simple_dns::rdata::{A, AAAA, OPT, PTR, RData, SOA};
use simple_dns::{
    CLASS, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord, TYPE,
    header_buffer,
};

use super::canonical;

/// The longest datagram without EDNS (RFC 1035).
const MAX_PLAIN: usize = 512;

/// The longest datagram to send. It fits every path (DNS flag day 2020).
const MAX_DATAGRAM: usize = 1232;

/// How long an answer may be kept, in seconds. Members come and go.
const TTL: u32 = 10;

/// A network whose addresses belong to a zone.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first address.
    pub address: IpAddr,
    /// The length of its prefix.
    pub prefix_len: u8,
}

/// The names of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The domain, in lower case without a final dot.
    origin: String,
    /// The addresses of each host, by the host's name in the domain.
    hosts: BTreeMap<String, Vec<IpAddr>>,
    names: BTreeMap<IpAddr, String>,
    ranges: Vec<Range>,
}

/// The reaction to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Send this answer.
    Answer(Vec<u8>),
    /// Ask another server: the name is not the zone's.
    Forward,
    /// Send nothing: it is not a query.
    Ignore,
}

/// The transport of a query.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Datagrams, in which a long answer is truncated.
    Udp,
    /// A stream.
    Tcp,
}

impl Zone {
    /// Creates a zone with these hosts, whose addresses are in these networks.
    pub fn new(
        origin: &str,
        hosts: impl IntoIterator<Item = (String, Vec<IpAddr>)>,
        ranges: Vec<Range>,
    ) -> Self {
        let hosts: BTreeMap<String, Vec<IpAddr>> =
            hosts.into_iter().map(|(name, addresses)| (canonical(&name), addresses)).collect();
        let names = hosts.iter().flat_map(|(name, addresses)| {
            addresses.iter().map(move |address| (*address, name.clone()))
        });
        Self { origin: canonical(origin), names: names.collect(), hosts, ranges }
    }

    /// Returns the domain.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Answers a query.
    pub fn answer(&self, query: &[u8], over: Over) -> Reply {
        let is_response = header_buffer::has_flags(query, PacketFlag::RESPONSE);
        let (Ok(id), Ok(false)) = (header_buffer::id(query), is_response) else {
            return Reply::Ignore;
        };
        if header_buffer::questions(query) != Ok(1) {
            return refuse(id, RCODE::FormatError);
        }
        let Ok(packet) = Packet::parse(query) else { return refuse(id, RCODE::FormatError) };
        if packet.opcode() != OPCODE::StandardQuery {
            return refuse(id, RCODE::NotImplemented);
        }
        let [question] = packet.questions.as_slice() else {
            return refuse(id, RCODE::FormatError);
        };
        let name = canonical(&question.qname.to_string());
        let Some(found) = self.find(&name) else { return Reply::Forward };
        if !matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY) {
            return refuse(id, RCODE::Refused);
        }
        let mut reply = Packet::new_reply(id);
        reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
        if packet.has_flags(PacketFlag::RECURSION_DESIRED) {
            reply.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        reply.questions.push(question.clone());
        if packet.opt().is_some() {
            let size = u16::try_from(MAX_DATAGRAM).unwrap_or(u16::MAX);
            *reply.opt_mut() =
                Some(OPT { opt_codes: Vec::new(), udp_packet_size: size, version: 0 });
        }
        let records = found.records(question.qtype);
        if matches!(found, Found::Nothing) {
            *reply.rcode_mut() = RCODE::NameError;
        }
        for data in &records {
            let data = match data {
                Data::Address(IpAddr::V4(v4)) => RData::A(A { address: u32::from(*v4) }),
                Data::Address(IpAddr::V6(v6)) => RData::AAAA(AAAA { address: u128::from(*v6) }),
                Data::Name(host) => match Name::new(host) {
                    Ok(name) => RData::PTR(PTR(name)),
                    Err(_) => continue,
                },
            };
            let owner = question.qname.clone();
            reply.answers.push(ResourceRecord::new(owner, CLASS::IN, TTL, data));
        }
        if reply.answers.is_empty()
            && let Some(soa) = self.soa()
        {
            reply.name_servers.push(soa);
        }
        self.encode(&reply, packet.opt(), over)
    }

    fn encode(&self, reply: &Packet<'_>, opt: Option<&OPT<'_>>, over: Over) -> Reply {
        let Ok(bytes) = reply.build_bytes_vec_compressed() else {
            return refuse(reply.id(), RCODE::ServerFailure);
        };
        let theirs = opt.map_or(MAX_PLAIN, |opt| usize::from(opt.udp_packet_size));
        let most = theirs.clamp(MAX_PLAIN, MAX_DATAGRAM);
        if over == Over::Tcp || bytes.len() <= most {
            return Reply::Answer(bytes);
        }
        let mut short = Packet::new_reply(reply.id());
        short.set_flags(PacketFlag::AUTHORITATIVE_ANSWER | PacketFlag::TRUNCATION);
        short.questions.clone_from(&reply.questions);
        match short.build_bytes_vec() {
            Ok(bytes) => Reply::Answer(bytes),
            Err(_) => refuse(reply.id(), RCODE::ServerFailure),
        }
    }

    /// Returns the zone's records for a name; `None` if the name is outside the zone.
    fn find(&self, name: &str) -> Option<Found<'_>> {
        if let Some(address) = reverse(name) {
            if !self.ranges.iter().any(|range| range.contains(address)) {
                return None;
            }
            return Some(match self.names.get(&address) {
                Some(host) => Found::Name(format!("{host}.{}", self.origin)),
                None => Found::Nothing,
            });
        }
        if name == self.origin {
            return Some(Found::Addresses(&[]));
        }
        let host = name.strip_suffix(&self.origin)?.strip_suffix('.')?;
        Some(self.hosts.get(host).map_or(Found::Nothing, |it| Found::Addresses(it)))
    }

    /// Returns the record that limits the caching of negative answers to a short time (RFC 2308).
    fn soa(&self) -> Option<ResourceRecord<'_>> {
        let origin = Name::new(&self.origin).ok()?;
        let minimum = TTL;
        let soa = SOA {
            mname: origin.clone(),
            rname: origin.clone(),
            serial: 1,
            refresh: 3600,
            retry: 600,
            expire: 86_400,
            minimum,
        };
        Some(ResourceRecord::new(origin, CLASS::IN, TTL, RData::SOA(soa)))
    }
}

enum Found<'a> {
    /// The name does not exist.
    Nothing,
    Addresses(&'a [IpAddr]),
    Name(String),
}

enum Data {
    Address(IpAddr),
    Name(String),
}

impl Found<'_> {
    /// Returns the records of a type.
    fn records(&self, wanted: QTYPE) -> Vec<Data> {
        let of = |kind| wanted == QTYPE::TYPE(kind) || wanted == QTYPE::ANY;
        match self {
            Self::Nothing => Vec::new(),
            Self::Name(name) if of(TYPE::PTR) => vec![Data::Name(name.clone())],
            Self::Name(_) => Vec::new(),
            Self::Addresses(addresses) => {
                let kind = |ip: &IpAddr| if ip.is_ipv4() { TYPE::A } else { TYPE::AAAA };
                let matching = addresses.iter().filter(|ip| of(kind(ip)));
                matching.map(|ip| Data::Address(*ip)).collect()
            }
        }
    }
}

impl Range {
    fn contains(self, other: IpAddr) -> bool {
        let same = |a: u128, b: u128, bits: u8| {
            let shift = u32::from(bits.saturating_sub(self.prefix_len));
            a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
        };
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(u32::from(own).into(), u32::from(other).into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.into(), other.into(), 128),
            _ => false,
        }
    }
}

/// Returns the answer that refuses a query.
pub fn refused(query: &[u8]) -> Option<Vec<u8>> {
    match refuse(header_buffer::id(query).ok()?, RCODE::Refused) {
        Reply::Answer(bytes) => Some(bytes),
        Reply::Forward | Reply::Ignore => None,
    }
}

fn refuse(id: u16, why: RCODE) -> Reply {
    let mut reply = Packet::new_reply(id);
    *reply.rcode_mut() = why;
    reply.build_bytes_vec().map_or(Reply::Ignore, Reply::Answer)
}

/// Returns the address that a name of `in-addr.arpa` or `ip6.arpa` names.
fn reverse(name: &str) -> Option<IpAddr> {
    if let Some(octets) = name.strip_suffix(".in-addr.arpa") {
        let mut octets: Vec<u8> =
            octets.split('.').map(|octet| octet.parse().ok()).collect::<Option<_>>()?;
        octets.reverse();
        return <[u8; 4]>::try_from(octets).ok().map(|octets| Ipv4Addr::from(octets).into());
    }
    let digits = name.strip_suffix(".ip6.arpa")?.split('.');
    let mut digits: Vec<u8> = digits
        .map(|digit| {
            u8::from_str_radix(digit, 16).ok().filter(|value| digit.len() == 1 && *value < 16)
        })
        .collect::<Option<_>>()?;
    digits.reverse();
    let (pairs, rest) = digits.as_chunks::<2>();
    let octets: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    let octets = <[u8; 16]>::try_from(octets).ok().filter(|_| rest.is_empty())?;
    Some(Ipv6Addr::from(octets).into())
}

/// Answers a query of an arbitrary sender, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let host = |ip: &[u8]| match ip {
        [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d])),
        _ => None,
    };
    let addresses: Vec<IpAddr> = host(&[100, 87, 0, 1]).into_iter().collect();
    let range = Range { address: IpAddr::from([100, 87, 0, 0]), prefix_len: 16 };
    let zone = Zone::new("home.internal", [("hub".to_owned(), addresses)], vec![range]);
    for over in [Over::Udp, Over::Tcp] {
        if let Reply::Answer(answer) = zone.answer(bytes, over) {
            assert!(Packet::parse(&answer).is_ok(), "an answer that is not a message");
            assert!(over == Over::Tcp || answer.len() <= MAX_DATAGRAM);
            assert_eq!(answer.get(..2), bytes.get(..2));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simple_dns::Question;

    use super::*;

    fn zone() -> Zone {
        let hub = vec!["100.87.0.1".parse().unwrap(), "fd00:1::1".parse().unwrap()];
        let v4 = Range { address: "100.87.0.0".parse().unwrap(), prefix_len: 16 };
        let v6 = Range { address: "fd00:1::".parse().unwrap(), prefix_len: 64 };
        Zone::new("Home.internal.", [("Hub".into(), hub)], vec![v4, v6])
    }

    fn query(name: &str, kind: TYPE) -> Vec<u8> {
        let mut packet = Packet::new_query(7);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let class = QCLASS::CLASS(CLASS::IN);
        packet.questions.push(Question::new(
            Name::new_unchecked(name),
            QTYPE::TYPE(kind),
            class,
            false,
        ));
        packet.build_bytes_vec().unwrap()
    }

    /// Returns the response code, and the answers as text.
    fn ask(name: &str, kind: TYPE) -> (RCODE, Vec<String>) {
        let Reply::Answer(bytes) = zone().answer(&query(name, kind), Over::Udp) else {
            panic!("no answer about {name}");
        };
        let packet = Packet::parse(&bytes).unwrap();
        assert!(packet.has_flags(PacketFlag::RESPONSE | PacketFlag::AUTHORITATIVE_ANSWER));
        assert_eq!((packet.id(), packet.questions.len()), (7, 1));
        assert_eq!(packet.name_servers.len(), usize::from(packet.answers.is_empty()));
        let answers = packet.answers.iter().map(|record| match &record.rdata {
            RData::A(a) => Ipv4Addr::from(a.address).to_string(),
            RData::AAAA(a) => Ipv6Addr::from(a.address).to_string(),
            RData::PTR(name) => name.0.to_string(),
            other => panic!("{other:?}"),
        });
        (packet.rcode(), answers.collect())
    }

    #[test]
    fn hosts_have_addresses_and_addresses_have_names() {
        let found = |answer: &str| (RCODE::NoError, vec![answer.to_owned()]);
        assert_eq!(ask("hub.home.internal", TYPE::A), found("100.87.0.1"));
        assert_eq!(ask("HUB.Home.Internal", TYPE::AAAA), found("fd00:1::1"));
        assert_eq!(ask("1.0.87.100.in-addr.arpa", TYPE::PTR), found("hub.home.internal"));
        let six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.d.f.ip6.arpa";
        assert_eq!(ask(six, TYPE::PTR), found("hub.home.internal"));
    }

    #[test]
    fn a_name_without_a_record_is_told_apart_from_one_that_does_not_exist() {
        for name in ["web.home.internal", "a.hub.home.internal", "2.0.87.100.in-addr.arpa"] {
            assert_eq!(ask(name, TYPE::A), (RCODE::NameError, Vec::new()), "{name}");
        }
        assert_eq!(ask("hub.home.internal", TYPE::MX), (RCODE::NoError, Vec::new()));
        assert_eq!(ask("home.internal", TYPE::A), (RCODE::NoError, Vec::new()));
    }

    #[test]
    fn other_names_are_for_another_server() {
        for name in [
            "example.org",
            "internal",
            "xhome.internal",
            "1.0.88.100.in-addr.arpa",
            "87.100.in-addr.arpa",
            "x.in-addr.arpa",
        ] {
            assert_eq!(zone().answer(&query(name, TYPE::A), Over::Udp), Reply::Forward, "{name}");
        }
    }

    #[test]
    fn what_is_no_query_gets_no_answer_and_a_wrong_one_is_refused() {
        let rcode = |bytes: &[u8]| match zone().answer(bytes, Over::Udp) {
            Reply::Answer(bytes) => Some(Packet::parse(&bytes).unwrap().rcode()),
            _ => None,
        };
        let mut response = query("hub.home.internal", TYPE::A);
        response[2] |= 0x80;
        assert_eq!(zone().answer(&response, Over::Udp), Reply::Ignore);
        assert_eq!(zone().answer(&[0; 11], Over::Udp), Reply::Ignore);
        let mut update = query("hub.home.internal", TYPE::A);
        update[2] |= 5 << 3;
        assert_eq!(rcode(&update), Some(RCODE::NotImplemented));
        assert_eq!(rcode(&[0; 12]), Some(RCODE::FormatError), "no question");
        let cut = query("hub.home.internal", TYPE::A);
        assert_eq!(rcode(&cut[..cut.len() - 3]), Some(RCODE::FormatError));
        let mut chaos = query("hub.home.internal", TYPE::A);
        *chaos.last_mut().unwrap() = 3;
        assert_eq!(rcode(&chaos), Some(RCODE::Refused));
        let refused = refused(&query("example.org", TYPE::A)).unwrap();
        assert_eq!(Packet::parse(&refused).unwrap().rcode(), RCODE::Refused);
    }

    #[test]
    fn an_answer_that_does_not_fit_a_datagram_is_truncated_and_is_whole_over_tcp() {
        let many: Vec<IpAddr> = (0..100).map(|n| IpAddr::from([100, 87, 1, n])).collect();
        let zone = Zone::new("home.internal", [("hub".into(), many)], Vec::new());
        let query = query("hub.home.internal", TYPE::A);
        let Reply::Answer(short) = zone.answer(&query, Over::Udp) else { panic!("no answer") };
        assert!(short.len() <= MAX_PLAIN);
        assert!(Packet::parse(&short).unwrap().has_flags(PacketFlag::TRUNCATION));
        let Reply::Answer(whole) = zone.answer(&query, Over::Tcp) else { panic!("no answer") };
        assert_eq!(Packet::parse(&whole).unwrap().answers.len(), 100);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_or_ignored(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            fuzz(&bytes);
        }

        #[test]
        fn a_damaged_query_is_answered_or_ignored(at in 0..30_usize, value: u8) {
            let mut bytes = query("hub.home.internal", TYPE::A);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            fuzz(&bytes);
        }
    }
}
