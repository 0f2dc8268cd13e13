//! An authenticated client without restraint: it renegotiates without a pause, floats, packs many control messages into a record, and
//! repeats its push request. It is built from parts of the protocol, because none of adit's engines would do this.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use adit_crypto::Cipher;
use adit_crypto::aead::SealKey;
use adit_engine::UnixTime;
use adit_linux::clock;
use adit_linux::poll::{Events, Interest, Poller};
use adit_openvpn::client::ClientConfig;
use adit_openvpn::keys::{DataKeys, KeyMethod2, PrfInput, Randoms, Role};
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::tls::{ClientTls, TlsSession};
use adit_openvpn::wrap::{WrapConfig, Wrapper};
use adit_testbed::failure::{Context, Failure, Result, ensure};
use zeroize::Zeroizing;

use super::{Attack, Counts, Target};

/// The time limit for a session to be established before the client begins another one.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum number of attempts at the start.
const ATTEMPTS: u32 = 6;
/// The time after which an unacknowledged packet is resent.
const AGAIN: Duration = Duration::from_millis(250);
/// A server that does not answer a reset for this long has dropped the session.
const LOST: Duration = Duration::from_secs(8);
/// The number of messages in flight; servers have room for a few.
const WINDOW: usize = 4;
/// The number of control messages in one record.
const MESSAGES: usize = 64;
/// The number of TLS bytes in one packet.
const PAYLOAD: usize = 1100;
/// OpenVPN's keepalive message, the same at both ends.
const PING: [u8; 16] = [
    0x2a, 0x18, 0x7b, 0xf3, 0x64, 0x1e, 0xb4, 0xcb, 0x07, 0xed, 0x2d, 0x0a, 0x98, 0x1f, 0xc7, 0x48,
];
/// An adversary's secrets need not be secret.
const PRE_MASTER: [u8; 48] = [5; 48];

fn randoms() -> Randoms {
    Randoms { random1: [1; 32], random2: [2; 32] }
}

/// An unacknowledged message.
struct UnackedMessage {
    id: u32,
    opcode: Opcode,
    payload: Vec<u8>,
    at: Instant,
}

/// One key negotiation.
struct Negotiation {
    key_id: u8,
    tls: TlsSession,
    next_send: u32,
    next_receive: u32,
    unacknowledged: VecDeque<UnackedMessage>,
    begun: Instant,
    /// Whether the server's reset has arrived, so that TLS data may be sent.
    answered: bool,
    keys_sent: bool,
    /// Whether the server's keys have arrived.
    done: bool,
}

impl Negotiation {
    fn new(key_id: u8, tls: &ClientTls) -> Result<Self> {
        Ok(Self {
            key_id,
            tls: TlsSession::client(tls).context("a TLS session")?,
            next_send: 0,
            next_receive: 0,
            unacknowledged: VecDeque::new(),
            begun: Instant::now(),
            answered: false,
            keys_sent: false,
            done: false,
        })
    }

    /// Hands TLS the received payload.
    fn feed(&mut self, payload: &[u8]) -> Result<Vec<Zeroizing<Vec<u8>>>> {
        self.tls.feed(payload).context("the adversary's TLS")?;
        let mut messages = Vec::new();
        while let Some(message) = self.tls.read().context("the adversary's TLS")? {
            messages.push(message);
        }
        Ok(messages)
    }

    /// Sends the client's keys once, when TLS is ready for them.
    fn send_keys(&mut self) -> Result<()> {
        if self.tls.is_handshaking() || self.keys_sent {
            return Ok(());
        }
        self.keys_sent = true;
        let keys = KeyMethod2 {
            pre_master: Some(Zeroizing::new(PRE_MASTER)),
            randoms: randoms(),
            options: "V4".into(),
            username: String::new(),
            password: Default::default(),
            // With DATA_V2 and REQUEST_PUSH, the server pushes without a request, and keys come from the PRF.
            peer_info: "IV_VER=2.6.0\nIV_PROTO=6\nIV_CIPHERS=AES-256-GCM\n".into(),
        };
        let message = keys.encode().context("the adversary's keys")?;
        self.tls.write(&message).context("the adversary's TLS")
    }
}

/// The keys that seal data packets.
struct Data {
    key: SealKey,
    key_id: u8,
    next: u32,
}

