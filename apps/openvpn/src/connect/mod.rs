//! `adit connect`: a client with readable log lines.

mod check;
mod ping;
mod profiles;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_linux::privileges::Capability;
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientConfig, ClientEvent, TunnelConfig};
use adit_openvpn::config::{self, ClientOptions, Files, Options, Role};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::client::{self, Client, Hooks, HostReport, Traffic};
use crate::config_files::Configs;
use crate::helper_duty::CONNECT;
use crate::openvpn::{self, TlsMaterial};
use crate::token_host::Tokens;
use adit_runtime::clock::unix_time;
use adit_runtime::control::CertificateReport;
use adit_runtime::driver::Dialled;
use adit_runtime::fault::Fault;
use adit_runtime::helper;
use adit_runtime::host::{Capture, CaptureMode, Device, DnsInUse, HostPlan};
use adit_runtime::instance::EndReason;
use adit_runtime::log;
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::netinfo::local_networks;
use adit_runtime::privileges::{self, PrivilegeOptions};
use adit_runtime::say;

pub use profiles::{Change, Profiles};

/// The directory of control sockets.
const RUN: &str = "/run/adit";

/// Options of `adit connect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectOptions {
    /// The profile, an OpenVPN client config file.
    pub profile: PathBuf,
    /// Try every stage, report the one that fails, and exit.
    pub check: bool,
    /// With `check`: try every stage, even if that ends another session of the same profile.
    pub full: bool,
    /// Print one JSON object instead of text (with `check`).
    pub json: bool,
    /// Do not touch routes.
    pub no_routes: bool,
    /// Keep private networks to which this machine is connected outside the tunnel.
    pub allow_lan: bool,
    /// Keep traffic from leaving outside the tunnel when the client ends.
    pub kill_switch: bool,
    /// Keep this machine's DNS servers, even if the server pushes others.
    pub keep_dns: bool,
    /// Name of the TUN device, overriding the profile's.
    pub device: Option<String>,
    /// The directory of the control socket, or `None` for `/run/adit`.
    pub dir: Option<PathBuf>,
    /// Where metrics are served.
    pub metrics: Option<MetricsConfig>,
    /// Print more log lines (repeatable).
    pub verbose: u8,
}

/// Connects, and runs until it is stopped or fails.
pub fn run(options: ConnectOptions) -> ExitCode {
    let result = if options.check { check::run(&options) } else { connect(&options) };
    result.unwrap_or_else(|fault| {
        eprint!("{}", log::fault_line(&fault.to_string(), std::io::stderr().is_terminal()));
        fault.exit_code()
    })
}

/// A profile with the contents of the files that it names.
struct Profile {
    options: Options,
    client: ClientOptions,
    engine: ClientConfig,
    certificate: Option<CertificateReport>,
}

/// Returns the profile's options, combined with those of the command line.
pub(crate) fn options(wanted: &ConnectOptions, files: &dyn Files) -> Result<Options, Fault> {
    let path = wanted.profile.to_string_lossy().into_owned();
    let mut options = config::parse(&["--config".into(), path], files).map_err(|error| {
        // The command line contains only the profile.
        if error.file == "command line" && error.directive == "config" {
            Fault::operator(format!("{}; {}", error.problem, error.remedy))
        } else {
            Fault::operator(error.to_string())
        }
    })?;
    if options.metrics.is_some() {
        return Err(Fault::operator(format!(
            "{}: metrics: a profile does not decide who sees its traffic: remove the line, and write adit connect --metrics",
            wanted.profile.display()
        )));
    }
    if let Some((directive, _)) = options.hooks.programs().next() {
        return Err(Fault::operator(format!(
            "{}: {directive}: adit connect runs no programs: remove the line, or use adit openvpn --config {0}",
            wanted.profile.display()
        )));
    }
    if let Some(plugin) = options.process.plugins.first() {
        return Err(Fault::operator(format!(
            "{}: plugin {}: adit connect loads no plugins: remove the line, or use adit openvpn --config {0}",
            wanted.profile.display(),
            plugin.file
        )));
    }
    let routes = &mut options.routes;
    if routes.delay.take().is_some() {
        let text = "route-delay has no effect with adit connect: routes are added once the server has answered";
        options.warnings.push(text.into());
    }
    routes.noexec |= wanted.no_routes;
    routes.apply_dns = Some(!wanted.keep_dns && routes.apply_dns != Some(false));
    routes.allow_lan |= wanted.allow_lan;
    routes.kill_switch |= wanted.kill_switch;
    routes.policy.get_or_insert(true);
    if routes.kill_switch && (routes.noexec || routes.policy == Some(false)) {
        return Err(Fault::operator(
            "kill-switch needs the routes that adit sets: leave out --no-routes, route-noexec and \
             policy-routing off",
        ));
    }
    if let Some(device) = &wanted.device {
        options.device.name = Some(device.clone());
    }
    Ok(options)
}

