//! Packets in words, for `adit filter explain`: a description becomes the bytes of a real frame.
//!
//! ```text
//!   tcp 10.0.0.1:4000 > 10.0.0.2:80 syn in eth1 out eth2 ct new
//!   udp [fd00::1]:5 > [fd00::2]:53 length 1400
//!   icmp 10.0.0.1 > 10.0.0.2 echo-request
//!   arp who-has 10.0.0.2 tell 10.0.0.1
//!   gre 10.0.0.1 > 10.0.0.2 ttl 1
//!   hex:02000000000202000000000108004500...
//! ```

mod build;

use std::fmt;
use std::net::IpAddr;

use super::diagnostic::similar;
use super::lex::mac;
use super::names;
use super::value::integer;
use crate::Nanos;
use crate::evaluate::{Context, IfName};
use crate::packet::Layer;
use crate::ruleset::{CtDirection, CtState, Kind};
use build::{Body, Frame};

/// The maximum number of bytes in a description.
pub const MAX_DESCRIPTION: usize = 1 << 18;

/// A packet and its metadata.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PacketDescription {
    /// A frame, or an IP packet without a link header.
    pub bytes: Vec<u8>,
    /// The layer at which it begins.
    pub layer: Layer,
    /// The interface on which it arrives; zero if unspecified.
    pub iif: IfName,
    /// The interface on which it leaves; zero if unspecified.
    pub oif: IfName,
    /// The state of its connection.
    pub state: CtState,
    /// Its direction in its connection.
    pub direction: CtDirection,
    /// The transport protocol of its connection.
    pub protocol: Option<u8>,
}

impl PacketDescription {
    /// Returns the metadata that an evaluator needs.
    pub fn context(&self, now: Nanos) -> Context {
        let Self { iif, oif, state, direction, protocol, .. } = *self;
        Context { now, iif, oif, state, direction, protocol }
    }
}

/// A mistake in a description.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DescribeError {
    /// The description.
    pub text: String,
    /// The column in characters, from 1.
    pub column: u32,
    /// The length of the marked text in characters; at least 1.
    pub length: u32,
    /// The mistake.
    pub message: String,
    /// The replacement.
    pub hint: Option<String>,
}

impl std::error::Error for DescribeError {}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blank = self.column.saturating_sub(1) as usize;
        let shown: String =
            self.text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
        writeln!(f, "column {}: {}", self.column, self.message)?;
        writeln!(f, "    {shown}")?;
        let marks = (self.length.max(1) as usize).min(200);
        write!(f, "    {:width$}{}", "", "^".repeat(marks), width = blank.min(200))?;
        match &self.hint {
            Some(hint) => write!(f, "\n    instead: {hint}"),
            None => Ok(()),
        }
    }
}

const FIRST: &[&str] = &["tcp", "udp", "icmp", "icmpv6", "arp", "ether", "proto", "hex:"];
const OPTIONS: &[&str] = &[
    "in", "out", "ct", "length", "ttl", "dscp", "vlan", "smac", "dmac", "tun", "id", "seq", "code",
    "mtu",
];
const FLAGS: &[&str] = &["syn", "ack", "fin", "rst", "psh", "urg", "ecn", "cwr", "none"];

struct SyntaxError {
    column: usize,
    length: usize,
    message: String,
    hint: Option<String>,
}

