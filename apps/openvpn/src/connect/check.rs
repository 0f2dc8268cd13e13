//! `adit connect --check`: finds the stage that fails.

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::Instant;
use adit_linux::privileges::Capability;
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientAuth, ClientEvent, TunnelConfig};
use serde::Serialize;

use super::ping::{echo, who_has};
use super::{ConnectOptions, NO_DEVICE, explain, read};
use crate::client::{self, Client, Hooks, HostReport, Next, Traffic};
use crate::config_files::Configs;
use crate::openvpn;
use adit_runtime::authorize::CertificateOnly;
use adit_runtime::clock::now;
use adit_runtime::driver::{Dialled, ResolveRetry};
use adit_runtime::fault::Fault;
use adit_runtime::host::{self, HostPlan, Leftover};
use adit_runtime::instance::EndReason;
use adit_runtime::log;
use adit_runtime::privileges::{self, PrivilegeOptions};

/// The time until a server that does not answer counts as silent.
const ANSWER: Duration = Duration::from_secs(10);

/// The time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// How often the state is checked and an echo request is sent.
const TICK: Duration = Duration::from_millis(250);

/// The time limit for each size of echo request.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time limit for the tunnel's own MTU. Packets that the path does not carry whole are sent only after the search for the path's MTU,
/// which begins two seconds after the session.
const PATIENCE_FOR_MTU: Duration = Duration::from_secs(5);

/// Sizes of packets tried for the MTU stage, after the tunnel's own MTU.
const SIZES: [usize; 4] = [1400, 1300, 1200, 1000];

/// The first port that does not require root.
const FIRST_FREE_PORT: u16 = 1024;

/// The size of a packet that passes if any packet does.
const SMALL: usize = 64;

/// The stages, in order.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Stage {
    Profile,
    Dns,
    Reply,
    WrappingKey,
    Tls,
    Auth,
    Push,
    Data,
    Mtu,
}

impl Stage {
    const ALL: [Self; 9] = [
        Self::Profile,
        Self::Dns,
        Self::Reply,
        Self::WrappingKey,
        Self::Tls,
        Self::Auth,
        Self::Push,
        Self::Data,
        Self::Mtu,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Dns => "DNS",
            Self::Reply => "reply",
            Self::WrappingKey => "wrapping key",
            Self::Tls => "TLS",
            Self::Auth => "auth",
            Self::Push => "push",
            Self::Data => "data",
            Self::Mtu => "MTU",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    stage: Stage,
    ok: bool,
    detail: String,
}

#[derive(Serialize)]
struct Verdict<'a> {
    ok: bool,
    stages: &'a [Finding],
    /// Stages that were left out, so that another session of the same profile is not ended.
    not_tried: &'a [Stage],
}

