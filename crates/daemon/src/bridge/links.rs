//! What happens to the interfaces of a bridge while it runs: another MTU, a link that comes and goes.

use adit_bridge::Side;
use adit_linux::net::Link;

/// What was seen last.
#[derive(Debug, Default)]
pub(super) struct Links {
    seen: [Option<(u32, bool)>; 2],
}

/// What is other than before.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct News {
    pub mtu: bool,
    pub link: bool,
}

impl Links {
    /// The interface is gone.
    pub fn forget(&mut self, side: Side) {
        if let Some(seen) = self.seen.get_mut(side.index()) {
            *seen = None;
        }
    }

    /// Takes down what an interface is now. Nothing is news the first time, but for a link that is down.
    pub fn see(&mut self, side: Side, link: &Link) -> News {
        let now = (link.mtu, link.running);
        let before = self.seen.get_mut(side.index()).and_then(|seen| seen.replace(now));
        let (mtu, running) = before.unwrap_or((link.mtu, true));
        News { mtu: mtu != link.mtu, link: running != link.running }
    }

    /// What to log of it.
    pub fn lines(&self, side: Side, link: &Link, news: News, routed: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let Link { name, mtu, .. } = link;
        if news.link {
            let state = if link.running { "up" } else { "down" };
            lines.push(format!("{name}: link {state}"));
        }
        if news.mtu {
            let other = self.seen.get(side.other().index()).copied().flatten();
            let differs = other.filter(|(other, _)| other != mtu && !routed);
            lines.push(match differs {
                Some((other, _)) => format!(
                    "{name}: MTU changed to {mtu}, but the other port has {other}: longer frames are dropped (too-long)"
                ),
                None => format!("{name}: MTU changed to {mtu}"),
            });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mtu: u32, running: bool) -> Link {
        Link {
            index: 1,
            name: "eth1".into(),
            mtu,
            txqueuelen: 1000,
            up: true,
            running,
            mac: None,
            ethernet: true,
            master: None,
            lower: None,
            macvlan: false,
        }
    }

    #[test]
    fn changes_are_told_once() {
        let mut links = Links::default();
        let mut told = |link: Link, routed| {
            let news = links.see(Side::A, &link);
            links.lines(Side::A, &link, news, routed)
        };
        assert!(told(link(1500, true), false).is_empty());
        assert!(told(link(1500, true), false).is_empty());
        assert_eq!(told(link(1500, false), false), ["eth1: link down"]);
        assert_eq!(told(link(1500, true), false), ["eth1: link up"]);
        assert_eq!(told(link(9000, true), false), ["eth1: MTU changed to 9000"]);
        links.see(Side::B, &link(9000, true));
        let news = links.see(Side::A, &link(1500, true));
        assert_eq!(news, News { mtu: true, link: false });
        let said = links.lines(Side::A, &link(1500, true), news, false);
        assert!(said[0].contains("the other port has 9000"), "{said:?}");
        assert_eq!(
            links.lines(Side::A, &link(1500, true), news, true),
            ["eth1: MTU changed to 1500"]
        );
        links.forget(Side::A);
        let news = links.see(Side::A, &link(1400, false));
        assert_eq!(
            news,
            News { mtu: false, link: true },
            "a link that is down from the start is said"
        );
    }
}
