//! Domain names, and DNS messages for a client that resolves its server's name itself: builds address queries and
//! validates answers. No I/O; `simple-dns` reads and writes the messages.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

mod domain_name;
pub mod zone;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use simple_dns::rdata::RData;
use simple_dns::{
    CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE,
    header_buffer,
};

pub use domain_name::DomainName;

/// The maximum number of addresses taken from one answer.
pub const MAX_ADDRESSES: usize = 16;

/// The maximum number of aliases followed within one answer.
const MAX_ALIASES: usize = 8;

/// The maximum number of records read in one section of an answer.
const MAX_RECORDS: u16 = 128;

/// Whether answers must be validated.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dnssec {
    /// Answers that cannot be validated are refused.
    Required,
    /// Answers are validated if the server supports it.
    Optional,
    /// Answers are not validated.
    Off,
}

/// The type of record that is queried: the address family.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// IPv4.
    A,
    /// IPv6.
    Aaaa,
}

/// The result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The name's addresses. If empty, the name exists without an address of this family.
    Addresses(Vec<IpAddr>),
    /// The name does not exist.
    NoSuchName,
    /// The server cannot or will not answer; holds the response code.
    Failed(u8),
    /// The answer does not fit into a datagram and must be requested over TCP.
    Truncated,
}

impl RecordType {
    fn query(self) -> QTYPE {
        QTYPE::TYPE(match self {
            Self::A => TYPE::A,
            Self::Aaaa => TYPE::AAAA,
        })
    }

    fn address(self, record: &ResourceRecord<'_>) -> Option<IpAddr> {
        match (self, &record.rdata) {
            (Self::A, RData::A(a)) => Some(Ipv4Addr::from(a.address).into()),
            (Self::Aaaa, RData::AAAA(a)) => Some(Ipv6Addr::from(a.address).into()),
            _ => None,
        }
    }
}

/// Builds a query, or returns `None` if the name is not valid.
pub fn build_query(id: u16, name: &str, record_type: RecordType) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).ok()?;
    let class = QCLASS::CLASS(CLASS::IN);
    packet.questions.push(Question::new(name, record_type.query(), class, false));
    packet.build_bytes_vec().ok()
}

/// Parses a message as the answer to [`build_query`], or returns `None` if it is not one.
pub fn parse_answer(bytes: &[u8], id: u16, name: &str, record_type: RecordType) -> Option<Answer> {
    // The counts are checked first, because memory is reserved according to them.
    let counts = [
        header_buffer::questions(bytes).ok()?,
        header_buffer::answers(bytes).ok()?,
        header_buffer::name_servers(bytes).ok()?,
        header_buffer::additional_records(bytes).ok()?,
    ];
    if counts.iter().any(|count| *count > MAX_RECORDS) || header_buffer::id(bytes).ok()? != id {
        return None;
    }
    let truncated = header_buffer::has_flags(bytes, PacketFlag::TRUNCATION).ok()?;
    let is_response = header_buffer::has_flags(bytes, PacketFlag::RESPONSE).ok()?;
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        // The message ends within a record. The query is repeated to the same server over TCP.
        Err(_) if truncated && counts.first() == Some(&1) && is_response => {
            return Some(Answer::Truncated);
        }
        Err(_) => return None,
    };
    let [question] = packet.questions.as_slice() else { return None };
    let asked = question.qtype == record_type.query()
        && question.qclass == QCLASS::CLASS(CLASS::IN)
        && same(&question.qname, name);
    if !asked || !is_response {
        return None;
    }
    match packet.rcode() {
        RCODE::NoError if truncated => Some(Answer::Truncated),
        RCODE::NoError => {
            Some(Answer::Addresses(follow_aliases(&packet.answers, name, record_type)))
        }
        RCODE::NameError => Some(Answer::NoSuchName),
        other => Some(Answer::Failed(other as u8)),
    }
}

/// Returns the addresses of a name, or of the name that it is an alias for.
fn follow_aliases(
    records: &[ResourceRecord<'_>],
    name: &str,
    record_type: RecordType,
) -> Vec<IpAddr> {
    let mut current = canonical(name);
    for _ in 0..MAX_ALIASES {
        let of_name = || {
            let class = records.iter().filter(|record| record.class == CLASS::IN);
            class.filter(|record| same(&record.name, &current))
        };
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in of_name().filter_map(|record| record_type.address(record)) {
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if !addresses.is_empty() {
            return addresses;
        }
        let alias = of_name().find_map(|record| match &record.rdata {
            RData::CNAME(target) => Some(canonical(&target.0.to_string())),
            _ => None,
        });
        match alias {
            Some(alias) => current = alias,
            None => break,
        }
    }
    Vec::new()
}

fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn same(name: &Name<'_>, other: &str) -> bool {
    canonical(&name.to_string()) == canonical(other)
}

/// Parses an answer as if it came from an arbitrary sender, for the fuzzer.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let id = bytes.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    for record_type in [RecordType::A, RecordType::Aaaa] {
        if let Some(Answer::Addresses(addresses)) =
            parse_answer(bytes, id, "vpn.example", record_type)
        {
            assert!(addresses.len() <= MAX_ADDRESSES);
            assert!(addresses.iter().all(|ip| ip.is_ipv4() == (record_type == RecordType::A)));
        }
        assert_eq!(parse_answer(bytes, id.wrapping_add(1), "vpn.example", record_type), None);
    }
}

