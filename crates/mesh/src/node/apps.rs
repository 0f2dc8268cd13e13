//! OpenVPN apps as leaves of this node, the server that they connect to, and their authorization.
//!
//! An app has no key of the mesh. A signed change admits its certificate, so the roster alone decides; there is no client list and no
//! revocation list. All members route the app's addresses to its gateway.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_crypto::{Cipher, sha256};
use adit_engine::command::Keepalive;
use adit_engine::{Engine, Identity, Instant, PeerId, SocketId, UnixTime, auth};
use adit_openvpn::data_format::{Input, Outbox, Output};
use adit_openvpn::server::{
    ClientInfo, Disconnect, ServerConfig, ServerCounters, ServerEngine, ServerEvent,
};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::ServerTls;
use adit_openvpn::wrap::{WrapConfig, WrapError};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::membership::{SignError, Signed};
use super::{Node, NodeEvent, Out, relaying};
use crate::roster::{Action, Label, Member, NodeInfo, ipv6_net};
use crate::session::{KeyHash, MeshId};

/// The first id of an app in the data plane. Members have lower ones.
pub const FIRST_APP: PeerId = PeerId(*relaying::MEMBER_IDS.end() + 1);

/// The number of apps that can be connected at the same time.
const MAX_APPS: u32 = 1024;

/// The number of networks behind members that are pushed to an app.
const MAX_ROUTES: usize = 128;

/// A silent app is dropped after twice the time in which an app notices that the server is gone.
const PING: Duration = Duration::from_secs(10);
const PING_RESTART: Duration = Duration::from_secs(60);
const SERVER_FORGETS: Duration = Duration::from_secs(120);

/// The refusal that an unauthorized app receives.
const NO_MEMBER: &str = "it is not a member of the mesh, or not a leaf of this node";

/// The configuration of the server for apps.
#[derive(Debug)]
pub struct AppsConfig {
    /// The socket that apps connect to; nothing else uses it.
    pub socket: SocketId,
    /// The certificates.
    pub tls: ServerTls,
    /// The key that wraps the control channel.
    pub wrap: WrapConfig,
    /// The DNS servers of the apps.
    pub dns: Vec<IpAddr>,
    /// The domain of the mesh.
    pub domain: String,
}

/// An OpenVPN app to be admitted as a leaf of this node.
#[derive(Clone, Debug)]
pub struct NewLeaf {
    /// Its name.
    pub name: Label,
    /// Its groups.
    pub groups: BTreeSet<Label>,
    /// The range of its IPv4 address.
    pub range: Option<Ipv4Net>,
    /// The SHA-256 of its certificate, in lower-case hex.
    pub fingerprint: String,
    /// The time when its certificate expires.
    pub not_after: UnixTime,
}

/// The reason why an app does not become a leaf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    /// This node does not have the role.
    #[error("this node serves no OpenVPN apps")]
    NoGateway,
    /// Another member has the name.
    #[error("another member has the name {0}")]
    Name(Label),
    /// The range has no free address.
    #[error("the mesh has no free IPv4 address")]
    NoAddress,
    /// The change cannot be signed.
    #[error(transparent)]
    Sign(#[from] SignError),
}

/// The running server.
pub(super) struct Apps {
    server: ServerEngine,
    socket: SocketId,
    dns: Vec<IpAddr>,
    domain: String,
    /// The server's pending outputs.
    outputs: Outbox<ServerEvent>,
}

/// Returns the value that the roster uses in place of a key's hash, for an app with this certificate. No key has this hash, so an app never
/// has a session of the mesh.
pub fn leaf_key(mesh: &MeshId, fingerprint: &str) -> KeyHash {
    sha256(&[b"adit-mesh/1 leaf", mesh, fingerprint.as_bytes()])
}

impl Apps {
    pub(super) fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.server.deadline()
    }
}

impl Node {
    /// Begins to serve the apps that are leaves of this node.
    ///
    /// # Errors
    /// The wrapping is not for a server.
    pub fn serve_apps(&mut self, now: Instant, config: AppsConfig) -> Result<(), WrapError> {
        let AppsConfig { socket, tls, wrap, dns, domain } = config;
        let settings = Settings {
            wrap,
            ciphers: [Cipher::Aes256Gcm, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305]
                .map(Into::into)
                .to_vec(),
            float: true,
            keepalive: Keepalive { interval: PING, timeout: SERVER_FORGETS },
            exit_notify: Some(1),
            ..Settings::default()
        };
        // An app receives its addresses and options with its authorization.
        let config = ServerConfig {
            settings,
            tls,
            network4: None,
            network6: None,
            push: vec!["explicit-exit-notify 1".into()],
            push_keepalive: Some(Keepalive { interval: PING, timeout: PING_RESTART }),
            max_clients: MAX_APPS,
            duplicate_cn: false,
            leases: Vec::new(),
            force_cookie: false,
            authorize: true,
            checks: Default::default(),
            compress_migrate: false,
            vlans: None,
        };
        let seed = self.random.bytes::<32>();
        let server = ServerEngine::new(config, seed, now, self.unix(now))?;
        let server = server.with_ids_from(FIRST_APP);
        self.apps = Some(Apps { server, socket, dns, domain, outputs: Outbox::new() });
        Ok(())
    }

