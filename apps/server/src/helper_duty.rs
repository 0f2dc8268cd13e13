//! The helper of a managed server, with the requests that its settings permit and its changes to the host.

use std::future::{Future, ready};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;

use adit_runtime::fault::Fault;
use adit_runtime::helper::{Answer, AnswerWithFds, Duty, DutyKind, Policy, Problem, RequestCheck};
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::netinfo;
use adit_runtime::paths::Paths;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clients::open_store;
use crate::engine_config;
use crate::events;
use crate::host_state::HostState;
use crate::init::pki_fault;
use crate::leases::Leases;
use crate::login::{SsoLogins, Tokens, UsedCodes};
use crate::privileges::claim;
use crate::serve::filter_file;
use crate::settings::{Nat, Settings};
use crate::sites::SiteRules;
use crate::usage::Usage;

/// The helper of `adit server run`; its arguments are the `ServerDuty`.
pub const SERVER: DutyKind = DutyKind {
    name: "server",
    read: |arguments| {
        let duty = serde_json::from_value(arguments)?;
        Ok(Box::new(ServerHelper { duty, running: None }))
    },
};

/// A server's command line.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerDuty {
    /// The directory of all files, if it is not the default.
    pub(crate) dir: Option<PathBuf>,
    /// Where metrics are served. Overrides the settings.
    pub(crate) metrics: Option<MetricsConfig>,
}

/// A request that only a managed server has.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum ServerRequest {
    /// Set up the host according to the settings.
    Prepare,
    /// Do the same, and keep the changes of the predecessor, whose sessions continue.
    TakeOver,
    /// Load the server's firewall rules again, with this `nat` and the networks behind clients in the registry.
    Masquerade(Nat),
}

struct ServerHelper {
    duty: ServerDuty,
    /// The changes to the host and the running settings. The changes are undone when this is dropped.
    running: Option<(HostState, Settings)>,
}

impl ServerHelper {
    /// Reads the settings here, so that the network process cannot forge them.
    fn settings(&self) -> Result<(Paths, Settings), Fault> {
        let paths = Paths::new(self.duty.dir.as_deref())?;
        let settings = Settings::read(&paths.settings_file())?;
        Ok((paths, settings))
    }

    /// Returns the networks behind clients, for these settings.
    fn networks(paths: &Paths, settings: &Settings) -> Result<Vec<IpNet>, Fault> {
        let clients = open_store(paths)?.clients().map_err(pki_fault)?;
        Ok(SiteRules::of(settings).networks(&clients))
    }

    fn perform(&mut self, request: &Value, server: u32) -> Result<(), Problem> {
        match read(request).map_err(Problem::Refused)? {
            request @ (ServerRequest::Prepare | ServerRequest::TakeOver) => {
                let (paths, settings) = self.settings()?;
                let mut host_state = claim(&paths, server, request == ServerRequest::TakeOver)?;
                host_state.prepare(&settings, &Self::networks(&paths, &settings)?)?;
                self.running = Some((host_state, settings));
            }
            ServerRequest::Masquerade(nat) => {
                let (paths, _) = self.settings()?;
                // The other settings take effect at the next start.
                let Some((host_state, settings)) = &mut self.running else {
                    return Err(Problem::Refused("no server is prepared".into()));
                };
                settings.nat = nat;
                host_state.filter(settings, &Self::networks(&paths, settings)?)?;
            }
        }
        Ok(())
    }
}

impl Duty for ServerHelper {
    /// Returns the policy for the helper. The authority's key is not among the files.
    fn policy(&self, _: &[(PathBuf, Vec<u8>)], _: u32) -> Result<Policy, Fault> {
        let (paths, settings) = self.settings()?;
        let files = open_store(&paths)?.files();
        let listeners = engine_config::listeners(&settings.listen, netinfo::has_ipv6());
        // The device keeps the settings with which the server started.
        let started = self.running.as_ref().map_or(&settings, |(_, started)| started);
        let plan = engine_config::host_plan(started, &Self::networks(&paths, started)?);
        let mut policy = Policy {
            device: Some(plan.device.clone()),
            plans: Some(Box::new(plan)),
            readable: [
                paths.settings_file(),
                paths.data.join("pki/server.json"),
                files.ca,
                files.cert,
                files.key,
                files.crl,
                files.tls_crypt_v2,
                files.clients,
                files.users,
            ]
            .into(),
            replaceable: [
                Leases::file(&paths),
                UsedCodes::file(&paths),
                Tokens::file(&paths),
                SsoLogins::file(&paths),
                Usage::file(&paths),
            ]
            .into(),
            hand_over: true,
            control: [paths.control_socket()].into(),
            own: Some(Box::new(NatCheck(settings.nat))),
            ..Policy::default()
        };
        policy.sockets.listen = listeners.iter().map(|l| (l.transport, l.bind)).collect();
        policy.programs = events::setup(&paths, &settings)?;
        policy.readable.extend(settings.request_files().map(|path| paths.config.join(path)));
        if let Some(path) = filter_file(&paths, &settings) {
            policy.add_rules(&path);
        }
        policy.add_metrics(self.duty.metrics.as_ref().or(settings.metrics.as_ref()));
        Ok(policy)
    }

    fn leave(&mut self) {
        if let Some((host_state, _)) = &mut self.running {
            host_state.leave();
        }
    }

    fn carry_out(
        &mut self,
        request: Value,
        server: u32,
    ) -> Pin<Box<dyn Future<Output = Result<AnswerWithFds, Problem>> + '_>> {
        let done = self.perform(&request, server);
        Box::pin(ready(done.map(|()| (Answer::Done, Vec::<OwnedFd>::new()))))
    }
}

/// Permits the requests of a managed server, but only with the configured `nat`.
#[derive(Debug)]
struct NatCheck(Nat);

impl RequestCheck for NatCheck {
    fn check(&self, request: &Value) -> Result<(), String> {
        match read(request)? {
            ServerRequest::Masquerade(nat) if nat != self.0 => {
                Err(format!("masquerade: {nat:?} is not the configured nat"))
            }
            ServerRequest::Masquerade(_) | ServerRequest::Prepare | ServerRequest::TakeOver => {
                Ok(())
            }
        }
    }
}

fn read(request: &Value) -> Result<ServerRequest, String> {
    ServerRequest::deserialize(request).map_err(|e| format!("server: {e}"))
}

#[cfg(test)]
mod tests;
