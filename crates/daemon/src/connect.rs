//! `adit connect`: a client that says in plain words what it does.

use std::path::PathBuf;
use std::process::ExitCode;

/// What `adit connect` is told.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The profile, an OpenVPN client config file.
    pub profile: PathBuf,
    /// Try every stage, report the one that fails, and end.
    pub check: bool,
    /// One JSON object instead of text (with `check`).
    pub json: bool,
    /// Do not touch routes.
    pub no_routes: bool,
    /// Name of the TUN device instead of the profile's.
    pub device: Option<String>,
    /// Where the control socket goes; `None`: `/run/adit`.
    pub dir: Option<PathBuf>,
    /// More log lines (repeatable).
    pub verbose: u8,
}

/// Connects, and stays until it is told to end or cannot go on.
pub fn run(options: ConnectOptions) -> ExitCode {
    let fault = crate::fault::Fault::ours(format!(
        "cannot connect {}: the engine is not joined yet",
        options.profile.display()
    ));
    eprintln!("adit: {fault}");
    fault.exit_code()
}