/// Reads a profile; each error is reported in a sentence with its remedy.
fn read(wanted: &ConnectOptions, files: &Configs) -> Result<Profile, Fault> {
    let options = options(wanted, files)?;
    let Role::Client(client) = options.role.clone() else {
        let path = wanted.profile.display();
        return Err(Fault::operator(format!(
            "{path} is no client's configuration: run it with `adit openvpn --config {path}`"
        )));
    };
    let mut tls = TlsMaterial::read(&options.tls)?;
    let tokens = Tokens::start(&options)?;
    tls.open_token(&options.tls, tokens.as_ref(), true, &mut openvpn::Terminal)?;
    let now = unix_time().0;
    tls.validity(now)?;
    let wrap = openvpn::wrap(&options)?;
    let credentials = openvpn::first_login(&client, &mut openvpn::Terminal)?;
    let order = openvpn::order(&client.dial)?;
    let engine =
        openvpn::client_config(&options, &client, wrap, tls.client()?, credentials, &order)?;
    let certificate = tls.nearest_expiry(now);
    Ok(Profile { options, client: *client, engine, certificate })
}

fn connect(wanted: &ConnectOptions) -> Result<ExitCode, Fault> {
    log::start(log::Settings::friendly(wanted.verbose))
        .map_err(|e| Fault::environment(format!("cannot log: {e}")))?;
    let files = Configs::default();
    let profile = read(wanted, &files)?;
    for warning in &profile.options.warnings {
        tracing::warn!("{warning}");
    }
    let dial =
        openvpn::dial_settings(&profile.options, &profile.client.dial, &mut openvpn::Terminal)?;
    let helper = helper::start(&CONNECT, wanted, &files.into_piped())?;
    adit_runtime::async_runtime()?.block_on(async {
        let client = Client::open(client::Options {
            engine: profile.engine.into(),
            dial,
            listen: None,
            early: None,
            device: openvpn::device(&profile.options),
            persist_tun: profile.options.device.persist,
            control: Some(control_socket(wanted)),
            metrics: wanted.metrics.clone(),
            allow_recursive: profile.options.routes.allow_recursive,
            allow_names: profile.client.allow_names,
            copies_tos: profile.options.socket.copies_tos,
            tick: Duration::from_secs(1),
            gate: None,
            commands: None,
            authorizer: Arc::new(openvpn::LoginSource::new(&profile.client)),
            scripts: None,
        })?;
        privileges::drop(
            &PrivilegeOptions::default(),
            helper.is_some(),
            &[Capability::CAP_NET_ADMIN],
        )?;
        let certificate = profile.certificate;
        let mut log_hooks = ConnectLog {
            options: &profile.options,
            certificate,
            up: false,
            unanswered: None,
            compared: false,
            dns: DnsInUse::default(),
        };
        log_hooks.expiry();
        let ended = client.run(&mut log_hooks).await?;
        conclude(ended, profile.client.auth_user_pass.is_some())
    })
}

pub(crate) fn control_socket(wanted: &ConnectOptions) -> PathBuf {
    let folder = wanted.dir.clone().unwrap_or_else(|| Path::new(RUN).to_owned());
    let stem = wanted.profile.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // The profile's name becomes a file name, so only plain characters are kept.
    let plain = |c: char| if c.is_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let stem: String = stem.chars().map(plain).take(64).collect();
    folder.join(format!("connect-{stem}.sock"))
}

fn conclude(ended: EndReason<Reason>, with_password: bool) -> Result<ExitCode, Fault> {
    match ended {
        EndReason::Signal(_)
        | EndReason::Restart
        | EndReason::Asked
        | EndReason::Stopped(Reason::EndRequested) => {
            say!(1, "disconnected");
            Ok(ExitCode::SUCCESS)
        }
        EndReason::Stopped(reason) => Err(explain(&reason, with_password)),
    }
}

