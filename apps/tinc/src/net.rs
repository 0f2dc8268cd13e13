//! A net: where its files are, and who this node is in it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_runtime::fault::Fault;
use adit_tinc::config::Entries;
use adit_tinc::name::NodeName;

use crate::conf_file::read_text;
use crate::console::reason;

/// The directory of all nets.
pub const ALL_NETS: &str = "/etc/tinc";

const RUN: &str = "/run";

/// The options that select a net.
#[derive(Clone, Debug, Default)]
pub struct NetOptions {
    /// `-n`: the name, or `.` for the net without one.
    pub name: Option<String>,
    /// `-c`: the configuration directory.
    pub config: Option<PathBuf>,
    /// `--pidfile`.
    pub pid_file: Option<PathBuf>,
}

/// A net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// The name; `None` for the net whose files are in /etc/tinc itself.
    pub name: Option<String>,
    /// The configuration directory.
    pub config: PathBuf,
    /// The file in which the daemon leaves its process id and the secret of its control socket.
    pub pid_file: PathBuf,
}

impl Net {
    /// Selects a net. Without a name in the options, the variable NETNAME of the environment, passed as `environment`, names it.
    ///
    /// # Errors
    /// Fails if the name cannot be that of a folder.
    pub fn new(options: &NetOptions, environment: Option<String>) -> Result<Self, Fault> {
        let name = options.name.clone().or(environment);
        let name = name.filter(|name| !name.is_empty() && name != ".");
        if name.as_ref().is_some_and(|name| name.contains('/') || name.starts_with('.')) {
            return Err(Fault::operator("Invalid character in netname!"));
        }
        let config = options.config.clone().unwrap_or_else(|| match &name {
            None => PathBuf::from(ALL_NETS),
            Some(name) => Path::new(ALL_NETS).join(name),
        });
        let pid_file = options.pid_file.clone().unwrap_or_else(|| {
            Path::new(RUN).join(match &name {
                None => "tinc.pid".to_owned(),
                Some(name) => format!("tinc.{name}.pid"),
            })
        });
        Ok(Self { name, config, pid_file })
    }

    /// Returns the name of the daemon in `adit status`, which no other net has: `tinc-NET`, or `tinc` for the net without a name. With
    /// a pid file elsewhere, the name of its folder and a number follow.
    pub fn instance(&self) -> String {
        let standard =
            Self::new(&NetOptions { name: self.name.clone(), ..NetOptions::default() }, None);
        let name =
            self.name.as_ref().map_or_else(|| "tinc".to_owned(), |name| format!("tinc-{name}"));
        if standard.is_ok_and(|standard| standard.pid_file == self.pid_file) {
            return name;
        }
        let folder = self.pid_file.parent().unwrap_or(&self.pid_file);
        let digest = self
            .pid_file
            .as_os_str()
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let folder = folder.file_name().unwrap_or_default().to_string_lossy();
        let folder: String = folder.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        format!("{name}-{folder}{:06x}", digest & 0xff_ffff)
    }

    /// Returns the beginning of a command line for the net, to be typed.
    pub fn command(&self) -> String {
        let standard = |name: &str| Path::new(ALL_NETS).join(name) == self.config;
        match &self.name {
            Some(name) if standard(name) => format!("adit tinc -n {name}"),
            None if standard("") => "adit tinc".to_owned(),
            _ => format!("adit tinc -c {}", self.config.display()),
        }
    }

    /// Returns the path of the control socket, which is next to the pid file.
    pub fn socket(&self) -> PathBuf {
        let path = self.pid_file.as_os_str().to_string_lossy();
        let stem = path.strip_suffix(".pid").unwrap_or(&path);
        PathBuf::from(format!("{stem}.socket"))
    }

    /// Returns the path of `tinc.conf`.
    pub fn server_file(&self) -> PathBuf {
        self.config.join("tinc.conf")
    }

    /// Returns the folder with the host files.
    pub fn hosts(&self) -> PathBuf {
        self.config.join("hosts")
    }

    /// Returns the path of a node's host file.
    pub fn host_file(&self, name: &NodeName) -> PathBuf {
        self.hosts().join(name.as_str())
    }

    /// Returns the folder with the invitations that this node has made.
    pub fn invitations(&self) -> PathBuf {
        self.config.join("invitations")
    }