impl SyntaxError {
    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Builds a packet from its description.
///
/// # Errors
///
/// The column of the mistake, and what is expected there.
pub fn describe(text: &str) -> Result<PacketDescription, DescribeError> {
    let result = if text.len() > MAX_DESCRIPTION {
        let message = format!("a description longer than {MAX_DESCRIPTION} bytes");
        Err(SyntaxError { column: 0, length: 1, message, hint: None })
    } else {
        Reader::new(text).packet()
    };
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    result.map_err(|SyntaxError { column, length, message, hint }| DescribeError {
        text: text.to_owned(),
        column: number(column.saturating_add(1)),
        length: number(length.max(1)),
        message,
        hint,
    })
}

/// The parameters that may follow the addresses.
#[derive(Default)]
struct Options {
    iif: IfName,
    oif: IfName,
    state: Option<CtState>,
    reply: bool,
    tun: bool,
}

struct Reader<'a> {
    /// The words, each with the column, from 0, at which it starts.
    words: Vec<(usize, &'a str)>,
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let mut words = Vec::new();
        let (mut column, mut start) = (0_usize, None);
        for (index, c) in text.char_indices() {
            if c.is_whitespace() {
                if let Some((from, at)) = start.take() {
                    words.push((at, text.get(from..index).unwrap_or("")));
                }
            } else if start.is_none() {
                start = Some((index, column));
            }
            column = column.saturating_add(1);
        }
        if let Some((from, at)) = start {
            words.push((at, text.get(from..).unwrap_or("")));
        }
        Self { words, at: 0, end: column }
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|w| w.1)
    }

    fn error(&self, message: impl Into<String>) -> SyntaxError {
        let (column, length) = match self.words.get(self.at) {
            Some((column, word)) => (*column, word.chars().count()),
            None => (self.end, 1),
        };
        SyntaxError { column, length, message: message.into(), hint: None }
    }

    fn expected(&self, what: &str) -> SyntaxError {
        match self.peek() {
            Some(word) => self.error(format!("expected {what}, found `{word}`")),
            None => self.error(format!("expected {what}, found the end")),
        }
    }

    fn step(&mut self) {
        self.at = self.at.saturating_add(1);
    }

    fn consume(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.step();
        }
        found
    }

    /// Parses a word with `read`.
    fn read<T>(
        &mut self,
        what: &str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<T, SyntaxError> {
        let value = self.peek().and_then(read).ok_or_else(|| self.expected(what))?;
        self.step();
        Ok(value)
    }

    fn number(&mut self, what: &str, most: u64) -> Result<u64, SyntaxError> {
        let read = |w| integer(w).and_then(|v| u64::try_from(v).ok()).filter(|&v| v <= most);
        self.read(&format!("{what} from 0 to {most}"), read)
    }

    fn of_kind(&mut self, kind: Kind) -> Result<u128, SyntaxError> {
        let most = super::value::largest(kind);
        let read = |w: &str| names::value(kind, w).or_else(|| integer(w).filter(|&v| v <= most));
        let what = names::takes(kind);
        let result = self.read(&what, read);
        result.map_err(|error| {
            let known = names::of(kind).iter().map(|n| n.0);
            match self.peek().and_then(|word| similar(word, known)) {
                Some(meant) => error.hint(format!("did you mean `{meant}`?")),
                None => error,
            }
        })
    }

    fn packet(mut self) -> Result<PacketDescription, SyntaxError> {
        let Some(first) = self.peek() else {
            return Err(self.expected("a packet").hint("tcp 10.0.0.1:4000 > 10.0.0.2:80 syn"));
        };
        if let Some(hex) = first.strip_prefix("hex:") {
            return self.raw(hex);
        }
        let mut frame = Frame::default();
        let mut reply = false;
        match first {
            "tcp" | "udp" => self.ports(first == "tcp", &mut frame)?,
            "icmp" | "icmpv6" => self.icmp(first == "icmpv6", &mut frame)?,
            "arp" => self.arp(&mut frame)?,
            "ether" => {
                self.step();
                let kind = self.of_kind(Kind::EtherType)?;
                frame.body = Body::Ether(u16::try_from(kind).unwrap_or(0));
            }
            _ => {
                let protocol = match names::value(Kind::InetProto, first) {
                    Some(protocol) => protocol,
                    None if first == "proto" => {
                        self.step();
                        let read =
                            |w: &str| names::value(Kind::InetProto, w).or_else(|| integer(w));
                        let what = names::takes(Kind::InetProto);
                        let value = self.read(&what, |w| read(w).filter(|&v| v <= 255))?;
                        self.at = self.at.saturating_sub(1);
                        value
                    }
                    None => return Err(self.unknown("a kind of packet", FIRST)),
                };
                self.step();
                let (source, destination) = self.addresses()?;
                frame.source = Some(source);
                frame.destination = Some(destination);
                frame.body = Body::Other(u8::try_from(protocol).unwrap_or(255));
            }
        }
        let mut options = Options::default();
        while self.peek().is_some() {
            self.option(&mut frame, &mut options)?;
        }
        reply |= options.reply;
        let protocol = frame.protocol();
        let tun = options.tun;
        let bytes = frame.build(tun).map_err(|message| {
            let mut error = self.error(message);
            (error.column, error.length) = (0, self.end);
            error
        })?;
        Ok(PacketDescription {
            bytes,
            layer: if tun { Layer::Ip } else { Layer::Ethernet },
            iif: options.iif,
            oif: options.oif,
            state: options.state.unwrap_or(CtState::NEW),
            direction: if reply { CtDirection::Reply } else { CtDirection::Original },
            protocol,
        })
    }

    fn unknown(&self, what: &str, known: &[&'static str]) -> SyntaxError {
        let word = self.peek().unwrap_or("");
        let error = self.error(format!("`{word}` is not {what}"));
        match similar(word, known.iter().copied()) {
            Some(meant) => error.hint(format!("did you mean `{meant}`?")),
            None => error.hint(format!("one of: {}", known.join(", "))),
        }
    }

    fn arrow(&mut self) -> Result<(), SyntaxError> {
        if self.consume(">") { Ok(()) } else { Err(self.expected("`>` between the addresses")) }
    }

    fn addresses(&mut self) -> Result<(IpAddr, IpAddr), SyntaxError> {
        let read = |w: &str| w.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let source = self.read("an address, like 10.0.0.1 or fd00::1", read)?;
        self.arrow()?;
        let destination = self.read("an address, like 10.0.0.2 or fd00::2", read)?;
        self.same_family(source, destination)?;
        Ok((source, destination))
    }

    fn same_family(&mut self, source: IpAddr, destination: IpAddr) -> Result<(), SyntaxError> {
        if source.is_ipv4() == destination.is_ipv4() {
            return Ok(());
        }
        self.at = self.at.saturating_sub(1);
        Err(self.error("source and destination are of different families"))
    }

    fn endpoint(&mut self) -> Result<(IpAddr, u16), SyntaxError> {
        let what = "an address and port, like 10.0.0.1:80 or [fd00::1]:80";
        self.read(what, |word| {
            let (address, port) = word.rsplit_once(':')?;
            let port = names::value(Kind::InetService, port)
                .or_else(|| integer(port))
                .and_then(|p| u16::try_from(p).ok())?;
            let address = match address.strip_prefix('[') {
                Some(inner) => IpAddr::V6(inner.strip_suffix(']')?.parse().ok()?),
                None => IpAddr::V4(address.parse().ok()?),
            };
            Some((address, port))
        })
    }

    fn ports(&mut self, tcp: bool, frame: &mut Frame) -> Result<(), SyntaxError> {
        self.step();
        let (source, sport) = self.endpoint()?;
        self.arrow()?;
        let (destination, dport) = self.endpoint()?;
        self.same_family(source, destination)?;
        frame.source = Some(source);
        frame.destination = Some(destination);
        frame.body = Body::Udp { sport, dport };
        if tcp {
            let flags = match self.peek().map(flags) {
                Some(Some(flags)) => {
                    self.step();
                    flags
                }
                _ => adit_wire::transport::flags::SYN,
            };
            frame.body = Body::Tcp { sport, dport, flags };
        }
        Ok(())
    }

    fn icmp(&mut self, v6: bool, frame: &mut Frame) -> Result<(), SyntaxError> {
        self.step();
        let (source, destination) = self.addresses()?;
        if source.is_ipv6() != v6 {
            self.at = self.at.saturating_sub(1);
            let other = if v6 { "icmp" } else { "icmpv6" };
            return Err(self.error("addresses of the other family").hint(other));
        }
        let kind = self.of_kind(if v6 { Kind::Icmpv6Type } else { Kind::IcmpType })?;
        frame.source = Some(source);
        frame.destination = Some(destination);
        frame.body = Body::Icmp { v6, kind: u8::try_from(kind).unwrap_or(0) };
        Ok(())
    }

    fn arp(&mut self, frame: &mut Frame) -> Result<(), SyntaxError> {
        self.step();
        let form =
            "arp who-has 10.0.0.2 tell 10.0.0.1, or arp reply 10.0.0.2 is-at MAC to 10.0.0.1";
        let address = |w: &str| w.parse::<std::net::Ipv4Addr>().ok();
        if self.consume("who-has") {
            let target = self.read("an IPv4 address", address)?;
            if !self.consume("tell") {
                return Err(self.expected("`tell`").hint(form));
            }
            let sender = self.read("an IPv4 address", address)?;
            frame.body = Body::Arp { reply: false, sender, target };
            return Ok(());
        }
        if !self.consume("reply") {
            return Err(self.expected("`who-has` or `reply`").hint(form));
        }
        let sender = self.read("an IPv4 address", address)?;
        if !self.consume("is-at") {
            return Err(self.expected("`is-at`").hint(form));
        }
        frame.source_mac = Some(self.read("a MAC address", mac)?);
        if !self.consume("to") {
            return Err(self.expected("`to`").hint(form));
        }
        let target = self.read("an IPv4 address", address)?;
        frame.body = Body::Arp { reply: true, sender, target };
        Ok(())
    }

    fn option(&mut self, frame: &mut Frame, options: &mut Options) -> Result<(), SyntaxError> {
        let word = self.peek().unwrap_or("");
        let start = self.at;
        self.step();
        let small = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
        let fits = match word {
            "in" => {
                options.iif = self.interface()?;
                true
            }
            "out" => {
                options.oif = self.interface()?;
                true
            }
            "ct" => {
                let state = self.of_kind(Kind::CtState)?;
                let state = u8::try_from(state).ok().filter(|s| s.count_ones() == 1);
                options.state = Some(CtState(state.unwrap_or(CtState::INVALID.0)));
                options.reply |= self.consume("reply");
                let _ = self.consume("original");
                true
            }
            "tun" => {
                options.tun = true;
                frame.source.is_some()
            }
            "length" => {
                frame.length = Some(small(self.number("a length", 65_535)?));
                frame.source.is_some()
            }
            "ttl" => {
                frame.ttl = u8::try_from(self.number("a time to live", 255)?).unwrap_or(0);
                frame.source.is_some()
            }
            "dscp" => {
                frame.dscp = u8::try_from(self.of_kind(Kind::Dscp)?).unwrap_or(0);
                frame.source.is_some()
            }
            "vlan" => {
                frame.vlan = Some(small(self.number("a VLAN", 4095)?));
                true
            }
            "smac" => {
                frame.source_mac = Some(self.read("a MAC address", mac)?);
                true
            }
            "dmac" => {
                frame.destination_mac = Some(self.read("a MAC address", mac)?);
                true
            }
            "id" | "seq" | "mtu" | "code" => {
                self.icmp_option(word, frame)?;
                frame.is_icmp()
            }
            _ => {
                self.at = start;
                let flags = if matches!(frame.body, Body::Tcp { .. }) { FLAGS } else { &[] };
                let known: Vec<&str> = OPTIONS.iter().chain(flags).copied().collect();
                return Err(self.unknown("a part of a packet", &known));
            }
        };
        if fits {
            return Ok(());
        }
        self.at = start;
        Err(self.error(format!("`{word}` does not go with this kind of packet")))
    }

    fn icmp_option(&mut self, word: &str, frame: &mut Frame) -> Result<(), SyntaxError> {
        let small = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
        match word {
            "id" => frame.id = small(self.number("an identifier", 65_535)?),
            "seq" => frame.sequence = small(self.number("a sequence number", 65_535)?),
            "mtu" => frame.mtu = Some(small(self.number("an MTU", 65_535)?)),
            _ => {
                let v6 = frame.source.is_some_and(|s| s.is_ipv6());
                let kind = if v6 { Kind::Icmpv6Code } else { Kind::IcmpCode };
                frame.code = u8::try_from(self.of_kind(kind)?).unwrap_or(0);
            }
        }
        Ok(())
    }

    fn interface(&mut self) -> Result<IfName, SyntaxError> {
        let good =
            |w: &str| !w.is_empty() && w.len() <= 15 && w.bytes().all(|b| b.is_ascii_graphic());
        self.read("an interface's name", |w| good(w).then(|| IfName::new(w)))
    }

    fn raw(mut self, hex: &str) -> Result<PacketDescription, SyntaxError> {
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        if digits.len() != hex.chars().count()
            || !digits.len().is_multiple_of(2)
            || digits.is_empty()
        {
            return Err(self.error("expected pairs of hex digits behind `hex:`"));
        }
        let pair = |p: &[u32]| p.iter().fold(0_u32, |v, d| v << 4 | d);
        let bytes: Vec<u8> = digits.chunks(2).map(|p| u8::try_from(pair(p)).unwrap_or(0)).collect();
        self.step();
        let mut options = Options::default();
        // This frame has only the packet's metadata; the rest is in its bytes.
        let mut frame = Frame::default();
        while let Some(word) = self.peek() {
            match word {
                "in" | "out" | "ct" => self.option(&mut frame, &mut options)?,
                "tun" => {
                    options.tun = true;
                    self.step();
                }
                _ => {
                    return Err(
                        self.unknown("what may follow raw bytes", &["in", "out", "ct", "tun"])
                    );
                }
            }
        }
        Ok(PacketDescription {
            bytes,
            layer: if options.tun { Layer::Ip } else { Layer::Ethernet },
            iif: options.iif,
            oif: options.oif,
            state: options.state.unwrap_or(CtState::NEW),
            direction: if options.reply { CtDirection::Reply } else { CtDirection::Original },
            protocol: None,
        })
    }
}

/// Parses `syn`, `syn,ack`, `fin|ack`, `none`.
fn flags(word: &str) -> Option<u8> {
    if word == "none" {
        return Some(0);
    }
    let mut all = 0;
    for name in word.split([',', '|']) {
        all |= u8::try_from(names::value(Kind::TcpFlags, name)?).ok()?;
    }
    Some(all)
}

#[cfg(test)]
mod tests;
