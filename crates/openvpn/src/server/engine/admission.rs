//! The steps from the key exchange to a session or to a refusal.

use std::collections::HashMap;
use std::time::Duration;

use adit_engine::auth::SessionParams;
use adit_engine::command::{Float, PeerRates};
use adit_engine::{Instant, Link, PeerId, Random, auth};
use zeroize::Zeroizing;

use super::authorization::Login;
use super::control::{report_control_message, send_push};
use super::session_replacement::CHECK_LASTS;
use super::{Disconnect, Out, REFUSAL_PATIENCE, ServerEngine};
use crate::data_format::{Command, Framing};
use crate::keys::{DataKeys, KeyMethod2, Randoms, Role};
use crate::negotiate::{
    AdvanceTo, AuthFailed, ControlMessage, IvProto, PeerInfo, RemoteOptions, choose_cipher,
};
use crate::reason::Reason;
use crate::server::client::{ClientToken, ConnectedClient, NegotiatedClient, Reservation, Stage};
use crate::server::config::ServerConfig;
use crate::server::event::{ClientInfo, ServerEvent};
use crate::server::pool::{Fixed, Lease, NoLease};
use crate::server::push::{
    Recipient, framing, lacks_exporter, push_bundles, pushed_options, uses_epochs,
};
use crate::session::{Agreement, DataChannel, PeerTerms, Settings, options_string};

impl ServerEngine {
    /// Processes the client's key message. Sends ours, and then asks for the client's authorization, accepts it, or, in
    /// a renegotiation, installs the next key.
    pub(super) fn keys_arrived(
        &mut self,
        now: Instant,
        peer: PeerId,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        let settings = &self.config.settings;
        let password = client.control_channel.newest().take_password();
        let negotiation = client.control_channel.negotiation();
        let Some(remote) = negotiation.remote_keys() else { return Ok(()) };
        let identity = negotiation.tls().peer().cloned().unwrap_or_default();
        let tls = negotiation.tls().description();
        let username = (!remote.username.is_empty()).then(|| remote.username.clone());
        match &client.stage {
            Stage::Replaced(_) | Stage::Ended { .. } => {
                return Err(Reason::Ignored("a key exchange in a session that has ended"));
            }
            Stage::Connected(_) => {
                let login = Login { username, password };
                return self.renegotiated(now, peer, (identity, tls), login, out);
            }
            _ => {}
        }
        let peer_info = PeerInfo::parse(&remote.peer_info)
            .map_err(|_| Reason::Protocol("malformed peer info"))?;
        let occ = RemoteOptions::parse(&remote.options);
        if let Some(warning) = occ.device_mismatch(settings.ethernet) {
            out.event(ServerEvent::Warning(Some(peer), warning));
        }
        let fallback = settings.cipher_fallback;
        let chosen = choose_cipher(&settings.ciphers, &peer_info, occ.cipher(), fallback);
        let link = client.control_channel.link;
        let ours = our_keys(&mut self.random, settings, link, chosen.as_ref().ok().copied());
        let expected = self.config.checks.verify_options.then(|| ours.options.clone());
        let mismatch = expected.and_then(|ours| occ.mismatch(&RemoteOptions::parse(&ours)));
        client.control_channel.send_keys(ours)?;
        let cipher = match (chosen, mismatch) {
            (Ok(cipher), None) => cipher,
            (Ok(_), Some(name)) => {
                let reason = Reason::OptionsDiffer(name);
                return self.refuse(now, peer, peer_info.proto(), reason, out);
            }
            (Err(refused), _) => {
                let proto = peer_info.proto();
                return self.refuse(now, peer, proto, refused.into(), out);
            }
        };
        let proto = peer_info.proto();
        if lacks_exporter(settings, proto) {
            let text = "the server requires key derivation with the TLS exporter";
            return self.refuse(now, peer, proto, Reason::Rejected(text.into()), out);
        }
        let compressed = occ.get("comp-lzo").is_some();
        let negotiated = NegotiatedClient {
            identity,
            username,
            peer_info,
            cipher,
            tls,
            compressed,
            token: None,
            about: None,
        };
        self.negotiated(now, peer, negotiated, password, out)
    }

    pub(super) fn rekeyed(
        &mut self,
        now: Instant,
        peer: PeerId,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        if let Stage::Connected(connected) = &mut client.stage {
            let (control_channel, random) = (&mut client.control_channel, &mut self.random);
            let key_id = connected.data.rekey(now, Role::Server, control_channel, random, out)?;
            out.event(ServerEvent::Rekeyed(peer, key_id));
        }
        Ok(())
    }

