//! Nodes that join the net by an invitation of this node.
//!
//! The exchange is that of [`Inviter`]. A connection has the same time for all of it as any other for its handshake, `PingTimeout`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random};
use adit_runtime::helper::files;
use adit_runtime::say;
use adit_tinc::config::scripts::INVITATION_ACCEPTED;
use adit_tinc::config::{Entries, HostConfig};
use adit_tinc::join::{Inviter, InviterEvent};
use adit_tinc::keys::{PrivateKey, PublicKey};
use adit_tinc::name::NodeName;
use adit_tinc::node::ConnectionId;
use zeroize::Zeroizing;

use super::privileged::Privileged;
use super::running::Running;
use crate::invite::KEY_FILE;
use crate::net::Net;

/// The number of nodes that join at a time. Others are refused.
const MAX_JOINS: usize = 16;

/// The exchanges with joining nodes.
pub(super) struct Joins {
    open: HashMap<ConnectionId, Joining>,
    random: Random,
    refused: u64,
}

/// An exchange.
struct Joining {
    inviter: Inviter,
    address: SocketAddr,
    until: Instant,
}

/// The parts of a daemon that an exchange needs.
pub(super) struct JoinContext<'a> {
    pub(super) net: &'a Net,
    pub(super) own: &'a NodeName,
    pub(super) privileged: &'a mut Privileged,
    /// `InvitationExpire`.
    pub(super) expire: Duration,
}

/// A node that has joined.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) node: NodeName,
    pub(super) address: SocketAddr,
    pub(super) host: HostConfig,
}

impl Joins {
    pub(super) fn new(random: Random) -> Self {
        Self { open: HashMap::new(), random, refused: 0 }
    }

    /// Returns the number of joining nodes that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns whether a connection is one of an exchange.
    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.open.contains_key(&id)
    }

    /// Starts an exchange, and appends the first bytes to `out`.
    ///
    /// # Errors
    /// The joining node is refused, for this reason: close the connection.
    fn start(
        &mut self,
        context: &JoinContext<'_>,
        (id, address): (ConnectionId, SocketAddr),
        key: PublicKey,
        until: Instant,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.open.len() >= MAX_JOINS {
            return Err(format!("{MAX_JOINS} nodes are joining already"));
        }
        let own = invitation_key(context.net)?;
        let inviter = Inviter::start(context.own, Arc::new(own), key, &mut self.random, out);
        self.open.insert(id, Joining { inviter, address, until });
        Ok(())
    }

    /// Handles received bytes, and appends answers to `out`. Returns the new node when its host file exists.
    ///
    /// # Errors
    /// The exchange has failed, for this reason: close the connection.
    fn receive(
        &mut self,
        context: &mut JoinContext<'_>,
        id: ConnectionId,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Joined>, String> {
        let Some(joining) = self.open.get_mut(&id) else { return Ok(None) };
        let inviter = &mut joining.inviter;
        let mut joined = None;
        loop {
            let event = inviter.receive(&mut bytes, &mut self.random, out);
            match event.map_err(|error| error.to_string())? {
                None => return Ok(joined),
                Some(InviterEvent::Claimed(file)) => {
                    let claim = context.privileged.claim(&file);
                    let offered = inviter.offer(claim, context.expire, out);
                    let node = offered.map_err(|error| error.to_string())?;
                    say!(2, "Invitation of {node} sent to {}", joining.address.ip());
                }
                Some(InviterEvent::Accepted { name, host_file }) => {
                    let read = HostConfig::read(Entries::default(), "invitation", &host_file);
                    let (config, _) = read.map_err(|error| error.to_string())?;
                    let key = config.public_key.ok_or("the joining node sent no public key")?;
                    if name == *context.own {
                        return Err(format!("{name} is this node's own name"));
                    }
                    context
                        .privileged
                        .admit(&name, &key)
                        .map_err(|error| format!("the host file of {name}: {error}"))?;
                    inviter.finish(out).map_err(|error| error.to_string())?;
                    let address = joining.address;
                    joined = Some(Joined { node: name, address, host: config });
                }
            }
        }
    }

    /// Ends an exchange. Returns the address of the joining node.
    fn close(&mut self, id: ConnectionId) -> Option<SocketAddr> {
        self.open.remove(&id).map(|joining| joining.address)
    }

    /// Ends the exchanges whose time is over. Returns their connections.
    fn expire(&mut self, now: Instant) -> Vec<ConnectionId> {
        let late = self.open.iter().filter(|(_, joining)| now >= joining.until);
        let late: Vec<ConnectionId> = late.map(|(id, _)| *id).collect();
        late.iter().for_each(|id| drop(self.open.remove(id)));
        late
    }
}

