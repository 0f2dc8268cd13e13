//! Finds the name servers of the access network, even if the tunnel has replaced them.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use crate::host::dns::resolv_conf::{self, Original};

/// The maximum number of servers to query.
pub(super) const SERVERS_LIMIT: usize = 6;

/// The maximum number of bytes to read from a file.
const SIZE_LIMIT: u64 = 1024 * 1024;

/// The files with the access network's servers on hosts where a program manages them. They may also contain the
/// tunnel's servers.
const MANAGED: [&str; 3] = [
    "run/systemd/resolve/resolv.conf",
    "run/NetworkManager/no-stub-resolv.conf",
    "run/NetworkManager/resolv.conf",
];

/// The directories in which resolvconf and openresolv keep one file for each interface.
const RECORDS: [&str; 3] =
    ["run/resolvconf/interface", "run/resolvconf/interfaces", "etc/resolvconf/run/interface"];

/// Returns the servers to query, best first, without those of the tunnel. `former` are the servers from before the
/// tunnel.
pub(super) fn servers(root: &Path, tunnel: &[IpAddr], former: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let conf = read(&root.join("etc/resolv.conf"));
    let conf = match resolv_conf::read(&conf).map(|ours| ours.original) {
        Some(original) => before(root, original),
        None => conf,
    };
    let (local, remote): (Vec<_>, Vec<_>) =
        addresses(&conf).into_iter().partition(|server| server.ip().is_loopback());
    let mut take = |servers: Vec<SocketAddr>| {
        for server in servers {
            let known = found.contains(&server) || found.len() >= SERVERS_LIMIT;
            if !known && !tunnel.contains(&server.ip()) && !server.ip().is_loopback() {
                found.push(server);
            }
        }
    };
    take(remote);
    for path in MANAGED {
        take(addresses(&read(&root.join(path))));
    }
    for folder in RECORDS {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        for entry in entries.filter_map(Result::ok).take(64) {
            take(addresses(&read(&entry.path())));
        }
    }
    take(former.to_vec());
    // A resolver on this host may use the tunnel, so it is queried last.
    found.extend(local);
    found.truncate(SERVERS_LIMIT);
    found
}

/// Returns the resolv.conf that ours replaced. Several tunnels may be stacked.
fn before(root: &Path, original: Original) -> Vec<u8> {
    let mut original = original;
    for _ in 0..8 {
        let bytes = match original {
            Original::Absent => return Vec::new(),
            Original::Link(target) => {
                // The link is relative to /etc, and is resolved within the root.
                let path = match target.strip_prefix('/') {
                    Some(rest) => root.join(rest),
                    None => root.join("etc").join(target),
                };
                return read(&path);
            }
            Original::File(bytes) => bytes,
        };
        match resolv_conf::read(&bytes) {
            Some(ours) => original = ours.original,
            None => return bytes,
        }
    }
    Vec::new()
}

fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // An unreadable file contains no servers.
        let _ = file.take(SIZE_LIMIT).read_to_end(&mut bytes);
    }
    bytes
}

fn addresses(text: &[u8]) -> Vec<SocketAddr> {
    let address = |text: String| -> Option<SocketAddr> {
        match text.split_once('%') {
            Some((ip, scope)) => {
                let ip: Ipv6Addr = ip.parse().ok()?;
                let index = match scope.parse() {
                    Ok(index) => index,
                    Err(_) => nix::net::if_::if_nametoindex(scope).ok()?,
                };
                Some(SocketAddrV6::new(ip, 53, 0, index).into())
            }
            None => Some((text.parse::<IpAddr>().ok()?, 53).into()),
        }
    };
    resolv_conf::nameservers(text).into_iter().filter_map(address).collect()
}

/// Looks up a name in /etc/hosts.
pub(super) fn hosts(root: &Path, name: &str) -> Vec<IpAddr> {
    let bytes = read(&root.join("etc/hosts"));
    let text = String::from_utf8_lossy(&bytes);
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(ip) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        if words.any(|word| word.eq_ignore_ascii_case(name)) && found.len() < 16 {
            found.push(ip);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn shown(servers: &[SocketAddr]) -> Vec<String> {
        servers.iter().map(|server| server.ip().to_string()).collect()
    }

    const OURS: &str =
        "# Written by adit for tun0 (process 1, began 2, boot 3, pid namespace 4). x\n";

    #[test]
    fn servers_come_from_before_the_tunnel() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let tunnel = ["10.8.0.1".parse().unwrap()];
        let ask = || shown(&servers(root, &tunnel, &["192.0.2.99:53".parse().unwrap()]));
        assert_eq!(ask(), ["192.0.2.99"]);
        put(root, "etc/resolv.conf", "nameserver 192.0.2.1\n");
        assert_eq!(ask(), ["192.0.2.1", "192.0.2.99"]);
        // Our plain file contains the original.
        let ours = format!("{OURS}#= nameserver 192.0.2.2\nnameserver 10.8.0.1\n");
        put(root, "etc/resolv.conf", &ours);
        assert_eq!(ask(), ["192.0.2.2", "192.0.2.99"]);
        put(root, "run/other/resolv.conf", "nameserver 192.0.2.3\n");
        let ours = format!("{OURS}#-> ../run/other/resolv.conf\nnameserver 10.8.0.1\n");
        put(root, "etc/resolv.conf", &ours);
        assert_eq!(ask(), ["192.0.2.3", "192.0.2.99"]);
        // A program that manages the servers also lists the tunnel's.
        put(root, "etc/resolv.conf", "nameserver 127.0.0.53\n");
        let uplinks = "nameserver 10.8.0.1\nnameserver 192.0.2.4\nnameserver fe80::1%1\n";
        put(root, "run/systemd/resolve/resolv.conf", uplinks);
        put(root, "run/resolvconf/interface/eth0", "nameserver 192.0.2.5\n");
        assert_eq!(ask(), ["192.0.2.4", "fe80::1", "192.0.2.5", "192.0.2.99", "127.0.0.53"]);
    }

    #[test]
    fn hosts_are_honoured() {
        let root = tempfile::tempdir().unwrap();
        put(
            root.path(),
            "etc/hosts",
            "127.0.0.1 localhost\n192.0.2.7 other VPN.example # vpn.test\n2001:db8::7\tvpn.example\nx y\n",
        );
        let found = hosts(root.path(), "vpn.example");
        assert_eq!(found, ["192.0.2.7", "2001:db8::7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert!(hosts(root.path(), "vpn.test").is_empty());
    }
}