/// Tries every stage and reports the one that fails. Needs no privileges, because there is no device.
///
/// A server allows one session per certificate, and ends the previous session at the key exchange after TLS. A check
/// therefore continues past TLS only with a server that supports checks, or with `--full`.
pub(super) fn run(wanted: &ConnectOptions) -> Result<ExitCode, Fault> {
    // Only the findings are printed; the log lines would repeat them.
    let mut settings = log::Settings::friendly(wanted.verbose);
    settings.verb = wanted.verbose;
    log::start(settings).map_err(|e| Fault::environment(format!("cannot log: {e}")))?;
    let mut checker = Checker::new(!wanted.json);
    let ended = match read(wanted, &Configs::default()) {
        Ok(mut profile) => {
            checker.pass(Stage::Profile, wanted.profile.display().to_string());
            profile.engine.check = !wanted.full;
            connect(profile, &mut checker)
        }
        Err(fault) => {
            checker.fail(Stage::Profile, fault.to_string());
            checker.print_json(wanted.json);
            return Ok(fault.exit_code());
        }
    };
    if let Err(fault) = ended
        && !checker.failed()
    {
        let stage = checker.next_stage();
        checker.fail(stage, fault.to_string());
    }
    checker.print_json(wanted.json);
    Ok(if checker.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Changes to an unprivileged user before the first packet. All files have been read by then.
fn drop_rights(profile: &super::Profile) -> Result<(), Fault> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    // DNS settings left behind by a killed client would mislead the check.
    host::clean_up_dns()
        .map_err(|e| Fault::environment(format!("cannot query interfaces: {e}")))?;
    let socket = &profile.options.socket;
    // A mark that the profile requests, or that bypasses a kill switch.
    let keeps_in = |left: &Leftover| matches!(left, Leftover::KillSwitch | Leftover::Unclaimed);
    let marked = socket.mark.is_some() || host::leftovers().iter().any(keeps_in);
    let (_, port) = openvpn::dialled_from(&profile.options)?;
    let low = (1..FIRST_FREE_PORT).contains(&port);
    let needed = [
        marked.then_some(Capability::CAP_NET_ADMIN),
        low.then_some(Capability::CAP_NET_BIND_SERVICE),
    ];
    let needed: Vec<Capability> = needed.into_iter().flatten().collect();
    privileges::drop(&PrivilegeOptions::default(), false, &needed).map(drop)
}

fn connect(profile: super::Profile, checker: &mut Checker) -> Result<(), Fault> {
    let mut dial =
        openvpn::dial_settings(&profile.options, &profile.client.dial, &mut openvpn::Terminal)?;
    drop_rights(&profile)?;
    dial.resolve_retry = ResolveRetry::Once;
    let mut engine = profile.engine;
    checker.ethernet = engine.settings.ethernet;
    checker.with_password = profile.client.auth_user_pass.is_some();
    engine.connect_retry = (Duration::from_secs(1), Duration::from_secs(1));
    engine.connect_retry_max = Some(1);
    engine.server_poll_timeout = engine.server_poll_timeout.min(ANSWER);
    dial.connect_timeout = engine.server_poll_timeout;
    engine.remotes.iter_mut().for_each(|remote| remote.target.wait = None);
    engine.settings.hand_window = engine.settings.hand_window.min(HANDSHAKE);
    engine.auth = ClientAuth::default();
    let options = client::Options {
        engine: engine.into(),
        listen: None,
        early: None,
        dial,
        device: NO_DEVICE,
        persist_tun: true,
        allow_recursive: true,
        allow_names: false,
        copies_tos: false,
        control: None,
        metrics: None,
        tick: TICK,
        gate: None,
        commands: None,
        authorizer: Arc::new(CertificateOnly),
        scripts: None,
    };
    adit_runtime::async_runtime()?.block_on(async {
        match Client::open(options)?.run(checker).await? {
            EndReason::Stopped(stop) => checker.stopped(&stop),
            EndReason::Signal(_) | EndReason::Restart => {
                let stage = checker.next_stage();
                checker.fail(stage, "interrupted".into());
            }
            EndReason::Asked => {}
        }
        Ok(())
    })
}

/// Follows a connection through its stages.
struct Checker {
    findings: Vec<Finding>,
    talk: bool,
    /// Whether the lines are for people and may be wrapped.
    terminal: bool,
    remote: String,
    /// Whether `remote` was dialled over TCP.
    stream: bool,
    /// `dev tap`: an echo request reaches a station only after its address has been resolved.
    ethernet: bool,
    probe: Option<Probe>,
    /// The reason of the last failed attempt, reported at the end.
    last_reason: String,
    not_tried: Vec<Stage>,
    /// Whether the profile has `auth-user-pass`.
    with_password: bool,
}

/// Echo requests in progress.
struct Probe {
    from: IpAddr,
    to: IpAddr,
    sizes: Vec<usize>,
    since: Instant,
    sequence: u16,
    /// The traffic received before the current size was tried.
    before: Traffic,
    mtu: usize,
}

impl Probe {
    fn new(from: IpAddr, to: IpAddr, sizes: Vec<usize>, mtu: usize) -> Self {
        Self { from, to, sizes, since: now(), sequence: 0, before: Traffic::default(), mtu }
    }
}

impl Checker {
    fn new(talk: bool) -> Self {
        Self {
            findings: Vec::new(),
            talk,
            terminal: std::io::stdout().is_terminal(),
            remote: String::new(),
            stream: false,
            ethernet: false,
            probe: None,
            last_reason: String::new(),
            not_tried: Vec::new(),
            with_password: false,
        }
    }

    fn failed(&self) -> bool {
        self.findings.iter().any(|finding| !finding.ok)
    }

    fn reached(&self, stage: Stage) -> bool {
        self.findings.iter().any(|finding| finding.stage == stage)
    }

    /// Returns the first stage without a finding.
    fn next_stage(&self) -> Stage {
        Stage::ALL.into_iter().find(|stage| !self.reached(*stage)).unwrap_or(Stage::Mtu)
    }

    fn pass(&mut self, stage: Stage, detail: String) {
        self.find(stage, true, detail);
    }

    fn fail(&mut self, stage: Stage, detail: String) {
        self.find(stage, false, detail);
    }

    fn find(&mut self, stage: Stage, ok: bool, detail: String) {
        if self.reached(stage) {
            return;
        }
        let detail = log::clean(&detail);
        if self.talk {
            let word = if ok { "ok  " } else { "FAIL" };
            let line = format!("{word}  {:<12}  ", stage.name());
            if self.terminal {
                print!("{}", log::wrapped(&line, &detail));
            } else {
                println!("{line}{detail}");
            }
        }
        self.findings.push(Finding { stage, ok, detail });
    }

    fn print_json(&self, wanted: bool) {
        if wanted {
            let not_tried = &self.not_tried;
            let verdict = Verdict { ok: !self.failed(), stages: &self.findings, not_tried };
            println!("{}", serde_json::to_string(&verdict).unwrap_or_default());
        }
    }

    /// Records and prints the stages that were left out because the options end the check here.
    fn left_out(&mut self) {
        let all = Stage::ALL.into_iter();
        self.not_tried = all.filter(|stage| !self.reached(*stage)).collect();
        if self.talk {
            let names: Vec<&str> = self.not_tried.iter().map(|stage| stage.name()).collect();
            println!(
                "--    not tried: {}\n      This server would end another session of this profile, on any device.\n      \
                 To try them anyway: adit connect --check --full PROFILE",
                names.join(", ")
            );
        }
    }

    fn stopped(&mut self, reason: &Reason) {
        if self.failed() {
            return;
        }
        if *reason == Reason::Checked {
            return self.left_out();
        }
        let (stage, detail) = match reason {
            Reason::AuthFailed(_) => (Stage::Auth, explain(reason, self.with_password).to_string()),
            Reason::EndRequested | Reason::Checked | Reason::RetriesExhausted => {
                (self.next_stage(), self.diagnosis())
            }
            _ => (self.next_stage(), explain(reason, self.with_password).to_string()),
        };
        self.fail(stage, detail);
    }

    /// Explains a failed attempt, depending on the stage.
    fn diagnosis(&self) -> String {
        let reason = &self.last_reason;
        match self.next_stage() {
            Stage::Reply => format!(
                "{} does not answer ({reason}): is the server running, is {} to this port let through, and is the \
                 wrapping key (tls-crypt, tls-auth) the server's? A server does not answer a wrong key",
                self.remote,
                if self.stream { "TCP" } else { "UDP" }
            ),
            _ => reason.clone(),
        }
    }

    /// Sends the next echo request, or evaluates the answers.
    fn probe(&mut self, traffic: &Traffic) -> Next {
        let Some(probe) = &mut self.probe else { return Next::GoOn };
        let Some(&size) = probe.sizes.first() else { return Next::End };
        // An answer is as long as its request. The server's pings and path MTU probes, which can be as long, do not
        // count as tunnel packets.
        let packets = traffic.tunnel_packets.saturating_sub(probe.before.tunnel_packets);
        let bytes = traffic.tunnel_bytes.saturating_sub(probe.before.tunnel_bytes);
        if packets > 0 && bytes >= size as u64 {
            let (to, mtu) = (probe.to, probe.mtu);
            probe.sizes.remove(0);
            probe.since = now();
            probe.before = *traffic;
            if size == SMALL {
                self.pass(Stage::Data, format!("{to} answers through the tunnel"));
                return Next::GoOn;
            }
            self.mtu_found(size, mtu);
            return Next::End;
        }
        let patience = if size == probe.mtu { PATIENCE_FOR_MTU } else { PATIENCE };
        if now().since(probe.since) >= patience {
            if size == SMALL {
                let to = probe.to;
                self.fail(
                    Stage::Data,
                    format!(
                        "{to} does not answer an echo request through the tunnel: its firewall may \
                         forbid ping, or data packets are lost on the way"
                    ),
                );
                return Next::End;
            }
            probe.sizes.remove(0);
            probe.since = now();
            probe.before = *traffic;
            if probe.sizes.is_empty() {
                self.fail(
                    Stage::Mtu,
                    format!("not even packets of {size} bytes pass: {}", smaller(1200)),
                );
                return Next::End;
            }
            return Next::GoOn;
        }
        probe.sequence = probe.sequence.wrapping_add(1);
        let request = if self.ethernet {
            who_has(probe.from, probe.to)
        } else {
            echo(probe.from, probe.to, probe.sequence, size)
        };
        match request {
            Some(packet) => Next::Send(packet),
            None => Next::End,
        }
    }

    fn mtu_found(&mut self, size: usize, mtu: usize) {
        if size >= mtu {
            self.pass(Stage::Mtu, format!("packets of {size} bytes pass"));
        } else {
            self.fail(
                Stage::Mtu,
                format!(
                    "packets of {size} bytes pass, but not the tunnel's {mtu}: fragments are lost on \
                     the way; {}",
                    smaller(size)
                ),
            );
        }
    }
}

/// Returns the advice on where to set the tunnel's MTU.
fn smaller(mtu: usize) -> String {
    format!(
        "write 'mtu = {mtu}' into server.toml of adit's server, or 'tun-mtu {mtu}' into both \
         configurations of openvpn"
    )
}

impl Hooks for Checker {
    fn event(&mut self, event: &ClientEvent) {
        match event {
            ClientEvent::ServerAnswered(link, _) => {
                self.pass(Stage::Reply, format!("{} answers", link.remote()));
                self.pass(Stage::WrappingKey, "the server's".into());
            }
            ClientEvent::Authenticated { server, tls, .. } => {
                self.pass(Stage::Tls, format!("{}; {tls}", server.subject));
            }
            ClientEvent::Pushed(_) | ClientEvent::Up(_) => {
                self.pass(Stage::Auth, "the server accepts this client".into());
            }
            ClientEvent::Restarting(reason) => self.last_reason = reason.to_string(),
            _ => {}
        }
    }

    fn dialling(&mut self, remote: SocketAddr) {
        self.remote = remote.to_string();
        self.stream = true;
        self.pass(Stage::Dns, format!("{remote} (TCP)"));
    }

    fn dialled(&mut self, dialled: &Dialled) {
        self.stream = dialled.link.is_stream();
        self.remote = dialled.hop.to_string();
        self.pass(Stage::Dns, self.remote.clone());
    }

    fn dial_failed(&mut self, reason: &str) {
        self.last_reason = reason.to_owned();
    }

    fn plan(&mut self, _tunnel: &TunnelConfig) -> Result<(HostPlan, Vec<String>), Fault> {
        Ok((HostPlan { device: NO_DEVICE, ..HostPlan::default() }, Vec::new()))
    }

    fn up(&mut self, tunnel: &TunnelConfig, _report: &HostReport<'_>) {
        let pair4 = tunnel.ipv4.map(|net| {
            let far = tunnel.gateway4.or_else(|| net.hosts().next()).unwrap_or(net.addr());
            (IpAddr::V4(net.addr()), IpAddr::V4(far))
        });
        let pair6 = tunnel.ipv6.map(|net| {
            let far = tunnel.gateway6.or_else(|| net.hosts().nth(1)).unwrap_or(net.addr());
            (IpAddr::V6(net.addr()), IpAddr::V6(far))
        });
        let Some((from, to)) = pair4.or(pair6) else {
            if self.ethernet {
                let told = "no address: DHCP or the operator of the device provides it";
                self.pass(Stage::Push, told.into());
                let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                self.probe = Some(Probe::new(nobody, nobody, Vec::new(), 0));
                return;
            }
            self.fail(Stage::Push, "the server gave this client no address".into());
            return;
        };
        let cipher = tunnel.cipher.map_or("no cipher", |cipher| cipher.name());
        self.pass(Stage::Push, format!("address {from}, {cipher}"));
        let mtu = usize::from(tunnel.mtu.unwrap_or(1500));
        let mut sizes = vec![SMALL, mtu];
        sizes.extend(SIZES.into_iter().filter(|size| *size < mtu));
        if self.ethernet {
            // The answers to ARP requests all have the same size.
            sizes.truncate(1);
        }
        self.probe = Some(Probe::new(from, to, sizes, mtu));
    }

    fn tick(&mut self, traffic: &Traffic) -> Next {
        if self.failed() { Next::End } else { self.probe(traffic) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_engine::command::Counters;

    use adit_runtime::host::{ApplyOutcome, Capture};

    fn report() -> HostReport<'static> {
        HostReport { device: None, applied: &ApplyOutcome::Same, capture: Capture::default() }
    }

    fn traffic(rx_bytes: u64) -> Traffic {
        // One packet per byte, because only the increase of each counter matters.
        Traffic { tunnel_packets: rx_bytes, tunnel_bytes: rx_bytes, ..Traffic::default() }
    }

    fn up(checker: &mut Checker) {
        let tunnel = TunnelConfig {
            ipv4: Some("10.8.0.2/24".parse().unwrap()),
            gateway4: Some("10.8.0.1".parse().unwrap()),
            mtu: Some(1500),
            ..TunnelConfig::default()
        };
        checker.up(&tunnel, &report());
    }

    #[test]
    fn silence_before_the_first_answer_is_the_reply_stage() {
        let mut checker = Checker::new(false);
        checker.pass(Stage::Profile, String::new());
        checker.pass(Stage::Dns, String::new());
        checker.event(&ClientEvent::Restarting(Reason::NoAnswer));
        checker.stopped(&Reason::RetriesExhausted);
        let last = checker.findings.last().unwrap();
        assert_eq!((last.stage, last.ok), (Stage::Reply, false));
        assert!(last.detail.contains("wrapping key"), "{}", last.detail);
    }

    #[test]
    fn a_refusal_is_the_auth_stage_whatever_came_before() {
        let mut checker = Checker::new(false);
        checker.stopped(&Reason::AuthFailed(String::new()));
        assert_eq!(checker.findings.last().unwrap().stage, Stage::Auth);
    }

    #[test]
    fn behind_a_tap_device_stations_are_asked_for_and_one_answer_is_enough() {
        let mut checker = Checker { ethernet: true, ..Checker::new(false) };
        up(&mut checker);
        let Next::Send(frame) = checker.tick(&traffic(0)) else { panic!("nothing asked") };
        assert_eq!(frame[12..14], [8, 6]);
        assert!(matches!(checker.tick(&traffic(40)), Next::Send(_)), "a keepalive");
        assert!(matches!(checker.tick(&traffic(66)), Next::GoOn));
        assert_eq!(checker.findings.last().unwrap().stage, Stage::Data);
        assert!(matches!(checker.tick(&traffic(66)), Next::End));
        // A server that leaves addresses to DHCP assigns none, which is not a failure.
        let mut checker = Checker { ethernet: true, ..Checker::new(false) };
        checker.up(&TunnelConfig::default(), &report());
        assert!(matches!(checker.tick(&traffic(0)), Next::End) && !checker.failed());
    }

    #[test]
    fn answers_of_both_sizes_pass_data_and_mtu() {
        let mut checker = Checker::new(false);
        up(&mut checker);
        assert!(matches!(checker.tick(&traffic(0)), Next::Send(packet) if packet.len() == SMALL));
        // A keepalive is not an answer.
        assert!(matches!(checker.tick(&traffic(40)), Next::Send(_)));
        assert_eq!(checker.tick(&traffic(140)), Next::GoOn);
        assert!(matches!(checker.tick(&traffic(140)), Next::Send(packet) if packet.len() == 1500));
        assert_eq!(checker.tick(&traffic(1700)), Next::End);
        let names: Vec<_> = checker.findings.iter().map(|f| (f.stage, f.ok)).collect();
        assert_eq!(names, [(Stage::Push, true), (Stage::Data, true), (Stage::Mtu, true)]);
    }

    #[test]
    fn probes_of_the_servers_own_are_no_answer() {
        let mut checker = Checker::new(false);
        up(&mut checker);
        let answered = traffic(100);
        assert_eq!(checker.tick(&answered), Next::GoOn);
        // Ten of the server's probes of 1472 bytes, 24 bytes of which are encryption overhead.
        let data = Counters { rx_packets: 10, rx_bytes: 10 * 1472, ..Counters::default() };
        let probed = Traffic { data, tunnel_bytes: answered.tunnel_bytes + 10 * 24, ..answered };
        assert!(matches!(checker.tick(&probed), Next::Send(packet) if packet.len() == 1500));
        assert_eq!(checker.tick(&traffic(100 + 10 * 24 + 1524)), Next::End);
        assert!(!checker.failed() && checker.reached(Stage::Mtu));
    }

    #[test]
    fn the_tunnels_own_size_is_tried_until_the_path_is_known() {
        let mut checker = Checker::new(false);
        up(&mut checker);
        assert_eq!(checker.tick(&traffic(100)), Next::GoOn);
        let mut tried_for = |time: Duration| {
            let since = now().as_nanos().saturating_sub(u64::try_from(time.as_nanos()).unwrap());
            checker.probe.as_mut().unwrap().since = Instant::from_nanos(since);
            checker.tick(&traffic(100))
        };
        let after_the_search = Duration::from_secs(4);
        assert!(matches!(tried_for(after_the_search), Next::Send(packet) if packet.len() == 1500));
        assert_eq!(tried_for(PATIENCE_FOR_MTU), Next::GoOn);
        assert!(matches!(tried_for(PATIENCE / 2), Next::Send(packet) if packet.len() == 1400));
        assert_eq!(tried_for(PATIENCE), Next::GoOn);
    }

    #[test]
    fn a_tunnel_that_is_too_large_is_told_with_the_setting_of_each_server() {
        let mut checker = Checker::new(false);
        up(&mut checker);
        checker.mtu_found(1300, 1500);
        let finding = checker.findings.last().unwrap();
        assert_eq!((finding.stage, finding.ok), (Stage::Mtu, false));
        for setting in ["'mtu = 1300' into server.toml", "'tun-mtu 1300' into both"] {
            assert!(finding.detail.contains(setting), "{}", finding.detail);
        }
    }
}