    /// Sends AUTH_FAILED to a client that is not admitted.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        peer: PeerId,
        proto: IvProto,
        reason: Reason,
        out: &mut Out,
    ) -> Result<(), Reason> {
        if let Some(client) = self.clients.get_mut(&peer) {
            // Report the refusal now rather than when the client is removed, so that the log has
            // the events in order.
            let link = client.control_channel.link;
            let identity = client.control_channel.negotiation().tls().peer().cloned();
            let identity = Box::new(identity.unwrap_or_default());
            out.event(ServerEvent::Refused(link, identity, reason.clone()));
            let message = ControlMessage::AuthFailed(auth_failed(&reason, proto));
            client.control_channel.send_message(message.encode())?;
            report_control_message(peer, client, message.to_string(), out);
            client.stage = Stage::Refused { until: now + REFUSAL_PATIENCE, reason };
        }
        Ok(())
    }

    /// Promotes a handshake to a session. In one step it ends the previous session of the same
    /// name, leases the addresses, sets up the data plane and sends the options.
    pub(super) fn promote(
        &mut self,
        now: Instant,
        peer: PeerId,
        negotiated: NegotiatedClient,
        (grant, reserved): (auth::ClientParams, Option<Reservation>),
        out: &mut Out,
    ) -> Result<(), Reason> {
        // The steps that can fail come first, while there is little to undo yet.
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        let proto = negotiated.peer_info.proto();
        if grant.disabled {
            self.cancel(peer, &negotiated, reserved);
            let reason =
                Reason::Rejected("client-config-dir: the file of the client says disable".into());
            return self.refuse(now, peer, proto, reason, out);
        }
        let exporter = proto.has(IvProto::TLS_EKM);
        let check = client.control_channel.negotiation().tls().is_check();
        let keys = client.control_channel.data_keys(exporter);
        if exporter && proto.has(IvProto::CC_EXIT) && proto.has(IvProto::DYN_TLS_CRYPT) {
            client.control_channel.wrap_renegotiations();
        }
        let (keys, token) = match (keys, self.new_token(now, &negotiated)) {
            (Ok(keys), Ok(token)) => (keys, token),
            (Err(reason), _) | (_, Err(reason)) => {
                self.cancel(peer, &negotiated, reserved);
                return Err(reason);
            }
        };
        // A check leaves the client's fixed addresses and networks to its session.
        let grant = if check { without_own(grant) } else { grant };
        let name = negotiated.identity.common_name.clone();
        let lease = match self.final_lease(now, peer, (&name, check), (&grant, reserved), out) {
            Ok(lease) => lease,
            Err(reason) => return self.refuse(now, peer, proto, reason, out),
        };
        let framing = framing(&self.config, negotiated.compressed, &negotiated.peer_info);
        let to = Recipient {
            peer,
            grant: &grant,
            lease,
            cipher: negotiated.cipher,
            framing,
            info: &negotiated.peer_info,
        };
        let options = pushed_options(&self.config, &to);
        let push = match push_bundles(&options, token.as_ref().map(|(_, text)| text.as_str())) {
            Ok(push) => push,
            Err(error) => {
                self.pool.release(peer, lease);
                return self.refuse(now, peer, proto, error.into(), out);
            }
        };
        let token = token.map(|(token, _)| token);
        let assignment =
            Assignment { check, grant, lease, framing, options, push, keys, exporter, token };
        self.establish(now, peer, negotiated, assignment, out)
    }

    /// Returns the addresses of a client that gets a session now: those reserved for it, unless it has got other fixed
    /// addresses since.
    fn final_lease(
        &mut self,
        now: Instant,
        peer: PeerId,
        of: (&str, bool),
        (grant, reserved): (&auth::ClientParams, Option<Reservation>),
        out: &mut Out,
    ) -> Result<Lease, Reason> {
        let Some(Reservation { grant: former, lease }) = reserved else {
            return self.reserve(now, peer, of, grant, out);
        };
        if Fixed::of(grant) != Fixed::of(&former) {
            self.pool.release(peer, lease);
            return self.reserve(now, peer, of, grant, out);
        }
        // Another session may have begun since.
        self.make_room(now, peer, of, out).inspect_err(|_| self.pool.release(peer, lease))?;
        Ok(lease)
    }

    /// Ends the previous session of the same name, and leases addresses.
    pub(super) fn reserve(
        &mut self,
        now: Instant,
        peer: PeerId,
        of: (&str, bool),
        grant: &auth::ClientParams,
        out: &mut Out,
    ) -> Result<Lease, Reason> {
        self.make_room(now, peer, of, out)?;
        self.lease(now, peer, of, grant, out)
    }

    fn make_room(
        &mut self,
        now: Instant,
        peer: PeerId,
        (name, check): (&str, bool),
        out: &mut Out,
    ) -> Result<(), Reason> {
        if check && !name.is_empty() {
            self.replace_check(peer, name, out);
        } else if !check && !self.config.duplicate_cn {
            self.replace(now, peer, name, out);
        }
        let notified = self.disputes.notifying().saturating_add(self.ended);
        let without = self.handshakes.total().saturating_add(notified);
        let connected = self.clients.len().saturating_sub(without);
        if connected >= self.config.max_clients as usize {
            return Err(Reason::ServerFull);
        }
        Ok(())
    }

    /// Releases what was reserved for a client that gets no session.
    pub(super) fn cancel(
        &mut self,
        peer: PeerId,
        negotiated: &NegotiatedClient,
        reserved: Option<Reservation>,
    ) {
        if let Some(reserved) = reserved {
            self.pool.release(peer, reserved.lease);
            self.end_check(&negotiated.identity.common_name, peer);
        }
    }

    /// Establishes the session. From here on, only the connection can fail.
    fn establish(
        &mut self,
        now: Instant,
        peer: PeerId,
        negotiated: NegotiatedClient,
        assignment: Assignment,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Assignment { check, mut grant, lease, framing, options, push, keys, exporter, token } =
            assignment;
        grant.vlan = self.config.vlans.map(|vlans| grant.vlan.unwrap_or(vlans.native));
        let proto = negotiated.peer_info.proto();
        let Some(client) = self.clients.get(&peer) else { return Ok(()) };
        let link = client.control_channel.link;
        let own = lease.prefixes();
        let prefixes = self.own((peer, &negotiated.identity), own.clone(), &grant, out);
        let settings = &self.config.settings;
        let epoch = uses_epochs(proto, negotiated.cipher);
        let limit = check.then_some(CHECK_LASTS);
        let agreement = Agreement {
            terms: PeerTerms {
                peer,
                link,
                wire_id: proto.has(IvProto::DATA_V2).then_some(peer.0),
                // Like OpenVPN's servers, let clients float if they know their peer-id.
                float: Float::if_allowed(
                    !link.is_stream() && (settings.float || proto.has(IvProto::DATA_V2)),
                ),
                framing,
                protection: negotiated.cipher.protection(&settings.auth, epoch),
                channel_of: None,
                vlan: grant.vlan,
            },
            routes: prefixes.clone(),
            keys,
            exporter,
            inactive: grant.inactive.or(settings.limits.inactive),
            timeout: limit.or(grant.session_timeout).or(settings.limits.session),
        };
        let data = DataChannel::establish(now, agreement, settings, &mut self.random, out);
        let SessionParams { username, rates, .. } =
            grant.session.take().map(|session| *session).unwrap_or_default();
        if rates != PeerRates::default() {
            out.plane(Command::SetRates(peer, rates));
        }
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        let info = ClientInfo {
            peer,
            session: client.number,
            identity: negotiated.identity,
            username: username.or_else(|| negotiated.username.clone()),
            link,
            ipv4: lease.ipv4,
            ipv6: lease.ipv6,
            networks: prefixes.iter().filter(|p| !own.contains(p)).copied().collect(),
            cipher: negotiated.cipher,
            peer_info: negotiated.peer_info.entries().to_vec(),
            tls: negotiated.tls,
            since: self.clock.at(now),
            handshake: now.since(client.began),
            check,
        };
        let nameless = info.identity.common_name.is_empty();
        if !self.config.duplicate_cn && !check && !nameless {
            self.by_name.insert(info.identity.common_name.clone(), peer);
        }
        out.event(ServerEvent::ClientUp(Box::new(info.clone())));
        let warnings = std::mem::take(&mut grant.warnings).into_iter();
        for text in warnings.chain(no_address(&self.config, lease)) {
            out.event(ServerEvent::Warning(Some(peer), text));
        }
        client.control_channel.establish(settings.tran_window);
        client.stage = Stage::Connected(Box::new(ConnectedClient {
            info,
            sent_username: negotiated.username,
            data,
            lease,
            grant,
            rates,
            prefixes,
            framing,
            options,
            push,
            asked: false,
            token,
            reauthorization: None,
            stations: HashMap::new(),
        }));
        self.handshakes.release(link.remote().ip());
        self.streams.authenticated(link);
        self.responder.refund(link);
        send_push(peer, client, out)
    }

    fn lease(
        &mut self,
        now: Instant,
        peer: PeerId,
        (name, check): (&str, bool),
        grant: &auth::ClientParams,
        out: &mut Out,
    ) -> Result<Lease, Reason> {
        let fixed = Fixed::of(grant);
        // A name that no other client has is not remembered.
        let once = check || name.is_empty();
        // Each of the two addresses may have to be taken back from another client once.
        for _ in 0..2 {
            let lease = if once {
                self.pool.lease_once(peer, fixed)
            } else {
                self.pool.lease(peer, name, fixed)
            };
            match lease {
                Ok(lease) => return Ok(lease),
                Err(NoLease::Exhausted) => return Err(Reason::NoFreeAddress),
                Err(NoLease::Unsuitable) => return Err(Reason::FixedAddressUnsuitable),
                Err(NoLease::Held(holder)) => self.take_back(now, holder, name, fixed, out)?,
            }
        }
        Err(Reason::FixedAddressInUse(None))
    }

    /// Ends the session of a client that was lent the fixed address of another client; that client
    /// reconnects and gets another address. Two clients with the same fixed address are a
    /// configuration error.
    fn take_back(
        &mut self,
        now: Instant,
        holder: PeerId,
        name: &str,
        fixed: Fixed,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let held = self.clients.get(&holder).and_then(|client| client.addresses());
        let theirs = held.is_some_and(|(grant, lease)| {
            let Fixed { ipv4: v4, ipv6: v6, .. } = Fixed::of(grant);
            (v4.is_some() && v4 == fixed.ipv4 && lease.ipv4 == v4)
                || (v6.is_some() && v6 == fixed.ipv6 && lease.ipv6 == v6)
        });
        if theirs {
            return Err(Reason::FixedAddressInUse(Some(self.name_of(holder))));
        }
        let reason = Reason::AddressClaimed(name.to_owned());
        self.disconnect(now, holder, Disconnect::Restart, reason, out);
        Ok(())
    }
}

