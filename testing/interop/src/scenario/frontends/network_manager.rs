//! NetworkManager with its OpenVPN plugin, as Debian packages them: nmcli imports a profile, and brings the tunnel up and down.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use super::super::Scenario;
use super::{SOON, SystemLog, add_user, furnish, processes, start_bus, unpacked};
use crate::case::{Configs, READY, SETUP_LIMIT, serve};
use crate::failure::{Result, ensure};
use crate::file;
use crate::matrix::Wrapping;
use crate::net::{Namespace, Pair, VETH};
use crate::pki::PkiTool;
use crate::process::{Daemon, output};
use crate::traffic::ping;
use crate::wait::until;

/// The host name is not in a namespace, and polkit is not running.
const SETTINGS: &str = "[main]\nplugins=keyfile\ndns=default\nrc-manager=file\nauth-polkit=root-only\n\
     hostname-mode=none\nno-auto-default=*\nsystemd-resolved=false\n\
     [logging]\nlevel=INFO\n";

/// The connection that the tunnel uses.
const LAN: &str = "[connection]\nid=lan\nuuid=5d7d0cf5-7ba1-4be6-a3a0-7a0a0c0c7d01\ntype=ethernet\n\
     interface-name=veth0\nautoconnect=false\n\
     [ipv4]\nmethod=manual\naddress1=192.0.2.2/24,192.0.2.1\ndns=192.0.2.1;\n\
     [ipv6]\nmethod=manual\naddress1=2001:db8::2/64,2001:db8::1\n";

/// The server's addresses in the tunnel.
const SERVER4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1));
const SERVER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, 1));

/// The user that Debian's package creates, and to which openvpn drops.
const USER: &str = "nm-openvpn";

/// The password of the server's user.
const PASSWORD: &str = "open sesame";

/// A machine with NetworkManager, and the server that its tunnel ends at.
struct Desk {
    manager: Daemon,
    log: SystemLog,
    _bus: Daemon,
    server: Daemon,
    pair: Pair,
    folder: PathBuf,
}

impl Desk {
    /// Starts the server and NetworkManager with one connection. `None` if the packages are missing.
    fn start(scenario: &Scenario<'_>, check: &str, configs: &Configs) -> Result<Option<Self>> {
        let Some(root) = unpacked(check, "frontends") else { return Ok(None) };
        let folder = scenario.folder().to_owned();
        let mut pair = Pair::new()?;
        let mut server = serve(&pair, &folder, configs, scenario.server)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        let etc = folder.join("etc");
        write_settings(&etc)?;
        let log = furnish(&mut pair.client, &etc, scenario.client, &root)?;
        add_user(&etc, USER, 4243)?;
        let machine = &pair.client;
        machine.run("mkdir", &["-p", "/var/lib/NetworkManager"])?;
        // From the package's postinst.
        machine.run("mkdir", &["-p", "/var/lib/openvpn/chroot"])?;
        // NetworkManager leaves alone what others have set up.
        machine.run("ip", &["address", "flush", "dev", VETH])?;
        machine.run("ip", &["link", "set", VETH, "down"])?;
        let bus = start_bus(machine, &etc)?;
        let mut command = machine.command("unshare");
        command.args(["--uts", "env", "LC_ALL=C", "NetworkManager", "--debug"]);
        let manager = Daemon::spawn("NetworkManager", command)?;
        let this = Self { manager, log, _bus: bus, server, pair, folder };
        until("NetworkManager answers", SETUP_LIMIT, || {
            Ok(this
                .nmcli(&["-t", "-f", "RUNNING", "general"])
                .is_ok_and(|text| text == "running\n"))
        })
        .map_err(|e| this.explain(&e.to_string()))?;
        this.nmcli(&["--wait", "30", "connection", "up", "lan"])
            .map_err(|e| this.explain(&e.to_string()))?;
        Ok(Some(this))
    }

    fn machine(&self) -> &Namespace {
        &self.pair.client
    }

    fn nmcli(&self, words: &[&str]) -> Result<String> {
        output(self.command(words))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.machine().command("env");
        command.args(["HOME=/run", "LC_ALL=C.UTF-8", "nmcli"]).args(words);
        command
    }

    /// Adds the logs to a failure.
    fn explain(&self, what: &str) -> String {
        format!(
            "{what}\nsystem log:\n{}\n{}\n{}",
            self.log.text(),
            self.manager.failure("meanwhile"),
            self.server.failure("meanwhile")
        )
    }

    /// Imports the client's file as the connection `client`, and changes these properties.
    fn import(&self, lines: &str, properties: &[&str]) -> Result<()> {
        let path = self.folder.join("client.ovpn");
        fs::write(&path, lines)?;
        let path = path.display().to_string();
        self.nmcli(&["connection", "import", "type", "openvpn", "file", &path])?;
        for property in properties {
            let (name, value) = property.split_once(' ').unwrap_or((property, ""));
            self.nmcli(&["connection", "modify", "client", name, value])?;
        }
        Ok(())
    }

