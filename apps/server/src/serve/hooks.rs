//! The hooks of the running service: sessions and their owners, quotas, and events for the operator.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use adit_engine::PeerId;
use adit_engine::command::Counters;
use adit_openvpn::server::{ClientInfo, ServerEvent};
use adit_openvpn::tls::ServerTls;
use adit_openvpn_service::{Handle, Hooks, Session, Sessions};
use adit_pki::{Client, Quota, Store};
use adit_runtime::clock::unix_time;
use adit_runtime::control::{CertificateReport, LoginReport, ReloadReport};
use adit_runtime::driver::Endpoint;
use adit_runtime::fault::Fault;
use adit_runtime::filter::KnownNames;
use adit_runtime::log;
use adit_runtime::metrics::Samples;
use adit_runtime::say;

use super::{Counted, OnReady, ReadyReport, ServerHooks, end_sessions, filter_file};
use crate::authorizer::SessionOwner;
use crate::events::Event;
use crate::settings::{Login, Settings};
use crate::{clients, selftest};

/// Announces the server after the self-test, which needs the running service and therefore runs on a separate thread.
fn announce(settings: &Settings, store: &Store, device: String, on_ready: OnReady) {
    let settings = settings.clone();
    let key = clients::server_key(store);
    tokio::task::spawn_blocking(move || {
        let self_test = match key {
            Ok(key) => selftest::knock_everywhere(&settings.listen, &key),
            Err(fault) => Err(fault.to_string()),
        };
        on_ready(ReadyReport { device, settings, self_test });
    });
}

impl Hooks for ServerHooks<'_> {
    fn event(&mut self, event: &ServerEvent) {
        match event {
            ServerEvent::ClientUp(client) => {
                let identity = &client.identity;
                self.began(client);
                self.report_connected(client);
                if let Some(address) = client.ipv4.filter(|_| !client.check) {
                    // A renamed client keeps its address.
                    let known = self.authority.known_client(&identity.common_name);
                    let known = known.filter(|_| self.authority.login().uses_certificate());
                    let name = known.as_ref().map(|client| client.certificate_name().as_str());
                    self.leases.remember(name.unwrap_or(&identity.common_name), address);
                }
            }
            ServerEvent::Resumed(client, traffic) => {
                self.began(client);
                let bytes = traffic.rx_bytes.saturating_add(traffic.tx_bytes);
                // The former process has counted these.
                if let Some(counted) = self.counted.get_mut(&client.peer) {
                    counted.bytes = bytes;
                }
            }
            ServerEvent::Refused(link, identity, reason) => {
                self.events.send(&Event::ClientRefused {
                    name: log::clean(&identity.common_name),
                    from: link.remote().to_string(),
                    reason: log::clean(&reason.to_string()),
                });
            }
            ServerEvent::ClientDown(peer, reason, traffic) => {
                self.counted.remove(peer);
                let owner = self.sessions.remove(peer);
                let name = owner.map(|owner| owner.name).unwrap_or_default();
                self.events.send(&Event::ClientDisconnected {
                    name: log::clean(&name),
                    reason: log::clean(&reason.to_string()),
                    received: traffic.rx_bytes,
                    sent: traffic.tx_bytes,
                });
                if self.users.get(&name).is_some_and(|(session, _)| session == peer) {
                    self.users.remove(&name);
                }
            }
            _ => {}
        }
    }

    fn ended(&mut self, session: &Session, traffic: Counters) {
        self.count(session, traffic, unix_time().0);
    }

    fn handed_over(&mut self) {
        self.host_state.leave();
    }

    fn started(&mut self, handle: &Handle) {
        self.handle = Some(handle.clone());
    }

    fn tick(&mut self, sessions: &Sessions) -> Option<ServerTls> {
        let now = unix_time().0;
        for session in sessions.iter() {
            self.count(session, session.counters, now);
        }
        let ends = self.sessions.iter().filter_map(|(peer, owner)| {
            let (_, client) = self.quota(&owner.name)?;
            Some((peer.0, self.authority.quota_reached(&client)?))
        });
        let ends: Vec<(u32, String)> = ends.collect();
        for (peer, reason) in &ends {
            let owner = self.sessions.get(&PeerId(*peer));
            self.events.send(&Event::LimitReached {
                name: log::clean(owner.map(|owner| owner.name.as_str()).unwrap_or_default()),
                reason: log::clean(reason),
            });
        }
        self.report_expiry(now / 86_400);
        if let Some(handle) = self.handle.as_ref().filter(|_| !ends.is_empty()) {
            end_sessions(handle, ends);
        }
        None
    }

    fn serving(&mut self, device: Option<&str>, listening: &[Endpoint]) {
        let device = device.unwrap_or(&self.running.device).to_owned();
        let paths: Vec<String> = listening.iter().map(ToString::to_string).collect();
        let paths = paths.join(", ");
        say!(1, "the server is up: device {device}, listening on {paths}");
        if let Some(notifier) = &self.notifier {
            // If this fails, only the service manager is affected.
            let _ = notifier.ready(&format!("serving on {paths}"));
        }
        if let Some(on_ready) = self.on_ready.take() {
            announce(&self.running, &self.store, device, on_ready);
        }
    }

    fn certificate(&self) -> Option<CertificateReport> {
        let server = self.store.server();
        let (whose, not_after) = if server.ca_expires < server.server_expires {
            ("ca", server.ca_expires)
        } else {
            ("own", server.server_expires)
        };
        let day = |unix: u64| i64::try_from(unix / 86_400).unwrap_or(i64::MAX);
        let days_left = day(not_after).saturating_sub(day(unix_time().0));
        Some(CertificateReport { whose: whose.into(), not_after, days_left })
    }

    fn client_certificate(&self) -> Option<CertificateReport> {
        let (whose, not_after) = self.authority.nearest_expiry()?;
        let day = |unix: u64| i64::try_from(unix / 86_400).unwrap_or(i64::MAX);
        let days_left = day(not_after).saturating_sub(day(unix_time().0));
        Some(CertificateReport { whose, not_after, days_left })
    }

    fn measure(&self, samples: &mut Samples) {
        self.events.measure(samples);
    }

    fn reloaded(&mut self) -> ReloadReport {
        std::mem::take(&mut self.reloaded)
    }

    fn groups(&self, name: &str) -> Option<Vec<String>> {
        let user = self.users.get(name).map(|(_, user)| user.as_str());
        Some(self.authority.groups(name, user))
    }

    fn logins(&self) -> Option<LoginReport> {
        self.authority.login_report()
    }

    fn known(&self) -> Option<KnownNames> {
        // Only the provider knows its groups, and only PAM its users.
        if matches!(self.running.login, Login::CertificateOidc | Login::Pam) {
            return None;
        }
        clients::known(&self.store, self.running.login).ok()
    }

    fn filter_file(&self) -> Option<PathBuf> {
        filter_file(&self.paths, &self.running)
    }

    fn reload(&mut self, handle: &Handle) -> Result<Option<ServerTls>, Fault> {
        self.read_again(handle).inspect_err(|fault| {
            self.events.send(&Event::ReloadFailed { reason: log::clean(&fault.to_string()) });
        })
    }
}

