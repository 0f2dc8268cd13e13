//! Devices with apps. openvpn takes the place of the app: it connects with the profile that curl fetches from the link, as the app does. The
//! app's own import is not tested.

use super::*;
use crate::case::READY;

const PHONE: &Steps = &[
    ("sudo adit server client add phone --qr", Fetched),
    ("sudo adit server client renew phone --qr", Fetched),
    (
        "sudo adit server client add phone --output phone.ovpn",
        After("adit server client delete phone", "phone.ovpn holds the profile"),
    ),
    ("sudo adit server client revoke phone", Elsewhere),
    ("sudo adit server client set phone --quota 5GB/month --rate 20Mbit", Shows("5")),
];

const COMPUTER: &Steps = &[
    (
        "sudo adit server client add notebook --output notebook.ovpn",
        Answers("notebook.ovpn holds the profile"),
    ),
    ("sudo adit server client add notebook2 --link", Fetched),
    ("sudo adit server user add ann --totp", Answers("ann is added")),
];

/// A server, and a device of which only the profile is known.
struct Service<'a> {
    server: Desk<'a>,
    device: &'a Namespace,
    hosts: std::path::PathBuf,
    serving: Daemon,
}

impl<'a> Service<'a> {
    fn start(server: Desk<'a>) -> Result<Self> {
        let (device, _) = server.device.context("no device")?;
        let hosts = server.hosts()?;
        server.run("adit server init --host vpn.example.net --network 10.87.31.0/24")?;
        let mut serving = server.start("adit server run")?;
        serving.wait_for("the server is up", SETUP_LIMIT)?;
        Ok(Self { server, device, hosts, serving })
    }

    /// Connects the device with a profile, and checks that the server shows it.
    fn connect(&self, profile: &Path, name: &str) -> Result<Daemon> {
        let mut command = on_device(self.device, &self.hosts, "openvpn");
        command.arg("--config").arg(profile);
        command.args(["--dev", "tun0", "--verb", "3", "--disable-dco"]);
        let mut app = Daemon::spawn("openvpn", command)?;
        app.wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", self.serving.failure("meanwhile")))?;
        let status = self.server.run("sudo adit status")?;
        ensure(status.contains(name), || format!("no {name}: {status}"))?;
        Ok(app)
    }
}

/// A machine for the server of a page.
fn machine(scenario: &Scenario<'_>, pair: &mut Pair, root: &Path) -> Result<std::path::PathBuf> {
    let etc = prepare_machine(scenario, &mut pair.server, "server", &Program::OpenVpn, root)?;
    settle(&pair.server, &etc)?;
    Ok(etc)
}

/// The page phone.
pub(in super::super::super) fn phone(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/phone";
    let Some(root) = programs(name, scenario) else { return Ok("SKIPPED".into()) };
    check("phone.md", PHONE)?;
    let mut pair = Pair::new()?;
    let etc = machine(scenario, &mut pair, &root)?;
    let fetched = scenario.folder().join("fetched.ovpn");
    let device = Some((&pair.client, fetched.as_path()));
    let desk = Desk { namespace: &pair.server, systemd: None, device };
    let mut service = Service::start(desk)?;
    let [add, renew, output, revoke, limit] = PHONE else { return Err("steps".into()) };

    for step in [add, renew] {
        desk.follow(&[*step])?;
        service.connect(&fetched, "phone")?.stop()?;
    }
    desk.follow(&[*output, *limit])?;
    let mut app = service.connect(&desk.take(&etc, "phone.ovpn")?, "phone")?;
    // The lost phone is disconnected at once.
    desk.follow(&[(revoke.0, Shows("phone is revoked permanently; its session ended"))])?;
    app.signal(Signal::SIGTERM)?;
    app.wait_exit(SETUP_LIMIT)?;
    interrupt(&mut service.serving)?;
    Ok(String::new())
}

/// The page windows-macos.
pub(in super::super::super) fn windows_and_macos(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/windows-macos";
    let Some(root) = programs(name, scenario) else { return Ok("SKIPPED".into()) };
    check("windows-macos.md", COMPUTER)?;
    let mut pair = Pair::new()?;
    let etc = machine(scenario, &mut pair, &root)?;
    let fetched = scenario.folder().join("fetched.ovpn");
    let device = Some((&pair.client, fetched.as_path()));
    let desk = Desk { namespace: &pair.server, systemd: None, device };
    let mut service = Service::start(desk)?;
    desk.follow(COMPUTER)?;
    service.connect(&desk.take(&etc, "notebook.ovpn")?, "notebook")?.stop()?;
    service.connect(&fetched, "notebook2")?.stop()?;
    let users = desk.run("adit server user list")?;
    ensure(users.contains("ann"), || users.clone())?;
    interrupt(&mut service.serving)?;
    Ok(String::new())
}
