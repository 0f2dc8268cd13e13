//! The chain that a configuration asks for.

use std::sync::Arc;

use adit_openvpn::config::{ClientRules, DeviceKind, Options, ServerOptions};
use adit_openvpn::server::{ClientChecks, ServerConfig, Topology};

use super::client_config_dir::ClientConfigDir;
use super::crl_directory::CrlDirectory;
use super::file_thread::FileThread;
use super::{Chain, ChainSettings, Check, ClientPrograms, FactSettings, LAST};
use crate::openvpn::environment::Environment;

impl Chain {
    /// Creates the chain that checks a client's server. `None` if the configuration checks nothing that the engine does
    /// not check itself.
    pub(crate) fn of_client(options: &Options, plugins: Option<Arc<dyn Check>>) -> Option<Self> {
        let patience = options.session.hand_window;
        let mut checks: Vec<Arc<dyn Check>> = plugins.into_iter().collect();
        if options.hooks.tls_verify.is_some() {
            checks.push(Arc::new(ClientPrograms::new(options, ClientRules::default(), patience)));
        }
        if let Some(directory) = &options.tls.crl_directory {
            checks.push(Arc::new(CrlDirectory::new(directory.clone(), FileThread::default())));
        }
        if checks.is_empty() {
            return None;
        }
        let facts =
            FactSettings { tracked: options.hooks.tracked.clone(), ..FactSettings::default() };
        let chain = Self::new(ChainSettings {
            checks,
            facts,
            patience,
            longest: patience,
            duplicate_cn: false,
            last: LAST,
            learns: false,
            stations: false,
        });
        chain.set_environment(Environment::new(options));
        Some(chain)
    }

    /// Creates the chain of a server, and sets what the engine has to ask. `None` if the configuration checks nothing
    /// that the engine does not check itself.
    pub(crate) fn of_server(
        options: &Options,
        role: &ServerOptions,
        engine: &mut ServerConfig,
        plugins: Option<Arc<dyn Check>>,
        management: Option<Arc<dyn Check>>,
    ) -> Option<Self> {
        let hooks = &options.hooks;
        let patience = options.session.hand_window;
        let thread = FileThread::default();
        let mut checks: Vec<Arc<dyn Check>> = Vec::new();
        if let Some(folder) = &role.client_config_dir {
            let (folder, rules) = (folder.clone(), role.client_rules);
            let files = ClientConfigDir::new(folder, role.ccd_exclusive, rules, thread.clone());
            checks.push(Arc::new(files));
        }
        let asks_plugins = plugins.is_some();
        checks.extend(plugins);
        let judges = hooks.tls_verify.is_some() || hooks.auth_user_pass_verify.is_some();
        let verifies_keys = hooks.tls_crypt_v2_verify.is_some();
        let connects = hooks.client_connect.is_some()
            || hooks.client_disconnect.is_some()
            || hooks.learn_address.is_some();
        if judges || connects || verifies_keys {
            let programs = ClientPrograms::new(options, role.client_rules, patience);
            checks.push(Arc::new(programs));
        }
        if let Some(directory) = &options.tls.crl_directory {
            // As in openvpn, a revoked certificate is refused after tls-verify has been asked.
            checks.push(Arc::new(CrlDirectory::new(directory.clone(), thread)));
        }
        // Last, because the management client may ask a person.
        let asks_management = management.is_some();
        checks.extend(management);
        if checks.is_empty() {
            return None;
        }
        engine.settings.describe_certificates = read_certificates(&checks);
        let ClientChecks { verify_key, reauthorize, connect, require_username, .. } =
            &mut engine.checks;
        *verify_key = verifies_keys;
        engine.authorize = true;
        let others = asks_plugins || asks_management;
        *reauthorize =
            judges || others || role.ccd_exclusive || options.tls.crl_directory.is_some();
        *connect = connects || others;
        let passwords = hooks.auth_user_pass_verify.is_some() || asks_management;
        *require_username |= passwords && !role.username_optional;
        let stations = checks.iter().any(|check| check.learns());
        let topology = role.network4.as_ref().map(|network| network.topology);
        let tap = options.device.kind == DeviceKind::Tap;
        let facts = FactSettings {
            tracked: hooks.tracked.clone(),
            own6: role.network6.as_ref().map(|network| network.server.addr()).filter(|_| !tap),
            netmask: tap || topology == Some(Topology::Subnet),
            usernames: passwords,
        };
        Some(Self::new(ChainSettings {
            checks,
            facts,
            patience,
            // As in openvpn, whose clients allow as much.
            longest: patience.max(options.session.renegotiation.after / 2),
            duplicate_cn: role.duplicate_cn,
            last: LAST,
            learns: !tap,
            stations: tap && stations,
        }))
    }
}

/// Returns whether any check reads the certificates of clients, whose description takes time in every handshake.
fn read_certificates(checks: &[Arc<dyn Check>]) -> bool {
    checks.iter().any(|check| check.reads_certificates())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn certificates_are_described_for_all_but_the_files_of_clients() {
        let (thread, rules) = (FileThread::default(), ClientRules::default());
        let files = ClientConfigDir::new("/ccd".into(), false, rules, thread.clone());
        let mut checks: Vec<Arc<dyn Check>> = vec![Arc::new(files)];
        assert!(!read_certificates(&checks));
        checks.push(Arc::new(CrlDirectory::new("/crl".into(), thread)));
        assert!(read_certificates(&checks));
        let patience = Duration::from_secs(1);
        let programs = ClientPrograms::new(&Options::default(), rules, patience);
        checks = vec![Arc::new(programs)];
        assert!(read_certificates(&checks));
    }
}