/// The hostile client.
pub struct Client {
    tls: ClientTls,
    wrap: WrapConfig,
    wrapper: Wrapper,
    sockets: Vec<UdpSocket>,
    poller: Poller,
    events: Events,
    /// The index of the address at which the last packet of the server arrived, from which control packets are sent.
    at: usize,
    floats: usize,
    ours: SessionId,
    theirs: Option<SessionId>,
    /// The last completed negotiation. Its TLS session carries control messages.
    settled: Option<Negotiation>,
    current: Negotiation,
    peer: Option<u32>,
    data: Option<Data>,
}

impl Client {
    /// Connects and establishes a session.
    ///
    /// # Errors
    /// The server does not establish one.
    pub fn connect(config: ClientConfig, target: &Target) -> Result<Self> {
        let poller = Poller::new()?;
        let mut sockets = Vec::new();
        for (token, source) in (0..).zip(&target.sources) {
            let socket = UdpSocket::bind(SocketAddr::new(*source, 0)).context(source)?;
            socket.connect(target.server)?;
            socket.set_nonblocking(true)?;
            poller.add(&socket, token, Interest::READ)?;
            sockets.push(socket);
        }
        ensure(!sockets.is_empty(), || "a hostile client needs an address".to_owned())?;
        let wrap = config.settings.wrap.clone();
        let mut client = Self {
            wrapper: Wrapper::client(&wrap).context("the adversary's wrapping")?,
            current: Negotiation::new(0, &config.tls)?,
            tls: config.tls,
            wrap,
            sockets,
            poller,
            events: Events::new(),
            at: 0,
            floats: 0,
            ours: SessionId(clock::boottime().to_be_bytes()),
            theirs: None,
            settled: None,
            peer: None,
            data: None,
        };
        let mut counts = Counts::default();
        for _ in 0..ATTEMPTS {
            client.begin(&mut counts)?;
            while client.current.begun.elapsed() < TIMEOUT {
                client.listen(Duration::from_millis(20), &mut counts)?;
                client.send_again(&mut counts)?;
                // A float needs a key and a peer id.
                if client.current.done && client.data.is_some() {
                    return Ok(client);
                }
            }
        }
        Err(Failure(format!(
            "the hostile client gets no session: it sent {counts}, the server {}",
            if client.current.answered { "answered" } else { "was silent" }
        )))
    }

    /// Begins a new session.
    fn begin(&mut self, counts: &mut Counts) -> Result<()> {
        self.ours = SessionId((u64::from_be_bytes(self.ours.0) + 1).to_be_bytes());
        self.wrapper = Wrapper::client(&self.wrap).context("the adversary's wrapping")?;
        self.current = Negotiation::new(0, &self.tls)?;
        (self.theirs, self.settled, self.peer, self.data) = (None, None, None, None);
        self.message(true, Opcode::HardResetClientV2, Vec::new(), counts, "sessions")
    }

    fn negotiation(&mut self, current: bool) -> Option<&mut Negotiation> {
        if current { Some(&mut self.current) } else { self.settled.as_mut() }
    }

    /// Sends a numbered message of the current negotiation, or of the settled one.
    fn message(
        &mut self,
        current: bool,
        opcode: Opcode,
        payload: Vec<u8>,
        counts: &mut Counts,
        name: &'static str,
    ) -> Result<()> {
        let Some(negotiation) = self.negotiation(current) else { return Ok(()) };
        let (key_id, id) = (negotiation.key_id, negotiation.next_send);
        negotiation.next_send += 1;
        let kept = UnackedMessage { id, opcode, payload: payload.clone(), at: Instant::now() };
        negotiation.unacknowledged.push_back(kept);
        self.send(key_id, opcode, Some(id), None, &payload)?;
        counts.add(name);
        Ok(())
    }

    fn send(
        &mut self,
        key_id: u8,
        opcode: Opcode,
        message: Option<u32>,
        ack: Option<u32>,
        payload: &[u8],
    ) -> Result<()> {
        // Each packet acknowledges the server's first reset, because until the third packet the server keeps no state.
        let first = (self.theirs.is_some() && key_id == 0).then_some(0);
        let acks = ack.or(first).and_then(|id| Acks::from_slice(&[id])).unwrap_or_default();
        let (session, remote) = (self.ours, self.theirs);
        let control = Control { opcode, key_id, session, acks, remote, message, payload };
        let mut frame = Vec::new();
        self.wrapper
            .seal(&control, UnixTime(clock::unix_time()), &mut frame)
            .context("the adversary's packet")?;
        if let Some(socket) = self.sockets.get(self.at) {
            // A packet that does not fit into the socket is lost, as on any path.
            let _ = socket.send(&frame);
        }
        Ok(())
    }

