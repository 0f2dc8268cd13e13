//! `server.toml` as people read it.

use std::fmt::{Display, Write};

use super::settings::{Nat, Reach, Settings};

/// The file's text. Every key is there, so that nobody must look for its name.
pub(super) fn render(settings: &Settings) -> String {
    let (full_tunnel, routes) = match &settings.reach {
        Reach::Full => (true, Vec::new()),
        Reach::Networks(routes) => (false, routes.clone()),
    };
    let network6 = match settings.network6 {
        Some(network) => format!("network6 = \"{network}\""),
        None => "# network6 = \"fd12:3456:789a::/64\"".into(),
    };
    let nat = match settings.nat {
        Nat::Auto => "auto",
        Nat::Off => "off",
    };
    let mut text = String::from(HEAD);
    let mut key = |comment: &str, line: String| {
        text.push('\n');
        for row in comment.lines() {
            let _ = writeln!(text, "# {row}");
        }
        let _ = writeln!(text, "{line}");
    };
    key(LISTEN, format!("listen = {}", list(&settings.listen)));
    key(HOST, format!("host = \"{}\"", settings.host));
    key(NETWORK, format!("network = \"{}\"", settings.network));
    key(NETWORK6, network6);
    key(FULL_TUNNEL, format!("full-tunnel = {full_tunnel}"));
    key(ROUTES, format!("routes = {}", list(&routes)));
    key(DNS, format!("dns = {}", list(&settings.dns)));
    key(NAT, format!("nat = \"{nat}\""));
    key(CLIENT_TO_CLIENT, format!("client-to-client = {}", settings.client_to_client));
    key(MAX_CLIENTS, format!("max-clients = {}", settings.max_clients));
    key(
        MTU,
        match settings.mtu {
            Some(mtu) => format!("mtu = {mtu}"),
            None => "# mtu = 1400".into(),
        },
    );
    key(
        WORKERS,
        match settings.workers {
            Some(workers) => format!("workers = {workers}"),
            None => "# workers = 4".into(),
        },
    );
    key(
        USER,
        match &settings.user {
            Some(user) => format!("user = \"{user}\""),
            None => "# user = \"adit\"".into(),
        },
    );
    key(
        FILTER,
        match &settings.filter {
            Some(path) => format!("filter = \"{}\"", path.display()),
            None => "# filter = \"rules.nft\"".into(),
        },
    );
    key(DEVICE, format!("device = \"{}\"", settings.device));
    text
}

fn list<T: Display>(items: &[T]) -> String {
    let quoted: Vec<String> = items.iter().map(|item| format!("\"{item}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

const HEAD: &str = "\
# The settings of this VPN server. Edit, then: adit reload
# `adit reload` says what took effect, and what waits for a restart: `listen`, `network`,
# `network6`, `device`, `mtu`, `workers`, `client-to-client`, and a filter where there was none.
# Connected clients get new routes and name servers at once (adit, openvpn from 2.7), others
# when they connect again. Profiles keep the host and ports they were made with: see
# adit server client remotes
";
const LISTEN: &str = "\
Where to listen: \"udp/PORT\" or \"tcp/PORT\" on every address, \"udp/ADDRESS:PORT\" on one.
Profiles name them all, UDP first: TCP is slower, and for networks that let nothing else out.
Open them in the firewall in front of this machine.";
const HOST: &str = "\
The name or address that clients dial; it is written into each new profile.
A DNS name survives a change of address.";
const NETWORK: &str = "\
The network inside the tunnel. The server has its first address. Pick a range that is
used neither here nor on your clients' home networks. Avoid common ones such as
10.8.0.0/24 and 192.168.0.0/24.";
const NETWORK6: &str = "\
The same for IPv6. Without this line the tunnel carries IPv4 only.";
const FULL_TUNNEL: &str = "\
true: clients send all traffic through the tunnel (full tunnel). false: only what goes to
`network`, `network6` and the networks in `routes` (split tunnel).";
const ROUTES: &str = "\
Networks behind this server that clients reach through the tunnel,
for example [\"192.168.7.0/24\"].";
const DNS: &str = "\
Name servers for the clients, for example [\"9.9.9.9\"]. They should be reachable
through the tunnel.";
const NAT: &str = "\
\"auto\": masquerade client traffic behind this machine's address. \"off\": no NAT; the
network behind the server must have a route back to the clients.";
const CLIENT_TO_CLIENT: &str = "\
Whether clients may talk to each other.";
const MAX_CLIENTS: &str = "\
Most clients connected at a time.";
const MTU: &str = "\
Largest IP packet inside the tunnel: 1280 to 1500 bytes, 1500 without this line. TCP adjusts to
the path by itself; a smaller number helps UDP where fragments are lost (adit connect --check).";
const WORKERS: &str = "\
Threads that move packets. Without this line as many as there are cores: one up to
2 cores, 16 at most.";
const USER: &str = "\
The user that the serving process runs as; it needs no rights and should own no files.
Without this line: adit where that user exists, else nobody.";
const FILTER: &str = "\
Rules for what passes through the tunnel, in nftables' language; a relative path is one
beside this file. Without this line everything passes, but not from client to client.";
const DEVICE: &str = "\
The name of the tunnel's network device.";
