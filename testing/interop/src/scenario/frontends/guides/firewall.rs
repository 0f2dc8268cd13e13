//! A server behind a firewall that drops its port.

use super::super::background::prepare;
use super::*;

const FIREWALL: &Steps = &[
    ("sudo adit doctor", Shows("drops incoming packets")),
    ("sudo adit reload", Shows("host")),
    ("sudo adit server client remotes", Shows("remote gate.example.net 1194")),
    ("adit connect --check laptop.ovpn", Elsewhere),
    ("sudo tcpdump -ni any udp port 1194", Watches("192.0.2.1.1194")),
];

/// A firewall of the machine that lets nothing in from outside but answers.
const DROPS: &str = "table inet host { chain incoming { type filter hook input priority 0; policy drop; \
     iifname { lo, adit0 } accept; ct state established,related accept; }; }";

/// The page firewall-nat.
pub(in super::super::super) fn firewall_and_nat(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/firewall-nat";
    let Some(root) = programs(name, scenario) else { return Ok("SKIPPED".into()) };
    check("firewall-nat.md", FIREWALL)?;
    let mut pair = Pair::new()?;
    let [at_server, at_client] = prepare(scenario, &mut pair, &root)?;
    settle(&pair.server, &at_server)?;
    settle(&pair.client, &at_client)?;
    let desk = |namespace| Desk { namespace, systemd: None, device: None };
    let (server, client) = (desk(&pair.server), desk(&pair.client));
    server.run("adit server init --host vpn.example.net")?;
    server.at_terminal("adit server client add laptop", "")?;
    let mut serving = server.start("adit server run")?;
    serving.wait_for("the server is up", SETUP_LIMIT)?;
    pair.server.run("nft", &[DROPS])?;
    let [doctor, reload, remotes, connect, tcpdump] = FIREWALL else { return Err("steps".into()) };

    server.follow(&[*doctor])?;
    let settings = at_server.join("adit/server.toml");
    let text = fs::read_to_string(&settings)?;
    ensure(text.contains("host = \"vpn.example.net\""), || text.clone())?;
    fs::write(&settings, text.replace("vpn.example.net", "gate.example.net"))?;
    server.follow(&[*reload, *remotes])?;
    // The lines replace those of the profile.
    let lines = server.run(&format!("{} 2>/dev/null", remotes.0))?;
    let profile = fs::read_to_string(server.take(&at_server, "laptop.ovpn")?)?;
    let former = |line: &&str| {
        ["proto ", "remote ", "server-poll-timeout "].iter().any(|of| line.starts_with(of))
    };
    let kept: Vec<&str> = profile.lines().filter(|line| !former(line)).collect();
    fs::write(at_client.join("laptop.ovpn"), format!("{lines}{}\n", kept.join("\n")))?;
    pair.client.run("mv", &["/etc/laptop.ovpn", "/root/laptop.ovpn"])?;

    // The packets arrive and get no reply.
    let mut checking = client.start(connect.0)?;
    server.follow(&[*tcpdump])?;
    let ended = checking.wait_exit(SETUP_LIMIT)?;
    let unanswered =
        checking.log().lines().any(|line| line.contains("FAIL") && line.contains("reply"));
    ensure(!ended.success() && unanswered, || checking.failure("another stage failed").0)?;
    // The doctor's own command.
    let report = server.run(doctor.0)?;
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    let command = "nft insert rule inet host incoming udp dport 1194 accept";
    ensure(report.contains(command), || report.clone())?;
    server.run(command)?;
    client.follow(&[(connect.0, Shows("ok    data"))])?;
    interrupt(&mut serving)?;
    Ok(String::new())
}