    /// Ends the sessions of all apps, and stops serving them. Returns the socket, which the caller must close.
    pub fn stop_apps(&mut self, now: Instant, out: &mut Out) -> Option<SocketId> {
        let apps = self.apps.as_mut()?;
        let socket = apps.socket;
        apps.server.shutdown(now, &mut apps.outputs);
        self.perform_apps(now, out);
        self.apps = None;
        Some(socket)
    }

    pub(super) fn set_apps_unix_time(&mut self, now: Instant, unix: UnixTime) {
        if let Some(apps) = &mut self.apps {
            apps.server.set_unix_time(now, unix);
        }
    }

    /// Returns whether apps are served.
    pub fn serves_apps(&self) -> bool {
        self.apps.is_some()
    }

    /// Returns the server's counters of drops and refusals.
    pub fn app_counters(&self) -> Option<ServerCounters> {
        self.apps.as_ref().map(|apps| apps.server.counters())
    }

    /// Makes an app a leaf of this node.
    ///
    /// # Errors
    /// See [`LeafError`].
    pub fn admit_leaf(
        &mut self,
        now: Instant,
        new: NewLeaf,
        out: &mut Out,
    ) -> Result<Signed, LeafError> {
        if !self.roster.member(&self.own).is_some_and(|own| own.openvpn) {
            return Err(LeafError::NoGateway);
        }
        let NewLeaf { name, groups, range, fingerprint, not_after } = new;
        if self.roster.by_name(&name).is_some() {
            return Err(LeafError::Name(name));
        }
        let key = leaf_key(&self.mesh, &fingerprint);
        let address = |range| self.roster.free_ipv4(range, &key).ok_or(LeafError::NoAddress);
        let node = NodeInfo {
            ipv4: range.map(address).transpose()?,
            groups,
            leaf_of: Some(self.own),
            not_after: Some(not_after),
            ..NodeInfo::named(name)
        };
        Ok(self.sign(now, Action::Admit { key, node }, out)?)
    }

    /// Returns the address from which an app is connected, and the time of its connection.
    pub fn app_session(&self, leaf: &KeyHash) -> Option<(SocketAddr, UnixTime)> {
        let apps = self.apps.as_ref()?;
        let session = apps.server.clients().find(|client| self.leaf_of(client) == *leaf)?;
        Some((session.link.remote(), session.since))
    }

    /// Returns the addresses at which this machine may be reached, the public ones first.
    pub fn candidate_addresses(&self, now: Instant) -> Vec<SocketAddr> {
        self.addresses(now).iter().map(crate::path::Candidate::address).collect()
    }

    /// Returns the number of apps that are connected.
    pub fn connected_apps(&self) -> usize {
        self.apps.as_ref().map_or(0, |apps| apps.server.clients().count())
    }

    fn leaf_of(&self, client: &ClientInfo) -> KeyHash {
        leaf_key(&self.mesh, &client.identity.fingerprint)
    }

    /// Returns whether an input is for the apps' server, or for a former one.
    pub(super) fn is_for_apps(&self, input: &Input<'_>) -> bool {
        let socket = self.apps.as_ref().map(|apps| apps.socket);
        match input {
            Input::ControlPacket(link, _) | Input::LinkDown(link) | Input::LinkUp(link) => {
                socket.is_some() && link.socket() == socket
            }
            Input::Notice(notice) => notice.peer().is_some_and(|peer| peer >= FIRST_APP),
            _ => false,
        }
    }

    /// Passes an input to the apps' server.
    pub(super) fn apps_input(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        if let Some(apps) = &mut self.apps {
            apps.server.handle(now, input, &mut apps.outputs);
            self.perform_apps(now, out);
        }
    }