/// The values that are determined for a client before it has a session.
struct Assignment {
    check: bool,
    grant: auth::ClientParams,
    lease: Lease,
    framing: Framing,
    options: Vec<String>,
    push: Vec<String>,
    keys: DataKeys,
    exporter: bool,
    token: Option<ClientToken>,
}

/// Returns a client's parameters for a check, without its fixed addresses and networks.
pub(super) fn without_own(grant: auth::ClientParams) -> auth::ClientParams {
    auth::ClientParams {
        ipv4: None,
        ipv6: None,
        ifconfig4: None,
        ifconfig6: None,
        iroutes: Vec::new(),
        ..grant
    }
}

/// The time after which a client that cannot be accepted now should try again.
const LATER: Duration = Duration::from_secs(20);

/// How long a client should avoid this server if the server is full.
const BACKOFF: Duration = Duration::from_secs(30);

/// Returns the AUTH_FAILED message for a refusal. An older client only understands a permanent one.
pub(super) fn auth_failed(reason: &Reason, proto: IvProto) -> AuthFailed {
    let (backoff, advance) = match reason {
        Reason::RejectedForNow(_) => (Some(LATER), AdvanceTo::Stay),
        Reason::ServerFull | Reason::NoFreeAddress | Reason::FixedAddressInUse(_) => {
            (Some(BACKOFF), AdvanceTo::default())
        }
        _ => (None, AdvanceTo::default()),
    };
    let backoff = backoff.filter(|_| proto.has(IvProto::AUTH_FAIL_TEMP));
    AuthFailed {
        temporary: backoff.is_some(),
        backoff,
        advance,
        reason: reason.wire_text(),
        ..AuthFailed::default()
    }
}

pub(super) fn our_keys(
    random: &mut Random,
    settings: &Settings,
    link: Link,
    cipher: Option<crate::negotiate::DataCipher>,
) -> KeyMethod2 {
    let options = options_string(settings, Role::Server, link, cipher).to_string();
    let randoms = Randoms { random1: random.bytes(), random2: random.bytes() };
    KeyMethod2 {
        pre_master: None,
        randoms,
        options,
        username: String::new(),
        password: Zeroizing::default(),
        peer_info: String::new(),
    }
}

/// Returns a warning if a server without a pool has no IPv4 address for a client.
fn no_address(config: &ServerConfig, lease: Lease) -> Option<String> {
    let without_pool = config.network4.as_ref().is_some_and(|network| network.pool.is_none());
    (without_pool && lease.ipv4.is_none()).then(|| {
        "the client has no IPv4 address: there is no pool, and no ifconfig-push for it".into()
    })
}
