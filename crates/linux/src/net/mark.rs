//! Marks the replies to marked packets, so that strict reverse path filtering accepts them.
//!
//! With `src_valid_mark` the kernel looks up a packet's source under the packet's own mark. This table saves the mark
//! of outgoing packets in their connection and applies it to the replies.

use std::io;

use super::nftables::{
    Chain, Expression, Family, OwnedTable, POSTROUTING, PREROUTING, REGISTER, attribute, nested,
    number,
};

/// After the connection lookup and before routing.
const MANGLE: i32 = -150;
const META_MARK: u32 = 3;
const CT_MARK: u32 = 3;

/// The installed table. Dropping this removes it.
#[derive(Debug)]
pub struct MarkedReplies {
    _table: OwnedTable,
}

impl MarkedReplies {
    /// Marks IPv4 replies to packets with `mark`, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no nftables, does not support tables owned by a socket (before 5.12), or refuses the change.
    pub fn start(mark: u32) -> io::Result<Self> {
        let value = nested(3, &[attribute(1, &mark.to_ne_bytes())]);
        let equal = || Expression::new("cmp", &[number(1, REGISTER), number(2, 0), value.clone()]);
        let load = |kind, key| Expression::new(kind, &[number(1, REGISTER), number(2, key)]);
        let restore = Expression::new("meta", &[number(2, META_MARK), number(3, REGISTER)]);
        let save = Expression::new("ct", &[number(2, CT_MARK), number(4, REGISTER)]);
        let chain = |name, hook, rule| Chain {
            name,
            kind: "filter",
            hook,
            priority: MANGLE,
            rules: vec![rule],
        };
        let chains = [
            chain("restore", PREROUTING, vec![load("ct", CT_MARK), equal(), restore]),
            chain("save", POSTROUTING, vec![load("meta", META_MARK), equal(), save]),
        ];
        Ok(Self { _table: OwnedTable::start(Family::Ipv4, &chains)? })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::UdpSocket;
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use crate::net::{Address, Net, Route, Rule};
    use crate::netns::NetNs;

    use super::*;

    const MARK: u32 = 0xad17;

    /// Creates two namespaces. `left` looks up unmarked packets in a table without routes and checks sources strictly.
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
