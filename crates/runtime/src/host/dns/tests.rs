//! Tests of each back end with the real program, in private mount and network namespaces. The host's own files,
//! programs and interfaces are never touched. `scripts/dns-roots.sh` fetches the programs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use adit_linux::net::Net;
use adit_linux::tun::TunOffloads;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use adit_dns::Dnssec;

use super::*;
use crate::host::{ApplyOutcome, Device, Host, HostEvent, HostPlan};

/// A process id above the kernel's maximum.
const DEAD: u32 = 4_194_305;

const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/><allow user="*"/></policy></busconfig>
"#;

fn skip(why: &str) {
    let thread = std::thread::current();
    adit_testbed::skip::skip(thread.name().unwrap_or("DNS"), why);
}

/// Runs `work` in namespaces where /usr, /etc and /var are overlays with the programs of one of the roots, /run is
/// empty, and `eth0` is connected to `peer0`.
fn world(root: Option<&str>, work: impl AsyncFnOnce() + Send) {
    let roots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/roots/dns");
    let lower = root.map(|root| roots.join(root));
    if let Some(lower) = lower.as_ref().filter(|lower| !lower.exists()) {
        return skip(&format!("{} is missing: scripts/dns-roots.sh fetches it", lower.display()));
    }
    if !nix::unistd::geteuid().is_root() {
        return skip(adit_testbed::skip::NEEDS_ROOT);
    }
    let scratch = tempfile::tempdir().unwrap();
    let scratch = scratch.path();
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            enter(lower.as_deref(), scratch).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let net = Net::open().unwrap();
                net.set_up(1).await.unwrap();
                sh("ip link add eth0 type veth peer name peer0 && ip link set peer0 up && \
                    ip addr add 192.0.2.2/24 dev eth0 && ip link set eth0 up");
                work().await;
            });
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn enter(lower: Option<&Path>, scratch: &Path) -> nix::Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("scratch"), scratch, Some("tmpfs"), MsFlags::empty(), none)?;
    for part in ["usr", "etc", "var"] {
        let (upper, work) =
            (scratch.join(format!("{part}.upper")), scratch.join(format!("{part}.work")));
        fs::create_dir(&upper).unwrap();
        fs::create_dir(&work).unwrap();
        let place = format!("/{part}");
        let ours = lower.map(|lower| lower.join(part)).filter(|ours| ours.exists());
        let lowers = match ours {
            Some(ours) => format!("{}:{place}", ours.canonicalize().unwrap().display()),
            None => place.clone(),
        };
        let data =
            format!("lowerdir={lowers},upperdir={},workdir={}", upper.display(), work.display());
        let overlay = Some("overlay");
        mount(overlay, place.as_str(), overlay, MsFlags::empty(), Some(data.as_str()))?;
    }
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), none)?;
    // If /sys is writable, NetworkManager assumes that the host has udev.
    mount(Some("sys"), "/sys", Some("sysfs"), MsFlags::MS_RDONLY, none)
}

fn sh(script: &str) -> String {
    let out = Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{script}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// A daemon that is killed at the end of the test.
struct Daemon(Child);

impl Daemon {
    fn start(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|e| panic!("{program}: {e}")))
    }

    fn bus() -> Self {
        fs::create_dir_all("/run/dbus").unwrap();
        fs::write("/run/bus.conf", BUS).unwrap();
        let args = ["--config-file=/run/bus.conf", "--nofork", "--nopidfile"];
        let bus = Self::start("/usr/bin/dbus-daemon", &args);
        wait(|| Path::new("/run/dbus/system_bus_socket").exists(), "the bus");
        bus
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(mut done: impl FnMut() -> bool, what: &str) {
    for _ in 0..300 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} did not come");
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let out = Command::new(program).args(args).stdin(Stdio::null()).output();
    out.is_ok_and(|out| out.status.success())
}

fn conf() -> String {
    fs::read_to_string("/etc/resolv.conf").unwrap_or_default()
}

