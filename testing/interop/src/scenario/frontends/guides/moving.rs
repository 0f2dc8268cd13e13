//! A server that takes the place of another one.

use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::case::READY;
use crate::pki::PkiTool;
use crate::traffic::ping;
use crate::wait::until;

const PIVPN: &Steps = &[
    ("sudo systemctl stop openvpn", Shows("")),
    ("sudo adit openvpn --config /etc/openvpn/server.conf", Elsewhere),
    (
        "sudo adit server up --host vpn.example.net --full-tunnel --dns 9.9.9.9",
        Until("Self-test passed"),
    ),
    ("sudo adit server client add laptop", Answers("laptop.ovpn holds the profile")),
    ("sudo adit server client add phone --qr", Fetched),
];

const WIREGUARD: &Steps = &[
    (
        "sudo adit server up --host vpn.example.net --network 10.87.31.0/24",
        Until("Self-test passed"),
    ),
    (
        "sudo adit server client add laptop --address 10.87.31.7",
        Answers("laptop.ovpn holds the profile"),
    ),
    ("sudo adit server client add office", Answers("office.ovpn holds the profile")),
    ("sudo adit server client set office --network 192.168.20.0/24", Shows("192.168.20.0/24")),
];

/// A server's configuration with the directives that PiVPN writes, as far as this machine has what they name.
const PIVPN_SERVER: &str = "dev tun
proto udp
port 1194
ca /etc/openvpn/easy-rsa/pki/ca.crt
cert /etc/openvpn/easy-rsa/pki/issued/server.crt
key /etc/openvpn/easy-rsa/pki/private/server.key
dh none
ecdh-curve prime256v1
topology subnet
server 10.8.0.0 255.255.255.0
push \"dhcp-option DNS 9.9.9.9\"
push \"block-outside-dns\"
push \"redirect-gateway def1\"
client-to-client
client-config-dir /etc/openvpn/ccd
keepalive 15 120
remote-cert-tls client
tls-version-min 1.2
tls-crypt /etc/openvpn/easy-rsa/pki/ta.key
cipher AES-256-CBC
auth SHA256
user nobody
persist-key
persist-tun
status /var/log/openvpn-status.log 20
status-version 3
verb 3
";

/// The same of a client, whose keys PiVPN writes into the file.
const PIVPN_CLIENT: &str = "client
dev tun
proto udp
remote vpn.example.net 1194
resolv-retry infinite
nobind
remote-cert-tls server
tls-version-min 1.2
verify-x509-name server name
cipher AES-256-CBC
auth SHA256
auth-nocache
verb 3
";

/// The address of PiVPN's server inside the tunnel.
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 1));

/// Connects a device with a profile, by openvpn.
fn dial(
    scenario: &Scenario<'_>,
    device: &Namespace,
    hosts: &Path,
    profile: &Path,
) -> Result<Daemon> {
    let mut command = on_device(device, hosts, "openvpn");
    command.arg("--config").arg(profile).args(["--dev", "tun0", "--verb", "3", "--disable-dco"]);
    // The device has no other gateway.
    command.args(["--pull-filter", "ignore", "redirect-gateway"]);
    ensure(*scenario.client == Program::OpenVpn, || "openvpn is the client here".into())?;
    let mut client = Daemon::spawn("openvpn", command)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    Ok(client)
}

