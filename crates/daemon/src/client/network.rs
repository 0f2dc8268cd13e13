//! What changes of the network, and sleep, do to a client.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::{Instant, Op};
use adit_plane::framing::PING;
use adit_plane::{DropReason, OwnTransport};

use super::Running;
use super::engines::Drives;
use crate::clock::now;
use crate::driver::{Backend, Dialled};
use crate::say;

/// Pings after a change of the path, one a tick: the first may be lost on a link that has just come up.
const PINGS: u8 = 3;

/// A tick that comes this much too late means that the machine or the process slept.
const SLEPT: Duration = Duration::from_secs(3);

/// How often recursive routing is logged at most.
const RECURSION_LOG: Duration = Duration::from_secs(60);

/// The transport's packets, and what happens to them.
#[derive(Debug)]
pub(super) struct Network {
    allow_recursive: bool,
    own: Option<OwnTransport>,
    /// Our end of the transport.
    local: Option<SocketAddr>,
    pings_left: u8,
    ticked: Instant,
    /// Recursive packets at the last log line, and when that was.
    recursive: (u64, Option<Instant>),
}

impl Network {
    pub(super) fn new(allow_recursive: bool) -> Self {
        Self {
            allow_recursive,
            own: None,
            local: None,
            pings_left: 0,
            ticked: now(),
            recursive: (0, None),
        }
    }

    /// Whether so much time has passed since the last tick that something slept.
    fn slept(&mut self, now: Instant, tick: Duration) -> bool {
        let passed = now.since(std::mem::replace(&mut self.ticked, now));
        passed > tick + SLEPT
    }

    /// Whether the recursive packets so far are worth a line: there are more, and the last line is old.
    fn log_recursion(&mut self, now: Instant, count: u64) -> bool {
        let (logged, at) = self.recursive;
        let due = at.is_none_or(|at| now.since(at) >= RECURSION_LOG);
        let log = count > logged && due;
        if log {
            self.recursive = (count, Some(now));
        }
        log
    }
}

impl<E: Drives> Running<E> {
    /// A socket towards the server is open: its packets must not come back.
    pub(super) fn network_dialled(&mut self, dialled: &Dialled) {
        let stream = dialled.link.is_stream();
        // A relay to a proxy has a socket of its own.
        let direct = dialled.hop == dialled.link.remote();
        self.network.local = Some(dialled.local);
        self.network.own = Some(OwnTransport {
            remote: dialled.hop,
            local_port: direct.then_some(dialled.local.port()),
            stream,
        });
        self.tell_own_transport();
    }

    fn tell_own_transport(&self) {
        let own = self.network.own.filter(|_| !self.network.allow_recursive);
        self.driver.backend().plane().set_own_transport(own);
    }

    /// The way to the server is another one, or is back.
    pub(super) fn path_is_back(&mut self, sources: &[IpAddr]) {
        say!(1, "network: the path to the server changed");
        let local = self.network.local.map(|local| local.ip());
        let stale = self.stream && local.is_some_and(|local| !sources.contains(&local));
        self.path_changed(stale);
    }

    pub(super) fn path_is_lost(&mut self, alternative: bool) {
        say!(1, "network: there is no path to the server");
        if alternative {
            // The server may have an address of the other family.
            self.driver.unreachable();
            self.driver.act(|engine, now, out| engine.restart(now, out));
        }
    }

    fn path_changed(&mut self, stale: bool) {
        self.driver.act(|engine, now, out| engine.path_changed(now, stale, out));
        self.driver.backend().plane().resumed();
        self.network.pings_left = PINGS;
        self.ping();
    }

    /// The server learns our new address from an authentic packet, of which this is the shortest.
    fn ping(&mut self) {
        if let Some(peer) = self.peer {
            self.driver.backend().apply(Op::SendData(peer, PING.to_vec()));
        }
    }

    pub(super) fn network_tick(&mut self) {
        if self.network.slept(now(), self.tick) {
            say!(1, "network: resumed after a pause of this machine or process");
            self.path_changed(false);
        } else if self.network.pings_left > 0 {
            self.network.pings_left -= 1;
            self.ping();
        }
        self.follow_float();
        let dropped = self.driver.backend().plane().totals().dropped(DropReason::Recursive);
        if self.network.log_recursion(now(), dropped) {
            let device = self.host.device().unwrap_or("the tunnel");
            tracing::warn!(
                "recursive routing: {dropped} packets of this tunnel's own transport came back through \
                 {device} and were dropped: a route to the server leads into the tunnel"
            );
        }
    }

    /// The server itself may have moved.
    fn follow_float(&mut self) {
        if self.stream || self.relay.is_some() {
            return;
        }
        let link = self.peer.and_then(|peer| self.driver.backend().plane().link(peer));
        if let (Some(own), Some(link)) = (&mut self.network.own, link)
            && own.remote != link.remote()
        {
            own.remote = link.remote();
            self.tell_own_transport();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_late_tick_is_a_pause_and_a_slow_machine_is_none() {
        let mut network = Network { ticked: at(0), ..Network::new(false) };
        let tick = Duration::from_secs(1);
        assert!(!network.slept(at(1000), tick));
        assert!(!network.slept(at(4900), tick), "a busy machine");
        assert!(network.slept(at(9000), tick));
        assert!(!network.slept(at(10_000), tick), "once");
    }

    #[test]
    fn recursion_is_logged_when_it_grows_and_once_a_minute() {
        let mut network = Network::new(false);
        assert!(!network.log_recursion(at(1000), 0));
        assert!(network.log_recursion(at(2000), 1));
        assert!(!network.log_recursion(at(3000), 500_000));
        assert!(network.log_recursion(at(62_000), 900_000));
        assert!(!network.log_recursion(at(200_000), 900_000), "it has ended");
    }
}
