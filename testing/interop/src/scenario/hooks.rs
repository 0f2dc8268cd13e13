//! Tests of the programs that a configuration names: openvpn and adit run the same files, and a program records its
//! arguments and variables, which are compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Scenario;
use crate::case::{Configs, READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;
use crate::wait::until;

const SOON: Duration = Duration::from_secs(20);

/// The variables whose values differ by their nature, and why.
const DIFFERENT_VALUES: &[(&str, &str)] = &[
    ("daemon_pid", "each process has its own"),
    ("daemon_start_time", "the programs start one after the other"),
];

/// One execution of the recording program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    /// `script_type`.
    kind: String,
    arguments: String,
    user: String,
    folder: String,
    variables: BTreeMap<String, String>,
}

impl Record {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let mut next = || lines.next().unwrap_or_default().to_owned();
        let (arguments, user, folder) = (next(), next(), next());
        let mut variables: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        // The shell sets them.
        for own in ["PWD", "OLDPWD", "SHLVL", "_"] {
            variables.remove(own);
        }
        if let Some(path) = variables.get_mut("dns_vars_file") {
            path.clear();
        }
        let kind = variables.get("script_type").cloned().unwrap_or_default();
        Self { kind, arguments, user, folder, variables }
    }

    /// Returns what distinguishes the execution from others.
    fn summary(&self) -> String {
        let value = |name: &str| self.variables.get(name).map_or("", String::as_str);
        format!("{} {} ({}, signal {})", self.kind, self.arguments, self.user, value("signal"))
    }
}

/// A folder with the recording program and its records.
struct Recorder {
    records: PathBuf,
    program: PathBuf,
}

impl Recorder {
    fn new(folder: &Path) -> Result<Self> {
        let records = folder.join("records");
        let program = folder.join("record.sh");
        // A record appears at once, with its number.
        let text = format!(
            "#!/bin/sh\nfolder={0}\nnew=$(mktemp {0}.XXXXXX)\n\
             {{ echo \"$*\"; id -un; pwd; env; [ -z \"$dns_vars_file\" ] || cat \"$dns_vars_file\"; }} > \"$new\"\n\
             chmod 644 \"$new\"\n\
             mv \"$new\" \"$folder/$(printf %03d $(ls \"$folder\" | wc -l))\"\n",
            records.display()
        );
        file::write(&program, text, 0o755)?;
        let this = Self { records, program };
        this.clear()?;
        // The program's user creates records after privileges are dropped.
        file::set_mode(folder, 0o777)?;
        Ok(this)
    }

    fn clear(&self) -> Result<()> {
        let _ = fs::remove_dir_all(&self.records);
        fs::create_dir(&self.records)?;
        file::set_mode(&self.records, 0o777)
    }

    /// Returns the directive that records executions for this option.
    fn line(&self, option: &str) -> String {
        format!("{option} \"{} {option}-argument\"", self.program.display())
    }

    fn read(&self) -> Result<Vec<Record>> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(&self.records)?.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let read = |path: &PathBuf| fs::read_to_string(path).context(path.display());
        paths.iter().map(|path| Ok(Record::parse(&read(path)?))).collect()
    }
}

fn summaries(records: &[Record]) -> Vec<String> {
    records.iter().map(Record::summary).collect()
}

