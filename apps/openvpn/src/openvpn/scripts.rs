//! The programs that run when the tunnel comes up, changes or goes down.

mod script;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use adit_engine::CertificateFacts;
use adit_openvpn::client::TunnelConfig;
use adit_openvpn::config::{self, DeviceKind, Options, Role, ServerOptions};
use adit_openvpn::server::Topology;
use nix::unistd::AccessFlags;
use zeroize::Zeroizing;

pub(crate) use script::{Context, Script};

use super::environment::{self, Environment, Gateways, UpArguments};
use super::{convert, management, p2p};
use crate::plugin_host::{self, Outcome, Plugins};
use adit_runtime::fault::Fault;
use adit_runtime::host::HostPlan;
use adit_runtime::programs::{
    self, Call, ExitStatus, Finished, Program, Running, ScratchFile, Setup,
};
use adit_runtime::signals::Signals;
use adit_runtime::{netinfo, say};

/// The lowest `script-security` with which the configuration's programs run.
pub(super) const RUNS_PROGRAMS: u8 = 2;

/// The directory for files that are exchanged with programs, if `tmp-dir` names no other.
const TEMPORARY: &str = "/tmp";

/// The mode of files that every user may write.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Returns the settings of the runner of programs; `None` if it has nothing to run.
pub(crate) fn setup(options: &Options) -> Option<Setup> {
    let programs = options.hooks.programs().map(|(_, program)| runnable(program)).collect();
    let setup = Setup {
        programs,
        privileged: options.hooks.dns_updown.iter().map(runnable).collect(),
        variables: environment::permitted(options),
        directory: options.process.directory.as_deref().and_then(|d| std::path::absolute(d).ok()),
        temporary: temporary(options),
        export: options.hooks.export_cert.clone(),
        user: options.process.user.clone(),
        group: options.process.group.clone(),
        root: options.process.chroot.as_deref().and_then(|root| std::path::absolute(root).ok()),
    };
    (!setup.programs.is_empty() && options.script_security >= RUNS_PROGRAMS).then_some(setup)
}

/// Returns the directory for files that are exchanged with programs and plugins.
pub(super) fn temporary(options: &Options) -> PathBuf {
    options.hooks.temporary.clone().unwrap_or_else(|| TEMPORARY.into())
}

/// Starts the runner of programs, or passes a configuration that was read again to it.
///
/// # Errors
/// See [`programs::start`].
pub(super) fn start(options: &Options) -> Result<(), Fault> {
    programs::start(&setup(options).unwrap_or_default())
}

/// Checks at the start that each program can be executed, as openvpn does, while there may be a terminal for the error.
/// Returns warnings about programs that any user may replace.
///
/// # Errors
/// A program does not exist, or may not be executed.
pub(super) fn check(options: &Options) -> Result<Vec<String>, Fault> {
    let mut warnings = Vec::new();
    for (directive, program) in options.hooks.programs() {
        let path = path_at_start(options, directive, &program.path);
        nix::unistd::access(&path, AccessFlags::X_OK).map_err(|e| {
            Fault::operator(format!(
                "Options error: --{directive} script fails with '{}': {} (errno={})\nPlease correct this error.",
                program.path,
                e.desc(),
                e as i32
            ))
        })?;
        if fs::metadata(&path).is_ok_and(|file| file.mode() & WRITABLE_BY_ALL != 0) {
            let path = path.display();
            warnings.push(format!(
                "WARNING: --{directive}: every user may change '{path}', and thereby what this process runs: chmod o-w {path}"
            ));
        }
    }
    Ok(warnings)
}

/// Returns where a program is before the root directory changes. As in openvpn, only `up`, `route-up` and `dns-updown` run
/// outside of it.
fn path_at_start(options: &Options, directive: &str, path: &str) -> PathBuf {
    match (&options.process.chroot, &options.process.directory) {
        (Some(root), _) if !matches!(directive, "up" | "route-up" | "dns-updown") => {
            root.join(path.trim_start_matches('/'))
        }
        (_, Some(directory)) => directory.join(path),
        (_, None) => path.into(),
    }
}

