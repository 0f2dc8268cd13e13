//! Directives that are accepted without effect, and directives that are refused. They come from openvpn 2.6 and 2.7,
//! and from older files.

use super::{Spec, no_effect, refused};

const SERVER_AUTH: (&str, &str) = (
    "user names cannot be replaced",
    "remove it; username-as-common-name makes the user name the name of the session",
);
const WINDOWS: (&str, &str) = (
    "it exists on Windows only",
    "remove it, or write setenv opt before it to let other systems skip it",
);

/// Each row is on one line, whatever its length.
#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    no_effect("allow-nonadmin", "it is for Windows"),
    no_effect("auth-token", "it is a session's token that replaces the password; a configuration has no session"),
    no_effect("auth-token-user", "it is the user name for a session's token; a configuration has no session"),
    no_effect("bcast-buffers", "it sets how many broadcasts may wait; queues here have fixed bounds"),
    no_effect("block-outside-dns", "it is for Windows: DNS queries through other interfaces are not blocked"),
    no_effect("comp-noadapt", "it switches off adaptive compression, and packets are never compressed before they are sent"),
    no_effect("dhcp-internal", "it is for Windows"),
    no_effect("dhcp-pre-release", "it is for Windows: nothing here has a DHCP lease to release"),
    no_effect("dhcp-release", "it is for Windows: nothing here has a DHCP lease to release"),
    no_effect("dhcp-renew", "it is for Windows: nothing here has a DHCP lease to renew"),
    no_effect("disable-occ", "it skips the comparison of options with the peer, where a difference only causes a warning"),
    no_effect("fast-io", "it saves a system call per packet; packets are read and written in batches anyway"),
    no_effect("hash-size", "it sets the sizes of the tables of clients and addresses, which grow as needed"),
    no_effect("http-proxy-retry", "attempts through a proxy are repeated like any others: see connect-retry and connect-retry-max"),
    no_effect("http-proxy-timeout", "server-poll-timeout limits each attempt"),
    no_effect("ip-remote-hint", "it only makes openvpn look up a name early; remote names the server"),
    no_effect("ip-win32", "it is for Windows: addresses are set by netlink"),
    no_effect("iproute", "it names the program that sets addresses and routes, which are set by netlink"),
    no_effect("keysize", "it sets the key length of ciphers such as BF-CBC, which are not supported"),
    no_effect("max-routes", "it limits how many routes a server may push; a fixed bound is in force"),
    no_effect("memstats", "it writes statistics for a monitor into FILE; status FILE has them"),
    no_effect("ncp-disable", "it switches off cipher negotiation, which does no harm; for a peer that cannot negotiate, use data-ciphers-fallback"),
    no_effect("no-name-remapping", "names in certificates are never rewritten"),
    no_effect("no-replay", "it switches off the protection against replayed packets, which stays on"),
    no_effect("pause-exit", "it is for Windows"),
    no_effect("peer-id", "it is the number of a session, which the server assigns"),
    no_effect("prng", "it chooses a random number generator; the operating system's is used"),
    no_effect("register-dns", "it is for Windows"),
    no_effect("route-method", "it is for Windows: routes are set by netlink"),
    no_effect("service", "it is for Windows: the service manager stops the program by a signal"),
    no_effect("show-net-up", "it is for Windows: routes are not shown"),
    no_effect("socks-proxy-retry", "attempts through a proxy are repeated like any others: see connect-retry and connect-retry-max"),
    no_effect("tap-sleep", "it is for Windows: the device is ready at once"),
    no_effect("tun-ipv6", "the tunnel always carries IPv6"),
    no_effect("use-prediction-resistance", "it is for mbed TLS; the operating system's random numbers are used"),
    no_effect("win-sys", "it is for Windows"),
    no_effect("windows-driver", "it is for Windows"),

    refused("client-nat", ("address translation by the tunnel is not supported", "use nftables")),
    refused("cryptoapicert", WINDOWS),
    refused("enable-small", ("it no longer exists", "remove it")),
    refused("engine", ("there is no OpenSSL to load it", "use pkcs11-providers and pkcs11-id for a key on a token, or cert and key with files")),
    refused("gremlin", ("it is for debugging only", "remove it")),
    refused("http-proxy-override", ("it does not exist in 2.6", "use http-proxy")),
    refused("management-client-pf", ("it no longer exists", "remove it, and use a packet filter: filter FILE")),
    refused("no-iv", ("it no longer exists", "remove it")),
    refused("override-username", SERVER_AUTH),
    refused("setcon", ("it is not supported", "use SELinuxContext= of systemd")),
    refused("show-adapters", WINDOWS),
    refused("show-net", WINDOWS),
    refused("show-valid-subnets", WINDOWS),
    refused("tls-remote", ("it no longer exists", "use verify-x509-name")),
];