/// Explains why a client ended, with a remedy.
fn explain(reason: &Reason, with_password: bool) -> Fault {
    match reason {
        Reason::EndRequested | Reason::Checked => Fault::ours("it was stopped by request"),
        Reason::AuthFailed(words) if words.is_empty() && with_password => Fault::peer(
            "the server refused this client (AUTH_FAILED): check user name and password, or find out whether the \
             certificate was revoked",
        ),
        Reason::AuthFailed(words) if words.is_empty() => Fault::peer(
            "the server refused this client (AUTH_FAILED): its certificate was revoked or replaced; ask \
             for a new profile",
        ),
        Reason::AuthFailed(words) => Fault::peer(format!(
            "the server refused this client (AUTH_FAILED): {}",
            log::clean(words)
        )),
        Reason::Halted(words) => {
            Fault::peer(format!("the server ended the session: {}", log::clean(words)))
        }
        Reason::RetriesExhausted => Fault::peer(
            "no server could be reached ('connect-retry-max'): try `adit connect --check PROFILE`",
        ),
        Reason::SessionTimeout => {
            Fault::peer("the session has reached its time limit (session-timeout)")
        }
        Reason::PingExit => {
            Fault::peer("the server is silent, and the configuration says to end then (ping-exit)")
        }
        Reason::Inactive => Fault::peer("too little traffic passed through the tunnel (inactive)"),
        Reason::TlsExit(reason) => Fault::peer(format!(
            "the handshake failed (tls-exit): {}",
            log::clean(&reason.to_string())
        )),
        other => Fault::peer(log::clean(&other.to_string())),
    }
}

/// The name servers that the machine uses while the tunnel is up.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Dns {
    /// The servers that the VPN server pushed, through the tunnel.
    Tunnel,
    /// The machine's own.
    Machine,
}

/// Returns a clause that describes which traffic the tunnel carries. "All traffic" means both families and DNS; the
/// name servers in use have a separate clause.
fn reach(capture: Capture, dns: Dns, lan: bool, routes: usize) -> String {
    use CaptureMode::{Blocked, ByRoutes, No, Tunnel};
    let routes = match routes {
        1 => "1 route".to_owned(),
        _ => format!("{routes} routes"),
    };
    let by_routes = [capture.ipv4, capture.ipv6].contains(&ByRoutes);
    let plainly = |captured| if captured == ByRoutes { Tunnel } else { captured };
    let mut clause = match (plainly(capture.ipv4), plainly(capture.ipv6)) {
        (No, No) => return routes,
        (No | Blocked, Blocked) => return format!("{routes}, IPv6 is blocked"),
        (Tunnel, No) => "IPv4 traffic goes through it, IPv6 does not".to_owned(),
        (No, Tunnel) => "IPv6 traffic goes through it, IPv4 does not".to_owned(),
        (Blocked, No) => return "IPv4 is blocked, IPv6 does not go through it".to_owned(),
        _ if dns == Dns::Tunnel && !lan && capture.is_full() => {
            "all traffic goes through it".to_owned()
        }
        (_, ByRoutes) | (ByRoutes, _) | (Tunnel, Tunnel) => {
            "IPv4 and IPv6 traffic goes through it".to_owned()
        }
        (Tunnel, Blocked) => "IPv4 traffic goes through it".to_owned(),
        (Blocked, Tunnel) => "IPv6 traffic goes through it".to_owned(),
    };
    if by_routes {
        clause.push_str(", but more specific routes lead around it");
    }
    match (capture.ipv4, capture.ipv6) {
        (No, _) | (_, No) => return clause,
        (_, Blocked) => clause.push_str(", IPv6 is blocked"),
        (Blocked, _) => clause.push_str(", IPv4 is blocked"),
        _ => {}
    }
    if lan {
        clause.push_str(", the local network stays outside");
    }
    clause
}

/// Returns the log line for a tunnel that is up.
fn connected(inside: &str, device: Option<&str>, cipher: &str, reach: &str, dns: &str) -> String {
    let device = device.unwrap_or("no device");
    format!("connected: {inside} on {device}, {cipher}, {reach}, DNS: {dns}")
}

