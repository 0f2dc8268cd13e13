//! wireguard-go, a recent one from a private root where it was fetched.

use std::path::{Path, PathBuf};

use super::kit::first_line;
use super::revision;

const INSTALL: &str = "scripts/lab-deps.sh fetches a recent one";

/// The one of the private root that `scripts/lab-deps.sh` fetches, else the system's.
fn program() -> PathBuf {
    let fetched =
        revision::workspace().ok().map(|root| root.join("target/roots/sid/usr/bin/wireguard-go"));
    fetched.filter(|path| path.exists()).unwrap_or_else(|| "wireguard-go".into())
}

/// The first line of `wireguard-go --version`; `wg` must be there as well.
pub(super) fn version() -> Result<String, String> {
    first_line(
        Path::new("wg"),
        &["--version"],
        "apt install wireguard-tools, or: scripts/lab-deps.sh",
    )?;
    let line = first_line(&program(), &["--version"], INSTALL)?;
    Ok(if is_old(&line) { format!("{line} (old: {INSTALL})") } else { line })
}

/// Before 2023 wireguard-go had neither UDP GSO nor TUN offloads, and is slower several times over.
fn is_old(version: &str) -> bool {
    let year = version.rsplit_once(".20").and_then(|(_, rest)| rest.get(..2)?.parse::<u32>().ok());
    year.is_some_and(|year| year < 23)
}

#[cfg(test)]
mod tests {
    use super::is_old;

    #[test]
    fn knows_old_versions_by_their_date() {
        assert!(is_old("wireguard-go v0.0.20220316"));
        assert!(!is_old("wireguard-go v0.0.20230223"));
        assert!(!is_old("wireguard-go v0.0.20250522"));
        assert!(!is_old("wireguard-go unknown"));
    }
}
