//! The guide to moving from openvpn, word for word.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use nix::sys::signal::Signal;

use super::booted::{Booted, SOON};
use super::{Case, Machine, VERSION};
use crate::case::READY;
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::Pair;
use crate::pki::PkiTool;
use crate::process::{Daemon, output};
use crate::traffic::ping;

const PAGE: &str = "docs/moving-from-openvpn.md";

/// The commands of the page, in its order.
const COMMANDS: [&str; 11] = [
    "sudo apt install ./adit_0.1.0_amd64.deb",
    "sudo systemctl stop openvpn-server@server",
    "sudo adit openvpn --cd /etc/openvpn/server --config server.conf",
    "sudo systemctl start openvpn-server@server",
    "sudo env --chdir=/etc/openvpn/client adit connect --check laptop.conf",
    "sudo apt install ./adit-openvpn_0.1.0_all.deb",
    "sudo systemctl restart openvpn-server@server",
    "sudo systemctl disable --now openvpn-server@server",
    "sudo systemctl enable --now adit-openvpn-server@server",
    "sudo apt remove adit-openvpn",
    "sudo systemctl restart openvpn-server@server",
];

/// The beginning of the log of adit in openvpn's place, as the page has it.
const ADIT: &str = "OpenVPN 2.6.14 adit-";

/// The line of the page that lets openvpn skip what only adit has.
const SKIPPED: &str = "setenv opt filter rules.nft\n";

const SERVER: &str = "dev tun
port 1194
server 10.8.0.0 255.255.255.0
keepalive 10 60
dh none
ca ca.crt
cert server.crt
key server.key
";

const CLIENT: &str = "client
dev tun
remote 192.0.2.1 1194
nobind
remote-cert-tls server
ca ca.crt
cert client.crt
key client.key
";

/// Instances in addition to that of the page. The processes of all instances together are more than openvpn's own units allow.
const MORE: usize = 5;

/// The small system has no apt, which would call dpkg in this way.
const APT: &str = "#!/bin/sh
action=$1
shift
exec dpkg --$action \"$@\"
";

/// The server's address inside the tunnel.
const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 1));

/// The same files serve the same client: by openvpn, by adit in a terminal, by adit under openvpn's name and unit, by openvpn again, and by
/// adit's unit.
pub(super) fn from_openvpn(case: &Case<'_>) -> Result<String> {
    let page = fs::read_to_string(PAGE).context(PAGE)?;
    let commands = page.lines().filter_map(|line| line.strip_prefix("    "));
    let commands: Vec<&str> = commands.collect();
    ensure(commands == COMMANDS, || format!("{PAGE} has {commands:#?}, and not {COMMANDS:#?}"))?;
    for text in [ADIT, "`setenv opt`", "the main process is `openvpn`"] {
        ensure(page.contains(text), || format!("{PAGE} lacks {text:?}"))?;
    }
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    configure(case, &machine)?;
    let pair = Pair::new()?;
    let services = ["openvpn-server@server", "adit-openvpn-server@server"];
    let Some(system) = Booted::start(case, &machine, &pair.server, &services)? else {
        return Ok("SKIPPED".into());
    };
    let run = |line: &str| {
        let line = format!("cd /root && {line} 2>&1");
        system.run(&["sh", "-c", &line]).map_err(|e| format!("$ {line}\n{}", system.explain(&e.0)))
    };
    let connects = |server: &str| {
        connects(&machine, &pair).map_err(|e| format!("with {server}: {}", system.explain(&e.0)))
    };
    let by_adit = |times: usize| {
        let logged = system.logged(ADIT)?;
        ensure(logged == times, || system.explain(&format!("adit has begun {logged} logs")))
    };
    let [install, stop, alone, start, check, replace, restart, disable, enable, remove, back] =
        COMMANDS;

    run("systemctl enable --now openvpn-server@server")?;
    // 10 up to openvpn 2.6; later versions have the system's limit.
    let limit = || system.property("openvpn-server@server", "LimitNPROC");
    let own_limit = limit()?;
    connects("openvpn")?;
    run(install)?;
    run(stop)?;
    let mut adit = Daemon::spawn(
        alone,
        machine.command(&pair.server, "sh", &["-c", &format!("exec {alone}")]),
    )?;
    adit.wait_for(READY, SOON)?;
    ensure(adit.log().contains(ADIT), || adit.failure("another beginning").0)?;
    connects("adit in a terminal").map_err(|e| adit.failure(&e).0)?;
    adit.signal(Signal::SIGINT)?;
    let ended = adit.wait_exit(SOON)?;
    ensure(ended.success(), || adit.failure(&format!("{ended}")).0)?;
    let links = pair.server.run("ip", &["-o", "link"])?;
    ensure(!links.contains("tun0"), || format!("the device is still there: {links}"))?;
    run(start)?;
    let found = output(machine.command(&pair.client, "sh", &["-c", check]))?;
    ensure(found.contains("ok    TLS"), || format!("$ {check}\n{found}"))?;
    by_adit(0)?;

    run(replace)?;
    run(restart)?;
    by_adit(1)?;
    connects("adit under openvpn's unit")?;
    let pid = system.property("openvpn-server@server", "MainPID")?;
    let name = run(&format!("cat /proc/{pid}/comm"))?;
    ensure(name.trim() == "openvpn", || format!("the main process is {name}"))?;
    let raised = limit()?;
    ensure(raised == "infinity", || format!("the processes of all instances: {raised}"))?;
    let more: String = (1..=MORE).map(|n| format!(" openvpn-server@more{n}")).collect();
    run(&format!("systemctl start{more}"))?;
    by_adit(1 + MORE)?;
    run(&format!("systemctl stop{more}"))?;

    run(remove)?;
    let restored = limit()?;
    ensure(restored == own_limit, || format!("{restored} instead of {own_limit} processes"))?;
    run(back)?;
    connects("openvpn again")?;
    by_adit(1 + MORE)?;

    run(disable)?;
    run(enable)?;
    by_adit(2 + MORE)?;
    connects("adit's unit")?;
    // As the page says, back in the same way.
    run(&disable.replace("openvpn-server", "adit-openvpn-server"))?;
    run(&enable.replace("adit-openvpn-server", "openvpn-server"))?;
    connects("openvpn's unit")?;
    by_adit(2 + MORE)?;
    Ok(String::new())
}

