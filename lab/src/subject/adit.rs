//! adit, built from this tree or from a revision.

use std::path::{Path, PathBuf};

use super::revision;
use super::toolchain::first_line;

/// Returns a hundred rules with connection tracking: all but the last match other packets, by every property that rules
/// can match.
pub(super) fn rules() -> String {
    let mut text = String::from(
        "table inet vpn {\n    chain forward {\n        \
         type filter hook forward priority filter; policy drop;\n        \
         ct state invalid drop\n",
    );
    for n in 0..98u32 {
        let rule = match n % 6 {
            0 => format!("ip saddr 172.16.{n}.0/24 tcp dport {} accept", 1000 + n),
            1 => format!("ip daddr {{ 192.168.{n}.1, 192.168.{n}.7, 192.168.{n}.128/25 }} accept"),
            2 => format!("ip6 daddr 2001:db8:{n:x}::/48 udp dport 53 accept"),
            3 => format!("tcp dport {{ {}, {}-{} }} ip saddr 172.31.0.0/16 drop", 7, 9, 13),
            4 => format!("ip saddr 198.51.100.{n} udp sport {} drop", 2000 + n),
            _ => format!("iifname \"eth{n}\" meta l4proto icmp accept"),
        };
        text.push_str(&format!("        {rule}\n"));
    }
    text.push_str("        meta l4proto { tcp, udp, icmp, ipv6-icmp } counter accept\n    }\n}\n");
    text
}

/// Returns `adit --version` and the git revision of its sources.
pub(super) fn version(program: &Path, of_revision: bool) -> Result<String, String> {
    let told = first_line(program, &["--version"], "cargo build --release -p adit-cli")?;
    let source = if of_revision {
        // The build directory is named by the full SHA.
        program.parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into())
    } else {
        // An outdated binary would be measured under the name of the current source.
        match revision::newer_source(program) {
            Some(path) => Some(format!("built before {} was changed", path.display())),
            None => revision::of_this_tree(),
        }
    };
    Ok(source.map_or(told.clone(), |source: String| format!("{told} ({source})")))
}

/// Finds the `adit` next to this program, or the one named by `ADIT`; in a test, the one in the parent folder.
pub(super) fn beside() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("ADIT") {
        let path = PathBuf::from(path);
        return if path.exists() {
            Ok(path)
        } else {
            Err(format!("{}: missing, and ADIT names it", path.display()))
        };
    }
    let this = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let near = this.with_file_name("adit");
    let above = this.parent().and_then(Path::parent).map(|folder| folder.join("adit"));
    let found = [Some(near.clone()), above].into_iter().flatten().find(|path| path.is_file());
    found.ok_or_else(|| format!("{}: missing: cargo build --release -p adit-cli", near.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_a_hundred_rules_and_the_last_decides() {
        let text = rules();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let rules = lines.iter().filter(|line| {
            line.ends_with("accept") || line.ends_with("drop") && !line.starts_with("type")
        });
        assert_eq!(rules.count(), 100);
        let read = adit_filter::lang::parse("rules", &text, &mut |_| {
            Err(std::io::ErrorKind::NotFound.into())
        });
        let read = read.unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(read.tables[0].chains[0].rules.len(), 100);
        assert!(lines[lines.len() - 3].ends_with("counter accept"));
    }
}
