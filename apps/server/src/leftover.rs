//! Changes that a killed server left on this host, until the next start or `adit doctor --fix` undoes them.

use std::fmt;
use std::fs;

use serde::Deserialize;

use super::host_state::running;
use adit_runtime::paths::Paths;

/// A change without a running owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leftover {
    /// An nft table.
    Table(String),
    /// A kernel setting and its previous value.
    Setting(String, String),
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(name) => write!(f, "the nft table inet {name}"),
            Self::Setting(key, former) => write!(f, "{} (it was {former})", key.replace('/', ".")),
        }
    }
}

/// The parts of the undo file that are shown. The others are only needed to undo the changes.
#[derive(Deserialize)]
struct Undo {
    #[serde(default)]
    boot: String,
    #[serde(default)]
    table: Option<String>,
    #[serde(default)]
    sysctls: Vec<(String, String)>,
}

/// Returns the leftovers of a killed server with these paths: none while a server runs, or after a reboot.
pub(super) fn of(paths: &Paths) -> Vec<Leftover> {
    if running(paths).is_some() {
        return Vec::new();
    }
    let Ok(text) = fs::read_to_string(paths.undo_file()) else { return Vec::new() };
    let Ok(undo) = serde_json::from_str::<Undo>(&text) else { return Vec::new() };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if undo.boot != boot.trim() {
        return Vec::new();
    }
    let settings = undo.sysctls.into_iter().map(|(key, former)| Leftover::Setting(key, former));
    undo.table.map(Leftover::Table).into_iter().chain(settings).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_the_undo_file_says() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        fs::create_dir_all(&paths.run).unwrap();
        assert_eq!(of(&paths), []);
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let undo = |boot: &str| {
            format!(
                "{{\"boot\":\"{boot}\",\"table\":\"adit_server\",\
                 \"sysctls\":[[\"net/ipv4/ip_forward\",\"0\"]]}}"
            )
        };
        fs::write(paths.undo_file(), undo(boot.trim())).unwrap();
        let found: Vec<String> = of(&paths).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["the nft table inet adit_server", "net.ipv4.ip_forward (it was 0)"]);
        fs::write(paths.undo_file(), undo("another")).unwrap();
        assert_eq!(of(&paths), []);
    }
}
