//! What changes a whole process: each scene runs in a process of its own, this program again with
//! the scene's name in the environment. Needs root.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use adit_linux::netns::NetNs;
use adit_linux::privileges::{
    self, Capability, PrivilegeError, Privileges, Profile, Violation, apply_seccomp,
};
use adit_linux::process;
use adit_linux::udp::{RecvBatch, SendScratch, Train, UdpOptions, UdpSocket};

const SCENE: &str = "ADIT_LINUX_SCENE";

type Scene = (&'static str, fn(), fn(Outcome));

/// Name, what the child does, what the parent expects of it.
const SCENES: &[Scene] = &[
    ("another_user_with_one_capability", another_user, expect_another_user),
    ("another_user_with_none", another_user_bare, expect_bare),
    ("a_user_alone_brings_its_primary_group", user_alone, expect_user_alone),
    ("another_user_still_ends_with_its_parent", parent_death, expect_success),
    ("the_same_user_with_one_capability", same_user, expect_same_user),
    ("a_missing_capability_is_named", missing, expect_success),
    ("an_unprivileged_process_can_still_shed", unprivileged, expect_success),
    ("memory_is_locked", locked, expect_locked),
    ("a_low_limit_of_locked_memory_is_named", locked_to_the_limit, expect_success),
    ("secrets_stay_out_of_core_dumps", protected, expect_success),
    ("a_daemon_runs_under_its_filter", daemon_filter, expect_success),
    ("programs_run_under_theirs", program_filter, expect_success),
    ("packets_move_under_the_data_planes_filter", plane_filter, expect_success),
    ("a_violation_kills", violation, expect_killed),
    ("nice", nice, expect_success),
    ("a_daemon_leaves_its_terminal", daemonized, expect_daemonized),
];

struct Outcome {
    status: ExitStatus,
    stdout: String,
}

fn main() {
    if let Ok(name) = std::env::var(SCENE) {
        let (_, scene, _) = SCENES.iter().find(|(scene, ..)| *scene == name).expect("a scene");
        scene();
        return;
    }
    let arguments: Vec<_> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if std::env::args().any(|a| a == "--list") {
        SCENES.iter().for_each(|(name, ..)| println!("{name}: test"));
        return;
    }
    assert!(nix::unistd::geteuid().is_root(), "these tests change users and filters: run as root");
    for (name, _, check) in SCENES {
        if !arguments.is_empty() && !arguments.iter().any(|a| name.contains(a.as_str())) {
            continue;
        }
        print!("test {name} ... ");
        std::io::stdout().flush().unwrap();
        check(play(name));
        println!("ok");
    }
}

fn play(name: &str) -> Outcome {
    let this = std::env::current_exe().unwrap();
    let child = Command::new(this)
        .env(SCENE, name)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    Outcome { status: child.status, stdout: String::from_utf8(child.stdout).unwrap() }
}

fn expect_success(outcome: Outcome) {
    assert!(outcome.status.success(), "{:?}", outcome.status);
}

/// The fields of /proc/self/status, of this process or of the text that it printed.
fn fields(text: &str) -> HashMap<&str, String> {
    let words = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k, words(v))).collect()
}

fn print_status() {
    print!("{}", fs::read_to_string("/proc/self/status").unwrap());
}

fn expect_fields(outcome: &Outcome, wanted: &[(&str, &str)]) {
    assert!(outcome.status.success(), "{:?}", outcome.status);
    let fields = fields(&outcome.stdout);
    for (name, value) in wanted {
        assert_eq!(fields[name], *value, "{name}");
    }
}

fn nobody() -> Privileges {
    let (user, group) = privileges::find_user("nobody").unwrap();
    Privileges { user: Some(user), group: Some(group), ..Privileges::default() }
}

/// Bit 12.
const NET_ADMIN: &str = "0000000000001000";
const NONE: &str = "0000000000000000";