/// Compares the executions of two programs and their variables.
fn compare(openvpn: &[Record], adit: &[Record]) -> Result<()> {
    ensure(summaries(openvpn) == summaries(adit), || {
        format!(
            "the executions differ:\nopenvpn:\n  {}\nadit:\n  {}",
            summaries(openvpn).join("\n  "),
            summaries(adit).join("\n  ")
        )
    })?;
    let mut differences = Vec::new();
    for (one, other) in openvpn.iter().zip(adit) {
        let names = one.variables.keys().chain(other.variables.keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        for name in names {
            let (one_value, other_value) = (one.variables.get(name), other.variables.get(name));
            let known = DIFFERENT_VALUES.iter().any(|(known, _)| known == name);
            let equal = if known {
                one_value.is_some() == other_value.is_some()
            } else {
                one_value == other_value
            };
            if !equal {
                differences.push(format!(
                    "{}: {name}: openvpn {one_value:?}, adit {other_value:?}",
                    one.kind
                ));
            }
        }
        if one.folder != other.folder {
            differences.push(format!("{}: in {} and {}", one.kind, one.folder, other.folder));
        }
    }
    ensure(differences.is_empty(), || differences.join("\n"))
}

const CLIENT_OPTIONS: [&str; 5] = ["up", "down", "route-up", "route-pre-down", "ipchange"];

/// Writes configurations of a server that pushes one of each kind of option, and of a client that records all programs.
fn recording(scenario: &Scenario<'_>, recorder: &Recorder) -> Configs {
    let mut configs = scenario.configs();
    configs.server(
        "push \"route 10.66.0.0 255.255.0.0\"\npush \"route 10.67.0.0 255.255.0.0 vpn_gateway 7\"\n\
         push \"route-ipv6 fd99::/64\"\npush \"dhcp-option DNS 10.88.0.1\"\n\
         push \"dhcp-option DOMAIN corp.example\"\npush \"dhcp-option NTP 10.88.0.9\"\n\
         push \"setenv-safe SITE 'a b'\"",
    );
    configs.client(
        "script-security 2\nsetenv OWN \"it's mine; $(id) `id`\"\nroute 10.68.1.0 255.255.255.0",
    );
    CLIENT_OPTIONS.iter().for_each(|option| configs.client(&recorder.line(option)));
    configs
}

/// Runs a client from its start over a restart (SIGUSR1) to its end, and returns the executions.
fn lifetime(
    scenario: &Scenario<'_>,
    configs: &Configs,
    recorder: &Recorder,
    client: &Program,
) -> Result<Vec<Record>> {
    recorder.clear()?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), configs, client)?;
    let with_server = |e| format!("{e}\n{}", server.failure("meanwhile"));
    client.wait_for(READY, SETUP_LIMIT).map_err(with_server)?;
    client.signal(Signal::SIGUSR1)?;
    client.wait_for_nth(READY, 2, SETUP_LIMIT)?;
    client.signal(Signal::SIGTERM)?;
    let status = client.wait_exit(SOON)?;
    ensure(status.success(), || client.failure(&format!("ended with {status}")).0)?;
    recorder.read()
}

fn compare_lifetimes(
    scenario: &Scenario<'_>,
    change: impl FnOnce(&mut Configs, &Recorder),
) -> Result<String> {
    let recorder = Recorder::new(scenario.folder())?;
    let mut configs = recording(scenario, &recorder);
    change(&mut configs, &recorder);
    let openvpn = lifetime(scenario, &configs, &recorder, &Program::OpenVpn)?;
    let adit = lifetime(scenario, &configs, &recorder, scenario.client)?;
    compare(&openvpn, &adit)?;
    let variables = adit.iter().map(|record| record.variables.len()).max().unwrap_or_default();
    Ok(format!("{} programs, up to {variables} variables", adit.len()))
}

/// The device is kept over a restart, without `up-restart`.
pub(super) fn kept_device(scenario: &Scenario<'_>) -> Result<String> {
    compare_lifetimes(scenario, |_, _| {})
}

/// The device is kept over a restart, with `up-restart`.
pub(super) fn up_restart(scenario: &Scenario<'_>) -> Result<String> {
    compare_lifetimes(scenario, |configs, _| configs.client("up-restart"))
}

/// The device is closed and opened at a restart.
pub(super) fn reopened_device(scenario: &Scenario<'_>) -> Result<String> {
    compare_lifetimes(scenario, |configs, _| {
        configs.client = configs.client.replace("persist-tun\n", "");
    })
}

/// `down` runs before the device is closed, and the programs are those of an unprivileged user from then on.
pub(super) fn unprivileged(scenario: &Scenario<'_>) -> Result<String> {
    compare_lifetimes(scenario, |configs, _| {
        configs.client("down-pre\nup-restart\nuser nobody\ngroup nogroup");
    })
}