/// Returns a program in the form that the runner knows.
pub(crate) fn runnable(program: &config::Program) -> Program {
    Program { path: program.path.clone(), args: program.args.clone() }
}

/// The end of a program if `script-security` does not allow programs.
pub(crate) fn forbidden() -> ExitStatus {
    ExitStatus::NotStarted(
        "external program may not be called unless '--script-security 2' or higher is enabled"
            .into(),
    )
}

/// Returns the variables of a server whose device is open, for all that runs for its clients.
pub(super) fn server_environment(
    options: &Options,
    device: Option<&str>,
    server: &ServerOptions,
) -> Environment {
    let mut scripts = Scripts::of(options, None);
    scripts.server(device, server);
    scripts.environment.device(&scripts.arguments, Context::Init.name());
    let kind = if options.device.kind == DeviceKind::Tap { "tap" } else { "tun" };
    let Scripts { mut environment, redirected, .. } = scripts;
    environment.set("dev_type", kind);
    if let Some(redirected) = redirected {
        environment.set("redirect_gateway", u8::from(redirected));
    }
    // Here openvpn sets the gateways together with routes only.
    if !environment.pairs().iter().any(|(name, _)| name == "route_network_1") {
        environment.unset("route_vpn_gateway");
        environment.unset("route_net_gateway");
    }
    environment.inherit();
    environment
}

/// The programs, with the variables and arguments that they get.
#[derive(Clone, Debug)]
pub(crate) struct Scripts {
    /// The configuration, as if addresses and routes were not left to other programs.
    options: Options,
    /// The variables that follow from the configuration.
    configured: Environment,
    environment: Environment,
    arguments: UpArguments,
    remote: Option<SocketAddr>,
    /// Whether all traffic goes through the tunnel; `None` if routes are left to programs.
    redirected: Option<bool>,
    /// `route-noexec`.
    leaves_routes: bool,
    /// The plugins, which are called before the programs.
    plugins: Option<Plugins>,
    /// The DNS settings for `dns-updown`.
    dns: Environment,
    /// Whether `dns-updown` has applied settings.
    dns_applied: bool,
    /// The management client that hears of `up` and `down` (`management-up-down`).
    management: Option<management::Handle>,
}

impl Scripts {
    /// Returns `None` if no program and no plugin is configured, and the management client wants to hear nothing.
    pub(crate) fn new(
        options: &Options,
        plugins: Option<Plugins>,
        management: Option<management::Handle>,
    ) -> Option<Self> {
        let hears = options.management.as_ref().is_some_and(|settings| settings.up_down);
        let management = management.filter(|_| hears);
        if plugins.is_none() && management.is_none() {
            options.hooks.programs().next()?;
        }
        Some(Self { management, ..Self::of(options, plugins) })
    }

    /// Does the same for a client or a point-to-point end, whose changes of state also have steps if routes are delayed.
    pub(crate) fn of_client(
        options: &Options,
        plugins: Option<Plugins>,
        management: Option<management::Handle>,
    ) -> Option<Self> {
        let without_programs = options.routes.delay.map(|_| Self::of(options, None));
        Self::new(options, plugins, management).or(without_programs)
    }

    fn of(options: &Options, plugins: Option<Plugins>) -> Self {
        let mut all = options.clone();
        all.device.ifconfig_noexec = false;
        all.routes.noexec = false;
        let mut configured = Environment::new(options);
        configured.inherit();
        Self {
            environment: configured.clone(),
            configured,
            options: all,
            arguments: UpArguments::default(),
            remote: None,
            redirected: None,
            leaves_routes: options.routes.noexec,
            plugins,
            dns: Environment::default(),
            dns_applied: false,
            management: None,
        }
    }

