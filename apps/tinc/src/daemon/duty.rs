//! The helper process of a daemon: which files, sockets and scripts the network process may ask for.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use adit_runtime::fault::Fault;
use adit_runtime::helper::{Answer, AnswerWithFds, Duty, DutyKind, Policy, Problem};
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::programs::{Program, Setup, Variables};
use adit_tinc::config::scripts::{INVITATION_CREATED, SCRIPTS, host_of};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::load::{is_conf, is_host};
use super::privileged::{RequestHandler, TincRequest, TincRequestCheck};
use crate::invite::KEY_FILE;
use crate::net::Net;

/// The helper of `tincd`.
pub const TINC: DutyKind = DutyKind {
    name: "tinc",
    read: |arguments| {
        let duty = serde_json::from_value::<TincDuty>(arguments)?;
        Ok(Box::new(TincHelper { duty, handler: RequestHandler::default() }))
    },
};

/// The variables of the environment of scripts.
const VARIABLES: [&str; 12] = [
    "NETNAME",
    "NAME",
    "DEVICE",
    "INTERFACE",
    "DEBUG",
    "NODE",
    "REMOTEADDRESS",
    "REMOTEPORT",
    "SUBNET",
    "WEIGHT",
    "INVITATION_FILE",
    "INVITATION_URL",
];

/// The folder of addresses at which nodes were reached. tinc writes files with the names of nodes into it.
const CACHE: &str = "cache";

/// The file with these addresses. It has no node's name.
const ADDRESSES: &str = "adit.addresses";

/// The part of the command line that the helper needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TincDuty {
    /// The configuration directory.
    pub(crate) config: PathBuf,
    /// The file with the process id and the cookie.
    pub(crate) pid_file: PathBuf,
    /// tinc's control socket.
    pub(crate) socket: PathBuf,
    /// adit's control socket.
    pub(crate) control: PathBuf,
    /// The private key's file.
    pub(crate) key: PathBuf,
    /// The mark of sockets.
    pub(crate) mark: Option<u32>,
    /// The device of sockets.
    pub(crate) device: Option<String>,
    /// Where metrics are served.
    pub(crate) metrics: Option<MetricsConfig>,
    /// The name of the net.
    pub(crate) net_name: Option<String>,
    /// The name of this node.
    pub(crate) name: String,
    /// The command of `Proxy = exec`.
    pub(crate) proxy_command: Option<String>,
}

/// The helper of a daemon.
#[derive(Debug)]
struct TincHelper {
    duty: TincDuty,
    handler: RequestHandler,
}

impl Duty for TincHelper {
    fn policy(&self, _: &[(PathBuf, Vec<u8>)], _: u32) -> Result<Policy, Fault> {
        Ok(self.duty.policy())
    }

    fn carry_out(
        &mut self,
        request: Value,
        _: u32,
    ) -> Pin<Box<dyn Future<Output = Result<AnswerWithFds, Problem>> + '_>> {
        Box::pin(async move {
            let request: TincRequest = serde_json::from_value(request)
                .map_err(|error| Problem::Refused(error.to_string()))?;
            let opened = self.handler.carry_out(&self.duty, &request)?;
            Ok((Answer::Done, opened.into_iter().collect()))
        })
    }
}

impl TincDuty {
    /// Returns the net, as far as its files are concerned.
    pub(super) fn net(&self) -> Net {
        Net { name: None, config: self.config.clone(), pid_file: self.pid_file.clone() }
    }

    /// Returns the folder of the file with addresses at which nodes were reached.
    pub(super) fn cache(&self) -> PathBuf {
        self.config.join(CACHE)
    }

    /// Returns the file with addresses at which nodes were reached.
    pub(super) fn addresses(&self) -> PathBuf {
        self.cache().join(ADDRESSES)
    }