/// Writes a server and its client as Debian's package expects them, and the two programs that the small system lacks.
fn configure(case: &Case<'_>, machine: &Machine) -> Result<()> {
    for (role, name, text) in [
        ("server", "server.conf", SERVER.to_owned() + SKIPPED),
        ("client", "laptop.conf", CLIENT.into()),
    ] {
        let folder = machine.path("etc/openvpn").join(role);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), text)?;
        for name in ["ca.crt".to_owned(), format!("{role}.crt"), format!("{role}.key")] {
            fs::copy(case.env.pki.file(PkiTool::OpenSslEc, &name), folder.join(&name))
                .context(name)?;
        }
    }
    for n in 1..=MORE {
        let text = SERVER.replace("1194", &(1194 + n).to_string());
        let text = text.replace("10.8.0.0", &format!("10.8.{n}.0"));
        fs::write(machine.path(&format!("etc/openvpn/server/more{n}.conf")), text)?;
    }
    let rules = "table inet vpn { chain c { type filter hook forward priority 0; } }\n";
    fs::write(machine.path("etc/openvpn/server/rules.nft"), rules)?;
    for (name, text) in [("sudo", "#!/bin/sh\nexec \"$@\"\n"), ("apt", APT)] {
        let program = machine.path("usr/local/bin").join(name);
        file::write(&program, text, 0o755)?;
    }
    for (package, file) in
        [("adit", "adit_0.1.0_amd64.deb"), ("adit-openvpn", "adit-openvpn_0.1.0_all.deb")]
    {
        fs::copy(case.deb(package, VERSION)?, machine.path("root").join(file)).context(file)?;
    }
    // From the package's tmpfiles.d.
    fs::create_dir_all(machine.path("run/openvpn-server"))?;
    Ok(())
}

/// Connects the client by openvpn, with its file.
fn connects(machine: &Machine, pair: &Pair) -> Result<()> {
    let mut command = pair.client.command("openvpn");
    command.arg("--cd").arg(machine.path("etc/openvpn/client"));
    command.args(["--config", "laptop.conf", "--verb", "3", "--disable-dco"]);
    let mut client = Daemon::spawn("openvpn", command)?;
    client.wait_for(READY, SOON)?;
    let answered = ping(&pair.client, INSIDE, 56, 3)?;
    ensure(answered == 3, || client.failure("pings are lost").0)?;
    client.stop()
}
