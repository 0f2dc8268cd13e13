//! `adit openvpn`: the command line, config files, log lines and status files of `openvpn` 2.6.

mod material;
mod status;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs as `openvpn` would with these arguments (without the program's name).
pub fn main(args: Vec<OsString>) -> ExitCode {
    let fault = crate::fault::Fault::ours(format!(
        "{} arguments were read, but the engine is not joined yet",
        args.len()
    ));
    eprintln!("adit openvpn: {fault}");
    fault.exit_code()
}
