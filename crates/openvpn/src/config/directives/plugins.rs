//! The directive for plugins.

use super::{Spec, used};
use crate::config::ConfigError;
use crate::config::lexer;
use crate::config::options::Plugin;
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;

/// The maximum number of plugins, as in openvpn.
const MAX_PLUGINS: usize = 16;

pub(super) const TABLE: &[Spec] = &[used("plugin", "FILE [\"ARG ...\"]", 1..=usize::MAX, plugin)
    .doc("Loads a shared object with openvpn's plugin interface: see [Plugins](#plugins).")];

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