fn servers() -> Vec<String> {
    resolv_conf::nameservers(conf().as_bytes())
}

fn dns(servers: &[&str], search: &[&str], domains: &[&str]) -> DnsPlan {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    DnsPlan {
        servers: servers
            .iter()
            .map(|server| (server.parse::<std::net::IpAddr>().unwrap(), 53).into())
            .collect(),
        search: names(search),
        domains: names(domains),
        dnssec: None,
        transport: Transport::Plain,
    }
}

fn host_plan(dns: Option<DnsPlan>) -> HostPlan {
    let addresses = vec!["10.8.0.2/24".parse().unwrap(), "fd08::2/64".parse().unwrap()];
    HostPlan { addresses, dns, ..HostPlan::default() }
}

fn notes(applied: ApplyOutcome) -> Vec<String> {
    match applied {
        ApplyOutcome::Changed(notes) => notes,
        ApplyOutcome::Same => panic!("nothing was changed"),
    }
}

fn open() -> (Host, adit_linux::tun::TunDevice) {
    let (host, tun) = Host::open(&Device::Tun(None), TunOffloads::NONE, 1).unwrap();
    (host, tun.unwrap())
}

/// Changes the owner of this process's records to a dead process.
fn die() {
    let mut found = 0;
    for entry in fs::read_dir("/run/adit").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "dns") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let name = name.replacen(&std::process::id().to_string(), &DEAD.to_string(), 1);
            fs::rename(&path, path.with_file_name(name)).unwrap();
            found += 1;
        }
    }
    assert_eq!(found, 1, "a change is written down before it is made");
}

fn records() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/run/adit") else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|ext| ext == "dns")).collect()
}

fn start_resolved() -> [Daemon; 2] {
    let bus = Daemon::bus();
    if !fs::read_to_string("/etc/passwd").unwrap().contains("systemd-resolve:") {
        sh("echo 'systemd-resolve:x:991:991::/:/usr/sbin/nologin' >> /etc/passwd; \
            echo 'systemd-resolve:x:991:' >> /etc/group");
    }
    fs::create_dir_all("/run/systemd").unwrap();
    let resolved = Daemon::start("/usr/lib/systemd/systemd-resolved", &[]);
    wait(|| succeeds("/usr/bin/resolvectl", &["status"]), "systemd-resolved");
    let _ = fs::remove_file("/etc/resolv.conf");
    symlink("../run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf").unwrap();
    [resolved, bus]
}

