//! The connections between neighbours: identification, session, ACK, and then messages.
//!
//! ```text
//!   Dialling ─connected─► Identifying ─ID─► Handshake ─ACK─► Active
//!              accepted ─►
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, Rate, TokenBucket};

use super::floods::Announcement;
use super::pace::Pace;
use super::requests::Answer;
use super::{
    CloseReason, ConnectionId, Event, MAX_CONNECTIONS, MAX_QUEUE, MAX_UNAUTHENTICATED, Node,
    Output, after, canonical, count,
};
use crate::meta::{Id, Lines, Message, MessageError, Options};
use crate::name::NodeName;
use crate::sptps::{self, Received, Stream};

/// How often a neighbour may renew the keys of a connection. tinc never does.
const REKEYS: Rate = Rate::one_in(Duration::from_secs(60), 4);

/// A connection with a neighbour.
pub(super) struct Connection {
    pub(super) remote: SocketAddr,
    pub(super) local: Option<SocketAddr>,
    /// The node that was dialled; `None` for an inbound connection.
    pub(super) dialled: Option<NodeName>,
    /// When the connection was accepted or dialled.
    pub(super) started: Instant,
    /// When this node sent its identification.
    pub(super) identified: Instant,
    pub(super) state: State,
    /// The bytes that were not handed to the driver yet.
    pub(super) out: Vec<u8>,
    /// The number of bytes that the driver has not sent yet.
    backlog: usize,
    /// The exchanges of new keys, each of which costs time.
    rekeys: TokenBucket,
    pace: Pace,
    /// The first node whose subnets and edges a new neighbour does not have yet.
    pub(super) sync_next: Option<NodeName>,
}

/// The state of a connection.
pub(super) enum State {
    /// The driver connects.
    Dialling,
    /// The peer's identification is awaited.
    Identifying(Lines),
    /// The session starts, or the peer's ACK is awaited.
    Handshake(Meta),
    /// The neighbour's messages are handled.
    Active(Meta, Liveness),
}

/// The session of a connection.
pub(super) struct Meta {
    pub(super) node: NodeName,
    pub(super) stream: Stream,
    pub(super) next: Next,
    /// The options that this node proposes.
    pub(super) options: Options,
    /// The weight that this node proposes.
    pub(super) weight: i32,
}

/// The next item in the stream.
pub(super) enum Next {
    Message,
    /// A record that is a packet of this length.
    Packet(u16),
    /// This many bytes outside the records, after those that have arrived.
    Relayed(usize, Vec<u8>),
}

/// Whether the neighbour answers.
pub(super) struct Liveness {
    pub(super) pinged: Instant,
    /// The number of PINGs that it has not answered yet.
    pub(super) unanswered: u32,
}

/// A unit of a connection's input.
enum Unit {
    Identification,
    Established,
    Record,
    Relayed,
}

impl Connection {
    fn new(remote: SocketAddr, state: State, now: Instant) -> Self {
        Self {
            remote,
            local: None,
            dialled: None,
            started: now,
            identified: now,
            state,
            out: Vec::new(),
            backlog: 0,
            rekeys: TokenBucket::new(),
            pace: Pace::default(),
            sync_next: None,
        }
    }

    /// Returns the session, once there is one.
    pub(super) fn meta(&self) -> Option<&Meta> {
        match &self.state {
            State::Handshake(meta) | State::Active(meta, _) => Some(meta),
            State::Dialling | State::Identifying(_) => None,
        }
    }