/// Returns the tunnel's networks that overlap networks of this machine. Hosts in them are reachable through only one of
/// the two.
fn overlaps(tunnel: &TunnelConfig, local: &[IpNet]) -> Vec<String> {
    let own = [tunnel.ipv4.map(IpNet::V4), tunnel.ipv6.map(IpNet::V6)].into_iter().flatten();
    let routes4 = tunnel.routes4.iter().map(|route| IpNet::V4(route.net));
    let routes6 = tunnel.routes6.iter().map(|route| IpNet::V6(route.net));
    // Half of all addresses, or a single address, does not count as a network of this machine.
    let is_network =
        |net: &&IpNet| net.prefix_len() >= 8 && net.prefix_len() < net.max_prefix_len();
    let mut notes = Vec::new();
    for net in own.chain(routes4).chain(routes6).map(|net| net.trunc()) {
        let same = |other: &&IpNet| net.contains(*other) || other.contains(&net);
        if let Some(other) =
            local.iter().filter(is_network).find(same).filter(|_| is_network(&&net))
        {
            notes.push(format!(
                "the tunnel's network {net} overlaps {other}, which this machine is already in: hosts in both may be \
                 unreachable; the server or this network must use another range"
            ));
        }
    }
    notes
}

/// Logs the client's events, one per line.
struct ConnectLog<'a> {
    options: &'a Options,
    certificate: Option<CertificateReport>,
    up: bool,
    /// The server that has not answered yet, and the number of seconds since it was dialled.
    unanswered: Option<(String, u32)>,
    /// Whether the networks were compared with those of this machine, which later include the tunnel's own.
    compared: bool,
    /// The DNS servers in use.
    dns: DnsInUse,
}

/// The number of seconds after which a hint is logged; most answers arrive within one second.
const HINT_AFTER: u32 = 5;

impl ConnectLog<'_> {
    /// Warns about a certificate that expires soon, because it is easier to renew while it is valid.
    fn expiry(&self) {
        const SOON: i64 = 14;
        if let Some(report) = self.certificate.as_ref().filter(|report| report.days_left < SOON) {
            tracing::warn!(
                "the certificate ({}) ends on {}, in {} days: have it renewed",
                report.whose,
                log::stamp(report.not_after),
                report.days_left
            );
        }
    }
}

impl ConnectLog<'_> {
    /// Formats the DNS servers in use, with the reason if they are not the server's.
    fn shown_dns(&self, tunnel: &TunnelConfig) -> String {
        let offered = self.options.routes.dns.merged(&tunnel.dns).settings().is_some();
        match (&self.dns, offered) {
            (DnsInUse::Own(None), false) => format!("{} (the server offers none)", self.dns),
            (DnsInUse::Own(None), true) => format!("{} (--dns off)", self.dns),
            _ => self.dns.to_string(),
        }
    }
}

/// Returns what a server's message asks the user to do, if it belongs to a login outside the tunnel.
fn login_line(text: &str) -> Option<String> {
    let after_flags = |rest: &str| rest.split_once(':').map(|(_, text)| text.to_owned());
    let url = match text.strip_prefix("OPEN_URL:") {
        Some(url) => Some(url.to_owned()),
        None => text.strip_prefix("WEB_AUTH:").and_then(after_flags),
    };
    match url {
        Some(url) => Some(format!("log in in the browser: {url}")),
        None => text.strip_prefix("CR_TEXT:").and_then(after_flags),
    }
}