    /// Lets the following programs and calls of plugins run as the configured user.
    ///
    /// # Errors
    /// The user cannot be changed. The process must not continue.
    pub(crate) async fn drop_privileges(&self) -> Result<(), Fault> {
        programs::drop_privileges().await?;
        match &self.plugins {
            Some(plugins) => plugins.become_user(self.environment.pairs()).await,
            None => Ok(()),
        }
    }

    /// Forgets the variables of a session that has ended.
    pub(crate) fn forget(&mut self) {
        self.environment.clone_from(&self.configured);
    }

    /// Returns whether `dns-updown` gets other settings with this tunnel.
    pub(crate) fn changes_dns(&self, tunnel: &TunnelConfig) -> bool {
        let dns = self.options.routes.dns.merged(&tunnel.dns);
        self.options.hooks.dns_updown.is_some() && self.dns != Environment::of_dns(&dns)
    }

    /// Returns how long routes wait once the other end is connected; `None` if configured routes do not wait for it.
    pub(crate) fn route_delay(&self) -> Option<Duration> {
        self.options.routes.delay
    }

    /// Returns whether `down` runs before the device is closed.
    pub(crate) fn down_pre(&self) -> bool {
        self.options.hooks.down_pre
    }

    /// Returns whether `up` and `down` run at a restart that keeps the device.
    pub(crate) fn up_restart(&self) -> bool {
        self.options.hooks.up_restart
    }

    /// Returns the variables.
    pub(crate) fn environment(&mut self) -> &mut Environment {
        &mut self.environment
    }

    /// Takes over the verified certificates of the other end.
    pub(crate) fn certified(&mut self, certificates: &[CertificateFacts]) {
        self.environment.certificates(certificates, &self.options.hooks.tracked);
    }

    /// Takes over the address of the other end, which is authenticated now.
    pub(crate) fn authenticated(&mut self, remote: SocketAddr) {
        self.environment.trusted(remote);
        self.remote = Some(remote);
    }

    /// Takes over the state of the tunnel before `up` runs. As with openvpn, programs learn nothing about routes if the
    /// device was `kept`.
    pub(crate) fn tunnel(&mut self, device: Option<&str>, tunnel: &TunnelConfig, kept: bool) {
        let (plan, far6) = match &self.options.role {
            Role::Peer(peer) => {
                let far6 = peer.tunnel_addrs.ipv6.and_then(|(_, far)| far);
                (p2p::plan(&self.options, &peer.tunnel_addrs, tunnel.remote), far6)
            }
            _ => (convert::client_plan(&self.options, tunnel), None),
        };
        // The plan that is applied is made from the same parts, and its faults are reported.
        let Ok((plan, _)) = plan else { return };
        let routes = &self.options.routes;
        let gateways = Gateways {
            vpn4: tunnel.gateway4.or(routes.gateway4).or(plan.far4),
            vpn6: tunnel.gateway6.or(routes.gateway6).or(far6),
            net4: None,
        };
        let dns = routes.dns.merged(&tunnel.dns);
        if self.options.hooks.dns_updown.is_some() {
            // Other programs need not know what this one does.
            self.dns = Environment::of_dns(&dns);
            self.environment.foreign_options(&dns);
        } else {
            self.environment.dns(&dns);
        }
        for (name, value) in &tunnel.environment {
            self.environment.set(name, value);
        }
        self.device(device, &plan, gateways, kept);
    }

    /// Takes over the state of a server's device.
    pub(crate) fn server(&mut self, device: Option<&str>, server: &ServerOptions) {
        let Ok((plan, _)) = convert::server_plan(&self.options, server) else { return };
        let routes = &self.options.routes;
        // With `topology subnet`, the next address represents all clients.
        let subnet = server.network4.as_ref().filter(|net| net.topology == Topology::Subnet);
        let next4 = subnet.map(|net| next4(net.server.addr()));
        let next6 = server.network6.as_ref().map(|net| next6(net.server.addr()));
        let gateways = Gateways {
            vpn4: routes.gateway4.or(plan.far4).or(next4),
            vpn6: routes.gateway6.or(next6),
            net4: None,
        };
        self.device(device, &plan, gateways, false);
    }