    /// Returns the command that brings the tunnel up, with secrets if it needs any.
    fn up(&self, secrets: &[(&str, &str)]) -> Result<Command> {
        let path = self.folder.join("secrets");
        let lines: String =
            secrets.iter().map(|(name, value)| format!("vpn.secrets.{name}:{value}\n")).collect();
        fs::write(&path, lines)?;
        let path = path.display().to_string();
        Ok(self.command(&["--wait", "60", "connection", "up", "client", "passwd-file", &path]))
    }

    fn up_and_ping(&self, secrets: &[(&str, &str)]) -> Result<()> {
        output(self.up(secrets)?).map_err(|e| self.explain(&e.to_string()))?;
        let answers = ping(self.machine(), SERVER4, 56, 4)?;
        ensure(answers == 4, || self.explain(&format!("{answers} of 4 pings")))
    }

    /// Brings the tunnel down, and checks that nothing remains.
    fn down(&self) -> Result<()> {
        self.nmcli(&["--wait", "30", "connection", "down", "client"])
            .map_err(|e| self.explain(&e.to_string()))?;
        self.check_gone()
    }

    fn check_gone(&self) -> Result<()> {
        until("the end of openvpn", SOON, || {
            Ok(processes(self.machine(), "--management")?.is_empty())
        })
        .map_err(|e| self.explain(&e.to_string()))?;
        until("the end of the device", SOON, || {
            Ok(!self.machine().run("ip", &["-o", "link"])?.contains("tun0"))
        })
        .map_err(|e| self.explain(&e.to_string()))?;
        for words in [["-4", "route"], ["-6", "route"], ["-4", "rule"], ["-6", "rule"]] {
            let shown = self.machine().run("ip", &words)?;
            ensure(!shown.contains("10.6") && !shown.contains("fd99"), || {
                self.explain(&format!("it remains: {shown}"))
            })?;
        }
        let resolver = self.machine().run("cat", &["/etc/resolv.conf"])?;
        ensure(resolver.contains("192.0.2.1") && !resolver.contains("10.88."), || {
            format!("the resolver is not restored: {resolver}")
        })
    }

    /// Returns what NetworkManager knows about the tunnel's addresses, routes and servers.
    fn shown(&self) -> Result<String> {
        self.nmcli(&["-t", "-f", "GENERAL.STATE,IP4,IP6", "connection", "show", "client"])
    }

    /// Ends NetworkManager and the tunnels that it has started.
    fn stop(mut self) -> Result<String> {
        self.manager.signal(Signal::SIGTERM)?;
        self.manager.wait_exit(SOON)?;
        self.server.stop()?;
        Ok(String::new())
    }
}

fn write_settings(etc: &Path) -> Result<()> {
    let connections = etc.join("NetworkManager/system-connections");
    fs::create_dir_all(&connections)?;
    fs::write(etc.join("NetworkManager/NetworkManager.conf"), SETTINGS)?;
    let lan = connections.join("lan.nmconnection");
    file::write(&lan, LAN, 0o600)
}

/// The lines of a server that pushes routes and name servers.
const PUSHES: &str = "push \"route 10.66.0.0 255.255.0.0\"\npush \"route-ipv6 fd99::/64\"\n\
     push \"dhcp-option DNS 10.88.0.1\"\npush \"dhcp-option DOMAIN corp.example\"";

/// Adds a check of user names and passwords to the server's file. `right` is a condition of the shell; `$1` is the file.
fn with_check(scenario: &Scenario<'_>, configs: &mut Configs, right: &str) -> Result<()> {
    configs.check_passwords(scenario.folder(), right)?;
    configs.client("auth-user-pass");
    Ok(())
}

/// The check of a password that is right.
fn right() -> String {
    format!("grep -qx '{PASSWORD}' \"$1\" && grep -qx ali \"$1\"")
}