    /// Ends the sessions of apps that are no longer leaves of this node. Those that were not removed connect again.
    pub(super) fn check_apps(&mut self, now: Instant, out: &mut Out) {
        let Some(apps) = &self.apps else { return };
        let check = |client: &ClientInfo| match self.valid_leaf(now, &self.leaf_of(client)) {
            None if self.roster.revoked().contains(&self.leaf_of(client)) => {
                Some((client.peer, Disconnect::Halt, "removed from the mesh"))
            }
            // It may become one again: as long as the node serves any apps, an app that tries to connect learns the reason.
            None => Some((client.peer, Disconnect::Restart, "not a member of the mesh")),
            Some(leaf) if (client.ipv4, client.ipv6) != (leaf.ipv4, Some(leaf.ipv6)) => {
                Some((client.peer, Disconnect::Restart, "its addresses have changed"))
            }
            Some(_) => None,
        };
        let ended: Vec<_> = apps.server.clients().filter_map(check).collect();
        if let Some(apps) = &mut self.apps {
            for (peer, disconnect, reason) in ended {
                apps.server.kick(now, peer, disconnect, reason, &mut apps.outputs);
            }
        }
        self.perform_apps(now, out);
    }

    /// Performs the outputs of the apps' server.
    fn perform_apps(&mut self, now: Instant, out: &mut Out) {
        while let Some(output) = self.apps.as_mut().and_then(|apps| apps.outputs.pop()) {
            match output {
                Output::AuthRequest(id, auth::Request::Authorize(identity)) => {
                    let response = match &self.apps {
                        Some(apps) => self.authorize_app(now, &identity, &apps.dns, &apps.domain),
                        None => continue,
                    };
                    if let Some(apps) = &mut self.apps {
                        let input = Input::AuthResponse(id, response);
                        apps.server.handle(now, input, &mut apps.outputs);
                    }
                }
                Output::Event(event) => out.event(NodeEvent::App(Box::new(event))),
                Output::Send(link, packet) => out.send(link, packet),
                Output::Plane(command) => out.plane(command),
                Output::Hangup(link) => out.push(Output::Hangup(link)),
                // The server asks only whether an app may connect.
                Output::AuthRequest(id, _) => {
                    if let Some(apps) = &mut self.apps {
                        let response = auth::Response::Reject("unexpected request".into());
                        let input = Input::AuthResponse(id, response);
                        apps.server.handle(now, input, &mut apps.outputs);
                    }
                }
                // A server dials nothing.
                Output::Dial(_) => {}
            }
        }
    }

    /// Returns a leaf of this node whose membership has not expired.
    fn valid_leaf(&self, now: Instant, key: &KeyHash) -> Option<&Member> {
        let unix = self.unix(now);
        let leaf = self.roster.member(key).filter(|member| member.leaf_of == Some(self.own));
        leaf.filter(|leaf| !leaf.is_expired(unix) && !self.is_removed)
    }