#[cfg(test)]
mod tests {
    use simple_dns::rdata::{A, AAAA, CNAME};

    use super::*;

    const NAME: &str = "vpn.example";

    fn record(owner: &'static str, rdata: RData<'static>) -> ResourceRecord<'static> {
        ResourceRecord::new(Name::new_unchecked(owner), CLASS::IN, 60, rdata)
    }

    fn a(last: u8) -> RData<'static> {
        RData::A(A { address: u32::from_be_bytes([192, 0, 2, last]) })
    }

    fn alias(target: &'static str) -> RData<'static> {
        RData::CNAME(CNAME(Name::new_unchecked(target)))
    }

    fn reply(change: impl FnOnce(&mut Packet<'static>)) -> Vec<u8> {
        let mut packet = Packet::new_reply(7);
        packet.set_flags(PacketFlag::RESPONSE);
        let name = Name::new_unchecked("VPN.Example");
        let class = QCLASS::CLASS(CLASS::IN);
        packet.questions.push(Question::new(name, RecordType::A.query(), class, false));
        change(&mut packet);
        packet.build_bytes_vec().unwrap()
    }

    fn read(bytes: &[u8]) -> Option<Answer> {
        parse_answer(bytes, 7, NAME, RecordType::A)
    }

    fn ips(ips: &[&str]) -> Option<Answer> {
        Some(Answer::Addresses(ips.iter().map(|ip| ip.parse().unwrap()).collect()))
    }

    #[test]
    fn a_query_has_one_question_and_asks_for_recursion() {
        let bytes = build_query(0x1234, NAME, RecordType::Aaaa).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.id(), packet.questions.len()), (0x1234, 1));
        assert!(packet.has_flags(PacketFlag::RECURSION_DESIRED));
        assert_eq!(read(&bytes), None, "a query is no answer");
        assert_eq!(build_query(1, &"a".repeat(64), RecordType::A), None);
    }

    #[test]
    fn addresses_of_the_name_and_its_aliases_are_taken() {
        let bytes = reply(|packet| {
            packet.answers.push(record("vpn.example", alias("a.example")));
            packet.answers.push(record("b.example", a(1)));
            packet.answers.push(record("a.example", alias("B.example")));
            packet.answers.push(record("other.example", a(9)));
            let v6 = RData::AAAA(AAAA { address: 1 });
            packet.answers.push(record("b.example", v6));
            packet.answers.push(record("b.example", a(1)));
            packet.answers.push(record("b.example", a(2)));
        });
        assert_eq!(read(&bytes), ips(&["192.0.2.1", "192.0.2.2"]));
        let ring = reply(|packet| {
            packet.answers.push(record("vpn.example", alias("a.example")));
            packet.answers.push(record("a.example", alias("vpn.example")));
        });
        assert_eq!(read(&ring), ips(&[]));
        let many = reply(|packet| {
            packet.answers.extend((0..40).map(|last| record("vpn.example", a(last))));
        });
        assert!(matches!(read(&many), Some(Answer::Addresses(all)) if all.len() == MAX_ADDRESSES));
    }

    #[test]
    fn answers_to_other_questions_are_not_ours() {
        let fine = reply(|packet| packet.answers.push(record("vpn.example", a(1))));
        assert_eq!(read(&fine), ips(&["192.0.2.1"]));
        assert_eq!(parse_answer(&fine, 8, NAME, RecordType::A), None);
        assert_eq!(parse_answer(&fine, 7, "vpn.example.org", RecordType::A), None);
        assert_eq!(parse_answer(&fine, 7, NAME, RecordType::Aaaa), None);
        assert_eq!(read(&reply(|packet| packet.questions.clear())), None);
        assert_eq!(read(&fine[..fine.len() - 1]), None);
        assert_eq!(read(&[]), None);
        // A count that does not match the records.
        let mut claims = fine.clone();
        claims[6] = 0xff;
        assert_eq!(read(&claims), None);
    }

    #[test]
    fn failures_are_told_apart() {
        assert_eq!(read(&reply(|p| *p.rcode_mut() = RCODE::NameError)), Some(Answer::NoSuchName));
        let refused = read(&reply(|p| *p.rcode_mut() = RCODE::Refused));
        assert_eq!(refused, Some(Answer::Failed(5)));
        let cut = reply(|packet| packet.set_flags(PacketFlag::TRUNCATION));
        assert_eq!(read(&cut), Some(Answer::Truncated));
        let mut within = reply(|packet| {
            packet.set_flags(PacketFlag::TRUNCATION);
            packet.answers.push(record("vpn.example", a(1)));
        });
        within.truncate(within.len() - 2);
        assert_eq!(read(&within), Some(Answer::Truncated));
    }
}