    fn device(&mut self, device: Option<&str>, plan: &HostPlan, gateways: Gateways, kept: bool) {
        let name = device.unwrap_or("null");
        self.arguments = self.environment.addresses(name, plan, gateways.vpn6);
        self.redirected = (!self.leaves_routes).then_some(plan.redirect.is_some());
        if !kept {
            let net4 = netinfo::default_gateway(name);
            self.environment.routes(plan, &Gateways { net4, ..gateways });
            let remote = plan.remote.map(|remote| remote.ip().to_canonical());
            if let Some(IpAddr::V6(remote)) = remote
                && let Some(gateway) = netinfo::gateway_to(remote, name)
            {
                self.environment.set("net_gateway_ipv6", gateway);
            }
        }
    }

    /// Returns whether the other end gets a notice of the end.
    pub(crate) fn notifies(&self) -> bool {
        self.options.session.exit_notify.is_some()
    }

    /// Returns whether a restart keeps the device.
    pub(crate) fn keeps_device(&self) -> bool {
        self.options.device.persist
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// The process cannot continue without the program.
    pub(crate) async fn run(&mut self, script: Script) -> Result<(), Fault> {
        match self.start(script) {
            Some(running) => script.judge(&running.await),
            None => Ok(()),
        }
    }

    /// Runs a program at the end of the process. A signal kills it.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub(crate) async fn run_last(
        &mut self,
        script: Script,
        signals: &mut Signals,
    ) -> Result<(), Fault> {
        let Some(mut running) = self.start(script) else { return Ok(()) };
        loop {
            tokio::select! {
                finished = &mut running => return script.judge(&finished),
                _ = signals.next() => running.kill(),
            }
        }
    }

    /// Sets the variables that openvpn sets whether or not a program is configured.
    fn prepare(&mut self, script: Script) {
        match script {
            Script::Up(context) => {
                let kind = if self.options.device.kind == DeviceKind::Tap { "tap" } else { "tun" };
                self.environment.device(&self.arguments, context.name());
                self.environment.set("dev_type", kind);
            }
            Script::Down(context) => self.environment.device(&self.arguments, context.name()),
            Script::RoutePreDown => {
                self.environment.device(&self.arguments, Context::Init.name());
            }
            Script::RouteUp => {
                if let Some(redirected) = self.redirected {
                    self.environment.set("redirect_gateway", u8::from(redirected));
                }
            }
            Script::IpChange | Script::DnsUp | Script::DnsDown => {}
        }
    }

    /// Tells the management client that the tunnel is up or goes down. Nothing waits for it, as in openvpn.
    fn report(&self, event: &str) {
        if let Some(management) = &self.management {
            let mut variables = self.environment.newest_first();
            // This one is for `down` only.
            variables.retain(|(name, _)| name != "signal");
            management.tell("UPDOWN", event, &variables);
        }
    }

    /// Starts a program, after plugins have accepted; `None` if neither is configured.
    pub(crate) fn start(&mut self, script: Script) -> Option<Running> {
        if let Script::Down(_) = script {
            self.report("DOWN");
        }
        self.prepare(script);
        if let Script::RouteUp = script {
            // As in openvpn, when there are routes as well.
            self.report("UP");
        }
        let hooks = &self.options.hooks;
        let (program, args) = match script {
            Script::IpChange => {
                let remote = self.remote?;
                let family = if remote.is_ipv4() { "AF_INET" } else { "AF_INET6" };
                let address = format!("[{family}]{}", remote.ip());
                (&hooks.ip_change, vec![address, remote.port().to_string()])
            }
            Script::Up(context) => (&hooks.up, self.arguments.words(context.name())),
            Script::Down(context) => (&hooks.down, self.arguments.words(context.name())),
            Script::RouteUp => (&hooks.route_up, Vec::new()),
            Script::RoutePreDown => {
                (&hooks.route_pre_down, self.arguments.words(Context::Init.name()))
            }
            Script::DnsUp | Script::DnsDown => (&hooks.dns_updown, Vec::new()),
        };
        let program = program.clone();
        let Some(kind) = script.plugin_call() else { return self.start_dns(script, &program?) };
        let plugins = self.plugins.clone().filter(|plugins| plugins.wants(kind));
        // Plugins get the address in another form than programs, as in openvpn.
        let words = match (script, self.remote) {
            (Script::IpChange, Some(remote)) => vec![plugin_host::address_argument(remote)],
            _ => args.clone(),
        };
        let call = plugin_host::Call::new(kind, words, self.environment.pairs());
        let program = program.map(|program| self.program(script, &program, args));
        let Some(plugins) = plugins else { return program.map(run) };
        Some(Running::of(async move {
            if let Outcome::Refused { log, .. } = plugins.call(call, &mut |_| {}).await {
                tracing::error!("{log}");
                return Finished { status: ExitStatus::Code(1), files: Vec::new() };
            }
            match program {
                Some(program) => run(program).await,
                None => Finished { status: ExitStatus::Code(0), files: Vec::new() },
            }
        }))
    }

