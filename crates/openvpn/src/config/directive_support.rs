//! Directives of the reference implementation (2.6, and some that older files carry) that are
//! refused or without effect, with what to do about each.

/// What becomes of a directive that no handler takes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Support {
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
const TABLE: &[(&str, Support)] = &[
    // Without effect, and nothing lost.
    ("allow-pull-fqdn", Support::Harmless("names are not taken from a server; addresses are")),
    ("bcast-buffers", Support::Harmless("it sets how many broadcasts may wait; queues here have fixed bounds")),
    ("comp-noadapt", Support::Harmless("it switches off adaptive compression, and packets are never compressed before they are sent")),
    ("connect-freq", Support::Harmless(LIMITS)),
    ("connect-freq-initial", Support::Harmless(LIMITS)),
    ("disable-dco", Support::Harmless("it switches off the kernel's data channel offload, which is not used")),
    ("disable-occ", Support::Harmless("it leaves out the comparison of options with the peer, where a difference costs a warning only")),
    ("errors-to-stderr", Support::Harmless("it sends errors to stderr; they are in the log with everything else")),
    ("fast-io", Support::Harmless("it saves a system call for each packet, and packets are read and written in batches anyway")),
    ("hash-size", Support::Harmless("it sets the size of tables, which grow by themselves")),
    ("ifconfig-nowarn", Support::Harmless("it silences warnings about differing addresses at the two ends, which do not exist here")),
    ("mtu-disc", Support::Harmless("the kernel's own path MTU discovery is used")),
    ("mtu-test", Support::Harmless("the MTU is not tested; adit connect --check does that")),
    ("mute-replay-warnings", Support::Harmless("it silences warnings about replayed packets, which are counted and not logged")),
    ("no-name-remapping", Support::Harmless("names in certificates are never rewritten")),
    ("passtos", Support::Harmless("every packet leaves with the default type of service, whatever the one inside it has")),
    ("persist-local-ip", Support::Harmless("it keeps the local address over restarts; the address that the configuration names is bound again")),
    ("persist-remote-ip", Support::Harmless("it keeps the server's address over restarts; a name is looked up for each attempt")),
    ("ping-timer-rem", Support::Harmless("ping-restart and ping-exit never count before the other end is known or dialled")),
    ("ip-remote-hint", Support::Harmless("it only has openvpn look a name up early; where to connect, remote says")),
    ("preresolve", Support::Harmless("a name is looked up when its server is tried; name addresses where there is no resolver by then")),
    ("route-delay", Support::Harmless("routes are added as soon as the tunnel is up")),
    ("single-session", Support::Harmless("the other end may connect again, and its new session replaces the former one once it is authenticated")),
    ("tmp-dir", Support::Harmless("it is where scripts and plugins find files, and none are run")),
    ("max-routes", Support::Harmless("it limits how many routes a server may push; a fixed bound is in force")),
    ("dhcp-internal", Support::Harmless("it is for Windows")),
    ("dhcp-pre-release", Support::Harmless("it is for Windows: nothing here has a DHCP lease to release")),
    ("tun-ipv6", Support::Harmless("the tunnel always carries IPv6")),
    // Stock 2.7 wants it before it takes `secret`.
    ("allow-deprecated-insecure-static-crypto", Support::Harmless("it lets openvpn 2.7 take secret, which is taken without it")),
    ("allow-nonadmin", Support::Harmless("it is for Windows")),
    ("show-adapters", Support::Refused(WINDOWS.0, WINDOWS.1)),
    ("show-net", Support::Refused(WINDOWS.0, WINDOWS.1)),
    ("show-valid-subnets", Support::Refused(WINDOWS.0, WINDOWS.1)),

    // Refused.
    ("auth-gen-token", Support::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-gen-token-secret", Support::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-user-pass-optional", Support::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-user-pass-verify", Support::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("auth-token", Support::Harmless("it is a session's token in place of the password, and a configuration has no session")),
    ("auth-token-user", Support::Harmless("it is the user name of a session's token, and a configuration has no session")),
    ("chroot", Support::Refused("it is not supported", "use RootDirectory= of systemd, or remove it: rights are dropped anyway")),
    ("client-cert-not-required", Support::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("client-connect", Support::Refused(HOOKS.0, HOOKS.1)),
    ("client-crresponse", Support::Refused(HOOKS.0, HOOKS.1)),
    ("client-disconnect", Support::Refused(HOOKS.0, HOOKS.1)),
    ("client-nat", Support::Refused("address translation by the tunnel is not supported", "use nftables")),
    ("cryptoapicert", Support::Refused(WINDOWS.0, WINDOWS.1)),
    ("dhcp-release", Support::Harmless("it is for Windows: nothing here has a DHCP lease to release")),
    ("dhcp-renew", Support::Harmless("it is for Windows: nothing here has a DHCP lease to renew")),
    ("block-outside-dns", Support::Harmless("it is for Windows: DNS queries through other interfaces are not blocked")),
    ("disable", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("filter-group", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("down", Support::Refused(HOOKS.0, HOOKS.1)),
    ("down-pre", Support::Harmless("it runs the down script before the device is closed, and no script runs")),
    ("enable-small", Support::Refused("it does not exist any more", "remove it")),
    ("engine", Support::Refused(TOKENS.0, TOKENS.1)),
    ("force-tls-key-material-export", Support::Refused("it is not supported", "remove it; newer peers get keys by TLS exporter anyway")),
    ("genkey", Support::Refused(ALONE, "adit openvpn --genkey TYPE FILE")),
    ("gremlin", Support::Refused("it is for debugging only", "remove it")),
    ("help", Support::Refused(ALONE, "adit openvpn --help")),
    ("http-proxy-override", Support::Refused("it does not exist in 2.6", "use http-proxy")),
    ("http-proxy-retry", Support::Harmless("attempts through a proxy are repeated as others are: connect-retry, connect-retry-max")),
    ("http-proxy-timeout", Support::Harmless("it is server-poll-timeout that ends an attempt")),
    ("ifconfig-ipv6-push", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("ifconfig-push", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("ip-win32", Support::Harmless("it is for Windows: addresses are set by netlink")),
    ("ipchange", Support::Refused(HOOKS.0, HOOKS.1)),
    ("iproute", Support::Harmless("it names the program that sets addresses and routes, which are set by netlink")),
    ("iroute", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("iroute-ipv6", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("keying-material-exporter", Support::Harmless("it gives plugins a secret of the session, and there are none")),
    ("keysize", Support::Harmless("it sets the key length of BF-CBC and its like, which are not supported")),
    ("learn-address", Support::Refused(HOOKS.0, HOOKS.1)),
    ("management-client", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-auth", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-group", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-pf", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-client-user", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-external-cert", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-external-key", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-forget-disconnect", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-hold", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-log-cache", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-query-passwords", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-query-proxy", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-query-remote", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-signal", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("management-up-down", Support::Refused(MANAGEMENT.0, MANAGEMENT.1)),
    ("memstats", Support::Harmless("it writes statistics for a monitor into FILE; status FILE has them")),
    ("mktun", Support::Refused(STANDALONE.0, "use: ip tuntap add dev tun0 mode tun")),
    ("ncp-disable", Support::Harmless("it switches off the negotiation of ciphers, which never hurts; for a peer that cannot negotiate write data-ciphers-fallback")),
    ("no-iv", Support::Refused("it does not exist any more", "remove it")),
    ("no-replay", Support::Harmless("it switches off the protection against replayed packets, which stays on")),
    ("opt-verify", Support::Harmless("it sends away clients whose options differ; what peers must agree on is negotiated")),
    ("pause-exit", Support::Harmless("it is for Windows")),
    ("peer-id", Support::Harmless("it is the number of a session, which the server gives")),
    ("pkcs11-cert-private", Support::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-id", Support::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-id-management", Support::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-pin-cache", Support::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-private-mode", Support::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-protected-authentication", Support::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs11-providers", Support::Refused(TOKENS.0, TOKENS.1)),
    ("pkcs12", Support::Refused("PKCS#12 files are not supported", "split it: openssl pkcs12 -in FILE -nokeys -clcerts -out cert.pem; openssl pkcs12 -in FILE -nocerts -out key.pem; openssl pkcs12 -in FILE -nokeys -cacerts -out ca.pem")),
    ("plugin", Support::Refused("plugins are not supported", "remove it")),
    ("prng", Support::Harmless("it chooses a random number generator; the operating system's is used")),
    ("push-remove", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("push-reset", Support::Refused(PER_CLIENT.0, PER_CLIENT.1)),
    ("register-dns", Support::Harmless("it is for Windows")),
    ("replay-persist", Support::Refused("it is not supported", "remove it: packets are remembered for as long as the program runs")),
    ("rmtun", Support::Refused(STANDALONE.0, "use: ip tuntap del dev tun0 mode tun")),
    ("route-method", Support::Harmless("it is for Windows: routes are set by netlink")),
    ("route-table", Support::Refused("routes go into the main table", "remove it, and use ip rule and ip route with route-noexec")),
    ("route-pre-down", Support::Refused(HOOKS.0, HOOKS.1)),
    ("route-up", Support::Refused(HOOKS.0, HOOKS.1)),
    ("service", Support::Harmless("it is for Windows: the service manager stops the program by a signal")),
    ("setcon", Support::Refused("it is not supported", "use SELinuxContext= of systemd")),
    ("shaper", Support::Refused("it is not supported", "use tc on the tunnel's device")),
    ("show-ciphers", Support::Refused(ALONE, "adit openvpn --show-ciphers")),
    ("show-curves", Support::Refused(ALONE, "adit openvpn --show-curves")),
    ("show-digests", Support::Refused(ALONE, "adit openvpn --show-digests")),
    ("show-engines", Support::Refused(STANDALONE.0, STANDALONE.1)),
    ("show-gateway", Support::Refused(STANDALONE.0, "use: ip route show default")),
    ("show-groups", Support::Refused(ALONE, "adit openvpn --show-groups")),
    ("show-net-up", Support::Harmless("it is for Windows: routes are not shown")),
    ("show-pkcs11-ids", Support::Refused(STANDALONE.0, STANDALONE.1)),
    ("show-tls", Support::Refused(ALONE, "adit openvpn --show-tls")),
    ("socks-proxy-retry", Support::Harmless("attempts through a proxy are repeated as others are: connect-retry, connect-retry-max")),
    ("static-challenge", Support::Refused("challenges are not supported yet", "remove it")),
    ("tap-sleep", Support::Harmless("it is for Windows: the device is ready at once")),
    ("test-crypto", Support::Refused(STANDALONE.0, STANDALONE.1)),
    ("tls-crypt-v2-verify", Support::Refused(HOOKS.0, "remove it; keys can be revoked by certificate")),
    ("tls-export-cert", Support::Refused(HOOKS.0, HOOKS.1)),
    ("tls-remote", Support::Refused("it does not exist any more", "use verify-x509-name")),
    ("tls-verify", Support::Refused(HOOKS.0, "use verify-x509-name and remote-cert-tls")),
    ("tun-mtu-extra", Support::Harmless("it makes room for frames larger than tun-mtu, and there is room for any")),
    ("up", Support::Refused(HOOKS.0, HOOKS.1)),
    ("up-delay", Support::Harmless("the device gets its addresses once the other end has answered, as this option asks")),
    ("up-restart", Support::Harmless("it runs the scripts at restarts too, and no script runs")),
    ("use-prediction-resistance", Support::Harmless("it is for mbed TLS; the operating system's random numbers are used")),
    ("username-as-common-name", Support::Refused(SERVER_AUTH.0, SERVER_AUTH.1)),
    ("version", Support::Refused(ALONE, "adit openvpn --version")),
    ("vlan-accept", Support::Refused(VLAN.0, VLAN.1)),
    ("vlan-pvid", Support::Refused(VLAN.0, VLAN.1)),
    ("vlan-tagging", Support::Refused(VLAN.0, VLAN.1)),
    ("win-sys", Support::Harmless("it is for Windows")),
    ("windows-driver", Support::Harmless("it is for Windows")),
    ("x509-track", Support::Harmless("it puts parts of certificates into the environment of scripts, and no script runs")),
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

/// Returns the support level of a directive without a handler; `None` for an unknown name.
pub(super) fn support(name: &str) -> Option<Support> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, support)| *support)
}

/// Returns the known directive with the smallest edit distance to `name`, if one is close enough to suggest.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let most = name.len().div_ceil(4).min(3);
    HANDLED
        .iter()
        .chain(TABLE.iter().map(|(known, _)| known))
        // A difference in length is a lower bound, which also bounds the work for an absurdly long name.
        .filter(|known| known.len().abs_diff(name.chars().count()) <= most)
        .map(|known| (strsim::levenshtein(name, known), *known))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
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
            let Some(Support::Harmless(why)) = support(name) else {
                panic!("{name} has an effect")
            };
            assert_eq!(cells, [why], "{name}");
        }
        for (name, cells) in refused {
            let Some(Support::Refused(why, instead)) = support(name) else {
                panic!("{name} is taken")
            };
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