    pub(super) fn meta_mut(&mut self) -> Option<&mut Meta> {
        match &mut self.state {
            State::Handshake(meta) | State::Active(meta, _) => Some(meta),
            State::Dialling | State::Identifying(_) => None,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        matches!(self.state, State::Active(..))
    }

    /// Returns whether the peer has proved who it is.
    pub(super) fn is_authenticated(&self) -> bool {
        self.meta().is_some_and(|meta| meta.stream.is_established())
    }

    /// Returns whether the last PING was sent at least this long ago.
    pub(super) fn is_quiet(&self, now: Instant, span: Duration) -> bool {
        matches!(&self.state, State::Active(_, liveness) if now.since(liveness.pinged) >= span)
    }

    /// Returns the number of bytes that wait to be sent.
    pub(super) fn queued(&self) -> usize {
        self.out.len().saturating_add(self.backlog)
    }

    pub(super) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

impl Node {
    /// A TCP connection arrived. Returns its number, or `None` if there are too many: put it into the tarpit, as for [`Output::Close`].
    pub fn accept(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: SocketAddr,
    ) -> Option<ConnectionId> {
        self.now = now;
        let remote = canonical(remote);
        let rate = Rate::one_in(Duration::from_secs(1), self.config.max_connection_burst);
        let full = self.connections.len() >= MAX_CONNECTIONS
            || self.unauthenticated() >= MAX_UNAUTHENTICATED;
        let is_limited = !remote.ip().is_loopback();
        if full || (is_limited && !self.started.take(now, rate, remote.ip())) {
            count(&mut self.counters.refused_connections);
            return None;
        }
        let mut connection = Connection::new(remote, State::Identifying(Lines::default()), now);
        connection.local = Some(canonical(local));
        Some(self.add_connection(connection))
    }

    /// Returns the number of inbound connections whose peer has not proved yet who it is.
    pub(super) fn unauthenticated(&self) -> usize {
        let pending =
            self.connections.values().filter(|it| it.dialled.is_none() && !it.is_authenticated());
        pending.count()
    }

    /// Returns the node that an [`Output::Dial`] is for.
    pub fn dialled(&self, id: ConnectionId) -> Option<&NodeName> {
        self.connections.get(&id)?.dialled.as_ref()
    }

    pub(super) fn dial(&mut self, node: &NodeName, address: SocketAddr) -> ConnectionId {
        let mut connection = Connection::new(address, State::Dialling, self.now);
        connection.dialled = Some(node.clone());
        let id = self.add_connection(connection);
        self.outputs.push_back(Output::Dial { connection: id, address });
        id
    }

    fn add_connection(&mut self, connection: Connection) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection = self.next_connection.saturating_add(1);
        self.connections.insert(id, connection);
        id
    }

    /// An [`Output::Dial`] succeeded. An unspecified local address means that the connection has none.
    pub fn connected(&mut self, now: Instant, id: ConnectionId, local: SocketAddr) {
        self.now = now;
        let own = self.own.clone();
        if let Some(connection) = self.connections.get_mut(&id)
            && matches!(connection.state, State::Dialling)
        {
            connection.local = Some(canonical(local)).filter(|it| !it.ip().is_unspecified());
            connection.identified = now;
            connection.state = State::Identifying(Lines::default());
            Id::of(own).write(&mut connection.out);
            self.unsent.insert(id);
        }
        self.finish();
    }

    /// A connection was closed by the peer or the network, or an [`Output::Dial`] failed.
    pub fn closed(&mut self, now: Instant, id: ConnectionId) {
        self.now = now;
        self.close(id, CloseReason::Closed);
        self.finish();
    }

    /// The driver still has this many bytes of a connection to send.
    pub fn set_backlog(&mut self, id: ConnectionId, bytes: usize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.backlog = bytes;
        }
    }

    /// Bytes arrived on a connection. Returns when to read more of it: later if a stream of messages comes that can wait.
    pub fn receive(&mut self, now: Instant, id: ConnectionId, bytes: &[u8]) -> Instant {
        self.now = now;
        let mut input = bytes;
        let mut record = std::mem::take(&mut self.record);
        loop {
            let handled = match self.next_unit(id, &mut input, &mut record) {
                Ok(None) => break,
                Ok(Some(unit)) => self.handle_unit(id, &unit, &mut record, &mut input),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = handled {
                self.close(id, reason);
                break;
            }
        }
        self.record = record;
        self.finish();
        self.connections.get_mut(&id).map_or(now, |connection| connection.pace.next_read(now))
    }

    /// Takes the next unit from the front of `input`, with its bytes in `record`.
    fn next_unit(
        &mut self,
        id: ConnectionId,
        input: &mut &[u8],
        record: &mut Vec<u8>,
    ) -> Result<Option<Unit>, CloseReason> {
        record.clear();
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(None) };
        let meta = match &mut connection.state {
            State::Dialling => return Ok(None),
            State::Identifying(lines) => {
                let Some(line) = lines.read(input)? else { return Ok(None) };
                *record = line;
                return Ok(Some(Unit::Identification));
            }
            State::Handshake(meta) | State::Active(meta, _) => meta,
        };
        if !matches!(meta.next, Next::Message) {
            // A long packet may come in many pieces.
            connection.pace.hurry();
        }
        if let Next::Relayed(len, arrived) = &mut meta.next {
            let missing = len.saturating_sub(arrived.len());
            let (now, later) = input.split_at_checked(missing).unwrap_or((input, &[]));
            arrived.extend_from_slice(now);
            *input = later;
            if arrived.len() < *len {
                return Ok(None);
            }
            std::mem::swap(record, arrived);
            meta.next = Next::Message;
            return Ok(Some(Unit::Relayed));
        }
        loop {
            let received = meta.stream.receive(input, &mut self.random, &mut connection.out)?;
            if !connection.out.is_empty() {
                self.unsent.insert(id);
            }
            return Ok(Some(match received {
                None => return Ok(None),
                Some(Received::Event(sptps::Event::Established)) => Unit::Established,
                Some(Received::Event(sptps::Event::Rekeyed)) => {
                    if connection.rekeys.take_whole(self.now, REKEYS).is_err() {
                        return Err(CloseReason::OutOfTurn);
                    }
                    continue;
                }
                Some(Received::Record(_, data)) => {
                    record.extend_from_slice(data);
                    Unit::Record
                }
            }));
        }
    }