/// Reads the key of invitations. It may change whenever no invitation is left.
fn invitation_key(net: &Net) -> Result<PrivateKey, String> {
    let path = net.invitations().join(KEY_FILE);
    let bytes = files::contents(&path).map(Zeroizing::new);
    let bytes = bytes.map_err(|_| "this node has made no invitations".to_owned())?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    PrivateKey::from_file(text).map_err(|error| format!("{}: {error}", path.display()))
}

impl Running {
    /// Starts an exchange with a joining node. `rest` are the bytes after its first line.
    pub(super) fn join(
        &mut self,
        id: ConnectionId,
        address: SocketAddr,
        key: PublicKey,
        rest: &[u8],
        now: Instant,
    ) {
        let mut out = Vec::new();
        // The sum is saturated.
        #[allow(clippy::arithmetic_side_effects)]
        let until = now + self.server.ping_timeout;
        let context = context(&self.net, self.node.name(), &mut self.privileged, &self.server);
        match self.joins.start(&context, (id, address), key, until, &mut out) {
            Ok(()) => {
                self.streams.send(id, &out);
                self.join_received(id, rest, now);
            }
            Err(reason) => self.refuse_join(id, address, &reason),
        }
    }

    /// Handles bytes of a joining node.
    pub(super) fn join_received(&mut self, id: ConnectionId, bytes: &[u8], now: Instant) {
        let mut out = Vec::new();
        let mut context = context(&self.net, self.node.name(), &mut self.privileged, &self.server);
        let received = self.joins.receive(&mut context, id, bytes, &mut out);
        match received {
            Ok(joined) => {
                if let Some(joined) = joined {
                    self.joined(joined, now);
                }
                if !out.is_empty() {
                    self.streams.send(id, &out);
                }
            }
            Err(reason) => {
                if let Some(address) = self.joins.close(id) {
                    self.refuse_join(id, address, &reason);
                }
            }
        }
    }

    fn joined(&mut self, joined: Joined, now: Instant) {
        let Joined { node, address, host } = joined;
        say!(
            1,
            "Node {node} joined by an invitation from {} port {}",
            address.ip(),
            address.port()
        );
        self.node.add_host(now, &node, host);
        let variables = [
            ("NODE", node.to_string()),
            ("REMOTEADDRESS", address.ip().to_string()),
            ("REMOTEPORT", address.port().to_string()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        self.scripts.push_path(now, INVITATION_ACCEPTED, &variables);
    }

    fn refuse_join(&mut self, id: ConnectionId, address: SocketAddr, reason: &str) {
        self.joins.refused = self.joins.refused.saturating_add(1);
        tracing::warn!("invitation: refused: {reason} ({} port {})", address.ip(), address.port());
        self.streams.close(id);
    }

    /// The other end closed the connection of an exchange.
    pub(super) fn join_closed(&mut self, id: ConnectionId) {
        self.joins.close(id);
        self.streams.close(id);
    }

    /// Closes the connections of exchanges whose time is over.
    pub(super) fn expire_joins(&mut self, now: Instant) {
        for id in self.joins.expire(now) {
            self.streams.close(id);
        }
    }
}

fn context<'a>(
    net: &'a Net,
    own: &'a NodeName,
    privileged: &'a mut Privileged,
    server: &adit_tinc::config::ServerConfig,
) -> JoinContext<'a> {
    JoinContext { net, own, privileged, expire: server.invitation_expire }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::SystemTime;