fn another_user() {
    Privileges { keep: vec![Capability::CAP_NET_ADMIN], ..nobody() }.drop().unwrap();
    print_status();
    // The capability is good for what it is kept for.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let net = adit_linux::net::Net::open().unwrap();
        let gone = net.set_mtu(u32::MAX >> 1, 1400).await.unwrap_err();
        assert_eq!(gone.kind(), adit_linux::net::NetErrorKind::NotFound, "{gone}");
    });
    assert!(fs::File::open("/etc/shadow").is_err());
    assert!(NetNs::unnamed().is_err());
}

fn expect_another_user(outcome: Outcome) {
    let id = privileges::find_user("nobody").unwrap();
    let (uid, gid) = (id.0.to_string(), id.1.to_string());
    expect_fields(
        &outcome,
        &[
            ("Uid", &[uid.as_str(); 4].join(" ")),
            ("Gid", &[gid.as_str(); 4].join(" ")),
            ("Groups", &gid),
            ("CapInh", NONE),
            ("CapPrm", NET_ADMIN),
            ("CapEff", NET_ADMIN),
            ("CapBnd", NET_ADMIN),
            ("CapAmb", NONE),
            ("NoNewPrivs", "1"),
            ("Seccomp", "0"),
        ],
    );
}

fn user_alone() {
    // A group that must go.
    nix::unistd::setgroups(&[nix::unistd::Gid::from_raw(4)]).unwrap();
    Privileges { group: None, ..nobody() }.drop().unwrap();
    print_status();
}

fn expect_user_alone(outcome: Outcome) {
    let gid = privileges::find_user("nobody").unwrap().1.to_string();
    expect_fields(&outcome, &[("Gid", &[gid.as_str(); 4].join(" ")), ("Groups", &gid)]);
}

fn another_user_bare() {
    nobody().drop().unwrap();
    print_status();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let net = adit_linux::net::Net::open().unwrap();
        let refused = net.set_mtu(u32::MAX >> 1, 1400).await.unwrap_err();
        assert_eq!(refused.kind(), adit_linux::net::NetErrorKind::Permission, "{refused}");
        assert!(refused.to_string().contains("CAP_NET_ADMIN"));
    });
}

fn expect_bare(outcome: Outcome) {
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|set| (set, NONE));
    expect_fields(&outcome, &sets);
}

fn parent_death() {
    let signal = nix::sys::signal::Signal::SIGTERM;
    nix::sys::prctl::set_pdeathsig(signal).unwrap();
    nobody().drop().unwrap();
    assert_eq!(nix::sys::prctl::get_pdeathsig().unwrap(), Some(signal));
}

fn same_user() {
    let keep = vec![Capability::CAP_NET_ADMIN];
    Privileges { keep, ..Privileges::default() }.drop().unwrap();
    // Not by starting a program either, although the user is still root.
    let status = Command::new("cat").arg("/proc/self/status").output().unwrap();
    print!("{}", String::from_utf8(status.stdout).unwrap());
}

fn expect_same_user(outcome: Outcome) {
    let wanted = [("Uid", "0 0 0 0"), ("CapBnd", NET_ADMIN), ("CapPrm", NET_ADMIN)];
    expect_fields(&outcome, &wanted);
}

fn missing() {
    Privileges::default().drop().unwrap();
    let keep = vec![Capability::CAP_NET_ADMIN];
    let error = Privileges { keep, ..Privileges::default() }.drop().unwrap_err();
    assert!(matches!(error, PrivilegeError::Missing(Capability::CAP_NET_ADMIN)), "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    let error = nobody().drop().unwrap_err();
    assert!(matches!(error, PrivilegeError::Step(..)), "{error}");
}

fn unprivileged() {
    nobody().drop().unwrap();
    Privileges::default().drop().unwrap();
}

fn locked() {
    let lock = Privileges { lock_memory: true, ..nobody() };
    let keep = vec![Capability::CAP_IPC_LOCK];
    Privileges { keep, ..lock }.drop().unwrap();
    // More than the usual limit of locked memory: it must not fail later.
    let more = vec![1u8; 32 << 20];
    assert_eq!(more.iter().map(|b| usize::from(*b)).sum::<usize>(), more.len());
    print_status();
}

/// Without the capability the limit counts, and one that cannot be raised is named at once.
fn locked_to_the_limit() {
    use nix::sys::resource::{Resource, setrlimit};
    caps::drop(None, caps::CapSet::Effective, Capability::CAP_SYS_RESOURCE).unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, 8 << 20, 8 << 20).unwrap();
    let error = Privileges { lock_memory: true, ..nobody() }.drop().unwrap_err();
    assert!(matches!(error, PrivilegeError::LockLimit(limit) if limit == 8 << 20), "{error}");
    assert!(error.to_string().contains("LimitMEMLOCK"), "{error}");
}

