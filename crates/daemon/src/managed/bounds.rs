use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use adit_engine::Transport;

use super::clients::open_store;
use super::engine;
use super::failure::Outcome;
use super::leases::Leases;
use super::places::Places;
use super::serve::filter_file;
use super::settings::{Nat, Settings};
use super::survey;
use crate::host::HostPlan;

/// What a managed server may ask its helper for, as the settings say.
#[derive(Debug)]
pub(crate) struct Bounds {
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

impl Bounds {
    /// Reads the settings.
    pub(crate) fn of(dir: Option<&Path>) -> Outcome<Self> {
        let places = Places::new(dir)?;
        let settings = Settings::read(&places.settings_file())?;
        let files = open_store(&places)?.files();
        let listeners = engine::listeners(&settings.listen, survey::has_ipv6());
        Ok(Self {
            plan: engine::host_plan(&settings),
            listen: listeners.iter().map(|l| (l.transport, l.bind)).collect(),
            readable: vec![
                places.settings_file(),
                places.data.join("pki/server.json"),
                files.ca,
                files.cert,
                files.key,
                files.crl,
                files.tls_crypt_v2,
                files.clients,
            ],
            leases: Leases::file(&places),
            control: places.control_socket(),
            nat: settings.nat,
            filter: filter_file(&places, &settings),
        })
    }
}