/// The page moving-from-pivpn: the same client connects to openvpn, to adit with the same file, and with a new profile to a managed
/// server.
pub(in super::super::super) fn from_pivpn(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/moving-from-pivpn";
    let Some(root) = programs(name, scenario) else { return Ok("SKIPPED".into()) };
    check("moving-from-pivpn.md", PIVPN)?;
    let mut pair = Pair::new()?;
    let etc = prepare_machine(scenario, &mut pair.server, "server", &Program::OpenVpn, &root)?;
    settle(&pair.server, &etc)?;
    let profile = installed(scenario, &etc)?;
    let Some(machine) = Machine::boot(name, &pair.server, &etc, &root)? else {
        return Ok("SKIPPED".into());
    };
    let fetched = scenario.folder().join("phone.ovpn");
    let server = Desk { device: Some((&pair.client, fetched.as_path())), ..Desk::of(&machine) };
    let hosts = server.hosts()?;

    // From the package's tmpfiles.d.
    pair.server.run("mkdir", &["-p", "/run/openvpn"])?;
    for unit in ["openvpn", "openvpn@server"] {
        machine
            .systemd
            .systemctl(&pair.server, &["start", unit])
            .map_err(|e| machine.systemd.explain(&pair.server, &e.0))?;
    }
    let mut client = dial(scenario, &pair.client, &hosts, &profile)?;
    let [stop, again, managed @ ..] = PIVPN else { return Err("steps".into()) };
    server.follow(&[*stop])?;
    let mut adit = server.start(again.0)?;
    adit.wait_for(READY, SETUP_LIMIT)?;
    // The client would wait for two minutes of silence.
    client.signal(Signal::SIGUSR1)?;
    client.wait_for_nth(READY, 2, SETUP_LIMIT).map_err(|e| adit.failure(&e.0))?;
    ensure(ping(&pair.client, INSIDE, 56, 3)? == 3, || adit.failure("pings are lost").0)?;
    client.stop()?;
    interrupt(&mut adit)?;

    server.follow(managed)?;
    let laptop = server.take(&etc, "laptop.ovpn")?;
    let mut serving = server.start("adit server run")?;
    serving.wait_for("the server is up", SETUP_LIMIT)?;
    for profile in [&laptop, &fetched] {
        dial(scenario, &pair.client, &hosts, profile)?.stop()?;
    }
    interrupt(&mut serving)?;
    Ok(String::new())
}

/// Writes the server's files where PiVPN has them. Returns the profile of a client.
fn installed(scenario: &Scenario<'_>, etc: &Path) -> Result<std::path::PathBuf> {
    let pki = |name: &str| scenario.env.pki.file(PkiTool::EasyRsa, name);
    let folder = etc.join("openvpn/easy-rsa/pki");
    for name in ["issued", "private"] {
        fs::create_dir_all(folder.join(name))?;
    }
    fs::create_dir_all(etc.join("openvpn/ccd"))?;
    let wrapping = scenario.env.pki.wrapping_key("static.key");
    let files = [
        (pki("ca.crt"), "ca.crt"),
        (pki("server.crt"), "issued/server.crt"),
        (pki("server.key"), "private/server.key"),
        (wrapping.clone(), "ta.key"),
    ];
    for (from, to) in files {
        fs::copy(&from, folder.join(to)).context(from.display())?;
    }
    fs::write(etc.join("openvpn/server.conf"), PIVPN_SERVER)?;
    let mut text = PIVPN_CLIENT.to_owned();
    let inline = [
        ("ca", pki("ca.crt")),
        ("cert", pki("client.crt")),
        ("key", pki("client.key")),
        ("tls-crypt", wrapping),
    ];
    for (tag, path) in inline {
        text += &format!("<{tag}>\n{}</{tag}>\n", fs::read_to_string(&path)?);
    }
    let profile = scenario.folder().join("pivpn.ovpn");
    fs::write(&profile, text)?;
    Ok(profile)
}

/// The page moving-from-wireguard. WireGuard itself does not run.
pub(in super::super::super) fn from_wireguard(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/moving-from-wireguard";
    let Some(root) = programs(name, scenario) else { return Ok("SKIPPED".into()) };
    check("moving-from-wireguard.md", WIREGUARD)?;
    let mut pair = Pair::new()?;
    let etc = prepare_machine(scenario, &mut pair.server, "server", &Program::OpenVpn, &root)?;
    settle(&pair.server, &etc)?;
    let file = scenario.folder().join("unused.ovpn");
    let device = Some((&pair.client, file.as_path()));
    let server = Desk { namespace: &pair.server, systemd: None, device };
    let hosts = server.hosts()?;
    server.follow(WIREGUARD)?;
    let mut serving = server.start("adit server run")?;
    serving.wait_for("the server is up", SETUP_LIMIT)?;
    // The fixed address, and then the network behind the other client.
    let seven = IpAddr::V4(Ipv4Addr::new(10, 87, 31, 7));
    let behind = IpAddr::V4(Ipv4Addr::new(192, 168, 20, 1));
    pair.client.run("ip", &["address", "add", "192.168.20.1/24", "dev", "lo"])?;
    for (profile, address) in [("laptop.ovpn", seven), ("office.ovpn", behind)] {
        let profile = server.take(&etc, profile)?;
        let mut client = dial(scenario, &pair.client, &hosts, &profile)?;
        until("the client's address answers", SETUP_LIMIT, || {
            Ok(ping(&pair.server, address, 56, 1)? == 1)
        })
        .map_err(|e| serving.failure(&e.0))?;
        client.stop()?;
    }
    interrupt(&mut serving)?;
    Ok(String::new())
}