    fn handle_unit(
        &mut self,
        id: ConnectionId,
        unit: &Unit,
        record: &mut [u8],
        input: &mut &[u8],
    ) -> Result<(), CloseReason> {
        if !(matches!(unit, Unit::Record) && Message::can_wait(record))
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.pace.hurry();
        }
        match unit {
            Unit::Identification => self.identified(id, record, input),
            Unit::Established => self.established(id),
            Unit::Record => self.record_received(id, record),
            Unit::Relayed => {
                self.relayed_packet(id, record);
                Ok(())
            }
        }
    }

    fn record_received(&mut self, id: ConnectionId, record: &[u8]) -> Result<(), CloseReason> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let active = connection.is_active();
        let Some(meta) = connection.meta_mut() else { return Ok(()) };
        if let Next::Packet(announced) = meta.next {
            if record.len() != usize::from(announced) {
                return Err(CloseReason::PacketLength { announced, actual: record.len() });
            }
            meta.next = Next::Message;
            let node = meta.node.clone();
            self.neighbours_packet(&node, record);
            return Ok(());
        }
        let message = match Message::parse(record) {
            // A neighbour passes on lines of other nodes that it understands itself. Such a line must not end its connection.
            Err(error) if active && Message::is_passed_on(record) => {
                let node = meta.node.clone();
                self.line_refused(node, error);
                return Ok(());
            }
            parsed => parsed?,
        };
        match (message, active) {
            (Message::Ack { udp_port, weight, options }, false) => {
                self.acknowledged(id, &udp_port, weight, options);
                Ok(())
            }
            (Message::Ack { .. }, true) | (_, false) => Err(CloseReason::OutOfTurn),
            (Message::Packet(len), true) => {
                meta.next = Next::Packet(len);
                Ok(())
            }
            (Message::SptpsPacket(len), true) => {
                meta.next = Next::Relayed(usize::from(len), Vec::new());
                Ok(())
            }
            (message, true) => {
                let node = meta.node.clone();
                self.message_received(id, &node, record, message)
            }
        }
    }

    fn line_refused(&mut self, node: NodeName, error: MessageError) {
        count(&mut self.counters.refused_lines);
        if self.limits.may_report(self.now, &node) {
            self.event(Event::LineRefused { node, error });
        }
    }

    fn message_received(
        &mut self,
        id: ConnectionId,
        node: &NodeName,
        line: &[u8],
        message: Message,
    ) -> Result<(), CloseReason> {
        if message.sender() == Some(&self.own) {
            // Another node made it up, or it went in a circle.
            count(&mut self.counters.refused_lines);
            return Ok(());
        }
        match message {
            Message::TermReq => return Err(CloseReason::TermReq),
            Message::Ping => self.send(id, &Message::Pong),
            Message::Pong => self.pong_received(id, node),
            Message::ReqKey(from, to, request) => {
                self.key_requested(node, line, &from, &to, request);
            }
            Message::AnsKey { from, to, key, offers_aes, reflexive, .. } => {
                let answer = Answer { key, offers_aes, reflexive };
                self.key_answered(node, line, &from, &to, answer);
            }
            Message::UdpInfo(from, to, address) => self.udp_info(node, &from, &to, &address),
            Message::MtuInfo(from, to, mtu) => self.mtu_info(node, &from, &to, mtu),
            about_topology => {
                let announced = Announcement { connection: id, neighbour: node, line };
                self.flooded(announced, about_topology);
            }
        }
        Ok(())
    }

    fn pong_received(&mut self, id: ConnectionId, node: &NodeName) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let State::Active(_, liveness) = &mut connection.state {
            liveness.unanswered = liveness.unanswered.saturating_sub(1);
        }
        self.settle_by_pong(node);
        if let Some(outgoing) = self.outgoing.get_mut(node) {
            outgoing.reset_backoff();
        }
    }

    /// Closes a connection, and tells the other nodes if it was a neighbour's.
    pub(super) fn close(&mut self, id: ConnectionId, reason: CloseReason) {
        self.remove_connection(id, reason, true);
    }

    pub(super) fn remove_connection(&mut self, id: ConnectionId, reason: CloseReason, flood: bool) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let authenticated = connection.is_authenticated();
        if reason != CloseReason::Closed {
            let tarpit = connection.dialled.is_none()
                && !authenticated
                && reason != CloseReason::HandshakeTimeout;
            self.outputs.push_back(Output::Close { connection: id, tarpit });
        }
        let node = connection.meta().map(|meta| meta.node.clone());
        let replaced = reason == CloseReason::Replaced;
        let event = Event::Disconnected {
            node: node.clone().or_else(|| connection.dialled.clone()),
            address: connection.remote,
            reason,
        };
        self.event(event);
        if let Some(node) = &node
            && self.active.get(node) == Some(&id)
        {
            self.active.remove(node);
            let own = self.own.clone();
            if self.graph.remove_edge(&own, node) {
                self.graph_changed = true;
                if flood {
                    self.flood(&Message::DelEdge(own, node.clone()), None);
                }
            }
        }
        if !replaced && let Some(node) = connection.dialled.or(node) {
            self.outgoing_ended(&node, id);
        }
    }

    /// Sends a message on a connection.
    pub(super) fn send(&mut self, id: ConnectionId, message: &Message) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        message.write(&mut self.random, &mut line);
        self.send_line(id, &line);
        self.line = line;
    }

    pub(super) fn send_line(&mut self, id: ConnectionId, line: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.queued() > MAX_QUEUE {
            self.broken.push((id, CloseReason::QueueFull));
            return;
        }
        let (State::Handshake(meta) | State::Active(meta, _)) = &mut connection.state else {
            return;
        };
        match meta.stream.send(0, line, &mut connection.out) {
            Ok(()) => {
                self.unsent.insert(id);
            }
            Err(error) => self.broken.push((id, error.into())),
        }
    }

    /// Sends a message and a record after it, or bytes outside the records.
    pub(super) fn send_packet_message(
        &mut self,
        id: ConnectionId,
        message: &Message,
        packet: &[u8],
    ) {
        self.send(id, message);
        if matches!(message, Message::Packet(_)) {
            return self.send_line(id, packet);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.out.extend_from_slice(packet);
        }
    }

    /// Sends a message to all neighbours but one.
    pub(super) fn flood(&mut self, message: &Message, except: Option<ConnectionId>) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        message.write(&mut self.random, &mut line);
        self.forward(&line, except);
        self.line = line;
    }

    /// Sends a line to all neighbours but one.
    pub(super) fn forward(&mut self, line: &[u8], except: Option<ConnectionId>) {
        let ids: Vec<ConnectionId> =
            self.active.values().copied().filter(|id| Some(*id) != except).collect();
        for id in ids {
            self.send_line(id, line);
        }
    }

    /// Closes connections whose handshake takes too long or whose peer does not answer, and pings neighbours.
    pub(super) fn check_connections(&mut self) {
        let (now, timeout) = (self.now, self.config.ping_timeout);
        let (mut ping, mut close) = (Vec::new(), Vec::new());
        for (id, connection) in &self.connections {
            match &connection.state {
                State::Active(_, liveness) => {
                    let silent = now.since(liveness.pinged);
                    if liveness.unanswered > 0 && silent >= timeout {
                        close.push((*id, CloseReason::NoPong));
                    } else if silent >= self.config.ping_interval {
                        ping.push(*id);
                    }
                }
                _ if now >= after(connection.started, timeout) => {
                    close.push((*id, CloseReason::HandshakeTimeout));
                }
                _ => {}
            }
        }
        for id in ping {
            self.ping(id);
        }
        for (id, reason) in close {
            self.close(id, reason);
        }
    }

    /// Sends a PING to a neighbour. Returns the number of PONGs until it has answered this one.
    pub(super) fn ping(&mut self, id: ConnectionId) -> Option<u32> {
        let State::Active(_, liveness) = &mut self.connections.get_mut(&id)?.state else {
            return None;
        };
        let unanswered = liveness.unanswered.saturating_add(1);
        *liveness = Liveness { pinged: self.now, unanswered };
        self.send(id, &Message::Ping);
        Some(unanswered)
    }
}