#[test]
fn resolved_gets_servers_domains_and_the_default_route() {
    world(Some("resolved"), async || {
        let _daemons = start_resolved();
        sh("resolvectl dns eth0 192.0.2.1; resolvectl default-route eth0 yes");
        let (mut host, _tun) = open();
        let plan = host_plan(Some(dns(&["10.8.0.1", "fd08::1"], &["corp.example"], &[])));
        assert_eq!(notes(host.apply(&plan).await.unwrap()), Vec::<String>::new());
        assert_eq!(host.dns_in_use().to_string(), "10.8.0.1 and fd08::1 by systemd-resolved");
        assert!(host.dns_in_use().covers_all());
        let shown = |what: &str| sh(&format!("resolvectl {what} tun0"));
        assert!(shown("dns").ends_with(": 10.8.0.1 fd08::1\n"), "{}", shown("dns"));
        assert!(shown("domain").ends_with(": corp.example ~.\n"), "{}", shown("domain"));
        assert!(shown("default-route").ends_with(": yes\n"));
        assert!(conf().contains("nameserver 127.0.0.53"));

        // The server pushes split DNS, DNS over TLS with validation, and another port.
        let mut split = dns(&["10.8.0.3"], &[], &["corp.example", "lab.example"]);
        split.servers[0].set_port(8853);
        split.transport = Transport::Tls(Some("dns.example".into()));
        split.dnssec = Some(Dnssec::Off);
        host.change(&host_plan(Some(split))).await.unwrap();
        assert!(shown("dns").ends_with(": 10.8.0.3:8853#dns.example\n"), "{}", shown("dns"));
        assert!(shown("domain").ends_with(": ~corp.example ~lab.example\n"), "{}", shown("domain"));
        assert!(shown("default-route").ends_with(": no\n"));
        assert!(shown("dnsovertls").ends_with(": yes\n"));
        assert!(shown("dnssec").ends_with(": no\n"));
        assert!(!host.dns_in_use().covers_all());

        // The next plan has no DNS settings.
        host.change(&host_plan(None)).await.unwrap();
        assert!(shown("dns").ends_with(":\n"), "{}", shown("dns"));
        assert_eq!(host.dns_in_use(), &DnsInUse::default());
        assert!(records().is_empty());

        // The process is killed, but its device stays.
        host.change(&plan).await.unwrap();
        die();
        Dns::default().clean_up().await;
        assert!(shown("dns").ends_with(":\n"), "{}", shown("dns"));
        assert!(records().is_empty());

        // Another program removes the stub resolver from resolv.conf.
        host.undo().await;
        host.apply(&plan).await.unwrap();
        fs::remove_file("/etc/resolv.conf").unwrap();
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.1\n").unwrap();
        let event = dns_event(&mut host).await;
        assert_eq!(event.change, DnsChange::Lost);
        assert!(!host.dns_in_use().covers_all());
        host.close().await;
        assert!(records().is_empty());
    });
}

