//! Tests of look-ups against name servers in another namespace.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket as StdSocket};
use std::process::Command;

use adit_linux::net::{Address, Net};
use adit_linux::netns::NetNs;
use simple_dns::rdata::{A, AAAA, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};

use super::*;

/// The behaviour of a name server.
#[derive(Copy, Clone, PartialEq)]
enum Manner {
    Plain,
    /// Forged answers arrive before the correct one.
    AfterForgeries,
    /// The complete answer is available only over TCP.
    Truncated,
    Refuses,
    Unknown,
}

fn reply(query: &[u8], manner: Manner, stream: bool) -> Vec<u8> {
    let query = Packet::parse(query).unwrap();
    let mut reply = Packet::new_reply(query.id());
    reply.set_flags(PacketFlag::RESPONSE);
    reply.questions = query.questions.clone();
    let question = &query.questions[0];
    match manner {
        Manner::Refuses => *reply.rcode_mut() = RCODE::Refused,
        Manner::Unknown => *reply.rcode_mut() = RCODE::NameError,
        Manner::Truncated if !stream => reply.set_flags(PacketFlag::TRUNCATION),
        _ => {
            let rdata = match question.qtype {
                QTYPE::TYPE(TYPE::A) => RData::A(A { address: 0xc633_6407 }),
                _ => RData::AAAA(AAAA { address: 0x2001_0db8 << 96 | 7 }),
            };
            let name = Name::new_unchecked("vpn.example");
            reply.answers.push(ResourceRecord::new(name, CLASS::IN, 60, rdata));
        }
    }
    reply.build_bytes_vec().unwrap()
}

/// Runs a name server, which ends with the process.
fn serve(ns: &NetNs, address: &str, manner: Manner) {
    let address = format!("{address}:53");
    let (udp, tcp) = ns
        .run(|| (StdSocket::bind(&address).unwrap(), TcpListener::bind(&address).unwrap()))
        .unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = udp.recv_from(&mut bytes) {
            let answer = reply(&bytes[..len], manner, false);
            if manner == Manner::AfterForgeries {
                let mut forged = answer.clone();
                forged[0] ^= 1;
                udp.send_to(&forged, from).unwrap();
                udp.send_to(b"noise", from).unwrap();
            }
            udp.send_to(&answer, from).unwrap();
        }
    });
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = tcp.accept() {
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            let mut query = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut query).unwrap();
            let answer = reply(&query, manner, true);
            stream.write_all(&(answer.len() as u16).to_be_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
}

/// Creates a host at 192.0.2.2 and name servers from 192.0.2.11 up. Returns `None` without
/// privileges.
fn world(manners: &[Manner]) -> Option<(NetNs, NetNs)> {
    let (ns, other) = (NetNs::new("adit-names").ok()?, NetNs::new("adit-names").ok()?);
    ns.connect("eth0", &other, "eth0").ok()?;
    let configure = |ns: &NetNs, addresses: Vec<String>| {
        ns.configure(async |net: &Net| {
            let link = net.link("eth0").await.unwrap().index;
            for address in &addresses {
                let address = Address::new(link, address.parse().unwrap());
                net.add_address(&address).await.unwrap();
            }
            net.set_up(link).await.unwrap();
        })
        .unwrap();
    };
    let numbered = (11..).zip(manners);
    configure(&ns, vec!["192.0.2.2/24".into()]);
    configure(&other, numbered.clone().map(|(n, _)| format!("192.0.2.{n}/24")).collect());
    for (number, manner) in numbered {
        serve(&other, &format!("192.0.2.{number}"), *manner);
    }
    Some((ns, other))
}

fn resolver(servers: &[&str]) -> (tempfile::TempDir, OutsideResolver) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    fs::write(root.path().join("etc/resolv.conf"), lines).unwrap();
    let resolver = OutsideResolver::at(root.path());
    (root, resolver)
}

fn look_up(ns: &NetNs, resolver: &OutsideResolver, family: Family) -> Result<Vec<String>, String> {
    let found = ns.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(resolver.look_up("vpn.example", family))
    });
    found.unwrap().map(|found| found.iter().map(ToString::to_string).collect())
}

#[test]
fn addresses_of_both_families_come_from_the_access_networks_server() {
    use Manner::{AfterForgeries, Plain, Refuses, Truncated, Unknown};
    let Some((ns, _other)) = world(&[Plain, AfterForgeries, Truncated, Refuses, Unknown]) else {
        return;
    };
    for server in ["192.0.2.11", "192.0.2.12", "192.0.2.13"] {
        let (_root, resolver) = resolver(&[server]);
        let found = look_up(&ns, &resolver, Family::Any).unwrap();
        assert_eq!(found, ["198.51.100.7", "2001:db8::7"], "{server}");
        assert_eq!(look_up(&ns, &resolver, Family::V4).unwrap(), ["198.51.100.7"]);
        assert_eq!(look_up(&ns, &resolver, Family::V6).unwrap(), ["2001:db8::7"]);
    }
    // After a refusal the next server is queried, but not after the answer that the name does not
    // exist.
    let (_root, refused) = resolver(&["192.0.2.14", "192.0.2.11"]);
    assert_eq!(look_up(&ns, &refused, Family::V4).unwrap(), ["198.51.100.7"]);
    let (_root, unknown) = resolver(&["192.0.2.15", "192.0.2.11"]);
    assert_eq!(look_up(&ns, &unknown, Family::V4).unwrap_err(), "there is no such name");
    let (_root, silent) = resolver(&["192.0.2.99"]);
    let error = look_up(&ns, &silent, Family::V4).unwrap_err();
    assert!(error.starts_with("DNS server 192.0.2.99: "), "{error}");
}

#[test]
fn marked_queries_pass_where_others_are_kept_in() {
    let Some((ns, _other)) = world(&[Manner::Plain, Manner::Truncated]) else { return };
    ns.run(|| {
        for rule in ["fwmark 0x77 lookup main pref 10", "unreachable pref 20"] {
            let args = ["rule", "add"].into_iter().chain(rule.split(' '));
            assert!(Command::new("ip").args(args).status().unwrap().success());
        }
    })
    .unwrap();
    for server in ["192.0.2.11", "192.0.2.12"] {
        let (_root, mut resolver) = resolver(&[server]);
        assert!(look_up(&ns, &resolver, Family::V4).is_err());
        resolver.mark = Some(0x77);
        assert_eq!(look_up(&ns, &resolver, Family::V4).unwrap(), ["198.51.100.7"], "{server}");
    }
}

#[test]
fn queries_leave_by_the_access_networks_interface() {
    let Some((ns, _other)) = world(&[Manner::Plain]) else { return };
    // A tunnel takes all traffic with two half routes, and delivers nothing.
    ns.run(|| {
        let commands = [
            "tuntap add tun9 mode tun",
            "link set tun9 up",
            "route add default via 192.0.2.11",
            "route add 0.0.0.0/1 dev tun9",
            "route add 128.0.0.0/1 dev tun9",
        ];
        for command in commands {
            assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success());
        }
    })
    .unwrap();
    // The server is behind the gateway, and reachable only through the interface.
    let (_root, resolver) = resolver(&["192.0.2.11"]);
    assert_eq!(look_up(&ns, &resolver, Family::V4).unwrap(), ["198.51.100.7"]);
    let device = ns.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(outside("203.0.113.1".parse().unwrap()))
    });
    assert_eq!(device.unwrap().as_deref(), Some("eth0"));
}