    /// Decides whether the owner of a certificate may connect, and with which parameters.
    fn authorize_app(
        &self,
        now: Instant,
        identity: &Identity,
        dns: &[IpAddr],
        domain: &str,
    ) -> auth::Response {
        let key = leaf_key(&self.mesh, &identity.fingerprint);
        let Some(leaf) = self.valid_leaf(now, &key) else {
            return auth::Response::Reject(NO_MEMBER.into());
        };
        let ranges = &self.changes.genesis().ranges;
        let own = self.roster.member(&self.own);
        let range = |ip| ranges.iter().find(|range| range.contains(&ip)).copied();
        let net = leaf.ipv4.and_then(|ip| Some((ip, range(ip)?)));
        let mut push = Vec::new();
        if let Some((_, range)) = net {
            // Any other address of the network works, because a tunnel has no link-layer neighbours.
            let gateway = own.and_then(|own| own.ipv4).or_else(|| range.hosts().next());
            push.extend(gateway.map(|gateway| format!("route-gateway {gateway}")));
        }
        let others = ranges.iter().filter(|range| net.is_none_or(|(_, own)| own != **range));
        let others = others.copied().map(IpNet::V4);
        let subnets = self.roster.members().flat_map(|member| member.subnets.iter().copied());
        let routes: BTreeSet<IpNet> =
            others.chain(subnets.filter(|subnet| subnet.prefix_len() > 0)).collect();
        push.extend(routes.iter().take(MAX_ROUTES).map(|route| match route {
            IpNet::V4(net) => format!("route {} {}", net.network(), net.netmask()),
            IpNet::V6(net) => format!("route-ipv6 {net}"),
        }));
        push.extend(dns.iter().map(|server| match server {
            IpAddr::V4(server) => format!("dhcp-option DNS {server}"),
            IpAddr::V6(server) => format!("dhcp-option DNS6 {server}"),
        }));
        if !dns.is_empty() {
            push.push(format!("dhcp-option DOMAIN {domain}"));
        }
        let left_out = routes.len().saturating_sub(MAX_ROUTES);
        let warning =
            format!("{left_out} networks of the mesh are not pushed: at most {MAX_ROUTES}");
        let ipv6 = Ipv6Net::new(leaf.ipv6, ipv6_net(&self.mesh).prefix_len()).ok();
        auth::Response::Accept(auth::ClientParams {
            ifconfig4: net.map(|(ip, range)| (ip, range.netmask())),
            ifconfig6: ipv6.map(|net| (net, own.map(|own| own.ipv6))),
            push,
            warnings: (left_out > 0).then_some(warning).into_iter().collect(),
            ..auth::ClientParams::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use adit_crypto::sign::SigningKey;

    use super::*;
    use crate::node::{NodeConfig, RouteKind, destinations};
    use crate::roster::testing::{NOW as UNIX, Signer, genesis, name, write};
    use crate::roster::{Changes, Revocation};

    const NOW: Instant = Instant::from_nanos(1_000_000_000);
    const PHONE: &str = "a1";
    const GATEWAY: u8 = 2;
    const OTHER: u8 = 3;

    fn admit(key: KeyHash, node: NodeInfo) -> Action {
        Action::Admit { key, node }
    }

    fn gateway(host: u8, label: &str) -> NodeInfo {
        let subnets = [format!("10.{host}.0.0/16").parse().unwrap(), "0.0.0.0/0".parse().unwrap()];
        NodeInfo {
            ipv4: Some([100, 87, 0, host].into()),
            openvpn: true,
            gateway: true,
            subnets: subnets.into(),
            ..NodeInfo::named(name(label))
        }
    }

    fn app(host: u8, label: &str, gateway: KeyHash) -> NodeInfo {
        NodeInfo {
            ipv4: Some([100, 87, 0, host].into()),
            leaf_of: Some(gateway),
            not_after: Some(UnixTime(UNIX.0 + 100)),
            ..NodeInfo::named(name(label))
        }
    }

    /// Returns the changes of a mesh with two gateways, each with an app.
    fn changes() -> Changes {
        let admin = Signer::new(1);
        let mut changes = Changes::new(genesis(&[Signer::new(1)], 1)).unwrap();
        let mesh = *changes.mesh();
        let [own, other] = [GATEWAY, OTHER].map(|seed| Signer::new(seed).hash);
        write(&mut changes, &admin, admit(own, gateway(GATEWAY, "hub")));
        write(&mut changes, &admin, admit(other, gateway(OTHER, "web")));
        write(&mut changes, &admin, admit(leaf_key(&mesh, PHONE), app(7, "phone", own)));
        write(&mut changes, &admin, admit(leaf_key(&mesh, "b2"), app(8, "tablet", other)));
        changes
    }

    /// Returns the node of the first gateway, which signs with an admin's key or with its own.
    fn node(changes: Changes, is_admin: bool) -> Node {
        let key = |seed| SigningKey::from_seed(&[seed; 32]).unwrap();
        let admin = is_admin.then(|| key(1));
        let config = NodeConfig { admin, ..NodeConfig::new(key(GATEWAY), changes) };
        Node::new(config, [7; 32], NOW, UNIX).unwrap()
    }

    fn authorize(node: &Node, now: Instant, fingerprint: &str) -> Option<auth::ClientParams> {
        let identity = Identity { fingerprint: fingerprint.into(), ..Identity::default() };
        let dns = [IpAddr::from([100, 87, 0, GATEWAY])];
        match node.authorize_app(now, &identity, &dns, "home.internal") {
            auth::Response::Accept(params) => Some(params),
            auth::Response::Reject(reason) => {
                assert_eq!(reason.log, NO_MEMBER);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_app_gets_the_addresses_of_the_roster_and_routes_to_all_members() {
        let node = node(changes(), false);
        let key = leaf_key(&node.mesh, PHONE);
        let params = authorize(&node, NOW, PHONE).unwrap();
        assert_eq!(params.ifconfig4, Some(([100, 87, 0, 7].into(), [255, 255, 0, 0].into())));
        let (ipv6, _) = params.ifconfig6.unwrap();
        assert_eq!((ipv6.addr(), ipv6.prefix_len()), (node.roster.member(&key).unwrap().ipv6, 64));
        assert_eq!(
            params.push,
            [
                "route-gateway 100.87.0.2",
                "route 10.2.0.0 255.255.0.0",
                "route 10.3.0.0 255.255.0.0",
                "dhcp-option DNS 100.87.0.2",
                "dhcp-option DOMAIN home.internal",
            ]
        );
        assert!(params.iroutes.is_empty() && params.warnings.is_empty());
    }

    /// Each certificate is from this node's authority, so only the roster can refuse it.
    #[test]
    fn only_a_leaf_of_this_node_whose_membership_is_not_over_may_connect() {
        let mut changes = changes();
        let hub = node(changes.clone(), false);
        assert!(authorize(&hub, NOW, PHONE).is_some());
        assert!(authorize(&hub, NOW, "c3").is_none(), "not a member");
        assert!(authorize(&hub, NOW, "b2").is_none(), "a leaf of another node");
        let late = NOW + Duration::from_secs(101);
        assert!(authorize(&hub, late, PHONE).is_none(), "its time is over");
        let own = Signer::new(GATEWAY).hash;
        let identity: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(authorize(&hub, NOW, &identity).is_none(), "the hash of a node's key");
        let key = leaf_key(changes.mesh(), PHONE);
        let revoked = Action::Revoke(Revocation { key, last: None, with_invited: false });
        write(&mut changes, &Signer::new(1), revoked);
        assert!(authorize(&node(changes, false), NOW, PHONE).is_none(), "it was removed");
    }

    #[test]
    fn an_apps_addresses_are_behind_its_gateway_alone_and_it_has_no_sessions() {
        let mut node = node(changes(), false);
        let [phone, tablet] = [PHONE, "b2"].map(|it| leaf_key(&node.mesh, it));
        let other = Signer::new(OTHER).hash;
        let to = destinations(&node.roster, &other);
        let addresses = |key| {
            let member = node.roster.member(key).unwrap();
            [IpNet::from(IpAddr::from(member.ipv6)), IpAddr::from(member.ipv4.unwrap()).into()]
        };
        assert!(addresses(&tablet).iter().all(|address| to.contains(address)), "{to:?}");
        assert!(addresses(&phone).iter().all(|address| !to.contains(address)), "{to:?}");
        let sessions: Vec<KeyHash> = node.valid_members(NOW).collect();
        assert!(sessions.len() == 2 && !sessions.contains(&phone) && !sessions.contains(&tablet));
        assert!(!node.is_valid_member(NOW, &tablet));
        // A packet for an app makes its gateway the peer.
        node.unrouted(NOW, [100, 87, 0, 8].into(), &mut Out::new());
        assert_eq!(node.peer(NOW, &other).route, RouteKind::Connecting);
        assert_eq!(node.peer(NOW, &tablet).route, RouteKind::Leaf(other));
        assert!(!node.peers.contains_key(&tablet));
    }

    #[test]
    fn an_app_is_admitted_once_with_a_free_name_by_a_gateway_that_may() {
        let new = |label: &str| NewLeaf {
            name: name(label),
            groups: BTreeSet::new(),
            range: Some("100.87.0.0/16".parse().unwrap()),
            fingerprint: "d4".into(),
            not_after: UnixTime(UNIX.0 + 50),
        };
        let mut out = Out::new();
        let mut admin = node(changes(), true);
        let taken = admin.admit_leaf(NOW, new("web"), &mut out);
        assert_eq!(taken, Err(LeafError::Name(name("web"))));
        let none = NewLeaf { range: Some("100.87.0.8/31".parse().unwrap()), ..new("watch") };
        assert_eq!(admin.admit_leaf(NOW, none, &mut out), Err(LeafError::NoAddress));
        admin.admit_leaf(NOW, new("watch"), &mut out).unwrap();
        let watch = admin.roster.by_name(&name("watch")).unwrap();
        assert_eq!((watch.leaf_of, watch.key), (Some(admin.own), leaf_key(&admin.mesh, "d4")));
        assert!(authorize(&admin, NOW, "d4").is_some());
        let refused = node(changes(), false).admit_leaf(NOW, new("watch"), &mut out);
        assert_eq!(refused, Err(LeafError::Sign(SignError::NoRight)));
        let mut changes = changes();
        let plain = NodeInfo { openvpn: false, ..gateway(GATEWAY, "hub") };
        let key = Signer::new(GATEWAY).hash;
        write(&mut changes, &Signer::new(1), Action::SetNames { key, node: plain });
        let no_role = node(changes, true).admit_leaf(NOW, new("watch"), &mut out);
        assert_eq!(no_role, Err(LeafError::NoGateway));
    }
}
