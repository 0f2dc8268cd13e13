//! Marks the replies to marked packets, so that strict reverse path filtering accepts them.
//!
//! With `src_valid_mark` the kernel looks up a packet's source under the packet's own mark. This table saves the mark
//! of outgoing packets in their connection and applies it to the replies. The kernel removes the table with the socket
//! that created it, however the process ends.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

const NETLINK_NETFILTER: i32 = 12;
/// Request, acknowledge, create.
const FLAGS: u16 = 1 | 4 | 0x400;
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = NFTABLES << 8;
const NEW_CHAIN: u16 = (NFTABLES << 8) | 3;
const NEW_RULE: u16 = (NFTABLES << 8) | 6;
const NESTED: u16 = 0x8000;
const IPV4: u8 = 2;
/// The table is removed with its socket.
const OWNER: u32 = 2;
/// After the connection lookup and before routing.
const MANGLE: i32 = -150;
const PREROUTING: u32 = 0;
const POSTROUTING: u32 = 4;
const REGISTER: u32 = 1;
const META_MARK: u32 = 3;
const CT_MARK: u32 = 3;
/// The kernel answers at once; a longer wait would block the caller.
const PATIENCE: Duration = Duration::from_secs(2);

/// The installed table, which is removed on drop.
#[derive(Debug)]
pub struct MarkedReplies {
    _socket: Socket,
}

impl MarkedReplies {
    /// Marks IPv4 replies to packets with `mark`, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no nftables, does not support tables owned by a socket (before 5.12), or refuses the change.
    pub fn start(mark: u32) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-{}-{number}", std::process::id());
        let protocol = Some(Protocol::from(NETLINK_NETFILTER));
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, protocol)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let messages = batch(&name, mark);
        let sent: Vec<u8> = messages.concat();
        socket.send(&sent)?;
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

fn batch(name: &str, mark: u32) -> Vec<Vec<u8>> {
    let table = text(1, name);
    let flags = attribute(2, &OWNER.to_be_bytes());
    let chain = |chain: &str, hook: u32| {
        let hook = [attribute(1, &hook.to_be_bytes()), attribute(2, &MANGLE.to_be_bytes())];
        message(
            NEW_CHAIN,
            FLAGS,
            &[table.clone(), text(3, chain), nested(4, &hook), text(7, "filter")],
        )
    };
    let rule = |chain: &str, expressions: &[Vec<u8>]| {
        message(NEW_RULE, FLAGS | 0x800, &[table.clone(), text(2, chain), nested(4, expressions)])
    };
    let load_mark = expression("meta", &[number(1, REGISTER), number(2, META_MARK)]);
    let load_saved = expression("ct", &[number(1, REGISTER), number(2, CT_MARK)]);
    let value = nested(3, &[attribute(1, &mark.to_ne_bytes())]);
    let equal = expression("cmp", &[number(1, REGISTER), number(2, 0), value]);
    let restore = expression("meta", &[number(2, META_MARK), number(3, REGISTER)]);
    let save = expression("ct", &[number(2, CT_MARK), number(4, REGISTER)]);
    vec![
        message(BATCH_BEGIN, 1, &[]),
        message(NEW_TABLE, FLAGS, &[table.clone(), flags]),
        chain("restore", PREROUTING),
        chain("save", POSTROUTING),
        rule("restore", &[load_saved, equal.clone(), restore]),
        rule("save", &[load_mark, equal, save]),
        message(BATCH_END, 1, &[]),
    ]
}

fn message(kind: u16, flags: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    let payload = attributes.concat();
    let length = u32::try_from(payload.len()).unwrap_or(0).saturating_add(20);
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    let (family, subsystem) = match kind {
        BATCH_BEGIN | BATCH_END => (0, NFTABLES),
        _ => (IPV4, 0),
    };
    message.extend([family, 0]);
    message.extend(subsystem.to_be_bytes());
    message.extend(payload);
    message
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
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

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &attributes.concat())
}

fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, data)])
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use crate::net::{Address, Net, Route, Rule};
    use crate::netns::NetNs;

    use super::*;

    const MARK: u32 = 0xad17;

    /// Creates two namespaces, where `left` looks up unmarked packets in a table without routes and checks sources
    /// strictly.
    fn strict_pair() -> (NetNs, NetNs) {
        let (left, right) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
        left.connect("eth", &right, "eth").unwrap();
        let near = async |net: &Net, address: &str| {
            let link = net.link("eth").await?.index;
            net.add_address(&Address::new(link, address.parse().unwrap())).await
        };
        right.configure(async |net| near(net, "192.0.2.2/24").await).unwrap().unwrap();
        let made = left.configure(async |net| {
            near(net, "192.0.2.1/24").await?;
            let nowhere = Route {
                table: Some(44_398),
                ..Route::without_hop(
                    "0.0.0.0/0".parse().unwrap(),
                    crate::net::RouteKind::Unreachable,
                )
            };
            net.add_route(&nowhere).await?;
            let rule = Rule {
                v6: false,
                preference: 7000,
                from: None,
                to: None,
                not_mark: Some(MARK),
                udp_ports: None,
                table: 44_398,
            };
            net.add_rule(&rule).await
        });
        made.unwrap().unwrap();
        left.set_sysctl("net.ipv4.conf.all.rp_filter", "1").unwrap();
        left.set_sysctl("net.ipv4.conf.all.src_valid_mark", "1").unwrap();
        (left, right)
    }

    fn answered(left: &NetNs, right: &NetNs) -> bool {
        let echo = right.run(|| UdpSocket::bind("192.0.2.2:0").unwrap()).unwrap();
        let to = echo.local_addr().unwrap();
        let socket = left.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            socket.set_mark(MARK).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            socket.connect(&to.into()).unwrap();
            socket.send(b"x").unwrap();
            socket
        });
        let mut buffer = [0; 9];
        let (_, from) = echo.recv_from(&mut buffer).unwrap();
        echo.send_to(b"y", from).unwrap();
        (&socket.unwrap()).read(&mut buffer).is_ok()
    }

    #[test]
    fn replies_pass_a_strict_filter_only_while_they_are_marked() {
        adit_testbed::needs_root!();
        let (left, right) = strict_pair();
        assert!(!answered(&left, &right), "without the table the filter drops the reply");
        let table = left.run(|| MarkedReplies::start(MARK)).unwrap().unwrap();
        assert!(answered(&left, &right));
        drop(table);
        // A program started by another test has a copy of the table's socket until it calls `exec`.
        let gone = (0..60).any(|_| !answered(&left, &right));
        assert!(gone, "the table goes with its socket");
    }
}
