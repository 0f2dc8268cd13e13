//! Directives of the reference implementation (2.6, and some that older files carry) that are
//! refused or without effect, with what to do about each.

/// What becomes of a directive that no handler takes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Does nothing here, and nothing is lost by that: what it would do and why not, for the warning.
    Harmless(&'static str),
    /// Refused: why, and what to do.
    Refused(&'static str, &'static str),
}

const HOOKS: (&str, &str) = (
    "scripts are not run yet",
    "remove it; addresses and routes are set without it, and pushed DNS settings are in the log",
);
const VLAN: (&str, &str) = (
    "VLANs are not told apart by the tunnel",
    "remove it; tagged frames pass as they are, and a bridge with vlan_filtering can sort them",
);
const MANAGEMENT: (&str, &str) =
    ("there is no management interface yet", "remove it; adit status shows the state");
const PER_CLIENT: (&str, &str) = (
    "it is for the file of a single client",
    "write it into a file named as the client in the directory of client-config-dir",
);
const SERVER_AUTH: (&str, &str) = (
    "a server does not check user names yet",
    "remove it; clients prove themselves by certificate",
);
const TOKENS: (&str, &str) =
    ("keys on tokens and in provider modules are not supported", "use cert and key with files");
const WINDOWS: (&str, &str) = (
    "it exists on Windows only",
    "remove it, or write setenv opt before it to let other systems skip it",
);
const STANDALONE: (&str, &str) = ("this mode of openvpn is not offered here", "use openvpn for it");
const ALONE: &str = "it stands alone on the command line, and is no part of a configuration";
const LIMITS: &str = "the limits here are per address and always on";

