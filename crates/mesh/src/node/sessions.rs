//! The events of sessions: their beginning, their records and their end.

use std::net::IpAddr;
use std::time::Duration;

use adit_engine::command::{Keepalive, Traffic};
use adit_engine::{Instant, Link, PeerId};
use adit_openvpn::data_format::Command;
use adit_openvpn::keys::Role;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::connect::WANTED;
use super::peer::{Attempt, Live};
use super::record::{Content, FIRST_KIND, Record};
use super::relayed_links::Relayed;
use super::{Endpoint, NO_UDP, Node, NodeEvent, Out, RETRY};
use crate::join::Responder;
use crate::path::{self, MAIN_SOCKET, is_usable};
use crate::roster::{Member, Roster, ipv6_net};
use crate::session::{Event, KeyHash, Protocol, Reason, SessionNumber};
use crate::sync;

/// The time without an answer on any path after which a session ends.
const LOST: Duration = Duration::from_secs(10);

/// The keepalive times of sessions with relays. A restarted relay knows no addresses, so its neighbours must notice the restart soon.
const RELAY_KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(5), timeout: Duration::from_secs(16) };

/// How long a node waits for a member that tests paths to it without a session. After that time, it begins a session itself: the member
/// does not know that this node has restarted.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// The kinds of roster records.
const SYNC_KINDS: std::ops::RangeInclusive<u8> = 16..=18;

impl Node {
    pub(super) fn session_event(&mut self, now: Instant, event: Event, out: &mut Out) {
        match event {
            Event::Established { session, peer, protocol: Protocol::Join, .. } => {
                self.responders.insert(session, Responder::new(peer));
            }
            Event::Established { session, peer, channels, link, role, .. } => {
                let dialled = role == Role::Client;
                self.established(now, session, peer, channels, (link, dialled), out);
            }
            Event::Record(session, record) => match self.by_session.get(&session).copied() {
                Some(peer) => self.record(now, session, peer, &record, out),
                None => self.join_record(now, session, &record, out),
            },
            Event::Ended(session, peer, reason) => self.ended(now, session, peer, reason, out),
            // The session itself sets the size of tunnelled packets.
            Event::Path(..) => {}
        }
    }