impl Hooks for ConnectLog<'_> {
    fn event(&mut self, event: &ClientEvent) {
        match event {
            ClientEvent::Connecting(server) => {
                self.unanswered = Some((server.clone(), 0));
                say!(1, "connecting to {server}");
            }
            ClientEvent::ServerAnswered(link, _) => {
                self.unanswered = None;
                say!(1, "{}: answered", link.remote());
            }
            ClientEvent::Unreachable(link, errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                say!(1, "{}: unreachable: {error}", link.remote());
            }
            ClientEvent::Authenticated { server, tls, .. } => {
                say!(1, "the server is {}; {tls}", server.common_name);
            }
            ClientEvent::Pushed(message) => say!(3, "pushed options: {message}"),
            ClientEvent::Up(_) => {}
            ClientEvent::Updated(_) => say!(1, "tunnel: options updated by the server"),
            ClientEvent::Reverified { tls, .. } => {
                say!(3, "server certificate: verified again: {tls}");
            }
            ClientEvent::Rekeyed { key_id, cipher } => {
                say!(2, "new data key {key_id}, {}", cipher.name());
            }
            ClientEvent::Restarting(reason) => {
                let lost = if self.up { "connection lost" } else { "connection failed" };
                self.unanswered = None;
                let reason = match reason {
                    Reason::AuthFailedForNow(words) => words.clone(),
                    other => other.to_string(),
                };
                tracing::warn!("{lost}: {reason}: retrying");
                self.up = false;
            }
            ClientEvent::Stopped(_)
            | ClientEvent::Echo(_)
            | ClientEvent::AuthPending(_)
            | ClientEvent::Token(_) => {}
            ClientEvent::ServerInfo(text) => {
                if let Some(line) = login_line(text) {
                    say!(1, "{line}");
                }
            }
            ClientEvent::Note(text) => say!(2, "{text}"),
            ClientEvent::Path(path) => say!(3, "{path}"),
            ClientEvent::Warning(text) => tracing::warn!("{text}"),
        }
    }

    fn dialled(&mut self, dialled: &Dialled) {
        say!(2, "from {} to {}", dialled.local, dialled.hop);
    }

    fn dial_failed(&mut self, reason: &str) {
        tracing::warn!("{reason}");
    }

    fn plan(&mut self, tunnel: &TunnelConfig) -> Result<(HostPlan, Vec<String>), Fault> {
        let (plan, mut notes) = openvpn::client_plan(self.options, tunnel)?;
        if !std::mem::replace(&mut self.compared, true) {
            notes.extend(overlaps(tunnel, &local_networks()));
        }
        Ok((plan, notes))
    }

    fn dns(&mut self, in_use: &DnsInUse, logged: bool) {
        if !logged && self.up && self.dns != *in_use {
            say!(1, "DNS: {in_use}");
        }
        self.dns = in_use.clone();
    }

    fn up(&mut self, tunnel: &TunnelConfig, report: &HostReport<'_>) {
        self.up = true;
        let v4 = tunnel.ipv4.map(|net| net.to_string());
        let v6 = tunnel.ipv6.map(|net| net.to_string());
        let inside: Vec<String> = [v4, v6].into_iter().flatten().collect();
        let routes = &self.options.routes;
        let reach = if routes.noexec {
            "no routes set".to_owned()
        } else {
            let count = tunnel.routes4.len() + tunnel.routes6.len();
            // Names that other servers resolve count as traffic too.
            let dns = if self.dns.covers_all() { Dns::Tunnel } else { Dns::Machine };
            reach(report.capture, dns, routes.allow_lan, count)
        };
        let cipher = tunnel.cipher.map_or("no cipher", |cipher| cipher.name());
        let (inside, dns) = (inside.join(" and "), self.shown_dns(tunnel));
        say!(1, "{}", connected(&inside, report.device, cipher, &reach, &dns));
    }

    fn tick(&mut self, traffic: &Traffic) -> client::Next {
        let _ = traffic;
        if let Some((server, seconds)) = &mut self.unanswered {
            *seconds = seconds.saturating_add(1);
            if *seconds == HINT_AFTER {
                tracing::warn!(
                    "{server}: no answer for {HINT_AFTER} s: check that the server runs, that a firewall \
                     lets this through, and that key and direction of tls-auth or tls-crypt are the \
                     server's, which does not answer another key; more: adit connect --check PROFILE"
                );
            }
        }
        client::Next::GoOn
    }

    fn certificate(&self) -> Option<CertificateReport> {
        self.certificate.clone()
    }
}