fn expect_locked(outcome: Outcome) {
    assert!(outcome.status.success(), "{:?}", outcome.status);
    let locked = &fields(&outcome.stdout)["VmLck"];
    let kilobytes: u64 = locked.split(' ').next().unwrap().parse().unwrap();
    assert!(kilobytes > 32 << 10, "{locked}");
}

fn protected() {
    privileges::protect_memory().unwrap();
    assert!(!nix::sys::prctl::get_dumpable().unwrap());
    let core = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_CORE).unwrap();
    assert_eq!(core, (0, 0));
}

/// What a running daemon does, as far as a test can.
fn live_as_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let (new, file) = (dir.path().join("new"), dir.path().join("status"));
    fs::write(&new, "x").unwrap();
    fs::OpenOptions::new().append(true).open(&new).unwrap().sync_all().unwrap();
    fs::rename(&new, &file).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions()).unwrap();
    std::thread::spawn(process::usage).join().unwrap().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let path = dir.path().join("control");
        let control = tokio::net::UnixListener::bind(&path).unwrap();
        let (one, two) = tokio::join!(control.accept(), tokio::net::UnixStream::connect(&path));
        drop((one.unwrap(), two.unwrap()));
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = tcp.local_addr().unwrap();
        let (one, two) = tokio::join!(tcp.accept(), tokio::net::TcpStream::connect(to));
        drop((one.unwrap(), two.unwrap()));
        let hang_up = tokio::signal::unix::SignalKind::hangup();
        drop(tokio::signal::unix::signal(hang_up).unwrap());
        // By the C library's resolver, on a thread of the runtime's.
        assert!(tokio::net::lookup_host("localhost:1").await.unwrap().next().is_some());
        let net = adit_linux::net::Net::open().unwrap();
        assert!(!net.links().await.unwrap().is_empty());
        let path = tokio::fs::read(&file).await.unwrap();
        assert_eq!(path, b"x");
    });
    move_packets();
}

fn move_packets() {
    let [a, b] = sockets();
    exchange(&a, &b);
}

fn sockets() -> [UdpSocket; 2] {
    [(); 2].map(|()| UdpSocket::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap())
}

fn exchange(a: &UdpSocket, b: &UdpSocket) {
    use adit_linux::poll::{EventFd, Events, Interest, Poller};
    let (poller, mut events) = (Poller::new().unwrap(), Events::new());
    let wake = EventFd::new().unwrap();
    poller.add(b, 1, Interest::READ).unwrap();
    poller.add(&wake, 2, Interest::READ).unwrap();
    wake.signal();
    let train = Train { to: b.local_addr(), from: None, segment: 100, payload: &[1; 950] };
    a.send_trains(&[train; 4], &mut SendScratch::new(4)).unwrap();
    a.send_to(b.local_addr(), None, b"single").unwrap();
    assert!(poller.wait(&mut events, Some(Duration::from_micros(70))).unwrap() > 0);
    assert!(wake.drain());
    let mut batch = RecvBatch::new(8);
    assert_eq!(b.recv_burst(&mut batch).unwrap(), 5);
    assert!(adit_linux::clock::boottime() > 0);
    assert!(b.as_fd().try_clone_to_owned().is_ok());
}

fn refused<T>(result: std::io::Result<T>) {
    match result {
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc_eperm()), "{e}"),
        Ok(_) => panic!("the filter let it pass"),
    }
}

fn libc_eperm() -> i32 {
    nix::errno::Errno::EPERM as i32
}