    use adit_tinc::invitation::{Cookie, Url};
    use adit_tinc::join::{JoinError, Joiner, JoinerEvent};

    use super::*;
    use crate::testing::Folder;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const EXPIRE: Duration = Duration::from_secs(1000);

    fn joining_key() -> PublicKey {
        PrivateKey::from_seed(&[8; 32]).public()
    }

    /// A node with an invitation of carol, and its exchanges.
    struct Bench {
        folder: Folder,
        privileged: Privileged,
        joins: Joins,
        cookie: Cookie,
        own: NodeName,
    }

    impl Bench {
        fn new() -> Self {
            let folder = Folder::new();
            let key = PrivateKey::from_seed(&[3; 32]);
            folder.write(&format!("invitations/{KEY_FILE}"), &key.to_file());
            let cookie = Cookie::generate(&mut Random::new([4; 32]));
            let privileged = Privileged::new(super::super::duty::tests::duty(&folder));
            let joins = Joins::new(Random::new([5; 32]));
            let bench = Self { folder, privileged, joins, cookie, own: "alice".parse().unwrap() };
            bench.invite("carol");
            bench
        }

        fn path(&self) -> std::path::PathBuf {
            let key = PrivateKey::from_seed(&[3; 32]).public();
            self.folder.net.invitations().join(self.cookie.file_name(&key))
        }

        fn invite(&self, node: &str) {
            fs::write(self.path(), format!("Name = {node}\nConnectTo = alice\n")).unwrap();
        }

        /// Joins with a cookie. Returns what both sides report.
        fn join(
            &mut self,
            cookie: &Cookie,
        ) -> (Result<Option<Joined>, String>, Result<bool, JoinError>) {
            let id = ConnectionId(7);
            let key = PrivateKey::from_seed(&[3; 32]).public();
            let url = Url::new("192.0.2.1", 655, &key, cookie.clone()).unwrap();
            let mut random = Random::new([6; 32]);
            let (mut to_inviter, mut to_joiner) = (Vec::new(), Vec::new());
            let mut joiner = Joiner::start(url, NOW, &mut random, &mut to_inviter);
            let line = to_inviter.iter().position(|byte| *byte == b'\n').unwrap();
            let line: Vec<u8> = to_inviter.drain(..=line).collect();
            let id_line = adit_tinc::meta::Id::parse(line.strip_suffix(b"\n").unwrap()).unwrap();
            let adit_tinc::meta::Identity::Joining(key) = id_line.identity else { panic!() };
            let mut context = JoinContext {
                net: &self.folder.net,
                own: &self.own,
                privileged: &mut self.privileged,
                expire: EXPIRE,
            };
            let address = "192.0.2.9:1234".parse().unwrap();
            let until = NOW + Duration::from_secs(5);
            if let Err(error) =
                self.joins.start(&context, (id, address), key, until, &mut to_joiner)
            {
                return (Err(error), Ok(false));
            }
            let mut joined = None;
            for _ in 0..20 {
                let bytes = std::mem::take(&mut to_inviter);
                match self.joins.receive(&mut context, id, &bytes, &mut to_joiner) {
                    Ok(new) => joined = joined.or(new),
                    Err(error) => {
                        self.joins.close(id);
                        return (Err(error), Err(joiner.closed()));
                    }
                }
                let bytes = std::mem::take(&mut to_joiner);
                let mut input = &bytes[..];
                loop {
                    match joiner.receive(NOW, &mut input, &mut random, &mut to_inviter) {
                        Err(error) => return (Ok(joined), Err(error)),
                        Ok(None) => break,
                        Ok(Some(JoinerEvent::Offered(_))) => {
                            joiner.accept(NOW, &joining_key(), &mut to_inviter).unwrap();
                        }
                        Ok(Some(JoinerEvent::Done)) => {
                            self.joins.close(id);
                            return (Ok(joined), Ok(true));
                        }
                    }
                }
            }
            panic!("the exchange does not end");
        }
    }

