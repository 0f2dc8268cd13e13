//! A client's reaction to network changes and suspend.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_dataplane::{DropReason, OwnTransport};
use adit_engine::Instant;
use adit_openvpn::data_format::Command;
use adit_openvpn_data::framing::PING;

use super::Running;
use super::engines::DrivenEngine;
use adit_runtime::clock::now;
use adit_runtime::driver::{Backend, Dialled};
use adit_runtime::say;

/// The number of pings after a path change, one per tick, because the first may be lost on a link that has just come
/// up.
const PINGS: u8 = 3;

/// A delay of a tick by more than this means that the machine or the process was suspended.
const SLEPT: Duration = Duration::from_secs(3);

/// The time after a suspend in which the end of the session is a consequence of it. The silence is noticed at once, but a
/// machine that has just resumed is busy.
const WAKING: Duration = Duration::from_secs(10);

/// The time limit for acknowledgements on a connection whose path has changed. After an outage the kernel waits longer, up to the length of
/// the outage.
const STALLED: Duration = Duration::from_secs(1);

/// The minimum interval between logs of recursive routing.
const RECURSION_LOG: Duration = Duration::from_secs(60);

/// The state of the network as it affects the transport.
#[derive(Debug)]
pub(super) struct Network {
    allow_recursive: bool,
    own: Option<OwnTransport>,
    /// The local end of the connection that the path depends on.
    connection: Option<SocketAddr>,
    pings_left: u8,
    /// If the session ends before this time, the next one begins without a wait, because the machine was suspended while it was up.
    woke_until: Option<Instant>,
    /// The time when the connection is checked, and the number of packets received before the path changed.
    check: Option<(tokio::time::Instant, u64)>,
    ticked: Instant,
    /// The number of recursive packets at the last log line, and the time of that line.
    recursive: (u64, Option<Instant>),
}

impl Network {
    pub(super) fn new(allow_recursive: bool) -> Self {
        Self {
            allow_recursive,
            own: None,
            connection: None,
            pings_left: 0,
            woke_until: None,
            check: None,
            ticked: now(),
            recursive: (0, None),
        }
    }

    /// Returns the transport whose packets must not enter the tunnel; `None` with `allow-recursive-routing`.
    fn kept_out(&self) -> Option<OwnTransport> {
        self.own.filter(|_| !self.allow_recursive)
    }

    /// Handles a tick. `now` includes the time in suspend, unlike the clock that paces the ticks.
    fn on_tick(&mut self, now: Instant, tick: Duration) -> Tick {
        if self.has_slept(now, tick) {
            Tick::Resumed
        } else if self.pings_left > 0 {
            self.pings_left -= 1;
            Tick::Ping
        } else {
            Tick::Quiet
        }
    }

    /// Returns whether the time since the last tick shows that the machine was suspended.
    fn has_slept(&mut self, now: Instant, tick: Duration) -> bool {
        let passed = now.since(std::mem::replace(&mut self.ticked, now));
        passed > tick + SLEPT
    }

    /// Returns whether the session that ends at `now` does so because of a suspend, of which it is the first to end.
    fn ended_by_suspend(&mut self, now: Instant) -> bool {
        self.woke_until.take().is_some_and(|until| now <= until)
    }

    /// Schedules a check of the connection after a path change at `now`, when the session had received `received`
    /// packets. Nothing is scheduled for a `stale` stream, which ends anyway, or for datagrams, which have no
    /// connection.
    fn watch_connection(
        &mut self,
        now: tokio::time::Instant,
        received: u64,
        stream: bool,
        stale: bool,
    ) {
        self.check = (stream && !stale).then(|| (now + STALLED, received));
    }

    /// Returns whether to dial the connection again. Call it once, when the check is due. The result is true if the
    /// connection has received nothing since the path changed, and its sent data is not acknowledged. It is then
    /// waiting for the kernel's next retransmission, which a new connection avoids.
    fn has_stalled(&mut self, received: u64, unacknowledged: bool) -> bool {
        self.check.take().is_some_and(|(_, before)| unacknowledged && received == before)
    }