    /// Resends messages that have not been acknowledged for a while.
    fn send_again(&mut self, counts: &mut Counts) -> Result<()> {
        let mut again = Vec::new();
        for negotiation in self.settled.iter_mut().chain([&mut self.current]) {
            for sent in negotiation.unacknowledged.iter_mut().filter(|s| s.at.elapsed() > AGAIN) {
                sent.at = Instant::now();
                again.push((negotiation.key_id, sent.opcode, sent.id, sent.payload.clone()));
            }
        }
        for (key_id, opcode, id, payload) in again {
            self.send(key_id, opcode, Some(id), None, &payload)?;
            counts.add("repeated packets");
        }
        Ok(())
    }

    /// Sends the pending output of TLS.
    fn flush_tls(&mut self, current: bool, counts: &mut Counts, name: &'static str) -> Result<()> {
        while let Some(negotiation) = self.negotiation(current)
            && negotiation.answered
            && negotiation.tls.wants_write()
        {
            let payload = negotiation.tls.pull(PAYLOAD);
            self.message(current, Opcode::ControlV1, payload, counts, name)?;
        }
        Ok(())
    }

    fn receive(&mut self, frame: &mut [u8], counts: &mut Counts) -> Result<()> {
        // Data packets are ignored; other packets that cannot be opened belong to an earlier session.
        let Ok(control) = self.wrapper.open(frame) else { return Ok(()) };
        let current = control.key_id == self.current.key_id;
        let theirs = control.session;
        let Some(negotiation) = self.negotiation(current) else { return Ok(()) };
        if control.key_id != negotiation.key_id {
            return Ok(());
        }
        let acknowledged: Vec<u32> = control.acks.iter().collect();
        negotiation.unacknowledged.retain(|sent| !acknowledged.contains(&sent.id));
        let Some(id) = control.message.filter(|id| *id <= negotiation.next_receive) else {
            return Ok(());
        };
        let (new, mut messages) = (id == negotiation.next_receive, Vec::new());
        if new {
            negotiation.next_receive += 1;
            match control.opcode {
                Opcode::ControlV1 => messages = negotiation.feed(control.payload)?,
                _ => negotiation.answered = true,
            }
            negotiation.send_keys()?;
        }
        let key_id = negotiation.key_id;
        self.theirs = Some(theirs);
        self.send(key_id, Opcode::AckV1, None, Some(id), &[])?;
        for message in &messages {
            self.handle_message(current, message)?;
        }
        self.flush_tls(current, counts, "handshake packets")
    }

    /// Handles a message of the server: first its keys, then control messages.
    fn handle_message(&mut self, current: bool, message: &[u8]) -> Result<()> {
        if current && !self.current.done {
            self.current.done = true;
            return self.key(message);
        }
        let text = String::from_utf8_lossy(message);
        let peer = text.split(['\0', ',']).find_map(|option| option.strip_prefix("peer-id "));
        if let Some(peer) = peer.and_then(|number| number.trim().parse().ok()) {
            self.peer = Some(peer);
        }
        Ok(())
    }

    /// Derives the data key of the completed negotiation.
    fn key(&mut self, message: &[u8]) -> Result<()> {
        let server = KeyMethod2::parse(message, Role::Server).context("the server's keys")?;
        let input = PrfInput {
            pre_master: &PRE_MASTER,
            client: &randoms(),
            server: &server.randoms,
            client_session: self.ours,
            server_session: self.theirs.context("no session of the server's")?,
        };
        let keys = DataKeys::from_prf(&input, Role::Client).context("the adversary's key")?;
        let key = SealKey::new(Cipher::Aes256Gcm, &keys.seal)
            .map_err(|_| "the adversary's key is refused")?;
        self.data = Some(Data { key, key_id: self.current.key_id, next: 1 });
        Ok(())
    }

    /// Starts a renegotiation if the last one is complete; otherwise repeats its unanswered reset.
    fn renegotiate(&mut self, counts: &mut Counts) -> Result<()> {
        let age = self.current.begun.elapsed();
        if self.current.done {
            let next = Negotiation::new(self.current.key_id % 7 + 1, &self.tls)?;
            self.settled = Some(std::mem::replace(&mut self.current, next));
        } else if age > LOST {
            return self.begin(counts);
        } else if !self.current.answered {
            // Repeats the same reset at line rate.
            self.current.next_send = 0;
            self.current.unacknowledged.clear();
        } else {
            return Ok(());
        }
        let opcode = match self.current.key_id {
            0 => Opcode::HardResetClientV2,
            _ => Opcode::SoftResetV1,
        };
        self.message(true, opcode, Vec::new(), counts, "soft resets")
    }