/// No device, because `--check` needs no privileges.
const NO_DEVICE: Device = Device::Null;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_outside_the_tunnel_is_said() {
        let url = "https://sso.example.net/go?login=a:b";
        for text in [
            format!("WEB_AUTH::{url}"),
            format!("WEB_AUTH:external:{url}"),
            format!("OPEN_URL:{url}"),
        ] {
            assert_eq!(login_line(&text), Some(format!("log in in the browser: {url}")), "{text}");
        }
        assert_eq!(login_line("CR_TEXT:E,R:Your code:").as_deref(), Some("Your code:"));
        for text in ["WEB_AUTH:", "CR_TEXT:x", "", "something else"] {
            assert_eq!(login_line(text), None, "{text}");
        }
    }

    #[test]
    fn all_traffic_is_said_only_of_both_families_and_dns() {
        let families =
            [CaptureMode::No, CaptureMode::Tunnel, CaptureMode::ByRoutes, CaptureMode::Blocked];
        for ipv4 in families {
            for ipv6 in families {
                for (dns, lan) in [(Dns::Machine, false), (Dns::Tunnel, true), (Dns::Tunnel, false)]
                {
                    let capture = Capture { ipv4, ipv6 };
                    let said = reach(capture, dns, lan, 0).contains("all traffic");
                    let is_so = capture.is_full()
                        && (ipv4 == CaptureMode::Tunnel || ipv6 == CaptureMode::Tunnel)
                        && (dns, lan) == (Dns::Tunnel, false);
                    assert_eq!(said, is_so, "{capture:?} {dns:?} {lan}");
                }
            }
        }
        let by_routes = Capture { ipv4: CaptureMode::ByRoutes, ipv6: CaptureMode::Blocked };
        assert_eq!(
            reach(by_routes, Dns::Tunnel, false, 0),
            "IPv4 traffic goes through it, but more specific routes lead around it, IPv6 is blocked"
        );
        let blocked = Capture { ipv4: CaptureMode::Tunnel, ipv6: CaptureMode::Blocked };
        assert_eq!(
            reach(blocked, Dns::Tunnel, false, 0),
            "all traffic goes through it, IPv6 is blocked"
        );
        let split = Capture { ipv4: CaptureMode::No, ipv6: CaptureMode::No };
        assert_eq!(reach(split, Dns::Machine, false, 1), "1 route");
        assert_eq!(reach(split, Dns::Machine, false, 2), "2 routes");
        assert_eq!(
            reach(blocked, Dns::Machine, true, 0),
            "IPv4 traffic goes through it, IPv6 is blocked, the local network stays outside"
        );
    }

    #[test]
    fn whose_name_servers_are_used_is_said_once() {
        for (captured, lan) in
            [(CaptureMode::No, false), (CaptureMode::Tunnel, false), (CaptureMode::Tunnel, true)]
        {
            let capture = Capture { ipv4: captured, ipv6: captured };
            for (dns, own) in
                [(Dns::Machine, "this machine's own (--dns off)"), (Dns::Tunnel, "10.8.0.1")]
            {
                let reach = reach(capture, dns, lan, 2);
                let line = connected("10.8.0.2/24", Some("tun0"), "AES-256-GCM", &reach, own);
                let told = line.matches("DNS").count() + line.matches("name server").count();
                assert_eq!(told, 1, "{line}");
                assert_eq!(line.matches("own").count(), own.matches("own").count(), "{line}");
            }
        }
    }

    /// A profile is often made by others, and a plugin is a program that runs as root.
    #[test]
    fn a_profile_cannot_load_a_plugin() {
        struct Profile;
        impl Files for Profile {
            fn read(&self, _: &Path) -> std::io::Result<Vec<u8>> {
                let text = "client\ndev tun\nremote h 1194\nca a\ncert b\nkey c\n\
                            remote-cert-tls server\nplugin x.so\n";
                Ok(text.into())
            }
        }
        let wanted = ConnectOptions { profile: "p.ovpn".into(), ..ConnectOptions::default() };
        let refused = options(&wanted, &Profile).unwrap_err().to_string();
        assert!(refused.contains("plugin x.so: adit connect loads no plugins"), "{refused}");
    }

    #[test]
    fn a_network_that_is_here_already_is_named_once() {
        let tunnel = TunnelConfig {
            ipv4: Some("192.168.1.9/24".parse().unwrap()),
            ipv6: Some("fd73::9/64".parse().unwrap()),
            ..TunnelConfig::default()
        };
        let local =
            |nets: &[&str]| -> Vec<IpNet> { nets.iter().map(|net| net.parse().unwrap()).collect() };
        let notes = overlaps(&tunnel, &local(&["192.168.1.0/24", "10.0.0.0/8"]));
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("192.168.1.0/24 overlaps 192.168.1.0/24"), "{notes:?}");
        // Another VPN's routes to everything, and single hosts, do not count.
        assert!(overlaps(&tunnel, &local(&["128.0.0.0/1", "192.168.1.1/32"])).is_empty());
    }

    #[test]
    fn a_refusal_speaks_of_passwords_only_where_there_are_any() {
        let refused = Reason::AuthFailed(String::new());
        assert!(explain(&refused, true).to_string().contains("user name and password"));
        let text = explain(&refused, false).to_string();
        assert!(text.contains("ask for a new profile") && !text.contains("password"), "{text}");
    }
}