/// Routes are delayed, and the programs are those of an unprivileged user only after `route-up`.
pub(super) fn delayed_routes_unprivileged(scenario: &Scenario<'_>) -> Result<String> {
    compare_lifetimes(scenario, |configs, _| {
        configs.client("route-delay 2\nuser nobody\ngroup nogroup");
    })
}

/// Addresses and routes are left to programs, which learn them.
pub(super) fn no_exec(scenario: &Scenario<'_>) -> Result<String> {
    compare_lifetimes(scenario, |configs, _| {
        configs.client("route-noexec\nifconfig-noexec");
    })
}

/// A client over IPv6, with its remote as a block and a changed working directory.
pub(super) fn over_ipv6(scenario: &Scenario<'_>) -> Result<String> {
    compare_lifetimes(scenario, |configs, recorder| {
        let swap = |text: &str| text.replace("udp4", "udp6").replace("192.0.2.1", "2001:db8::1");
        (configs.server, configs.client) = (swap(&configs.server), swap(&configs.client));
        configs.client(&format!("cd {}", recorder.records.display()));
    })
}

/// A point-to-point end with a static key, whose device is opened before the other end is known.
pub(super) fn point_to_point(scenario: &Scenario<'_>) -> Result<String> {
    let recorder = Recorder::new(scenario.folder())?;
    let key = scenario.env.pki.wrapping_key("static.key").display().to_string();
    let mut configs = Configs::default();
    configs.both("dev tun\nproto udp4\nverb 3\nping 1\nping-restart 6\ncipher AES-256-CBC");
    configs.server(&format!("ifconfig 10.88.0.1 10.88.0.2\nsecret {key} 0\nremote 192.0.2.2"));
    configs.client(&format!("ifconfig 10.88.0.2 10.88.0.1\nsecret {key} 1\nremote 192.0.2.1"));
    configs
        .client("ifconfig-ipv6 fd88::2/64 fd88::1\nroute 10.66.0.0 255.255.0.0\nscript-security 2");
    CLIENT_OPTIONS.iter().for_each(|option| configs.client(&recorder.line(option)));
    let mut all = Vec::new();
    for program in [&Program::OpenVpn, scenario.client] {
        recorder.clear()?;
        let pair = Pair::new()?;
        let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
        let mut client = dial(&pair, scenario.folder(), &configs, program)?;
        client.wait_for(READY, SETUP_LIMIT)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        client.signal(Signal::SIGTERM)?;
        client.wait_exit(SOON)?;
        all.push(recorder.read()?);
    }
    compare(&all[0], &all[1])?;
    Ok(format!("{} programs", all[1].len()))
}

/// Returns the executions with what other programs than `dns-updown` learn about DNS, because 2.7 differs from 2.6 in the
/// rest.
fn about_dns(records: &[Record]) -> Vec<Record> {
    let mut records = records.to_vec();
    for record in records.iter_mut().filter(|record| !record.kind.starts_with("dns-")) {
        let about_dns = |name: &str| name.starts_with("dns_") || name.starts_with("foreign_");
        record.variables.retain(|name, _| about_dns(name) || name == "signal");
    }
    records
}