/// Waits for the servers, because NetworkManager answers before it has written the file.
async fn servers_become(only: &str) {
    let same = async {
        while servers() != [only] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let limit = Duration::from_secs(10);
    assert!(tokio::time::timeout(limit, same).await.is_ok(), "{:?}", servers());
}

/// Waits for the next event of the DNS settings, and ignores devices that the test adds and removes.
async fn dns_event(host: &mut Host) -> DnsEvent {
    loop {
        if let HostEvent::Dns(event) = host.event().await {
            return event;
        }
    }
}

#[test]
fn network_manager_writes_the_tunnels_servers_and_leaves_the_device_alone() {
    world(Some("manager"), async || {
        let _bus = Daemon::bus();
        let _ = fs::remove_file("/etc/resolv.conf");
        fs::create_dir_all("/etc/NetworkManager").unwrap();
        fs::create_dir_all("/var/lib/NetworkManager").unwrap();
        fs::write(
            "/etc/NetworkManager/NetworkManager.conf",
            "[main]\nplugins=keyfile\nno-auto-default=*\nauth-polkit=false\ndns=default\nrc-manager=symlink\n",
        )
        .unwrap();
        let _manager = Daemon::start("/usr/sbin/NetworkManager", &["--no-daemon"]);
        wait(
            || {
                let out = Command::new("/usr/bin/nmcli")
                    .args(["-t", "-f", "RUNNING", "general"])
                    .output();
                out.is_ok_and(|out| out.stdout.starts_with(b"running"))
            },
            "NetworkManager",
        );
        sh(
            "nmcli connection add save no type ethernet ifname eth0 con-name lan ipv4.method manual \
            ipv4.addresses 192.0.2.2/24 ipv4.dns 192.0.2.1 ipv6.method disabled; \
            nmcli -w 8 connection up lan",
        );
        assert_eq!(servers(), ["192.0.2.1"]);
        let (mut host, _tun) = open();
        let plan =
            host_plan(Some(dns(&["10.8.0.1", "fd08::1"], &["corp.example"], &["x.example"])));
        let said = notes(host.apply(&plan).await.unwrap());
        assert_eq!(servers(), ["10.8.0.1", "fd08::1"], "{said:?}");
        assert!(conf().contains("search corp.example"), "{}", conf());
        assert!(conf().contains("NetworkManager"));
        assert!(
            said.iter().any(|note| note.contains("split by domain is not possible")),
            "{said:?}"
        );
        assert_eq!(host.dns_in_use().to_string(), "10.8.0.1 and fd08::1 by NetworkManager");
        assert!(host.dns_in_use().covers_all());
        // Otherwise, a change of the profile would alter the device.
        assert!(sh("ip address show tun0").contains("10.8.0.2/24"));
        host.change(&host_plan(Some(dns(&["10.8.0.3"], &[], &[])))).await.unwrap();
        assert_eq!(servers(), ["10.8.0.3"]);
        host.change(&host_plan(None)).await.unwrap();
        servers_become("192.0.2.1").await;
        assert!(!sh("nmcli -t -f NAME connection").contains("adit"));
        host.change(&plan).await.unwrap();
        die();
        Dns::default().clean_up().await;
        servers_become("192.0.2.1").await;
        assert!(records().is_empty());
        host.close().await;
    });
}

#[test]
fn openresolv_lists_the_tunnels_servers_alone() {
    world(Some("openresolv"), async || {
        let _ = fs::remove_file("/etc/resolv.conf");
        sh("printf 'nameserver 192.0.2.1\\n' | resolvconf -a eth0.dhcp");
        assert_eq!(servers(), ["192.0.2.1"]);
        let (mut host, _tun) = open();
        let plan = host_plan(Some(dns(&["10.8.0.1", "fd08::1"], &["corp.example"], &[])));
        host.apply(&plan).await.unwrap();
        assert_eq!(servers(), ["10.8.0.1", "fd08::1"]);
        assert!(conf().contains("search corp.example"));
        assert_eq!(host.dns_in_use().to_string(), "10.8.0.1 and fd08::1 by resolvconf");
        assert!(host.dns_in_use().covers_all());
        // The network changes, but the tunnel's servers stay.
        sh("printf 'nameserver 192.0.2.7\\n' | resolvconf -a eth0.dhcp");
        assert_eq!(servers(), ["10.8.0.1", "fd08::1"]);
        host.undo().await;
        assert_eq!(servers(), ["192.0.2.7"]);
        host.apply(&plan).await.unwrap();
        die();
        Dns::default().clean_up().await;
        assert_eq!(servers(), ["192.0.2.7"]);
        host.close().await;
    });
}

#[test]
fn resolvconf_lists_the_tunnels_servers_first_and_that_is_not_all() {
    world(Some("resolvconf"), async || {
        let _ = fs::remove_file("/etc/resolv.conf");
        fs::create_dir_all("/run/resolvconf/interface").unwrap();
        symlink("/run/resolvconf/resolv.conf", "/etc/resolv.conf").unwrap();
        sh(
            "resolvconf --enable-updates; printf 'nameserver 192.0.2.1\\n' | resolvconf -a eth0.dhcp",
        );
        assert_eq!(servers(), ["192.0.2.1"]);
        let (mut host, _tun) = open();
        let plan = host_plan(Some(dns(&["10.8.0.1"], &["corp.example"], &[])));
        let said = notes(host.apply(&plan).await.unwrap());
        assert_eq!(servers(), ["10.8.0.1", "192.0.2.1"]);
        assert!(said.iter().any(|note| note.contains("this machine's own servers")), "{said:?}");
        assert!(!host.dns_in_use().covers_all());
        host.undo().await;
        assert_eq!(servers(), ["192.0.2.1"]);
        host.apply(&plan).await.unwrap();
        die();
        Dns::default().clean_up().await;
        assert_eq!(servers(), ["192.0.2.1"]);
        host.close().await;
    });
}

#[test]
fn the_plain_file_is_replaced_watched_and_restored() {
    world(None, async || {
        let _ = fs::remove_file("/etc/resolv.conf");
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.1\n").unwrap();
        let (mut host, _tun) = open();
        let plan = host_plan(Some(dns(&["10.8.0.1"], &["corp.example"], &["x.example"])));
        let said = notes(host.apply(&plan).await.unwrap());
        assert!(
            said.iter().any(|note| note.contains("split by domain is not possible")),
            "{said:?}"
        );
        assert_eq!(servers(), ["10.8.0.1"]);
        assert_eq!(host.dns_in_use().to_string(), "10.8.0.1 by /etc/resolv.conf");
        // A DHCP client writes the file. Ours replaces it again, and the new content is restored at the end.
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.9\n").unwrap();
        let event = dns_event(&mut host).await;
        assert_eq!(event.change, DnsChange::AppliedAgain);
        assert_eq!(servers(), ["10.8.0.1"]);
        host.change(&host_plan(Some(dns(&["10.8.0.3"], &[], &[])))).await.unwrap();
        assert_eq!(servers(), ["10.8.0.3"]);
        host.change(&host_plan(None)).await.unwrap();
        assert_eq!(conf(), "nameserver 192.0.2.9\n");
        // The process is killed, and starts again.
        host.change(&plan).await.unwrap();
        let dead = conf()
            .replace(&format!("(process {},", std::process::id()), &format!("(process {DEAD},"));
        fs::write("/etc/resolv.conf", dead).unwrap();
        let (other, _device) = open();
        assert_eq!(conf(), "nameserver 192.0.2.9\n");
        other.close().await;
        host.close().await;
        assert_eq!(conf(), "nameserver 192.0.2.9\n");
        // The server pushes only settings that the file does not support.
        let (mut host, _tun) = open();
        let mut tls = dns(&["10.8.0.1"], &[], &[]);
        tls.transport = Transport::Https;
        let said = notes(host.apply(&host_plan(Some(tls))).await.unwrap());
        assert!(said[0].contains("not applied"), "{said:?}");
        assert!(!host.dns_in_use().covers_all());
        assert_eq!(conf(), "nameserver 192.0.2.9\n");
        host.close().await;
    });
}

#[test]
fn a_mounted_file_is_written_in_place() {
    world(None, async || {
        fs::write("/run/conf", "nameserver 192.0.2.1\n").unwrap();
        let _ = fs::remove_file("/etc/resolv.conf");
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.2\n").unwrap();
        let none = None::<&str>;
        mount(Some("/run/conf"), "/etc/resolv.conf", none, MsFlags::MS_BIND, none).unwrap();
        let (mut host, _tun) = open();
        host.apply(&host_plan(Some(dns(&["10.8.0.1"], &[], &[])))).await.unwrap();
        assert_eq!(servers(), ["10.8.0.1"]);
        assert!(fs::read_to_string("/run/conf").unwrap().contains("nameserver 10.8.0.1"));
        host.close().await;
        assert_eq!(conf(), "nameserver 192.0.2.1\n");
    });
}

#[test]
fn a_program_that_keeps_replacing_the_file_wins_in_the_end() {
    world(None, async || {
        let _ = fs::remove_file("/etc/resolv.conf");
        fs::write("/etc/resolv.conf", "nameserver 192.0.2.1\n").unwrap();
        let mut dns_of_tunnel = Dns::default();
        let device = ("tun0".to_owned(), 9);
        dns_of_tunnel.apply(Some(&dns(&["10.8.0.1"], &[], &[])), Some(&device)).await;
        let mut changes = Vec::new();
        for round in 0..AGAIN_LIMIT + 3 {
            fs::write("/etc/resolv.conf", format!("nameserver 192.0.2.{}\n", round + 10)).unwrap();
            changes.extend(dns_of_tunnel.check_for_changes().map(|event| event.change));
        }
        let again = changes.iter().filter(|change| **change == DnsChange::AppliedAgain).count();
        assert_eq!(again, AGAIN_LIMIT as usize);
        assert_eq!(changes.last(), Some(&DnsChange::Lost));
        assert_eq!(changes.len(), again + 1, "it is said once");
        let theirs = conf();
        dns_of_tunnel.undo().await;
        assert_eq!(conf(), theirs, "what another program wrote stays");
    });
}
