//! Checks of TUN, privileges, the kernel's offloads, and the clock.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Finding, Fix};

const TUN: &str = "/dev/net/tun";
const CAP_NET_ADMIN: u32 = 12;

pub(super) fn tun() -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open(TUN);
    let load = Fix::Run("modprobe", vec!["tun".into()]);
    match opened {
        Ok(_) => Finding::ok("tun", format!("{TUN} opens")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::problem("tun", format!("{TUN} is missing"))
                .remedy("modprobe tun")
                .remedy("in a container: start it with --device /dev/net/tun --cap-add NET_ADMIN")
                .fix(load)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Finding::problem("tun", format!("{TUN} may not be opened"))
                .remedy("run as root: sudo adit ...")
                .remedy("as root in a container: start it with --device /dev/net/tun")
        }
        Err(error) => Finding::problem("tun", format!("{TUN}: {error}"))
            .remedy("modprobe tun")
            .remedy(
                "if that fails: reboot into the installed kernel; its modules match no other one",
            )
            .fix(load),
    }
}

pub(super) fn rights() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if may_administer_network(&status) {
        return Finding::ok("rights", "may change devices, routes and firewall");
    }
    let root = status.lines().any(|line| {
        line.strip_prefix("Uid:").and_then(|rest| rest.split_ascii_whitespace().nth(1)) == Some("0")
    });
    let finding = Finding::problem("rights", "may not change devices, routes and firewall");
    if root {
        finding.remedy("in a container: start it with --cap-add NET_ADMIN")
    } else {
        finding.remedy("run as root: sudo adit ...")
    }
}

fn may_administer_network(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    bits >> CAP_NET_ADMIN & 1 == 1
}

pub(super) fn offloads() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    judge_kernel(release.trim())
}

/// Reports the offloads that a kernel release supports, and those that are broken in it.
fn judge_kernel(release: &str) -> Finding {
    let version = parse_version(release);
    if version < (5, 0, 0) {
        return Finding::warning(
            "offloads",
            format!("kernel {release} has no UDP GRO: tunnels are several times slower"),
        )
        .remedy("upgrade to kernel 5.0 or later; 6.2 or later is best");
    }
    let refuses_tun_gro = matches!(version, (6, 1, 103) | (6, 6, 44) | (6, 10, 3));
    let mangles_udp = ((7, 0, 0)..=(7, 1, 4)).contains(&version);
    if refuses_tun_gro || mangles_udp {
        let what = if mangles_udp {
            "mangles merged UDP with some network drivers"
        } else {
            "refuses merged packets on TUN devices"
        };
        return Finding::warning("offloads", format!("kernel {release} {what}"))
            .remedy("upgrade the kernel; until then adit falls back by itself, and is slower");
    }
    if version < (6, 2, 0) {
        return Finding::warning(
            "offloads",
            format!("kernel {release} has UDP GSO and GRO and TUN TSO, but no TUN USO"),
        )
        .remedy(
            "upgrade to kernel 6.2 or later for faster UDP inside tunnels; TCP is not affected",
        );
    }
    Finding::ok("offloads", format!("kernel {release}: UDP GSO and GRO, TUN TSO and USO"))
}

fn parse_version(release: &str) -> (u32, u32, u32) {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).take(3).map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

pub(super) fn clock() -> Finding {
    let now = SystemTime::now();
    let built = std::env::current_exe()
        .and_then(fs::metadata)
        .and_then(|meta| meta.modified())
        .unwrap_or(UNIX_EPOCH);
    if now.checked_add(Duration::from_secs(86_400)).is_some_and(|soon| soon < built) {
        return Finding::problem("clock", "the clock is earlier than this program's own file")
            .remedy("set it: timedatectl set-ntp true")
            .remedy("otherwise certificates seem not yet valid");
    }
    // timesyncd creates its directory when it starts, and the file when it first sets the clock.
    let folder = Path::new("/run/systemd/timesync");
    if folder.exists() && !folder.join("synchronized").exists() {
        return Finding::warning("clock", "the clock was not synchronised since boot")
            .remedy("timedatectl set-ntp true, and allow outgoing UDP to port 123");
    }
    Finding::ok("clock", "the clock is plausible")
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn reads_kernel_versions() {
        assert_eq!(parse_version("6.18.44-fc-v657"), (6, 18, 44));
        assert_eq!(parse_version("5.4.0-rc1"), (5, 4, 0));
        assert_eq!(parse_version(""), (0, 0, 0));
        for (release, level) in [
            ("6.18.44", Level::Fine),
            ("6.6.44-1-amd64", Level::Warning),
            ("6.6.45", Level::Fine),
            ("7.1.4", Level::Warning),
            ("7.1.5", Level::Fine),
            ("6.1.0", Level::Warning),
            ("4.19.0", Level::Warning),
        ] {
            assert_eq!(judge_kernel(release).level, level, "{release}");
        }
    }

    #[test]
    fn reads_capabilities() {
        assert!(may_administer_network("Name:\tx\nCapEff:\t0000000000001000\n"));
        assert!(!may_administer_network("CapEff:\t0000000000000fff\n"));
        assert!(!may_administer_network(""));
    }
}