impl ServerHooks<'_> {
    fn report_connected(&mut self, client: &ClientInfo) {
        let addresses = [client.ipv4.map(IpAddr::V4), client.ipv6.map(IpAddr::V6)];
        self.events.send(&Event::ClientConnected {
            name: log::clean(&client.identity.common_name),
            user: client.username.as_deref().map(log::clean),
            from: client.link.remote().to_string(),
            addresses: addresses.into_iter().flatten().map(|address| address.to_string()).collect(),
        });
    }

    /// Reports the certificates that expire soon, once a day.
    fn report_expiry(&mut self, today: u64) {
        const SOON: i64 = 14;
        if std::mem::replace(&mut self.warned_on, today) == today {
            return;
        }
        for report in [self.certificate(), self.client_certificate()].into_iter().flatten() {
            if report.days_left < SOON {
                let (whose, days_left) = (report.whose, report.days_left);
                self.events.send(&Event::CertificateExpires { whose, days_left });
            }
        }
    }

    /// Records a session with its owner.
    fn began(&mut self, client: &ClientInfo) {
        let identity = &client.identity;
        let name = identity.common_name.clone();
        // Without passwords, what the client sent as a user name has no meaning.
        let user = client.username.as_deref().filter(|_| self.authority.login().has_users());
        if let Some(user) = user
            && !(client.check && self.users.contains_key(&name))
        {
            self.users.insert(name.clone(), (client.peer, user.to_owned()));
        }
        let user = user.map(|user| self.authority.session_user(user));
        let counts = self.quota(&name).is_some();
        let owner = SessionOwner { name, serial: identity.serial.clone(), user };
        self.sessions.insert(client.peer, owner);
        self.counted.insert(client.peer, Counted { bytes: 0, counts });
    }

    /// Returns a client's quota and the name under which its traffic is counted.
    fn quota(&self, name: &str) -> Option<(Quota, Arc<Client>)> {
        let (client, quota) = self.authority.known_quota(name)?;
        self.authority.login().uses_certificate().then_some((quota, client))
    }

    /// Adds the traffic of a session since the last call to its client's quota.
    fn count(&mut self, session: &Session, traffic: Counters, now: u64) {
        let Some((quota, client)) = self.quota(&session.info.identity.common_name) else { return };
        let total = traffic.rx_bytes.saturating_add(traffic.tx_bytes);
        let Some(counted) = self.counted.get_mut(&session.info.peer) else { return };
        let bytes = total.saturating_sub(counted.bytes);
        counted.bytes = total;
        // The traffic from before the client had a quota does not count.
        if std::mem::replace(&mut counted.counts, true) {
            let name = client.certificate_name().as_str();
            self.authority.usage.add(name, quota, bytes, now);
        }
    }
}