fn daemon_filter() {
    // In a namespace and with all capabilities, so that only the filter can refuse.
    NetNs::unnamed().unwrap().enter().unwrap();
    let filter = Some((Profile::Daemon, Violation::Refuse));
    let keep = vec![Capability::CAP_SYS_ADMIN, Capability::CAP_NET_RAW, Capability::CAP_NET_ADMIN];
    Privileges { seccomp: filter, keep, ..Privileges::default() }.drop().unwrap();
    let seccomp = fields(&fs::read_to_string("/proc/self/status").unwrap())["Seccomp"].clone();
    assert_eq!(seccomp, "2");
    live_as_a_daemon();
    refused(Command::new("true").status());
    let new_net = nix::sched::CloneFlags::CLONE_NEWNET;
    refused(nix::sched::unshare(new_net).map_err(Into::into));
    use socket2::{Domain, Socket, Type};
    refused(Socket::new(Domain::PACKET, Type::RAW, None));
    refused(nix::mount::umount("/nowhere").map_err(Into::into));
    Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
}

fn program_filter() {
    NetNs::unnamed().unwrap().enter().unwrap();
    apply_seccomp(Profile::DaemonWithPrograms, Violation::Refuse).unwrap();
    live_as_a_daemon();
    let script = "set -e; ls / | head -n 3; ip link show lo; ip route get 127.0.0.1;
        nft add table inet adit; nft list ruleset | grep adit; nft delete table inet adit";
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let net = NetNs::unnamed();
    assert!(net.is_err());
}

fn plane_filter() {
    let [a, b] = sockets();
    let worker = std::thread::spawn(move || {
        apply_seccomp(Profile::DataPlane, Violation::Refuse).unwrap();
        exchange(&a, &b);
        refused(fs::File::open("/etc/hostname"));
        refused(UdpSocket::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())));
        refused(Command::new("true").status());
    });
    worker.join().unwrap();
    // The others go on as before.
    live_as_a_daemon();
}

fn violation() {
    apply_seccomp(Profile::Daemon, Violation::Kill).unwrap();
    live_as_a_daemon();
    print!("alive");
    std::io::stdout().flush().unwrap();
    let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
    print!("and well");
}

fn expect_killed(outcome: Outcome) {
    assert_eq!(outcome.stdout, "alive");
    assert_eq!(outcome.status.signal(), Some(nix::sys::signal::Signal::SIGSYS as i32));
}

fn nice() {
    let own = || fs::read_to_string("/proc/self/stat").unwrap();
    let field = |stat: &str| -> i32 {
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().parse().unwrap()
    };
    process::set_nice(7).unwrap();
    assert_eq!(field(&own()), 7);
    process::set_nice(-3).unwrap();
    assert_eq!(field(&own()), -3);
}

/// Starts itself once more, as a child that goes to the background and reports to a file.
fn daemonized() {
    if let Some(report) = std::env::var_os("ADIT_LINUX_REPORT") {
        let parent = std::process::id();
        process::daemonize(false).unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let cwd = std::env::current_dir().unwrap();
        let stdout = fs::read_link("/proc/self/fd/1").unwrap();
        let new = std::path::Path::new(&report).with_extension("new");
        let text = format!("{parent}\n{}\n{}\n{stat}", cwd.display(), stdout.display());
        fs::write(&new, text).unwrap();
        fs::rename(new, report).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(SCENE, "a_daemon_leaves_its_terminal").env("ADIT_LINUX_REPORT", &report);
    assert!(command.process_group(0).status().unwrap().success());
    let start = Instant::now();
    while !report.exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "the daemon said nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    print!("{}", fs::read_to_string(report).unwrap());
}

fn expect_daemonized(outcome: Outcome) {
    assert!(outcome.status.success(), "{:?}", outcome.status);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    let [parent, cwd, stdout, stat] = lines[..] else { panic!("{lines:?}") };
    assert_eq!((cwd, stdout), ("/", "/dev/null"));
    let pid = stat.split(' ').next().unwrap();
    let rest: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // State, parent, group, session, terminal: a session of its own, without a terminal.
    assert_ne!(pid, parent);
    assert_eq!((rest[3], rest[4]), (pid, "0"));
}
