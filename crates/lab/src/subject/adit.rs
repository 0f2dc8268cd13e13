//! adit: this tree's, or that of a revision.

use std::path::{Path, PathBuf};
use std::process::Command;

use adit_interop::failure::Result;
use adit_interop::net::Namespace;

use super::directives::{self, Carrier, End};
use super::kit::{Kit, first_line};
use super::{TunnelSpec, Tunnels, openvpn, revision};
use crate::bed::Bed;

/// Server and clients by the config files that openvpn is given too.
pub(super) fn start(
    kit: &Kit,
    wanted: Option<&str>,
    carrier: Carrier,
    bed: &Bed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    let program = kit.adit(wanted)?;
    let end = End { own: "", command: &|host, config| command(&program, host, config) };
    directives::start(kit, bed, spec, carrier, [&end, &end])
}

/// As [`start`] over UDP, with so many workers at the server. A client has one peer, and one worker.
pub(super) fn start_with_workers(
    kit: &Kit,
    workers: u16,
    bed: &Bed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    let program = kit.adit(None)?;
    let with = |workers: u16, host: &Namespace, config: &Path| {
        let mut command = command(&program, host, config);
        command.env("ADIT_WORKERS", workers.to_string());
        command
    };
    let server = End { own: "", command: &|host, config| with(workers, host, config) };
    let client = End { own: "", command: &|host, config| with(1, host, config) };
    directives::start(kit, bed, spec, Carrier::Udp, [&server, &client])
}

/// adit at one end, openvpn at the other.
pub(super) fn start_beside_openvpn(
    kit: &Kit,
    bed: &Bed,
    spec: &TunnelSpec,
    carrier: Carrier,
    adit_serves: bool,
) -> Result<Tunnels> {
    let program = kit.adit(None)?;
    let adit = End { own: "", command: &|host, config| command(&program, host, config) };
    let own = if adit_serves { openvpn::CLIENT } else { openvpn::server_lines(bed, carrier) };
    let openvpn = End { own, command: &openvpn::command };
    let ends = if adit_serves { [&adit, &openvpn] } else { [&openvpn, &adit] };
    directives::start(kit, bed, spec, carrier, ends)
}

fn command(program: &Path, host: &Namespace, config: &Path) -> Command {
    let mut command = host.command(&program.to_string_lossy());
    command.args(["openvpn", "--config"]).arg(config);
    command
}

/// `adit --version` and the git revision of its sources.
pub(super) fn version(program: &Path, of_revision: bool) -> std::result::Result<String, String> {
    let told = first_line(program, &["--version"], "cargo build --release -p adit-cli")?;
    let source = if of_revision {
        // Built under its full sha.
        program.parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into())
    } else {
        // A binary of before would be measured under the name of what it is not.
        match revision::newer_source(program) {
            Some(path) => Some(format!("built before {} was changed", path.display())),
            None => revision::of_this_tree(),
        }
    };
    Ok(source.map_or(told.clone(), |source: String| format!("{told} ({source})")))
}

/// The `adit` beside this program, or that which `ADIT` names; of a test, that of the folder above.
pub(super) fn beside() -> std::result::Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("ADIT") {
        let path = PathBuf::from(path);
        return match path.exists() {
            true => Ok(path),
            false => Err(format!("{}: missing, and ADIT names it", path.display())),
        };
    }
    let this = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let near = this.with_file_name("adit");
    let above = this.parent().and_then(Path::parent).map(|folder| folder.join("adit"));
    let found = [Some(near.clone()), above].into_iter().flatten().find(|path| path.is_file());
    found.ok_or_else(|| format!("{}: missing: cargo build --release -p adit-cli", near.display()))
}