    /// Starts `dns-updown`, if there are DNS settings to apply or to undo.
    fn start_dns(&mut self, script: Script, program: &config::Program) -> Option<Running> {
        let wanted = script == Script::DnsUp;
        if self.dns_applied == wanted || self.dns == Environment::default() {
            return None;
        }
        self.dns_applied = wanted;
        let mut env = self.dns.clone();
        env.set("dev", self.arguments.device());
        env.set("script_type", script.kind());
        let mut call = self.program(script, program, Vec::new());
        if let Some(call) = &mut call {
            call.env = env.pairs();
            // As in openvpn, where another process then runs the program.
            if self.options.process.user.is_some() {
                let line = |(name, value): (String, String)| format!("{name}={value}\n");
                let lines: String = call.env.drain(..).map(line).collect();
                let content = Zeroizing::new(lines.into_bytes());
                call.files = vec![ScratchFile::variable("dns_vars_file", Some(content))];
            }
        }
        Some(run(call))
    }

    /// Returns the call of a program; `None` if programs may not run.
    fn program(
        &mut self,
        script: Script,
        program: &config::Program,
        args: Vec<String>,
    ) -> Option<Call> {
        if self.options.script_security < RUNS_PROGRAMS {
            return None;
        }
        self.environment.set("script_type", script.kind());
        let line: Vec<&str> = std::iter::once(&program.path)
            .chain(&program.args)
            .chain(&args)
            .map(String::as_str)
            .collect();
        say!(1, "{}", line.join(" "));
        Some(Call {
            program: runnable(program),
            args,
            env: self.environment.pairs(),
            files: Vec::new(),
            timeout: None,
        })
    }
}

/// Runs a program, or returns why it may not run.
fn run(call: Option<Call>) -> Running {
    match call {
        Some(call) => programs::run(call),
        None => Running::ended(forbidden()),
    }
}

fn next4(address: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(address.to_bits().wrapping_add(1))
}

fn next6(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits().wrapping_add(1))
}

#[cfg(test)]
mod tests {
    use adit_openvpn::config::{Files, parse};

    use super::*;