    #[test]
    fn a_node_joins_once() {
        let mut bench = Bench::new();
        let cookie = bench.cookie.clone();
        let (joined, done) = bench.join(&cookie);
        assert_eq!(done, Ok(true));
        let joined = joined.unwrap().unwrap();
        assert_eq!((joined.node.as_str(), joined.host.public_key), ("carol", Some(joining_key())));
        assert_eq!(
            bench.folder.read("hosts/carol"),
            format!("Ed25519PublicKey = {}\n", joining_key())
        );
        assert!(!bench.path().exists());
        let (refused, done) = bench.join(&cookie);
        assert!(refused.unwrap_err().contains("used, withdrawn or invented"));
        assert_eq!(done, Err(JoinError::Refused));
    }

    #[test]
    fn a_wrong_cookie_takes_no_invitation() {
        let mut bench = Bench::new();
        let (refused, _) = bench.join(&Cookie::generate(&mut Random::new([9; 32])));
        assert!(refused.unwrap_err().contains("used, withdrawn or invented"));
        assert!(bench.path().exists());
    }

    #[test]
    fn an_expired_invitation_is_refused() {
        let mut bench = Bench::new();
        let cookie = bench.cookie.clone();
        let written = |age: Duration| {
            let file = File::options().write(true).open(bench.path()).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        written(EXPIRE + Duration::from_secs(60));
        let (refused, done) = bench.join(&cookie);
        assert!(refused.unwrap_err().contains("expired"));
        assert_eq!(done, Err(JoinError::Refused));
        assert!(!bench.folder.net.hosts().join("carol").exists());
        bench.invite("carol");
        let file = File::options().write(true).open(bench.path()).unwrap();
        file.set_modified(SystemTime::now() - EXPIRE + Duration::from_secs(60)).unwrap();
        assert_eq!(bench.join(&cookie).1, Ok(true), "a minute before");
    }

    #[test]
    fn an_existing_node_is_not_replaced() {
        let mut bench = Bench::new();
        let cookie = bench.cookie.clone();
        bench.folder.write("hosts/carol", "Port = 7\n");
        let (refused, done) = bench.join(&cookie);
        assert!(refused.unwrap_err().starts_with("the host file of carol: "));
        assert_eq!(done, Err(JoinError::KeyNotStored));
        assert_eq!(bench.folder.read("hosts/carol"), "Port = 7\n");
        bench.invite("alice");
        fs::remove_file(bench.folder.net.hosts().join("alice")).unwrap();
        let (refused, _) = bench.join(&cookie);
        assert_eq!(refused.unwrap_err(), "alice is this node's own name");
    }

    #[test]
    fn without_invitations_no_node_joins() {
        let mut bench = Bench::new();
        fs::remove_file(bench.folder.net.invitations().join(KEY_FILE)).unwrap();
        let cookie = bench.cookie.clone();
        assert_eq!(bench.join(&cookie).0.unwrap_err(), "this node has made no invitations");
        bench.folder.write(&format!("invitations/{KEY_FILE}"), "junk");
        assert!(bench.join(&cookie).0.unwrap_err().contains(KEY_FILE));
    }

    #[test]
    fn the_number_and_the_time_of_exchanges_are_bounded() {
        let mut bench = Bench::new();
        let address = "192.0.2.9:1234".parse().unwrap();
        let context = JoinContext {
            net: &bench.folder.net,
            own: &bench.own,
            privileged: &mut bench.privileged,
            expire: EXPIRE,
        };
        let mut start = |number: usize, seconds: u64| {
            let id = ConnectionId(number as u64);
            let until = NOW + Duration::from_secs(seconds);
            bench.joins.start(&context, (id, address), joining_key(), until, &mut Vec::new())
        };
        for number in 0..MAX_JOINS {
            start(number, if number == 0 { 4 } else { 5 }).unwrap();
        }
        assert_eq!(start(MAX_JOINS, 5).unwrap_err(), "16 nodes are joining already");
        assert_eq!(bench.joins.expire(NOW + Duration::from_secs(4)), [ConnectionId(0)]);
        assert_eq!(bench.joins.expire(NOW + Duration::from_secs(5)).len(), MAX_JOINS - 1);
        assert!(!bench.joins.contains(ConnectionId(1)));
    }
}
