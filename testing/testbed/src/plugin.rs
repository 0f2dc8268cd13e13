//! A plugin for openvpn that does as its arguments say (`plugin/plugin.c`), compiled by the test that uses it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, Result};

/// Compiles the plugin for a version of the plugin interface (1 to 3), with further definitions such as `POINT=4`.
/// Returns its path.
///
/// # Errors
/// There is no C compiler, or it fails.
pub fn build(folder: &Path, interface: u8, definitions: &[&str]) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugin/plugin.c");
    let words = definitions.join("-").replace('=', "");
    let object = folder.join(format!("plugin-{interface}{words}.so"));
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&object)
        .arg(format!("-DINTERFACE={interface}"))
        .args(definitions.iter().map(|definition| format!("-D{definition}")))
        .arg(&source)
        .arg("-ldl")
        .output()
        .map_err(|e| {
            Failure(format!(
                "cannot run cc, which compiles the test plugin: {e}: run scripts/deps.sh"
            ))
        })?;
    if output.status.success() {
        Ok(object)
    } else {
        Err(Failure(format!("cc: {}", String::from_utf8_lossy(&output.stderr))))
    }
}
