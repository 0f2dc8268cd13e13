use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use adit_engine::Transport;

use super::clients::open_store;
use super::engine_config;
use super::leases::Leases;
use super::netinfo;
use super::paths::Paths;
use super::serve::filter_file;
use super::settings::{Nat, Settings};
use crate::fault::Fault;
use crate::host::HostPlan;

/// The requests that a managed server's settings permit it to make to its helper.
#[derive(Debug)]
pub(crate) struct HelperScope {
    /// Device and addresses.
    pub(crate) plan: HostPlan,
    /// Where it listens.
    pub(crate) listen: Vec<(Transport, SocketAddr)>,
    /// Files that it reads again.
    pub(crate) readable: Vec<PathBuf>,
    /// The file of leases.
    pub(crate) leases: PathBuf,
    /// Its control socket.
    pub(crate) control: PathBuf,
    /// Its `nat`.
    pub(crate) nat: Nat,
    /// Its rules.
    pub(crate) filter: Option<PathBuf>,
}

impl HelperScope {
    /// Reads the settings.
    pub(crate) fn of(dir: Option<&Path>) -> Result<Self, Fault> {
        let paths = Paths::new(dir)?;
        let settings = Settings::read(&paths.settings_file())?;
        let files = open_store(&paths)?.files();
        let listeners = engine_config::listeners(&settings.listen, netinfo::has_ipv6());
        Ok(Self {
            plan: engine_config::host_plan(&settings),
            listen: listeners.iter().map(|l| (l.transport, l.bind)).collect(),
            readable: vec![
                paths.settings_file(),
                paths.data.join("pki/server.json"),
                files.ca,
                files.cert,
                files.key,
                files.crl,
                files.tls_crypt_v2,
                files.clients,
            ],
            leases: Leases::file(&paths),
            control: paths.control_socket(),
            nat: settings.nat,
            filter: filter_file(&paths, &settings),
        })
    }
}
