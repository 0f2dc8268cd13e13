//! Rule files and packets for measuring the filter, shared with the filter's example.

use std::fmt::Write;

use adit_wire::checksum::Sum;

/// Generates pseudo-random numbers (xorshift). `state` must not be 0.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The rules of the bridge's first example.
pub(crate) const FOUR: &str = "table bridge filter {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        ip protocol icmp accept
        tcp dport 7070 accept
        meta l4proto udp accept
    }
}";

/// Writes this many rules with prefixes, sets, ranges and concatenations, followed by the rule that accepts.
pub(crate) fn many(count: u32) -> String {
    let mut state = 88_172_645_463_325_252u64;
    let (mut sets, mut rules) = (String::new(), String::new());
    for at in 0..count - 1 {
        let number = random(&mut state);
        let (a, b, port) =
            (number as u8, (number >> 8) as u8, 1024 + (number >> 16) as u16 % 60_000);
        let rule = match at % 10 {
            0..=3 => format!("ip saddr 10.{a}.{b}.0/24 udp dport {port} drop"),
            4 => format!(
                "ip saddr {{ 10.{a}.{b}.1, 10.{b}.{a}.7, 10.1.{a}.9 }} tcp dport {{ 22, {port} }} drop"
            ),
            5 => format!(
                "ip daddr 10.{a}.{b}.0/28 meta l4proto {{ tcp, udp }} th dport {port}-{} counter drop",
                port + 100
            ),
            6 => format!("ip saddr 10.{a}.0.0/16 ip daddr 10.{b}.0.0/16 udp dport {port} accept"),
            7 => {
                format!("ip saddr . udp dport {{ 10.{a}.{b}.3 . {port}, 10.{b}.{a}.4 . 53 }} drop")
            }
            8 => format!("ip6 saddr fd00:{a:x}:{b:x}::/48 tcp dport {port} drop"),
            _ => {
                let _ =
                    write!(sets, "  set s{at} {{ type ipv4_addr; flags interval; elements = {{ ");
                for member in 0..20 {
                    let number = random(&mut state);
                    let separator = if member == 0 { "" } else { ", " };
                    let _ = write!(
                        sets,
                        "{separator}10.{}.{}.{}",
                        number as u8,
                        number >> 8 & 255,
                        number >> 16 & 255
                    );
                }
                sets += " } }\n";
                format!("ip saddr @s{at} udp dport {port} counter drop")
            }
        };
        let _ = writeln!(rules, "    {rule}");
    }
    format!(
        "table inet filter {{\n{sets}  chain forward {{\n    type filter hook forward priority 0; policy drop;\n{rules}    udp dport 9 accept\n  }}\n}}"
    )
}

/// Builds an IPv4 packet with UDP: 64 bytes of Ethernet including the checksum.
pub(crate) fn udp(source: u32, destination: u32, ports: [u16; 2]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, 17, 0, 0];
    ip.extend(source.to_be_bytes());
    ip.extend(destination.to_be_bytes());
    let sum = Sum::new().bytes(&ip).finish().to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend(ip);
    ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
    frame.extend([0, 26, 0, 0]);
    frame.resize(60, 0);
    frame
}
