//! The directives for plugins.

use super::{Roles, Spec, used};
use crate::config::ConfigError;
use crate::config::lexer;
use crate::config::options::Plugin;
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;
use crate::keys::DATA_KEYS_LABEL;
use crate::server::ExportedKey;

/// The maximum number of plugins, as in openvpn.
const MAX_PLUGINS: usize = 16;

pub(super) const TABLE: &[Spec] = &[
    used("plugin", "FILE [\"ARG ...\"]", 1..=usize::MAX, plugin)
        .doc("Loads a shared object with openvpn's plugin interface: see [Plugins](#plugins)."),
    used("keying-material-exporter", "LABEL LENGTH", 2..=2, exported_key)
        .roles(Roles::SERVER_LAX)
        .doc("Gives plugins a secret of the session, which TLS derives from the label."),
];

fn exported_key(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let label = d.arg(0);
    if !label.starts_with("EXPORTER") || label.as_bytes() == DATA_KEYS_LABEL {
        return Err(d.error(
            format!("\"{label}\" is not a label for this purpose"),
            "write one that begins with EXPORTER and that no protocol uses: EXPORTER-Vendor-purpose",
        ));
    }
    let length = d.number(1, 16..=4095)?;
    raw.server.exported_key = Some(ExportedKey { label: label.to_owned(), length });
    Ok(())
}

fn plugin(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let plugins = &mut raw.options.process.plugins;
    if plugins.len() >= MAX_PLUGINS {
        return Err(d.error(format!("there are more than {MAX_PLUGINS} plugins"), "remove some"));
    }
    // As in openvpn, a single argument is a line of words, and several are words already.
    let args = match d.args.get(1..).unwrap_or_default() {
        [line] => lexer::words(line).map_err(|e| d.error(e.problem(), e.remedy()))?,
        words => words.to_vec(),
    };
    plugins.push(Plugin { file: d.arg(0).to_owned(), args, directory: d.directory.clone() });
    Ok(())
}
