use std::path::PathBuf;
use std::time::Duration;

/// Options of the process, such as the user and the pid file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// `cd`; every path already includes it.
    pub directory: Option<PathBuf>,
    /// `daemon [NAME]`: run in the background, with this name in the system log.
    pub daemon: Option<String>,
    /// `writepid`.
    pub pid_file: Option<PathBuf>,
    /// `user`.
    pub user: Option<String>,
    /// `group`.
    pub group: Option<String>,
    /// `chroot`: the root directory of the network process once it has started.
    pub chroot: Option<PathBuf>,
    /// `nice`.
    pub nice: i32,
    /// `mlock`.
    pub mlock: bool,
    /// `persist-key`: do not read key files again on a restart.
    pub persist_key: bool,
    /// `remap-usr1 SIGHUP|SIGTERM`.
    pub remap_usr1: Option<Remap>,
    /// `plugin`, in the order of the configuration.
    pub plugins: Vec<Plugin>,
}

/// `plugin FILE [ARG ...]`: a shared object with openvpn's plugin interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The file as written. Without a directory it is in the directory of openvpn's plugins.
    pub file: String,
    /// The arguments for the plugin.
    pub args: Vec<String>,
    /// The directory to which `./` refers.
    pub directory: Option<PathBuf>,
}

/// `remap-usr1`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Remap {
    /// SIGHUP.
    Hangup,
    /// SIGTERM.
    Terminate,
}

/// The destination and the verbosity of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The destination.
    pub to: LogTo,
    /// `verb`, 0 to 11; default 1.
    pub verb: u8,
    /// `mute`: the maximum number of consecutive messages of the same kind.
    pub mute: Option<u32>,
    /// Whether lines have a timestamp, that is, `suppress-timestamps` is not set.
    pub timestamps: bool,
    /// `machine-readable-output`.
    pub machine_readable: bool,
    /// `errors-to-stderr`: errors go to standard error if the other lines go to standard output.
    pub errors_to_stderr: bool,
}

/// The destination of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTo {
    /// Standard output, as in openvpn; the system log after `daemon`.
    #[default]
    Standard,
    /// `log`: a file, which is truncated at startup.
    File(PathBuf),
    /// `log-append`.
    Append(PathBuf),
    /// `syslog [NAME]`.
    Syslog(String),
}

/// `status FILE [SECONDS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The file.
    pub path: PathBuf,
    /// How often the file is written; default 60 s. Zero: the file is only read at startup.
    pub every: Duration,
    /// `status-version`, 1 to 3.
    pub version: u8,
}