/// `dns-updown` gets the DNS settings before `up`, keeps the privileges of the start, and undoes the settings before the
/// device is closed. With openvpn 2.7 at the other end, it is also run here, and must do the same.
pub(super) fn dns_updown(scenario: &Scenario<'_>) -> Result<String> {
    if matches!(scenario.client, Program::OpenVpn) {
        return Ok("2.6 does not have it".into());
    }
    let recorder = Recorder::new(scenario.folder())?;
    let newer = "push \"dns server 1 address 10.88.0.1:5353\"\npush \"dns server 2 address 10.88.0.4\"\n\
                 push \"dns server 1 resolve-domains a.example b.example\"\n\
                 push \"dns server 1 dnssec optional\"\npush \"dns server 1 transport DoT\"\n\
                 push \"dns server 1 sni ns.example\"\npush \"dns search-domains corp.example\"\n\
                 push \"dhcp-option DNS 10.88.0.9\"";
    let older = "push \"dhcp-option DNS 10.88.0.1\"\npush \"dhcp-option DNS6 fd88::1\"\n\
                 push \"dhcp-option DOMAIN corp.example\"\npush \"dhcp-option DOMAIN-SEARCH b.example\"\n\
                 push \"dhcp-option DOMAIN-ROUTE c.example\"\npush \"dhcp-option NTP 10.88.0.9\"";
    let none = "push \"dhcp-option NTP 10.88.0.9\"";
    let mut count = 0;
    for (pushes, lines) in
        [(newer, "user nobody\ngroup nogroup"), (newer, ""), (older, ""), (none, "")]
    {
        let mut configs = scenario.configs();
        configs.server(pushes);
        configs.client(&format!("script-security 2\n{lines}"));
        // 2.7 takes the whole of it for a path.
        configs.client(&format!("dns-updown {}", recorder.program.display()));
        for option in ["up", "down", "route-pre-down"] {
            configs.client(&recorder.line(option));
        }
        let mut all = Vec::new();
        for program in [scenario.client, scenario.server] {
            if matches!(program, Program::Adit(_)) || program.label() == "sid" {
                all.push(lifetime(scenario, &configs, &recorder, program)?);
            }
        }
        let [of_adit, others @ ..] = all.as_slice() else { return Err("no records".into()) };
        for of_openvpn in others {
            compare(&about_dns(of_openvpn), &about_dns(of_adit))?;
        }
        let mut expected = vec!["up", "route-pre-down", "down"];
        if pushes != none {
            expected =
                vec!["dns-up", "up", "dns-down", "dns-up", "dns-down", "route-pre-down", "down"];
        }
        let kinds: Vec<&str> = of_adit.iter().map(|record| record.kind.as_str()).collect();
        ensure(kinds == expected, || format!("other programs: {:#?}", summaries(of_adit)))?;
        for record in of_adit.iter().filter(|record| record.kind.starts_with("dns-")) {
            ensure(record.user == "root", || format!("as {}: {}", record.user, record.summary()))?;
            let value = |name: &str| record.variables.get(name).map_or("", String::as_str);
            ensure(
                value("dns_server_1_address_1") == "10.88.0.1"
                    && value("dns_search_domain_1") == "corp.example"
                    && value("dev") == "tun0",
                || format!("other settings: {:?}", record.variables),
            )?;
        }
        count += of_adit.len();
    }
    Ok(format!("{count} programs"))
}

/// The programs of a server's device.
pub(super) fn server(scenario: &Scenario<'_>) -> Result<String> {
    let recorder = Recorder::new(scenario.folder())?;
    let mut configs = scenario.configs();
    configs.server("script-security 2\nroute 10.66.0.0 255.255.0.0\nuser nobody\ngroup nogroup");
    CLIENT_OPTIONS
        .iter()
        .filter(|option| **option != "ipchange")
        .for_each(|option| configs.server(&recorder.line(option)));
    let mut all = Vec::new();
    for program in [&Program::OpenVpn, scenario.server] {
        recorder.clear()?;
        let pair = Pair::new()?;
        let mut server = serve(&pair, scenario.folder(), &configs, program)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        server.signal(Signal::SIGTERM)?;
        server.wait_exit(SOON)?;
        all.push(recorder.read()?);
    }
    compare(&all[0], &all[1])?;
    Ok(format!("{} programs", all[1].len()))
}

