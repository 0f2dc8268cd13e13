//! A server, its client, DNS, a backup, and its restoration on another machine.

use super::super::background::{boot, prepare};
use super::*;

const SERVER: &Steps = &[
    ("sudo adit server up --host vpn.example.net --client laptop", Until("Self-test passed")),
    ("sudo systemctl enable --now adit-server", Shows("")),
    ("sudo adit status", Shows("server: running")),
    ("sudo adit doctor", Shows("")),
    ("sudo adit server client add tablet", Shows("BEGIN CERTIFICATE")),
    ("sudo adit server client set tablet --note \"Ann\" --quota 50GB/month", Shows("Ann")),
    ("sudo adit server client list", Shows("tablet")),
    ("sudo adit server client revoke tablet", Shows("tablet")),
    ("sudo adit server client add office", Shows("BEGIN CERTIFICATE")),
    ("sudo adit server client set office --network 192.168.20.0/24", Shows("192.168.20.0/24")),
];

const CLIENT: &Steps = &[
    ("sudo install -D -m 600 laptop.ovpn /etc/adit/laptop.ovpn", Shows("")),
    ("adit connect --check laptop.ovpn", Shows("ok    data")),
    ("sudo adit connect laptop.ovpn", Until("connected: ")),
    ("sudo adit connect --kill-switch laptop.ovpn", Until("connected: ")),
    ("sudo adit connect --release", Shows("")),
];

const DNS: &Steps = &[
    ("sudo adit reload", Shows("dns")),
    (
        "sudo nft add rule inet filter input iifname adit0 meta l4proto { tcp, udp } th dport 53 accept",
        Shows(""),
    ),
    // On a connected client.
    ("sudo adit status", Elsewhere),
    ("resolvectl status", Elsewhere),
];

const BACKUP: &Steps = &[
    ("sudo adit server backup vpn.backup", Answers("holds the server with 3 clients")),
    (
        "sudo adit server backup /var/backups/vpn.backup --passphrase-file /root/vpn.phrase",
        Shows("holds the server"),
    ),
    // On the new machine.
    ("sudo adit server restore vpn.backup", Elsewhere),
    ("sudo adit doctor", Elsewhere),
    ("sudo adit server run", Elsewhere),
    ("sudo systemctl restart adit-server", Shows("")),
    ("sudo adit status", Shows("server: running")),
];

/// Those of the same page on the new machine.
const RESTORE: &Steps = &[
    ("sudo adit server restore vpn.backup", Answers("restored: 3 clients")),
    ("sudo adit doctor", Shows("")),
    ("sudo adit server run", Until("the server is up")),
];

/// The pages server, client, dns and backup-upgrade.
pub(in super::super::super) fn server_and_client(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/server-and-client";
    let Some(root) = programs(name, scenario) else { return Ok("SKIPPED".into()) };
    let pages = [
        ("server.md", SERVER),
        ("client.md", CLIENT),
        ("dns.md", DNS),
        ("backup-upgrade.md", BACKUP),
    ];
    for (page, steps) in pages {
        check(page, steps)?;
    }
    let mut pair = Pair::new()?;
    let folders = prepare(scenario, &mut pair, &root)?;
    let [at_server, at_client] = &folders;
    settle(&pair.server, at_server)?;
    settle(&pair.client, at_client)?;
    let Some([server, client]) = boot(name, &pair, &folders, &root)? else {
        return Ok("SKIPPED".into());
    };
    let etc = [at_server.as_path(), at_client.as_path()];
    let (at_desk, on_laptop) = (Desk::of(&server), Desk::of(&client));

    at_desk.follow(SERVER)?;
    copy(&pair.server, &pair.client, &etc, "laptop.ovpn")?;
    on_laptop.follow(CLIENT)?;
    // What the page writes into the settings, and the firewall that it expects.
    let settings = at_server.join("adit/server.toml");
    let text = fs::read_to_string(&settings)?;
    let dns = "dns = [\"9.9.9.9\", \"149.112.112.112\"]";
    let page = fs::read_to_string("docs/guides/dns.md")?;
    ensure(page.contains(dns) && text.contains("dns = []"), || text.clone())?;
    fs::write(&settings, text.replace("dns = []", dns))?;
    let firewall = "table inet filter { chain input { type filter hook input priority 0; }; }";
    pair.server.run("nft", &[firewall])?;
    at_desk.follow(DNS)?;
    let phrase = format!("umask 077; echo '{PASSPHRASE}' > /root/vpn.phrase");
    pair.server.run("sh", &["-c", &phrase])?;
    at_desk.follow(BACKUP)?;
    copy(&pair.server, &pair.client, &etc, "vpn.backup")?;
    on_laptop.follow(RESTORE)?;
    server.adit("server stop")?;
    Ok(String::new())
}