    /// Sends a record of control messages in the established session.
    fn record(&mut self, record: &[u8], counts: &mut Counts, name: &'static str) -> Result<()> {
        let current = self.current.done;
        let Some(negotiation) = self.negotiation(current) else { return Ok(()) };
        if negotiation.unacknowledged.len() >= WINDOW {
            return Ok(());
        }
        negotiation.tls.write(record).context("the adversary's TLS")?;
        self.flush_tls(current, counts, name)
    }

    /// Sends a data packet from the next source address.
    fn float(&mut self, counts: &mut Counts) {
        self.floats = self.floats.wrapping_add(1);
        let at = self.floats.checked_rem(self.sockets.len());
        let socket = at.and_then(|at| self.sockets.get(at));
        let (Some(peer), Some(data), Some(socket)) = (self.peer, &mut self.data, socket) else {
            return;
        };
        if let Some(packet) = data.seal(peer) {
            let _ = socket.send(&packet);
            counts.add("data packets from elsewhere");
        }
    }
}

impl Data {
    /// Returns a keepalive of this peer, with packet id and tag before the text.
    fn seal(&mut self, peer: u32) -> Option<Vec<u8>> {
        let number = self.next;
        self.next = number.checked_add(1)?;
        let [_, peer @ ..] = peer.to_be_bytes();
        let mut packet = vec![Opcode::DataV2.number() << 3 | self.key_id];
        packet.extend(peer);
        packet.extend(number.to_be_bytes());
        let (mut text, mut tag) = ([0; PING.len()], [0; 16]);
        self.key.seal(number, &packet, &PING, &mut text, &mut tag).ok()?;
        packet.extend(tag);
        packet.extend(text);
        Some(packet)
    }
}

impl Attack for Client {
    fn act(&mut self, number: u64, counts: &mut Counts) -> Result<()> {
        match number % 4 {
            0 => self.renegotiate(counts),
            1 => self.record(&b"x\0".repeat(MESSAGES), counts, "control records"),
            2 => self.record(b"PUSH_REQUEST\0", counts, "push requests"),
            _ => {
                self.float(counts);
                self.send_again(counts)
            }
        }
    }

    fn listen(&mut self, wait: Duration, counts: &mut Counts) -> Result<()> {
        self.poller.wait_precisely(&mut self.events, wait)?;
        let ready: Vec<usize> =
            self.events.iter().filter_map(|event| usize::try_from(event.token).ok()).collect();
        let mut buffer = [0; 4096];
        for at in ready {
            // An error is either "no more packets" or an ICMP error, which this read has cleared.
            while let Some(socket) = self.sockets.get(at)
                && let Ok(length) = socket.recv(&mut buffer)
            {
                let Some(frame) = buffer.get_mut(..length) else { continue };
                if frame.first().is_some_and(|byte| byte >> 3 == Opcode::DataV2.number()) {
                    continue;
                }
                self.at = at;
                self.receive(frame, counts)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_keepalive_opens_with_the_other_half() {
        use adit_crypto::aead::OpenKey;
        let input = PrfInput {
            pre_master: &PRE_MASTER,
            client: &randoms(),
            server: &randoms(),
            client_session: SessionId([1; 8]),
            server_session: SessionId([2; 8]),
        };
        let ours = DataKeys::from_prf(&input, Role::Client).unwrap();
        let theirs = DataKeys::from_prf(&input, Role::Server).unwrap();
        let key = SealKey::new(Cipher::Aes256Gcm, &ours.seal).unwrap();
        let mut data = Data { key, key_id: 3, next: 7 };
        let packet = data.seal(0x0102_0304).unwrap();
        assert_eq!(packet[..8], [9 << 3 | 3, 2, 3, 4, 0, 0, 0, 7]);
        let open = OpenKey::new(Cipher::Aes256Gcm, &theirs.open).unwrap();
        let mut text = packet[24..].to_vec();
        let tag = packet[8..24].try_into().unwrap();
        open.open(7, &packet[..8], &tag, &mut text).unwrap();
        assert_eq!(text, PING);
        assert_eq!(data.next, 8);
    }
}