/// A failing `up` ends the process, a failing `route-up` causes a warning, and without `script-security 2` no program
/// runs.
pub(super) fn failures(scenario: &Scenario<'_>) -> Result<String> {
    let start = |lines: &str| -> Result<Daemon> {
        let mut configs = scenario.configs();
        configs.client(lines);
        let pair = Pair::new()?;
        let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
        client.wait_for_any(
            &["initialization sequence completed", "exiting due to fatal error", "options error"],
            SETUP_LIMIT,
        )?;
        if client.count(READY) == 0 {
            let status = client.wait_exit(SOON)?;
            ensure(status.code() == Some(1), || client.failure(&format!("ended with {status}")).0)?;
        }
        Ok(client)
    };
    let failed = start("script-security 2\nup /bin/false")?;
    let text = "WARNING: Failed running command (--up/--down): external program exited with error status: 1";
    ensure(failed.count(text) == 1 && failed.count(READY) == 0, || failed.failure("up").0)?;
    let warned = start("script-security 2\nroute-up /bin/false")?;
    let text = "WARNING: Failed running command (--route-up): external program exited with error status: 1";
    ensure(warned.count(text) == 1 && warned.count(READY) == 1, || warned.failure("route-up").0)?;
    let missing = start("script-security 2\nup /no/such/program")?;
    let text = "--up script fails with '/no/such/program': No such file or directory";
    ensure(missing.count(text) > 0 && missing.count(READY) == 0, || missing.failure("missing").0)?;
    let forbidden = start("up /bin/true")?;
    let text =
        "external program may not be called unless '--script-security 2' or higher is enabled";
    ensure(forbidden.count(text) > 0 && forbidden.count(READY) == 0, || {
        forbidden.failure("script-security 1").0
    })?;
    Ok(String::new())
}

/// An endless program delays neither the control socket nor the end.
pub(super) fn endless(scenario: &Scenario<'_>) -> Result<String> {
    let Program::Adit(adit) = scenario.client else { return Ok("openvpn waits".into()) };
    let folder = scenario.folder();
    let program = folder.join("endless.sh");
    file::write(
        &program,
        format!("#!/bin/sh\necho > {}/started\nsleep 1000\n", folder.display()),
        0o755,
    )?;
    let mut configs = scenario.configs();
    configs.client(&format!("script-security 2\nup {}", program.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    until("the program runs", SETUP_LIMIT, || Ok(folder.join("started").exists()))?;
    let status = pair.client.run(&adit.to_string_lossy(), &["status", "--json"])?;
    let name = format!("openvpn-{}", client.pid());
    ensure(status.contains(&name), || format!("no status of {name}: {status}"))?;
    client.signal(Signal::SIGTERM)?;
    client.wait_exit(SOON)?;
    Ok(String::new())
}

/// Debian's `update-resolv-conf` as `up` and `down`, with a `resolvconf` that records its calls.
pub(super) fn update_resolv_conf(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let calls = folder.join("calls");
    let tools = folder.join("tools");
    fs::create_dir(&tools)?;
    let resolvconf = tools.join("resolvconf");
    let text = format!(
        "#!/bin/sh\necho \"$*\" >> {0}\n[ \"$1\" = -a ] && cat >> {0}\nexit 0\n",
        calls.display()
    );
    file::write(&resolvconf, text, 0o755)?;
    let mut configs = scenario.configs();
    configs.server("push \"dhcp-option DNS 10.88.0.1\"\npush \"dhcp-option DNS 10.88.0.3\"");
    configs.server("push \"dhcp-option DOMAIN corp.example\"");
    configs.client("script-security 2\nup /etc/openvpn/update-resolv-conf");
    configs.client("down /etc/openvpn/update-resolv-conf");
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let path = folder.join("client.conf");
    fs::write(&path, &configs.client)?;
    let program = scenario.client.command(&pair.client, &path);
    // The script knows the program by its absolute path. /usr/sbin is replaced in a mount namespace of the client's own.
    let original = folder.join("sbin");
    fs::create_dir(&original)?;
    let prepare = format!(
        "mount --bind /usr/sbin {0} && mount -t tmpfs tmpfs /usr/sbin && \
         ln -s {0}/* /usr/sbin/ && cp {1} /usr/sbin/resolvconf && exec \"$@\"",
        original.display(),
        resolvconf.display()
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &prepare, "sh"]);
    command.arg(program.get_program()).args(program.get_args());
    let mut client = Daemon::spawn("client (resolvconf)", command)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    client.stop()?;
    let device = "tun0.openvpn";
    let expected = format!(
        "-a {device}\nsearch corp.example\nnameserver 10.88.0.1\nnameserver 10.88.0.3\n-d {device}\n"
    );
    let called = fs::read_to_string(&calls).context("resolvconf was not called")?;
    ensure(called == expected, || format!("resolvconf was called otherwise:\n{called}"))?;
    Ok(String::new())
}