    fn established(
        &mut self,
        now: Instant,
        number: SessionNumber,
        key: KeyHash,
        channels: Vec<PeerId>,
        (link, dialled): (Link, bool),
        out: &mut Out,
    ) {
        let channel_count = channels.len();
        let packets = vec![0; channel_count];
        let trust = self.trust_of_new(now, &key);
        let live = Live { number, channels, link, since: now, packets, active_at: now, trust };
        self.by_session.insert(number, key);
        self.by_channel.extend(live.channels.iter().map(|channel| (*channel, key)));
        if self.is_relay(&key) || self.is_relay(&self.own) {
            // Packets of the first channel show that the path works.
            let first = live.channels.first();
            first.into_iter().for_each(|channel| {
                out.plane(Command::SetKeepalive(*channel, RELAY_KEEPALIVE));
            });
        }
        self.add_peer(now, key, out);
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.attempt = None;
            peer.session = Some(live);
        }
        self.sessions.set_standing(number, self.stands(now, &key));
        self.set_routes(&key, out);
        self.sync.connected(number);
        if let Some(budget) = self.limits.take_budget(&key) {
            self.sync.set_budget(number, budget);
        }
        self.unsent.insert(number);
        let further = channel_count.saturating_sub(1);
        let sockets = self.channel_sockets.iter().take(further).copied().collect();
        self.finder_input(now, &key, path::Input::ChannelPorts(sockets), out);
        let way = self.relayed.way(link);
        if way.is_none() {
            self.tell_observed(now, number, link);
            let to = link.remote();
            let input = match (link.socket(), link.stream_id()) {
                (Some(socket), _) => Some(path::Input::Established { socket, to }),
                (None, id) => id.map(|id| path::Input::EstablishedStream { id, to }),
            };
            input.into_iter().for_each(|input| self.finder_input(now, &key, input, out));
        }
        if let Some(way) = way {
            self.finder_input(now, &key, path::Input::EstablishedRelay(way.relay), out);
        }
        if link.is_stream() && dialled {
            self.on_stream_established(now, &key, out);
        }
        if let Some(own) = &self.own_endpoint {
            let record = Record::Endpoint(own.encoded().to_vec()).encode();
            self.sessions.send(now, number, &record, &mut self.session_outputs);
        }
        let (via, stream) = (way.map(|way| way.relay), link.is_stream());
        out.event(NodeEvent::Connected { peer: key, via, stream });
        if trust.is_stale || trust.is_expired {
            out.event(NodeEvent::Trust);
        }
        self.finder_input(now, &key, path::Input::DataSent, out);
        // The finder may have chosen a path before there was a session.
        let chosen = self.peers.get(&key).and_then(|peer| peer.finder.current());
        chosen.into_iter().for_each(|route| self.use_path(now, &key, route, out));
        self.accept_through_relays(now, &key);
        self.relay_connected(now, &key, out);
        self.fetch_policy(now);
    }

    /// Restores relayed sessions after a session with a relay, and splices after a session with a relayed peer.
    fn relay_connected(&mut self, now: Instant, key: &KeyHash, out: &mut Out) {
        let mut commands = Vec::new();
        self.relaying.connected(key, &|member| self.first_channel(member), &mut commands);
        commands.into_iter().for_each(|command| out.plane(command));
        if !self.is_relay(key) {
            return;
        }
        self.tell_relays_to_all(now, out);
        let Some(relay) = self.first_channel(key) else { return };
        let through =
            |live: &&Live| self.relayed.way(live.link).is_some_and(|way| way.relay == *key);
        let sessions = self.peers.values().filter_map(|peer| peer.session.as_ref());
        for channel in sessions.filter(through).flat_map(|live| &live.channels) {
            out.plane(Command::SetRelay(*channel, relay));
        }
        let peers: Vec<KeyHash> = self.connected().collect();
        peers.iter().for_each(|peer| self.accept_through_relays(now, peer));
        let waits = |peer: &super::Peer| peer.attempt.is_some() && peer.session.is_none();
        let waiting = self.peers.iter().filter(|(_, peer)| waits(peer));
        let waiting: Vec<KeyHash> = waiting.map(|(key, _)| *key).collect();
        waiting.iter().for_each(|peer| self.try_again(now, peer));
    }

    fn ended(
        &mut self,
        now: Instant,
        number: SessionNumber,
        key: Option<KeyHash>,
        reason: Reason,
        out: &mut Out,
    ) {
        self.responders.remove(&number);
        let Some(key) = key else { return };
        if self.by_session.remove(&number).is_none() {
            // The attempt has failed, unless this node itself gave it up.
            let attempt = self.peers.get_mut(&key).and_then(|peer| peer.attempt.as_mut());
            if attempt.is_some_and(|attempt| attempt.number == Some(number)) {
                self.way_failed(now, &key);
            }
            return;
        }
        let budget = self.sync.disconnected(number);
        if self.roster.member(&key).is_some() {
            self.limits.keep_budget(&key, budget);
        }
        self.unsent.remove(&number);
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let Some(live) = peer.session.take_if(|live| live.number == number) else { return };
        live.channels.iter().for_each(|channel| {
            self.by_channel.remove(channel);
        });
        let stream = live.link.stream_id();
        if reason != Reason::Idle {
            peer.wanted_until = peer.wanted_until.max(live.active_at + WANTED);
        }
        out.event(NodeEvent::Disconnected { peer: key, reason });
        if let Some(id) = stream {
            self.finder_input(now, &key, path::Input::StreamDown(id), out);
            self.on_stream_ended(now, &key);
        }
        let relays: Vec<KeyHash> = self.legs_to(&key).into_iter().map(|leg| leg.relay).collect();
        for relay in relays {
            self.send_record(now, &relay, &Record::Accept { from: key, ids: Vec::new() });
        }
        if self.is_relay(&key) {
            self.tell_relays_to_all(now, out);
        }
        self.next_tick = now;
    }

    /// Sets the destinations routed to a peer, and the sources accepted from it.
    pub(super) fn set_routes(&mut self, key: &KeyHash, out: &mut Out) {
        let is_open = self.live(key).is_some_and(|live| live.trust.is_open);
        let mut routes = if is_open { destinations(&self.roster, key) } else { Vec::new() };
        if self.exit == Some(*key) && is_open {
            routes.extend(self.outside());
        }
        if let Some(channel) = self.first_channel(key) {
            out.plane(Command::SetRoutes(channel, routes));
        }
    }

    /// Returns all addresses outside the mesh and the members' networks: those that an exit node may receive and send. So the exit never
    /// receives packets for a member without a session, and cannot impersonate a member.
    fn outside(&self) -> Vec<IpNet> {
        let genesis = self.changes.genesis();
        let ranges = genesis.ranges.iter().copied().map(IpNet::V4);
        let subnets = self.roster.members().flat_map(|member| member.subnets.iter().copied());
        let inside: Vec<IpNet> =
            ranges.chain([ipv6_net(&self.mesh).into()]).chain(subnets).collect();
        let mut outside = Vec::new();
        for all in [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())] {
            without(all, &inside, &mut outside);
        }
        outside
    }

    /// Returns the session with a member.
    pub(super) fn live(&self, key: &KeyHash) -> Option<&Live> {
        self.peers.get(key).and_then(|peer| peer.session.as_ref())
    }

    /// Returns the members with which there is a session.
    pub(super) fn connected(&self) -> impl Iterator<Item = KeyHash> {
        self.peers.iter().filter(|(_, peer)| peer.session.is_some()).map(|(key, _)| *key)
    }

    /// Returns the first data channel of the session with a member.
    pub(super) fn first_channel(&self, key: &KeyHash) -> Option<PeerId> {
        self.live(key).and_then(|live| live.channels.first().copied())
    }

    /// Sends a record to a member in its session. Returns whether there was room.
    pub(super) fn send_record(&mut self, now: Instant, to: &KeyHash, record: &Record) -> bool {
        let Some(number) = self.live(to).map(|live| live.number) else { return false };
        self.sessions.send(now, number, &record.encode(), &mut self.session_outputs)
    }

    /// Returns the link that represents a path through a relay.
    pub(super) fn relayed_link(&mut self, way: Relayed) -> Link {
        let sessions = &self.sessions;
        self.relayed.link(way, |link| sessions.uses(link))
    }

    /// Sends a control packet through a relay.
    pub(super) fn send_packet(&mut self, now: Instant, way: Relayed, packet: Vec<u8>) {
        let record = Record::Forward { to: way.peer, content: Content::Packet(packet) };
        if !self.send_record(now, &way.relay, &record) {
            // The session retransmits it.
            self.counters.relay_unavailable = self.counters.relay_unavailable.saturating_add(1);
        }
    }

    /// Sends records that waited for room in their sessions.
    pub(super) fn send_waiting(&mut self, now: Instant) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        let mut waits = false;
        for number in std::mem::take(&mut self.unsent) {
            loop {
                let room = self.sessions.room(number);
                let Some(record) = self.sync.next_record(number, &self.changes, room) else {
                    // There may be no room for a record of the maximum length.
                    if room < sync::MAX_RECORD && self.by_session.contains_key(&number) {
                        self.unsent.insert(number);
                        waits = true;
                    }
                    break;
                };
                self.sessions.send(now, number, &record, &mut self.session_outputs);
            }
        }
        let (sessions, outputs) = (&mut self.sessions, &mut self.session_outputs);
        for (number, responder) in &mut self.responders {
            let room =
                |sessions: &crate::session::SessionEngine, len| sessions.room(*number) >= len;
            let done = responder.send(&self.changes, |record| {
                room(sessions, record.len()) && sessions.send(now, *number, record, outputs)
            });
            waits |= !done;
        }
        if waits {
            self.retry_at.get_or_insert(now + RETRY);
        }
    }

    pub(super) fn record(
        &mut self,
        now: Instant,
        session: SessionNumber,
        peer: KeyHash,
        bytes: &[u8],
        out: &mut Out,
    ) {
        let kind = bytes.get(1).copied().unwrap_or_default();
        if !self.limits.take_record(now, &peer) {
            return;
        }
        if SYNC_KINDS.contains(&kind) {
            let before = self.sync.counters().limited;
            let result = self.sync.record(now, session, bytes, &mut self.changes);
            let limited = self.sync.counters().limited.saturating_sub(before);
            self.limits.changes_dropped(now, &peer, limited);
            match result {
                Ok(added) => {
                    self.unsent.insert(session);
                    self.added(now, added, out);
                    if self.sync.take_agreement(session) {
                        self.has_same_roster(now, peer, out);
                    }
                }
                Err(_) => self.refuse(now, session),
            }
        } else if kind < FIRST_KIND {
            let input = path::Input::Record { from: peer, via: None, bytes };
            self.finder_input(now, &peer, input, out);
        } else {
            match Record::decode(bytes) {
                Ok(record) => self.member_record(now, session, peer, record, out),
                Err(_) => self.refuse(now, session),
            }
        }
    }

    /// Ends the session of a member that violates the protocol.
    fn refuse(&mut self, now: Instant, session: SessionNumber) {
        self.counters.malformed = self.counters.malformed.saturating_add(1);
        self.sessions.disconnect(now, session, &mut self.session_outputs);
    }

    fn member_record(
        &mut self,
        now: Instant,
        session: SessionNumber,
        from: KeyHash,
        record: Record,
        out: &mut Out,
    ) {
        match record {
            Record::Forward { to, content } => self.forward(now, from, to, content),
            Record::Forwarded { from: sender, content } => {
                self.forwarded(now, from, sender, content, out);
            }
            Record::Unreachable { peer } => {
                let stuck = |link| self.relayed.way(link) == Some(Relayed { relay: from, peer });
                let attempt = self.peers.get(&peer).and_then(|peer| peer.attempt.as_ref());
                let number = attempt.and_then(|attempt| attempt.number);
                if number.and_then(|number| self.sessions.link(number)).is_some_and(stuck) {
                    self.way_failed(now, &peer);
                }
            }
            Record::Accept { from: sender, ids } => self.accept(now, from, sender, ids, out),
            Record::Taken { from: sender } => {
                // A new session has new ids.
                if let Some(number) = self.live(&sender).map(|live| live.number) {
                    self.sessions.disconnect(now, number, &mut self.session_outputs);
                    self.connect(now, &sender, out);
                }
            }
            Record::Where { node } => {
                let known = self.endpoints.get(&node).map(|it| it.encoded().to_vec());
                if let Some(endpoint) = known {
                    self.send_record(now, &from, &Record::Endpoint(endpoint));
                }
            }
            Record::Endpoint(bytes) => match Endpoint::decode(&self.mesh, &bytes) {
                Ok(endpoint) => self.endpoint_arrived(now, &from, endpoint, out),
                Err(_) => self.refuse(now, session),
            },
            Record::Ping { nonce } => {
                self.send_record(now, &from, &Record::Pong { nonce });
            }
            Record::Pong { nonce } => self.ponged(now, &from, nonce),
            Record::PolicyWanted { hash, offset } => self.policy_wanted(now, &from, hash, offset),
            Record::Policy { hash, total, offset, piece } => {
                self.policy_piece(now, &from, (hash, total, offset), &piece, out);
            }
        }
    }

    pub(super) fn endpoint_arrived(
        &mut self,
        now: Instant,
        from: &KeyHash,
        endpoint: Endpoint,
        out: &mut Out,
    ) {
        let node = endpoint.node;
        // The node knows its own addresses best, even if its clock was set back.
        let is_news = if *from == node {
            self.endpoints.differs(&endpoint)
        } else {
            self.endpoints.is_newer(&endpoint)
        };
        if !is_news || self.roster.member(&node).is_none() {
            return;
        }
        // Through a relay, this node reaches all others.
        let (peers, roster) = (&self.peers, &self.roster);
        let is_relay = |node: &KeyHash| roster.member(node).is_some_and(|member| member.relay);
        let needed = |node: &KeyHash| peers.contains_key(node) || is_relay(node);
        if self.limits.take_endpoint(now, &node) && self.endpoints.put(endpoint, needed) {
            out.event(NodeEvent::Endpoints);
            self.try_again(now, &node);
        }
    }

    /// Forwards content to another member.
    fn forward(&mut self, now: Instant, from: KeyHash, to: KeyHash, content: Content) {
        let direct = self.live(&to).is_some_and(|live| self.relayed.way(live.link).is_none());
        if !direct || !self.is_relay(&self.own) {
            self.send_record(now, &from, &Record::Unreachable { peer: to });
            return;
        }
        if self.relaying.take(now, &from, &to, content.len()) {
            self.send_record(now, &to, &Record::Forwarded { from, content });
        }
    }

    /// Processes content that a relay forwarded.
    fn forwarded(
        &mut self,
        now: Instant,
        relay: KeyHash,
        from: KeyHash,
        content: Content,
        out: &mut Out,
    ) {
        if !self.is_relay(&relay) || !self.is_valid_member(now, &from) || from == self.own {
            self.counters.not_relayed = self.counters.not_relayed.saturating_add(1);
            return;
        }
        match content {
            Content::Packet(mut packet) => {
                use adit_engine::Engine as _;
                let link = self.relayed_link(Relayed { relay, peer: from });
                let input = adit_openvpn::data_format::Input::ControlPacket(link, &mut packet);
                self.sessions.handle(now, input, &mut self.session_outputs);
            }
            Content::Path(bytes) => {
                self.add_peer(now, from, out);
                self.restore_session(now, &from);
                let input = path::Input::Record { from, via: Some(relay), bytes: &bytes };
                self.finder_input(now, &from, input, out);
            }
        }
    }

    /// Schedules an attempt to reach a member that tests paths to this node, unless the member begins a session first. If it has an old one,
    /// the paths answer, so only a new session shows that nothing it sends there arrives.
    fn restore_session(&mut self, now: Instant, key: &KeyHash) {
        if let Some(peer) = self.peers.get_mut(key)
            && peer.session.is_none()
            && peer.attempt.is_none()
        {
            peer.wanted_until = peer.wanted_until.max(now + WANTED);
            peer.attempt = Some(Attempt { until: now + FORGOTTEN, ..Attempt::default() });
        }
    }

    /// As a relay, starts to forward packets from one member to another.
    fn accept(&mut self, now: Instant, to: KeyHash, from: KeyHash, ids: Vec<u32>, out: &mut Out) {
        if !self.is_relay(&self.own) || !self.is_valid_member(now, &from) {
            return;
        }
        let mut commands = Vec::new();
        let channel_of =
            |member: &KeyHash| self.peers.get(member)?.session.as_ref()?.channels.first().copied();
        let is_own = |id: PeerId| self.by_channel.contains_key(&id);
        let accepted = self.relaying.accept(to, from, ids, is_own, &channel_of, &mut commands);
        commands.into_iter().for_each(|command| out.plane(command));
        if !accepted {
            self.send_record(now, &to, &Record::Taken { from });
        }
    }

    /// Sends the relays that serve both ends of a session the ids of its channels at this end.
    pub(super) fn accept_through_relays(&mut self, now: Instant, key: &KeyHash) {
        let Some(live) = self.live(key) else { return };
        let ids: Vec<u32> = live.channels.iter().map(|channel| channel.0).collect();
        let record = Record::Accept { from: *key, ids };
        let relays: Vec<KeyHash> = self.legs_to(key).into_iter().map(|leg| leg.relay).collect();
        for relay in relays {
            self.send_record(now, &relay, &record);
        }
    }

    /// Sends a peer the address at which this node sees it.
    fn tell_observed(&mut self, now: Instant, number: SessionNumber, link: Link) {
        if link.socket() == Some(MAIN_SOCKET) && is_usable(link.remote()) {
            let record = path::Record::Observed(link.remote()).encode();
            self.sessions.send(now, number, &record, &mut self.session_outputs);
        }
    }

    /// Ends the sessions with peers that do not answer on any path: they may have restarted.
    ///
    /// If no relay answers over UDP, those that accept streams are dialled over a stream earlier.
    pub(super) fn end_lost(&mut self, now: Instant) {
        let without_udp = self.is_without_udp(now);
        let limit = |key: &KeyHash, live: &Live| {
            let early = without_udp && !live.link.is_stream() && self.is_relay(key);
            if early && !self.stream_addresses(key).is_empty() { NO_UDP } else { LOST }
        };
        let lost = |(key, peer): &(&KeyHash, &super::Peer)| {
            let silent = peer.session.as_ref().zip(peer.finder.lost_for(now));
            silent.is_some_and(|(live, time)| time >= limit(key, live))
        };
        let lost: Vec<SessionNumber> = self
            .peers
            .iter()
            .filter(lost)
            .filter_map(|(_, peer)| peer.session.as_ref().map(|live| live.number))
            .collect();
        for number in lost {
            self.sessions.disconnect(now, number, &mut self.session_outputs);
        }
    }

    /// Requests the sessions' packet counts from the data plane.
    pub(super) fn read_traffic(&mut self) {
        let sessions = self.peers.values().filter_map(|peer| peer.session.as_ref());
        for channel in sessions.flat_map(|live| &live.channels) {
            self.session_outputs.plane(Command::ReadTraffic(*channel));
        }
    }

    /// Records the packets that passed through a channel.
    pub(super) fn traffic(
        &mut self,
        now: Instant,
        channel: PeerId,
        traffic: Traffic,
        out: &mut Out,
    ) {
        let Some(key) = self.by_channel.get(&channel).copied() else { return };
        let Some(live) = self.peers.get_mut(&key).and_then(|peer| peer.session.as_mut()) else {
            return;
        };
        let packets = traffic.packets.saturating_sub(traffic.in_band_packets);
        let at = live.channels.iter().position(|it| *it == channel);
        if let Some(seen) = at.and_then(|at| live.packets.get_mut(at))
            && std::mem::replace(seen, packets) != packets
        {
            live.active_at = now;
            self.finder_input(now, &key, path::Input::DataSent, out);
        }
    }
}

/// Appends the parts of a network that none of the others contain.
fn without(network: IpNet, others: &[IpNet], parts: &mut Vec<IpNet>) {
    let others: Vec<IpNet> = others
        .iter()
        .filter(|other| other.contains(&network) || network.contains(*other))
        .copied()
        .collect();
    if others.is_empty() {
        parts.push(network);
    } else if !others.iter().any(|other| other.contains(&network)) {
        let halves = network.subnets(network.prefix_len().saturating_add(1));
        halves.into_iter().flatten().for_each(|half| without(half, &others, parts));
    }
}

/// Returns the destinations reached through a member: its own and those of its leaves.
pub fn destinations(roster: &Roster, key: &KeyHash) -> Vec<IpNet> {
    let member = roster.member(key);
    let leaves = roster.leaves_of(key);
    member.into_iter().chain(leaves).flat_map(routes_of).collect()
}

/// Returns the destinations behind a member: its addresses and its subnets.
pub fn routes_of(member: &Member) -> Vec<IpNet> {
    let addresses = [Some(IpAddr::from(member.ipv6)), member.ipv4.map(IpAddr::from)];
    let hosts = addresses.into_iter().flatten().map(IpNet::from);
    hosts.chain(member.subnets.iter().copied()).collect()
}