    /// Returns the path of the private key.
    pub fn private_key(&self) -> PathBuf {
        self.config.join("ed25519_key.priv")
    }

    /// Returns this node's name, which `tinc.conf` contains.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has no valid name.
    pub fn own_name(&self) -> Result<NodeName, Fault> {
        let path = self.server_file();
        let text = read_text(&path).map_err(|error| {
            Fault::operator(format!("Could not open {}: {}", path.display(), reason(&error)))
        })?;
        let fault = |error: adit_tinc::config::ConfigError| Fault::operator(error.to_string());
        let mut entries = Entries::default();
        // The daemon reports other mistakes in the file.
        entries.add_host_file(&path.to_string_lossy(), &text);
        let environment = |name: &str| std::env::var(name).ok();
        entries.name(environment, &host_name()).map_err(fault)
    }
}

/// Returns the name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(name: Option<&str>, environment: Option<&str>) -> Result<Net, Fault> {
        let options = NetOptions { name: name.map(str::to_owned), ..NetOptions::default() };
        Net::new(&options, environment.map(str::to_owned))
    }

    #[test]
    fn a_net_has_tincs_paths() {
        let unnamed = net(None, None).unwrap();
        assert_eq!(unnamed.config, Path::new("/etc/tinc"));
        assert_eq!(unnamed.pid_file, Path::new("/run/tinc.pid"));
        assert_eq!(unnamed.socket(), Path::new("/run/tinc.socket"));
        let named = net(Some("vpn"), Some("other")).unwrap();
        assert_eq!(named.config, Path::new("/etc/tinc/vpn"));
        assert_eq!(named.socket(), Path::new("/run/tinc.vpn.socket"));
        assert_eq!(net(None, Some("vpn")).unwrap(), named);
        assert_eq!(net(Some("."), Some("vpn")).unwrap(), unnamed);
        assert_eq!(unnamed.command(), "adit tinc");
        assert_eq!(named.command(), "adit tinc -n vpn");
        let elsewhere = Net { config: "/srv/vpn".into(), ..named };
        assert_eq!(elsewhere.command(), "adit tinc -c /srv/vpn");
    }

    #[test]
    fn a_pid_file_with_another_name_gets_a_socket_next_to_it() {
        let options = NetOptions { pid_file: Some("/x/pid".into()), ..NetOptions::default() };
        assert_eq!(Net::new(&options, None).unwrap().socket(), Path::new("/x/pid.socket"));
    }

    #[test]
    fn each_net_has_an_instance_of_its_own() {
        assert_eq!(net(None, None).unwrap().instance(), "tinc");
        assert_eq!(net(Some("vpn"), None).unwrap().instance(), "tinc-vpn");
        let with = |name: Option<&str>, pid_file: &str| {
            let name = name.map(str::to_owned);
            let options = NetOptions { name, pid_file: Some(pid_file.into()), config: None };
            Net::new(&options, None).unwrap().instance()
        };
        assert_eq!(with(Some("vpn"), "/run/tinc.vpn.pid"), "tinc-vpn");
        let (one, other) = (with(None, "/a/alice/pid"), with(None, "/b/alice/pid"));
        assert_ne!(one, other);
        for name in [one, other, with(None, "/x/..;/pid")] {
            assert!(name.starts_with("tinc-") && !name.contains(['/', '.', ';']), "{name}");
        }
    }

    #[test]
    fn a_name_cannot_lead_out_of_the_folder() {
        assert!(net(Some("../etc"), None).is_err());
        assert!(net(Some("a/b"), None).is_err());
        assert!(net(None, Some("..")).is_err());
    }

    #[test]
    fn the_own_name_may_come_from_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let options =
            NetOptions { config: Some(folder.path().to_owned()), ..NetOptions::default() };
        let net = Net::new(&options, None).unwrap();
        let missing = net.own_name().unwrap_err().to_string();
        assert!(missing.ends_with("tinc.conf: No such file or directory"), "{missing}");
        std::fs::write(net.server_file(), "Name = alice\n").unwrap();
        assert_eq!(net.own_name().unwrap().as_str(), "alice");
        std::fs::write(net.server_file(), "Mode = hub\n").unwrap();
        assert!(net.own_name().is_err());
    }
}