    fn policy(&self) -> Policy {
        let net = self.net();
        let conf_d = self.config.join("conf.d");
        let mut policy = Policy {
            readable: [
                net.server_file(),
                self.key.clone(),
                net.invitations().join(KEY_FILE),
                self.addresses(),
            ]
            .into(),
            replaceable: [self.addresses()].into(),
            own: Some(Box::new(TincRequestCheck)),
            removable: [self.pid_file.clone(), self.socket.clone()].into(),
            control: [self.control.clone()].into(),
            programs: Some(self.setup()),
            ..Policy::default()
        };
        policy.sockets.mark = self.mark;
        policy.sockets.device.clone_from(&self.device);
        policy.sockets.dial = true;
        policy.add_metrics(self.metrics.as_ref());
        policy.folders.insert(net.hosts(), is_host);
        policy.folders.insert(conf_d, is_conf);
        policy
    }

    /// Returns the scripts that exist.
    pub(crate) fn setup(&self) -> Setup {
        let hosts = self.config.join("hosts");
        let of_hosts =
            std::fs::read_dir(&hosts).into_iter().flatten().flatten().filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                is_host(host_of(&name)?).then(|| hosts.join(&name))
            });
        // The command `invite` runs the other one.
        let own = SCRIPTS.iter().filter(|name| **name != INVITATION_CREATED);
        let scripts = own.map(|name| self.config.join(name)).chain(of_hosts);
        let programs: BTreeSet<Program> =
            scripts.filter(|path| is_executable(path)).map(|path| program(&path)).collect();
        Setup {
            privileged: programs.clone(),
            programs,
            variables: Variables {
                names: VARIABLES.iter().map(|name| (*name).to_owned()).collect(),
                ..Variables::default()
            },
            directory: Some(self.config.clone()),
            temporary: "/tmp".into(),
            ..Setup::default()
        }
    }
}

/// Returns the program of a script.
pub(super) fn program(path: &Path) -> Program {
    Program { path: path.to_string_lossy().into_owned(), args: Vec::new() }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::Folder;

    /// Returns the duty of a folder's daemon.
    pub(in super::super) fn duty(folder: &Folder) -> TincDuty {
        TincDuty {
            config: folder.net.config.clone(),
            pid_file: folder.net.pid_file.clone(),
            socket: folder.net.socket(),
            control: "/run/adit/tinc.sock".into(),
            key: folder.net.private_key(),
            mark: None,
            device: None,
            metrics: None,
            net_name: None,
            name: "alice".to_owned(),
            proxy_command: None,
        }
    }

    #[test]
    fn only_executable_scripts_with_known_names_may_run() {
        let folder = Folder::new();
        for (name, mode) in [
            ("tinc-up", 0o755),
            ("tinc-down", 0o644),
            ("other-up", 0o755),
            ("hosts/bob-up", 0o755),
            ("hosts/b.b-up", 0o755),
        ] {
            folder.write(name, "#!/bin/sh\n");
            let path = folder.net.config.join(name);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let setup = duty(&folder).setup();
        let names: Vec<String> = setup.programs.iter().map(|script| script.path.clone()).collect();
        let path = |name: &str| folder.net.config.join(name).to_string_lossy().into_owned();
        assert_eq!(names, [path("hosts/bob-up"), path("tinc-up")]);
        assert!(!setup.variables.permit("LD_PRELOAD", "x"));
        assert!(setup.variables.permit("NODE", "bob"));
    }

    #[test]
    fn no_file_of_the_net_may_be_written_but_through_requests_of_its_own() {
        let folder = Folder::new();
        let policy = duty(&folder).policy();
        assert!(policy.writable.is_empty());
        assert!(policy.readable.contains(&folder.net.server_file()));
    }

    #[test]
    fn the_socket_for_metrics_may_be_opened() {
        let folder = Folder::new();
        let metrics = "unix:/run/adit/tinc.metrics".parse().ok();
        let duty = TincDuty { metrics, ..duty(&folder) };
        let policy = duty.policy();
        assert!(policy.control.contains(Path::new("/run/adit/tinc.metrics")));
    }
}
