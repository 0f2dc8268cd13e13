//! `adit reload`: reads registry, certificates and settings again, and applies what can change without dropping tunnels.

use std::collections::HashSet;

use adit_openvpn::tls::ServerTls;
use adit_openvpn_service::Handle;
use adit_runtime::control::ReloadReport;
use adit_runtime::fault::Fault;
use adit_runtime::say;

use super::{ServerHooks, end_sessions, names_in_certificates};
use crate::clients::{self, open_store};
use crate::engine_config;
use crate::init::pki_fault;
use crate::settings::{Login, Settings};
use crate::sites::SiteRules;

/// Returns the settings that a reload has applied.
fn applied(old: &Settings, fresh: &Settings) -> Vec<String> {
    let filter = old.filter.is_some() && fresh.filter.is_some() && old.filter != fresh.filter;
    let changed = [
        ("host", old.host != fresh.host),
        ("full-tunnel or routes", old.reach != fresh.reach),
        ("dns", old.dns != fresh.dns),
        ("nat", old.nat != fresh.nat),
        ("login", old.login != fresh.login && !needs_restart(old.login, fresh.login)),
        ("max-clients", old.max_clients != fresh.max_clients),
        ("[oidc]", old.oidc != fresh.oidc),
        ("filter", filter),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key.to_owned()).collect()
}

/// Returns whether a change of `login` needs a restart. Sessions are named after certificates or after users, not both.
fn needs_restart(old: Login, fresh: Login) -> bool {
    old.uses_certificate() != fresh.uses_certificate()
}

impl ServerHooks<'_> {
    pub(super) fn read_again(&mut self, handle: &Handle) -> Result<Option<ServerTls>, Fault> {
        // First end the sessions of clients that are no longer admitted, even if other files are unreadable.
        self.end_unwelcome(handle);
        self.host_state.reload()?;
        self.store = open_store(&self.paths)?;
        let tls = engine_config::tls(&self.store, self.running.login)?;
        self.reload_settings(handle)?;
        self.forget_deleted()?;
        Ok(Some(tls))
    }

    /// Removes the leases and the counted traffic of clients that were deleted.
    fn forget_deleted(&mut self) -> Result<(), Fault> {
        let known = names_in_certificates(&self.store.clients().map_err(pki_fault)?);
        let gone: HashSet<&str> = self
            .registered
            .iter()
            .map(String::as_str)
            .filter(|name| !known.contains(*name))
            .collect();
        if !gone.is_empty() {
            self.leases.saved.retain(|name| !gone.contains(name));
            self.authority.usage.saved.retain(|name| !gone.contains(name));
        }
        self.registered = known;
        Ok(())
    }

    /// Ends the sessions that the registry no longer admits.
    fn end_unwelcome(&self, handle: &Handle) {
        let mut ends = Vec::new();
        for (peer, owner) in &self.sessions {
            match self.authority.decide_session(owner) {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => ends.push((peer.0, reason)),
                Err(fault) => {
                    // New clients are refused now. Ending all sessions because of an unreadable file would be worse.
                    tracing::warn!("sessions: not checked again: {fault}");
                    return;
                }
            }
        }
        end_sessions(handle, ends);
    }

    /// Applies the settings that can change without dropping tunnels, and lists those that need a restart.
    fn reload_settings(&mut self, handle: &Handle) -> Result<(), Fault> {
        let fresh = Settings::read(&self.paths.settings_file())?;
        let old = &self.running;
        let keeps_login = needs_restart(old.login, fresh.login);
        let login = if keeps_login { old.login } else { fresh.login };
        let applied_now = Settings { login, ..fresh.clone() };
        let running = Settings {
            reach: fresh.reach.clone(),
            dns: fresh.dns.clone(),
            nat: fresh.nat,
            login,
            oidc: fresh.oidc.clone(),
            max_clients: fresh.max_clients,
            host: fresh.host.clone(),
            // A different file is applied at once. Adding or removing the filter needs a restart.
            filter: old.filter.as_ref().and(fresh.filter.clone().or(old.filter.clone())),
            ..old.clone()
        };
        let rules = SiteRules::of(&running);
        let clients = self.store.clients().map_err(pki_fault)?;
        rules.warn_of_conflicts(&clients);
        let behind = rules.networks(&clients);
        let offer = engine_config::offer(&applied_now, &self.store, &rules, &self.leases.all())?;
        self.authority.sso.configure(&self.paths, &applied_now)?;
        let differs = [
            ("listen", fresh.listen != old.listen),
            ("network", fresh.network != old.network),
            ("network6", fresh.network6 != old.network6),
            ("device", fresh.device != old.device),
            ("client-to-client", fresh.client_to_client != old.client_to_client),
            ("mtu", fresh.mtu != old.mtu),
            ("login", keeps_login),
            ("workers", fresh.workers != old.workers),
            ("pam-service", fresh.pam_service != old.pam_service),
            ("on-event", fresh.on_event != old.on_event),
            ("[events]", fresh.events != old.events),
            ("user", fresh.user != old.user),
            ("metrics", fresh.metrics != old.metrics),
            ("filter", fresh.filter.is_some() != old.filter.is_some()),
        ];
        let pending: Vec<&str> =
            differs.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect();
        for key in &pending {
            tracing::warn!("{key}: not applied: restart required");
        }
        self.reloaded = ReloadReport {
            applied: applied(old, &fresh),
            pending: pending.into_iter().map(str::to_owned).collect(),
            outdated: clients::outdated(&self.store, &fresh)?,
            endpoints: clients::endpoints(&fresh),
        };
        if fresh.reach != old.reach || fresh.dns != old.dns {
            say!(
                1,
                "connected clients that can take them get the new routes and name servers now (adit, \
                 openvpn from 2.7), the others when they connect again"
            );
        }
        if fresh.nat != old.nat || behind != self.behind {
            self.host_state.load_rules(old, fresh.nat, &behind)?;
        }
        self.authority.set_sites(rules);
        if login != old.login {
            self.authority.set_login(login);
            self.end_unwelcome(handle);
        }
        self.running = running;
        let plan =
            (behind != self.behind).then(|| engine_config::host_plan(&self.running, &behind));
        self.behind = behind;
        let handle = handle.clone();
        tokio::spawn(async move {
            // These fail only when the service ends, and then they are not needed.
            if let Some(plan) = plan {
                let _ = handle.set_host(plan).await;
            }
            let _ = handle.set_offer(offer).await;
        });
        Ok(())
    }
}