/// Name, whether it is refused, why, remedy.
#[rustfmt::skip]
const TABLE: &[(&str, Fate)] = &[
    // Without effect, and nothing lost.
    ("allow-pull-fqdn", Fate::Harmless("names are not taken from a server; addresses are")),
    ("bcast-buffers", Fate::Harmless("it sets how many broadcasts may wait; queues here have fixed bounds")),
    ("comp-noadapt", Fate::Harmless("it switches off adaptive compression, and packets are never compressed before they are sent")),
    ("connect-freq", Fate::Harmless(LIMITS)),
    ("connect-freq-initial", Fate::Harmless(LIMITS)),
    ("disable-dco", Fate::Harmless("it switches off the kernel's data channel offload, which is not used")),
    ("disable-occ", Fate::Harmless("it leaves out the comparison of options with the peer, where a difference costs a warning only")),
    ("errors-to-stderr", Fate::Harmless("it sends errors to stderr; they are in the log with everything else")),
    ("fast-io", Fate::Harmless("it saves a system call for each packet, and packets are read and written in batches anyway")),
    ("hash-size", Fate::Harmless("it sets the size of tables, which grow by themselves")),
    ("ifconfig-nowarn", Fate::Harmless("it silences warnings about differing addresses at the two ends, which do not exist here")),
    ("mtu-disc", Fate::Harmless("the kernel's own path MTU discovery is used")),
    ("mtu-test", Fate::Harmless("the MTU is not tested; adit connect --check does that")),
    ("mute-replay-warnings", Fate::Harmless("it silences warnings about replayed packets, which are counted and not logged")),
    ("no-name-remapping", Fate::Harmless("names in certificates are never rewritten")),
    ("passtos", Fate::Harmless("every packet leaves with the default type of service, whatever the one inside it has")),
    ("persist-local-ip", Fate::Harmless("it keeps the local address over restarts; the address that the configuration names is bound again")),
    ("persist-remote-ip", Fate::Harmless("it keeps the server's address over restarts; a name is looked up for each attempt")),
    ("ping-timer-rem", Fate::Harmless("ping-restart and ping-exit never count before the other end is known or dialled")),
    ("ip-remote-hint", Fate::Harmless("it only has openvpn look a name up early; where to connect, remote says")),
    ("preresolve", Fate::Harmless("a name is looked up when its server is tried; name addresses where there is no resolver by then")),
    ("route-delay", Fate::Harmless("routes are added as soon as the tunnel is up")),
    ("single-session", Fate::Harmless("the other end may connect again, and its new session replaces the former one once it is authenticated")),
    ("tmp-dir", Fate::Harmless("it is where scripts and plugins find files, and none are run")),
    ("max-routes", Fate::Harmless("it limits how many routes a server may push; a fixed bound is in force")),
    ("dhcp-internal", Fate::Harmless("it is for Windows")),
    ("dhcp-pre-release", Fate::Harmless("it is for Windows: nothing here has a DHCP lease to release")),
    ("tun-ipv6", Fate::Harmless("the tunnel always carries IPv6")),
    // Stock 2.7 wants it before it takes `secret`.
    ("allow-deprecated-insecure-static-crypto", Fate::Harmless("it lets openvpn 2.7 take secret, which is taken without it")),
    ("allow-nonadmin", Fate::Harmless("it is for Windows")),
    ("show-adapters", Fate::Refused(WINDOWS.0, WINDOWS.1)),
    ("show-net", Fate::Refused(WINDOWS.0, WINDOWS.1)),
    ("show-valid-subnets", Fate::Refused(WINDOWS.0, WINDOWS.1)),

    // Refused.
    ("auth-gen-token", Fate::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-gen-token-secret", Fate::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-user-pass-optional", Fate::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-user-pass-verify", Fate::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-token", Fate::Harmless("it is a session's token in place of the password, and a configuration has no session")),
    ("auth-token-user", Fate::Harmless("it is the user name of a session's token, and a configuration has no session")),
    ("chroot", Fate::Refused("it is not supported", "use RootDirectory= of systemd, or remove it: rights are dropped anyway")),
    ("client-cert-not-required", Fate::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("client-connect", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("client-crresponse", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("client-disconnect", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("client-nat", Fate::Refused("address translation by the tunnel is not supported", "use nftables")),
    ("cryptoapicert", Fate::Refused(WINDOWS.0, WINDOWS.1)),
    ("dhcp-release", Fate::Harmless("it is for Windows: nothing here has a DHCP lease to release")),
    ("dhcp-renew", Fate::Harmless("it is for Windows: nothing here has a DHCP lease to renew")),
    ("block-outside-dns", Fate::Harmless("it is for Windows: DNS queries through other interfaces are not blocked")),
    ("disable", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("filter-group", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("down", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("down-pre", Fate::Harmless("it runs the down script before the device is closed, and no script runs")),
    ("enable-small", Fate::Refused("it does not exist any more", "remove it")),
    ("engine", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("force-tls-key-material-export", Fate::Refused("it is not supported", "remove it; newer peers get keys by TLS exporter anyway")),
    ("genkey", Fate::Refused(ALONE, "adit openvpn --genkey TYPE FILE")),
    ("gremlin", Fate::Refused("it is for debugging only", "remove it")),
    ("help", Fate::Refused(ALONE, "adit openvpn --help")),
    ("http-proxy-override", Fate::Refused("it does not exist in 2.6", "use http-proxy")),
    ("http-proxy-retry", Fate::Harmless("attempts through a proxy are repeated as others are: connect-retry, connect-retry-max")),
    ("http-proxy-timeout", Fate::Harmless("it is server-poll-timeout that ends an attempt")),
    ("ifconfig-ipv6-push", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("ifconfig-push", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("ip-win32", Fate::Harmless("it is for Windows: addresses are set by netlink")),
    ("ipchange", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("iproute", Fate::Harmless("it names the program that sets addresses and routes, which are set by netlink")),
    ("iroute", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("iroute-ipv6", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("keying-material-exporter", Fate::Harmless("it gives plugins a secret of the session, and there are none")),
    ("keysize", Fate::Harmless("it sets the key length of BF-CBC and its like, which are not supported")),
    ("learn-address", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("management-client", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-auth", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-group", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-pf", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-user", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-external-cert", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-external-key", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-forget-disconnect", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-hold", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-log-cache", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-query-passwords", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-query-proxy", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-query-remote", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-signal", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-up-down", Fate::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("memstats", Fate::Harmless("it writes statistics for a monitor into FILE; status FILE has them")),
    ("mktun", Fate::Refused(STANDALONE.0, "use: ip tuntap add dev tun0 mode tun")),
    ("ncp-disable", Fate::Harmless("it switches off the negotiation of ciphers, which never hurts; for a peer that cannot negotiate write data-ciphers-fallback")),
    ("no-iv", Fate::Refused("it does not exist any more", "remove it")),
    ("no-replay", Fate::Harmless("it switches off the protection against replayed packets, which stays on")),
    ("opt-verify", Fate::Harmless("it sends away clients whose options differ; what peers must agree on is negotiated")),
    ("pause-exit", Fate::Harmless("it is for Windows")),
    ("peer-id", Fate::Harmless("it is the number of a session, which the server gives")),
    ("pkcs11-cert-private", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-id", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-id-management", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-pin-cache", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-private-mode", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-protected-authentication", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-providers", Fate::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs12", Fate::Refused("PKCS#12 files are not supported", "split it: openssl pkcs12 -in FILE -nokeys -clcerts -out cert.pem; openssl pkcs12 -in FILE -nocerts -out key.pem; openssl pkcs12 -in FILE -nokeys -cacerts -out ca.pem")),
    ("plugin", Fate::Refused("plugins are not supported", "remove it")),
    ("prng", Fate::Harmless("it chooses a random number generator; the operating system's is used")),
    ("push-remove", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("push-reset", Fate::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("register-dns", Fate::Harmless("it is for Windows")),
    ("replay-persist", Fate::Refused("it is not supported", "remove it: packets are remembered for as long as the program runs")),
    ("rmtun", Fate::Refused(STANDALONE.0, "use: ip tuntap del dev tun0 mode tun")),
    ("route-method", Fate::Harmless("it is for Windows: routes are set by netlink")),
    ("route-table", Fate::Refused("routes go into the main table", "remove it, and use ip rule and ip route with route-noexec")),
    ("route-pre-down", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("route-up", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("service", Fate::Harmless("it is for Windows: the service manager stops the program by a signal")),
    ("setcon", Fate::Refused("it is not supported", "use SELinuxContext= of systemd")),
    ("shaper", Fate::Refused("it is not supported", "use tc on the tunnel's device")),
    ("show-ciphers", Fate::Refused(ALONE, "adit openvpn --show-ciphers")),
    ("show-curves", Fate::Refused(ALONE, "adit openvpn --show-curves")),
    ("show-digests", Fate::Refused(ALONE, "adit openvpn --show-digests")),
    ("show-engines", Fate::Refused(STANDALONE.0, STANDALONE.1)),
    ("show-gateway", Fate::Refused(STANDALONE.0, "use: ip route show default")),
    ("show-groups", Fate::Refused(ALONE, "adit openvpn --show-groups")),
    ("show-net-up", Fate::Harmless("it is for Windows: routes are not shown")),
    ("show-pkcs11-ids", Fate::Refused(STANDALONE.0, STANDALONE.1)),
    ("show-tls", Fate::Refused(ALONE, "adit openvpn --show-tls")),
    ("socks-proxy-retry", Fate::Harmless("attempts through a proxy are repeated as others are: connect-retry, connect-retry-max")),
    ("static-challenge", Fate::Refused("challenges are not supported yet", "remove it")),
    ("tap-sleep", Fate::Harmless("it is for Windows: the device is ready at once")),
    ("test-crypto", Fate::Refused(STANDALONE.0, STANDALONE.1)),
    ("tls-crypt-v2-verify", Fate::Refused(HOOKS.0, "remove it; keys can be revoked by certificate")),
    ("tls-export-cert", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("tls-remote", Fate::Refused("it does not exist any more", "use verify-x509-name")),
    ("tls-verify", Fate::Refused(HOOKS.0, "use verify-x509-name and remote-cert-tls")),
    ("tun-mtu-extra", Fate::Harmless("it makes room for frames larger than tun-mtu, and there is room for any")),
    ("up", Fate::Refused(HOOKS.0, HOOKS.1)),
    ("up-delay", Fate::Harmless("the device gets its addresses once the other end has answered, as this option asks")),
    ("up-restart", Fate::Harmless("it runs the scripts at restarts too, and no script runs")),
    ("use-prediction-resistance", Fate::Harmless("it is for mbed TLS; the operating system's random numbers are used")),
    ("username-as-common-name", Fate::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("version", Fate::Refused(ALONE, "adit openvpn --version")),
    ("vlan-accept", Fate::Refused(VLAN.0, VLAN.1)),
    ("vlan-pvid", Fate::Refused(VLAN.0, VLAN.1)),
    ("vlan-tagging", Fate::Refused(VLAN.0, VLAN.1)),
    ("win-sys", Fate::Harmless("it is for Windows")),
    ("windows-driver", Fate::Harmless("it is for Windows")),
    ("x509-track", Fate::Harmless("it puts parts of certificates into the environment of scripts, and no script runs")),
];

/// Names that a handler takes; for suggestions, and for the test that they all are taken.
pub(super) const HANDLED: &[&str] = &[
    "allow-compression",
    "allow-lan",
    "allow-recursive-routing",
    "askpass",
    "auth",
    "auth-nocache",
    "auth-retry",
    "auth-user-pass",
    "bind",
    "bind-dev",
    "block-ipv6",
    "ca",
    "capath",
    "ccd-exclusive",
    "cd",
    "cert",
    "cipher",
    "client",
    "client-config-dir",
    "client-to-client",
    "comp-lzo",
    "compat-mode",
    "compress",
    "config",
    "connect-retry",
    "connect-retry-max",
    "connect-timeout",
    "crl-verify",
    "daemon",
    "data-ciphers",
    "data-ciphers-fallback",
    "dev",
    "dev-node",
    "dev-type",
    "dh",
    "dhcp-option",
    "dns",
    "dns-updown",
    "duplicate-cn",
    "ecdh-curve",
    "echo",
    "explicit-exit-notify",
    "extra-certs",
    "filter",
    "float",
    "fragment",
    "group",
    "hand-window",
    "http-proxy",
    "http-proxy-option",
    "http-proxy-user-pass",
    "ifconfig",
    "ifconfig-ipv6",
    "ifconfig-ipv6-pool",
    "ifconfig-noexec",
    "ifconfig-pool",
    "ifconfig-pool-linear",
    "ifconfig-pool-persist",
    "ifconfig-push-constraint",
    "ignore-unknown-option",
    "inactive",
    "keepalive",
    "key",
    "key-direction",
    "key-method",
    "kill-switch",
    "link-mtu",
    "lladdr",
    "local",
    "log",
    "log-append",
    "lport",
    "machine-readable-output",
    "management",
    "mark",
    "max-clients",
    "max-packet-size",
    "max-routes-per-client",
    "mlock",
    "mode",
    "mssfix",
    "multihome",
    "mute",
    "ncp-ciphers",
    "nice",
    "nobind",
    "ns-cert-type",
    "peer-fingerprint",
    "persist-key",
    "persist-tun",
    "ping",
    "ping-exit",
    "ping-restart",
    "policy-routing",
    "port",
    "port-share",
    "proto",
    "proto-force",
    "providers",
    "pull",
    "pull-filter",
    "push",
    "push-peer-info",
    "rcvbuf",
    "redirect-gateway",
    "redirect-private",
    "remap-usr1",
    "remote",
    "remote-cert-eku",
    "remote-cert-ku",
    "remote-cert-tls",
    "remote-random",
    "remote-random-hostname",
    "reneg-bytes",
    "reneg-pkts",
    "reneg-sec",
    "replay-window",
    "resolv-retry",
    "route",
    "route-gateway",
    "route-ipv6",
    "route-ipv6-gateway",
    "route-metric",
    "route-noexec",
    "route-nopull",
    "rport",
    "script-security",
    "secret",
    "server",
    "server-bridge",
    "server-ipv6",
    "server-poll-timeout",
    "session-timeout",
    "setenv",
    "setenv-safe",
    "sndbuf",
    "socket-flags",
    "socks-proxy",
    "stale-routes-check",
    "status",
    "status-version",
    "suppress-timestamps",
    "syslog",
    "tcp-nodelay",
    "tcp-queue-limit",
    "tls-auth",
    "tls-cert-profile",
    "tls-cipher",
    "tls-ciphersuites",
    "tls-client",
    "tls-crypt",
    "tls-crypt-v2",
    "tls-crypt-v2-max-age",
    "tls-exit",
    "tls-groups",
    "tls-server",
    "tls-timeout",
    "tls-version-max",
    "tls-version-min",
    "topology",
    "tran-window",
    "tun-mtu",
    "tun-mtu-max",
    "txqueuelen",
    "udp-mtu",
    "user",
    "verb",
    "verify-client-cert",
    "verify-hash",
    "verify-x509-name",
    "writepid",
    "x509-username-field",
];

/// What becomes of a directive that no handler took; `None` for an unknown name.
pub(super) fn fate(name: &str) -> Option<Fate> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, fate)| *fate)
}

/// The known name that is most like an unknown one, if any is like it at all.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let most = name.len().div_ceil(4).min(3);
    HANDLED
        .iter()
        .chain(TABLE.iter().map(|(known, _)| known))
        .map(|known| (distance(name, known), *known))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().take(64).enumerate() {
        let mut left = i.saturating_add(1);
        let mut diagonal = i;
        let mut next = vec![left];
        for (to, &above) in b.chars().zip(row.iter().skip(1)) {
            let replaced = diagonal.saturating_add(usize::from(from != to));
            left = replaced.min(above.saturating_add(1)).min(left.saturating_add(1));
            next.push(left);
            diagonal = above;
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_its_directive() {
        assert_eq!(nearest("remtoe"), Some("remote"));
        assert_eq!(nearest("presist-key"), Some("persist-key"));
        assert_eq!(nearest("data-cipher"), Some("data-ciphers"));
        assert_eq!(nearest("gibberish-entirely"), None);
    }

    /// Names of the first column, with the other cells.
    fn rows(section: &str) -> Vec<(&str, Vec<&str>)> {
        section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
            .map(|(name, rest)| (name, rest.split(" | ").collect()))
            .collect()
    }

    #[test]
    fn the_page_about_directives_is_this_table() {
        let page = include_str!("../../../../docs/openvpn.md");
        let (_, page) = page.split_once("\n## In force\n").unwrap();
        let (in_force, page) = page.split_once("\n## Without effect, with a warning\n").unwrap();
        let (harmless, refused) = page.split_once("\n## Refused by name\n").unwrap();
        let names = in_force.lines().find(|line| line.starts_with("`allow-")).unwrap();
        let mut names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        names.sort_unstable();
        let mut handled = HANDLED.to_vec();
        handled.sort_unstable();
        assert_eq!(names, handled);
        let (harmless, refused) = (rows(harmless), rows(refused));
        assert_eq!(harmless.len() + refused.len(), TABLE.len(), "each directive once");
        for (name, cells) in harmless {
            let Some(Fate::Harmless(why)) = fate(name) else { panic!("{name} has an effect") };
            assert_eq!(cells, [why], "{name}");
        }
        for (name, cells) in refused {
            let Some(Fate::Refused(why, instead)) = fate(name) else { panic!("{name} is taken") };
            assert_eq!(cells, [why, instead], "{name}");
        }
    }

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<_> =
            HANDLED.iter().copied().chain(TABLE.iter().map(|(name, _)| *name)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