/// A tunnel with a certificate and tls-crypt: addresses, routes, name servers and domains arrive in NetworkManager, the tunnel goes
/// down, and comes up again; then its end is noticed.
pub(in super::super) fn certificate(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    // A server that is gone ends the client, not only its session.
    configs.server = configs.server.replace("keepalive 2 20\n", "ping 2\nping-restart 20\n");
    configs.server(&format!("{PUSHES}\npush \"ping 2\"\npush \"ping-exit 6\""));
    let Some(desk) = Desk::start(scenario, "network-manager/certificate", &configs)? else {
        return Ok("SKIPPED".into());
    };
    desk.import(&configs.client, &["ipv4.never-default yes", "ipv6.never-default yes"])?;
    for _ in 0..2 {
        desk.up_and_ping(&[])?;
        let shown = desk.shown()?;
        for expected in [
            "GENERAL.STATE:activated",
            ":10.88.0.2/24",
            "dst = 10.66.0.0/16",
            ":10.88.0.1",
            ":corp.example",
            ":fd88::1000/64",
            "dst = fd99::/64",
        ] {
            ensure(shown.contains(expected), || {
                desk.explain(&format!("{expected} was expected:\n{shown}"))
            })?;
        }
        let resolver = desk.machine().run("cat", &["/etc/resolv.conf"])?;
        ensure(resolver.contains("nameserver 10.88.0.1"), || format!("not in use: {resolver}"))?;
        ensure(resolver.contains("corp.example"), || format!("no search domain: {resolver}"))?;
        desk.down()?;
    }
    // The server is killed, and the silence ends openvpn.
    desk.up_and_ping(&[])?;
    desk.server.signal(Signal::SIGKILL)?;
    until("NetworkManager notices the end", SETUP_LIMIT, || {
        let active = desk.nmcli(&["-t", "-f", "NAME", "connection", "show", "--active"])?;
        Ok(!active.lines().any(|name| name == "client"))
    })
    .map_err(|e| desk.explain(&e.to_string()))?;
    desk.check_gone()?;
    let Desk { mut manager, .. } = desk;
    manager.signal(Signal::SIGTERM)?;
    manager.wait_exit(SOON)?;
    Ok(String::new())
}

/// A certificate with a password: a wrong one fails, and the right one brings the tunnel up.
pub(in super::super) fn certificate_and_password(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_check(scenario, &mut configs, &right())?;
    let check = "network-manager/certificate-and-password";
    let Some(desk) = Desk::start(scenario, check, &configs)? else { return Ok("SKIPPED".into()) };
    desk.import(&configs.client, &["vpn.user-name ali", "+vpn.data username=ali"])?;
    let mut wrong = Daemon::spawn("nmcli", desk.up(&[("password", "open simsim")])?)?;
    until("the refusal", SETUP_LIMIT, || Ok(desk.log.text().contains("AUTH_FAILED")))
        .map_err(|e| desk.explain(&e.to_string()))?;
    // NetworkManager asks its agents for another one, or gives up.
    let ended = wrong.ended()?;
    ensure(ended.is_none_or(|status| !status.success()), || {
        desk.explain("a wrong password was taken")
    })?;
    drop(wrong);
    let _ = desk.nmcli(&["--wait", "30", "connection", "down", "client"]);
    desk.check_gone()?;
    desk.up_and_ping(&[("password", PASSWORD)])?;
    desk.down()?;
    desk.stop()
}

/// A password without a certificate.
pub(in super::super) fn password(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_check(scenario, &mut configs, &right())?;
    configs.server("verify-client-cert none\nusername-as-common-name");
    let own = |line: &&str| !line.starts_with("cert ") && !line.starts_with("key ");
    let lines: Vec<&str> = configs.client.lines().filter(own).collect();
    configs.client = lines.join("\n") + "\n";
    let check = "network-manager/password";
    let Some(desk) = Desk::start(scenario, check, &configs)? else { return Ok("SKIPPED".into()) };
    desk.import(&configs.client, &["vpn.user-name ali", "+vpn.data username=ali"])?;
    desk.up_and_ping(&[("password", PASSWORD)])?;
    desk.down()?;
    desk.stop()
}

/// A server at an IPv6 address, over TCP, and all traffic of both families in the tunnel.
pub(in super::super) fn ipv6(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = Configs::new(&scenario.env.pki, PkiTool::OpenSslEc, true);
    configs.wrap(&scenario.env.pki, Wrapping::TlsCrypt);
    configs.server = configs.server.replace("proto udp6", "proto tcp6-server");
    configs.client = configs.client.replace("proto udp6", "proto tcp6-client");
    configs.client = configs.client.replace("explicit-exit-notify 1\n", "");
    let check = "network-manager/ipv6";
    let Some(desk) = Desk::start(scenario, check, &configs)? else { return Ok("SKIPPED".into()) };
    desk.import(&configs.client, &[])?;
    desk.up_and_ping(&[])?;
    ensure(ping(desk.machine(), SERVER6, 56, 4)? == 4, || desk.explain("no IPv6"))?;
    for (family, to) in [("-4", "203.0.113.1"), ("-6", "2001:db8:9::1")] {
        let route = desk.machine().run("ip", &[family, "route", "get", to])?;
        ensure(route.contains("dev tun0"), || format!("not redirected: {route}"))?;
    }
    desk.down()?;
    desk.stop()
}
