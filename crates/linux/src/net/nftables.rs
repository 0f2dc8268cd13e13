//! nftables tables that the kernel removes with the socket that created them, however the process ends.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

const NETLINK_NETFILTER: i32 = 12;
/// Request, acknowledge, create.
const FLAGS: u16 = 1 | 4 | 0x400;
const APPEND: u16 = 0x800;
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = NFTABLES << 8;
const NEW_CHAIN: u16 = (NFTABLES << 8) | 3;
const NEW_RULE: u16 = (NFTABLES << 8) | 6;
const NESTED: u16 = 0x8000;
/// The table is removed with its socket.
const OWNER: u32 = 2;
/// The kernel answers at once; a longer wait would block the caller.
const PATIENCE: Duration = Duration::from_secs(2);

/// The hook after a packet has arrived.
pub(super) const PREROUTING: u32 = 0;
/// The hook of packets for other hosts.
pub(super) const FORWARD: u32 = 2;
/// The hook before a packet leaves.
pub(super) const POSTROUTING: u32 = 4;
/// The register that passes values between expressions.
pub(super) const REGISTER: u32 = 1;

/// The packets that a table sees.
#[derive(Copy, Clone, Debug)]
#[repr(u8)]
pub(super) enum Family {
    Ipv4 = 2,
    Ipv6 = 10,
}

/// A base chain.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) name: &'static str,
    /// `filter` or `nat`.
    pub(super) kind: &'static str,
    pub(super) hook: u32,
    pub(super) priority: i32,
    pub(super) rules: Vec<Vec<Expression>>,
}

/// An expression of a rule, encoded.
#[derive(Clone, Debug)]
pub(super) struct Expression(Vec<u8>);

impl Expression {
    pub(super) fn new(name: &str, data: &[Vec<u8>]) -> Self {
        Self(nested(1, &[text(1, name), nested(2, data)]))
    }
}

/// An installed table. Dropping this removes it.
#[derive(Debug)]
pub(super) struct OwnedTable {
    _socket: Socket,
}

impl OwnedTable {
    /// Installs a table in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no nftables, does not support tables owned by a socket (before 5.12), or refuses the change.
    pub(super) fn start(family: Family, chains: &[Chain]) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-{}-{number}", std::process::id());
        let protocol = Some(Protocol::from(NETLINK_NETFILTER));
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, protocol)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let messages = batch(family, &name, chains);
        socket.send(&messages.concat())?;
        // The first and the last message are not acknowledged.
        acknowledged(&socket, messages.len().saturating_sub(2))?;
        Ok(Self { _socket: socket })
    }
}

fn acknowledged(mut socket: &Socket, mut open: usize) -> io::Result<()> {
    const ERROR: u16 = 2;
    let mut buffer = [0; 8192];
    while open > 0 {
        let len = socket.read(&mut buffer)?;
        let mut rest = buffer.get(..len).unwrap_or(&[]);
        while let Some(header) = rest.first_chunk::<20>() {
            let [l0, l1, l2, l3, t0, t1, ..] = *header;
            let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
            if u16::from_ne_bytes([t0, t1]) == ERROR {
                let [.., e0, e1, e2, e3] = *header;
                match i32::from_ne_bytes([e0, e1, e2, e3]) {
                    0 => open = open.saturating_sub(1),
                    error => return Err(io::Error::from_raw_os_error(error.saturating_abs())),
                }
            }
            rest = rest.get(length.max(16).next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
    Ok(())
}

fn batch(family: Family, name: &str, chains: &[Chain]) -> Vec<Vec<u8>> {
    let of_table = |kind, flags, attributes: &[Vec<u8>]| {
        let attributes = [&[text(1, name)], attributes].concat();
        message(kind, flags, (family as u8, 0), &attributes)
    };
    let edge = |kind| message(kind, 1, (0, NFTABLES), &[]);
    let mut messages = vec![edge(BATCH_BEGIN)];
    messages.push(of_table(NEW_TABLE, FLAGS, &[number(2, OWNER)]));
    for Chain { name, kind, hook, priority, rules } in chains {
        let hook = nested(4, &[number(1, *hook), attribute(2, &priority.to_be_bytes())]);
        messages.push(of_table(NEW_CHAIN, FLAGS, &[text(3, name), hook, text(7, kind)]));
        for rule in rules {
            let expressions: Vec<Vec<u8>> = rule.iter().map(|it| it.0.clone()).collect();
            let attributes = [text(2, name), nested(4, &expressions)];
            messages.push(of_table(NEW_RULE, FLAGS | APPEND, &attributes));
        }
    }
    messages.push(edge(BATCH_END));
    messages
}

/// Encodes a message; `target` is the family and the subsystem.
fn message(kind: u16, flags: u16, target: (u8, u16), attributes: &[Vec<u8>]) -> Vec<u8> {
    let payload = attributes.concat();
    let length = u32::try_from(payload.len()).unwrap_or(0).saturating_add(20);
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([target.0, 0]);
    message.extend(target.1.to_be_bytes());
    message.extend(payload);
    message
}

pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap_or(0).saturating_add(4);
    let mut attribute = Vec::new();
    attribute.extend(length.to_ne_bytes());
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(value);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

pub(super) fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

pub(super) fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &attributes.concat())
}