    struct One(&'static str);

    impl Files for One {
        fn read(&self, _: &std::path::Path) -> std::io::Result<Vec<u8>> {
            Ok(self.0.as_bytes().to_vec())
        }
    }

    fn options(text: &'static str) -> Options {
        parse(&["x.conf".into()], &One(text)).unwrap()
    }

    const CLIENT: &str = "client\ndev tun\nremote h 1194\nca a\ncert b\nkey c\nremote-cert-tls server\n\
                          script-security 2\nup \"/bin/true a\"\ndown /bin/no-such\nroute-noexec\n\
                          ifconfig-noexec\nroute 10.5.0.0 255.255.0.0\nsetenv SITE x\nuser nobody\ncd /etc\n";

    #[test]
    fn the_runner_gets_the_programs_only_if_they_may_run() {
        let options = options(CLIENT);
        let given = setup(&options).unwrap();
        let program = |path: &str, args: &[&str]| Program {
            path: path.into(),
            args: args.iter().map(|arg| (*arg).into()).collect(),
        };
        assert_eq!(
            given.programs,
            [program("/bin/true", &["a"]), program("/bin/no-such", &[])].into()
        );
        assert_eq!(given.directory.as_deref(), Some(std::path::Path::new("/etc")));
        assert_eq!((given.user.as_deref(), given.root), (Some("nobody"), None));
        let mut forbids = options.clone();
        forbids.script_security = 1;
        assert_eq!(setup(&forbids), None);
        let mut applies = options.clone();
        applies.hooks.dns_updown = applies.hooks.down.clone();
        assert_eq!(given.privileged, [].into());
        assert_eq!(setup(&applies).unwrap().privileged, [program("/bin/no-such", &[])].into());
        let mut none = options;
        none.hooks = config::Hooks::default();
        assert_eq!(setup(&none), None);
    }

    #[test]
    fn a_missing_program_is_named_at_the_start() {
        let fault = check(&options(CLIENT)).unwrap_err().to_string();
        assert!(
            fault.contains("--down script fails with '/bin/no-such': No such file")
                && fault.contains("errno=2"),
            "{fault}"
        );
    }

    /// `up` and `route-up` run before the root directory changes, and all others afterwards.
    #[test]
    fn programs_are_looked_for_where_they_will_run() {
        let mut options = options(CLIENT);
        assert_eq!(path_at_start(&options, "down", "hook"), PathBuf::from("/etc/hook"));
        options.process.chroot = Some("/jail".into());
        for (directive, path, expected) in [
            ("up", "hook", "/etc/hook"),
            ("route-up", "/bin/hook", "/bin/hook"),
            ("down", "/bin/hook", "/jail/bin/hook"),
            ("client-connect", "hook", "/jail/hook"),
        ] {
            assert_eq!(
                path_at_start(&options, directive, path),
                PathBuf::from(expected),
                "{directive}"
            );
        }
        assert_eq!(setup(&options).unwrap().root, Some("/jail".into()));
    }

    #[test]
    fn a_program_that_every_user_may_change_causes_a_warning() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        let mut options = options(CLIENT);
        options.hooks.down = None;
        options.hooks.up.as_mut().unwrap().path = path.to_str().unwrap().into();
        for (mode, warnings) in [(0o755, 0), (0o775, 0), (0o757, 1)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check(&options).unwrap().len(), warnings, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(check(&options).unwrap_err().to_string().contains("Permission denied"));
        fs::remove_file(&path).unwrap();
        assert!(check(&options).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn programs_learn_the_addresses_and_routes_that_are_left_to_them() {
        let mut scripts = Scripts::new(&options(CLIENT), None, None).unwrap();
        let tunnel = TunnelConfig {
            ipv4: Some("10.8.0.2/24".parse().unwrap()),
            gateway4: Some("10.8.0.1".parse().unwrap()),
            ..TunnelConfig::default()
        };
        scripts.tunnel(Some("tun3"), &tunnel, false);
        scripts.prepare(Script::Up(Context::Init));
        let pairs = scripts.environment.pairs();
        let value = |name: &str| {
            pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
        };
        for (name, expected) in [
            ("dev", "tun3"),
            ("ifconfig_local", "10.8.0.2"),
            ("ifconfig_netmask", "255.255.255.0"),
            ("route_network_1", "10.5.0.0"),
            ("route_netmask_1", "255.255.0.0"),
            ("route_gateway_1", "10.8.0.1"),
            ("route_vpn_gateway", "10.8.0.1"),
            ("SITE", "x"),
        ] {
            assert_eq!(value(name), Some(expected), "{name}");
        }
        assert_eq!(
            scripts.arguments.words("init"),
            ["tun3", "1500", "0", "10.8.0.2", "255.255.255.0", "init"]
        );
    }
}