    /// Returns whether the number of recursive packets justifies a log line: it has grown and the last line is old.
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

/// The action after a tick.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Tick {
    /// The machine or the process was suspended, so the path and the server may have changed.
    Resumed,
    /// One more ping after a change of the path.
    Ping,
    Quiet,
}

impl<E: DrivenEngine> Running<'_, E> {
    /// Records the new socket to the server, whose packets must not enter the tunnel.
    pub(super) fn network_dialled(&mut self, dialled: &Dialled) {
        let stream = dialled.link.is_stream();
        // A relay to a proxy has a separate socket.
        let direct = dialled.hop == dialled.link.remote();
        self.network.connection = dialled.connection;
        self.network.own = Some(OwnTransport {
            remote: dialled.hop,
            local_port: direct.then_some(dialled.local.port()),
            stream,
        });
        self.tell_own_transport();
    }

    fn tell_own_transport(&self) {
        let own = self.network.kept_out();
        self.driver.backend().plane().set_own_transport(own);
    }

    /// Handles a path to the server that is new or has been restored.
    pub(super) fn path_is_back(&mut self, sources: &[IpAddr]) {
        say!(1, "network: the path to the server changed");
        let own = self.network.connection.map(|own| own.ip());
        let stale = own.is_some_and(|own| !sources.contains(&own));
        if stale && self.relay.is_some() {
            say!(1, "network: the proxy relays nothing from the new address: connecting again");
            self.driver.act(|engine, now, out| engine.restart(now, out));
        }
        self.path_changed(stale);
    }

    /// Handles the end of a session. The first session that ends after suspend had been silent for too long, and the
    /// wait that keeps clients from repeatedly dialling a dead server serves no purpose for it.
    pub(super) fn session_ended(&mut self) {
        if self.network.ended_by_suspend(now()) {
            self.driver.act(|engine, now, out| engine.path_changed(now, false, out));
        }
    }

    pub(super) fn path_is_lost(&mut self, alternative: bool) {
        say!(1, "network: there is no path to the server");
        if alternative {
            // The server's address may be of the other family.
            self.driver.unreachable();
            self.driver.act(|engine, now, out| engine.restart(now, out));
        }
    }

    fn path_changed(&mut self, stale: bool) {
        self.driver.act(|engine, now, out| engine.path_changed(now, stale, out));
        self.driver.backend().plane().resumed();
        self.network.pings_left = PINGS;
        self.ping();
        let received = self.session_packets();
        self.network.watch_connection(tokio::time::Instant::now(), received, self.stream, stale);
    }

    /// Returns the number of packets received in the current session.
    fn session_packets(&self) -> u64 {
        let plane = self.driver.backend().plane();
        self.peer.and_then(|peer| plane.counters(peer)).map_or(0, |counters| counters.rx_packets)
    }

    /// Returns when [`Self::check_stream`] is due.
    pub(super) fn check_due(&self) -> Option<tokio::time::Instant> {
        self.network.check.map(|(at, _)| at)
    }

    /// Checks the connection some time after the path has changed.
    pub(super) fn check_stream(&mut self) {
        let plane = self.driver.backend().plane();
        let link = self.peer.and_then(|peer| plane.link(peer));
        let unacknowledged = link.is_some_and(|link| plane.is_unacknowledged(link));
        let received = self.session_packets();
        if self.network.has_stalled(received, unacknowledged) {
            say!(1, "network: the connection stalled on the changed path: connecting again");
            self.path_changed(true);
        }
    }

    /// Sends a ping, the shortest authentic packet, from which the server learns the client's new address.
    fn ping(&mut self) {
        if let Some(peer) = self.peer {
            self.driver.backend().apply(Command::SendData(peer, PING.to_vec()));
        }
    }

    pub(super) fn network_tick(&mut self) {
        match self.network.on_tick(now(), self.tick) {
            Tick::Resumed => {
                say!(1, "network: resumed after a pause of this machine or process");
                self.network.woke_until = self.peer.map(|_| now() + WAKING);
                self.path_changed(false);
            }
            Tick::Ping => self.ping(),
            Tick::Quiet => {}
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

    /// Updates the server's address if the server has moved.
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
            self.moved(link.remote());
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
        assert!(!network.has_slept(at(1000), tick));
        assert!(!network.has_slept(at(4900), tick), "a busy machine");
        assert!(network.has_slept(at(9000), tick));
        assert!(!network.has_slept(at(10_000), tick), "once");
    }

    /// The clock for ticks stops in suspend, so the first tick after it arrives on time.
    #[test]
    fn a_suspended_machine_is_noticed_at_the_first_tick() {
        let tick = Duration::from_secs(1);
        let (mut monotonic, mut asleep) = (0, 0);
        let mut network = Network { ticked: at(0), ..Network::new(false) };
        let mut outcomes = Vec::new();
        for second in 1..=12 {
            monotonic += 1000;
            if second == 5 {
                // Eight hours between two ticks of the monotonic clock.
                asleep = 8 * 3_600_000;
            }
            let outcome = network.on_tick(at(monotonic + asleep), tick);
            if outcome == Tick::Resumed {
                network.pings_left = PINGS;
            }
            outcomes.push(outcome);
        }
        assert_eq!(outcomes[..4], [Tick::Quiet; 4]);
        assert_eq!(outcomes[4], Tick::Resumed);
        assert_eq!(outcomes[5..8], [Tick::Ping; 3]);
        assert_eq!(outcomes[8..], [Tick::Quiet; 4]);
    }

    /// On a busy machine several ticks may come before the engine's turn.
    #[test]
    fn a_session_that_ends_soon_after_a_suspend_ended_by_it_however_many_ticks_came_before() {
        let tick = Duration::from_millis(50);
        let ended = |after: u64| {
            let mut network = Network { ticked: at(0), ..Network::new(false) };
            assert_eq!(network.on_tick(at(100_000), tick), Tick::Resumed);
            network.woke_until = Some(at(100_000) + WAKING);
            let ticks = (1..=20).map(|count| network.on_tick(at(100_000 + 50 * count), tick));
            assert_eq!(ticks.filter(|tick| *tick == Tick::Quiet).count(), 20);
            let ended = network.ended_by_suspend(at(100_000 + after));
            assert!(!network.ended_by_suspend(at(100_000 + after)), "only the first one");
            ended
        };
        assert_eq!([2000, 60_000].map(ended), [true, false]);
    }

    #[test]
    fn the_tunnels_own_packets_enter_it_only_where_that_is_allowed() {
        let own = OwnTransport {
            remote: "192.0.2.1:1194".parse().unwrap(),
            local_port: Some(1194),
            stream: false,
        };
        let kept_out = |allow_recursive| {
            Network { own: Some(own), ..Network::new(allow_recursive) }.kept_out()
        };
        assert_eq!((kept_out(false), kept_out(true)), (Some(own), None));
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

    #[test]
    fn a_connection_that_stalled_on_a_changed_path_is_dialled_again() {
        let start = tokio::time::Instant::now();
        let mut network = Network::new(false);
        let mut stalled = |stream, stale, received, unacknowledged| {
            network.watch_connection(start, 100, stream, stale);
            let due = network.check.map(|(at, _)| at);
            assert_eq!(due, (stream && !stale).then_some(start + STALLED));
            let stalled = network.has_stalled(received, unacknowledged);
            assert!(!network.has_stalled(received, unacknowledged), "asked once");
            assert_eq!(network.check, None);
            stalled
        };
        assert!(stalled(true, false, 100, true));
        assert!(!stalled(true, false, 101, true), "the other end was heard");
        assert!(!stalled(true, false, 100, false), "an idle one has all acknowledged");
        assert!(!stalled(true, true, 100, true), "it is replaced already");
        assert!(!stalled(false, false, 100, true), "datagrams have no connection");
    }

    #[test]
    fn a_second_change_of_the_path_counts_packets_from_there() {
        let start = tokio::time::Instant::now();
        let mut network = Network::new(false);
        network.watch_connection(start, 100, true, false);
        network.watch_connection(start + STALLED / 2, 150, true, false);
        assert_eq!(network.check.map(|(at, _)| at), Some(start + STALLED / 2 + STALLED));
        assert!(network.has_stalled(150, true));
    }
}
