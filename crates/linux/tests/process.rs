//! Tests of operations that change a whole process. Each scene runs in a separate process: this program with the scene's name in the
//! environment. Needs root.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
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

/// The name, the child's actions, and the parent's expectations.
const SCENES: &[Scene] = &[
    ("another_user_with_one_capability", another_user, expect_another_user),
    ("another_user_with_none", another_user_bare, expect_bare),
    ("a_user_alone_brings_its_primary_group", user_alone, expect_user_alone),
    ("another_user_still_ends_with_its_parent", parent_death, expect_success),
    ("the_same_user_with_one_capability", same_user, expect_same_user),
    ("a_missing_capability_is_named", missing, expect_success),
    ("an_unprivileged_process_can_still_shed", unprivileged, expect_success),
    ("a_root_directory_confines_the_process", rooted, expect_success),
    ("memory_is_locked", locked, expect_locked),
    ("a_low_limit_of_locked_memory_is_named", locked_to_the_limit, expect_success),
    ("secrets_stay_out_of_core_dumps", protected, expect_success),
    ("a_daemon_runs_under_its_filter", daemon_filter, expect_success),
    ("programs_run_under_theirs", program_filter, expect_success),
    ("packets_move_under_the_data_planes_filter", plane_filter, expect_success),
    ("a_daemons_arguments_are_those_it_uses", daemon_arguments, expect_success),
    ("a_bridges_arguments_are_those_it_uses", bridge_arguments, expect_success),
    ("a_workers_arguments_are_those_it_uses", plane_arguments, expect_success),
    ("programs_get_no_namespaces_and_no_terminal", program_arguments, expect_success),
    ("a_violation_kills", violation, expect_killed),
    ("nice", nice, expect_success),
    ("a_daemon_leaves_its_terminal", daemonized, expect_daemonized),
    ("a_detached_daemon_is_waited_for", detached, expect_daemonized),
    ("a_program_inherits_no_descriptor", no_descriptors, expect_success),
    ("another_user_whose_programs_may_regain_privileges", other_identity, expect_other_identity),
    ("another_root_directory", other_root, expect_success),
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
    for (name, _, check) in SCENES {
        if !arguments.is_empty() && !arguments.iter().any(|a| name.contains(a.as_str())) {
            continue;
        }
        // The scenes change users and filters.
        if !nix::unistd::geteuid().is_root() {
            adit_testbed::skip::skip(name, adit_testbed::skip::NEEDS_ROOT);
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

/// Returns the fields of /proc/self/status, read by this process or from a program's output.
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

fn no_descriptors() {
    let file = fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let inherits = || Command::new("test").args(["-e", &path]).status().unwrap().success();
    assert!(inherits());
    adit_linux::descriptors::close_on_exec_from(3).unwrap();
    assert!(!inherits());
    assert!(rustix::io::fcntl_getfd(&file).is_ok(), "it stays open here");
}

fn other_identity() {
    let (user, group) = privileges::find_user("nobody").unwrap();
    privileges::change_identity(None, Some(group), Some(user)).unwrap();
    print_status();
    assert!(privileges::change_identity(Some("/tmp".as_ref()), None, None).is_err());
}

fn other_root() {
    let folder = std::env::temp_dir().join(format!("adit-root-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    privileges::change_identity(Some(&folder), None, None).unwrap();
    assert_eq!(std::env::current_dir().unwrap().to_str(), Some("/"));
    assert_eq!(fs::read_dir("/").unwrap().count(), 0);
}

fn expect_other_identity(outcome: Outcome) {
    let (user, group) = privileges::find_user("nobody").unwrap();
    let four = |id: u32| vec![id.to_string(); 4].join(" ");
    let own = group.to_string();
    expect_fields(
        &outcome,
        &[
            ("Uid", &four(user.as_raw())),
            ("Gid", &four(group.as_raw())),
            ("Groups", &own),
            ("CapEff", NONE),
            // A program may regain privileges by the modes of its file, as under openvpn.
            ("NoNewPrivs", "0"),
            ("Seccomp", "0"),
        ],
    );
}

/// Bit 12 of the capabilities.
const NET_ADMIN: &str = "0000000000001000";
const NONE: &str = "0000000000000000";

fn another_user() {
    Privileges { keep: vec![Capability::CAP_NET_ADMIN], ..nobody() }.drop().unwrap();
    print_status();
    // The capability is usable.
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
    // A supplementary group that must be dropped.
    nix::unistd::setgroups(&[nix::unistd::Gid::from_raw(4)]).unwrap();
    Privileges { group: None, ..nobody() }.drop().unwrap();
    print_status();
}

fn expect_user_alone(outcome: Outcome) {
    let gid = privileges::find_user("nobody").unwrap().1.to_string();
    expect_fields(&outcome, &[("Gid", &[gid.as_str(); 4].join(" ")), ("Groups", &gid)]);
}

fn rooted() {
    let lost = Privileges { root: Some("/usr/missing".into()), ..nobody() };
    let error = lost.drop().unwrap_err();
    assert!(error.to_string().contains("changing the root directory"), "{error}");
    Privileges { root: Some("/usr".into()), ..nobody() }.drop().unwrap();
    assert!(fs::metadata("/bin").is_ok_and(|data| data.is_dir()));
    assert!(fs::metadata("/etc/passwd").is_err() && fs::metadata("/usr/bin").is_err());
    assert!(fs::metadata("../../../etc/passwd").is_err());
    assert_eq!(std::env::current_dir().unwrap(), std::path::Path::new("/"));
    assert!(nix::unistd::chroot("/bin").is_err());
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
    // Starting a program does not regain them either, although the user is still root.
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
    // More than the default limit of locked memory: later allocations must not fail.
    let more = vec![1u8; 32 << 20];
    assert_eq!(more.iter().map(|b| usize::from(*b)).sum::<usize>(), more.len());
    print_status();
}

/// Checks that the limit applies without the capability, and that a limit that is too low and cannot be raised is
/// reported at once.
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

/// Performs the operations of a running daemon, as far as possible in a test.
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
        // Uses the C library's resolver on a thread of the runtime.
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
    let train =
        Train { to: b.local_addr(), from: None, segment: 100, tos: None, payload: &[1; 950] };
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
    // In a separate namespace and with all capabilities, so that only the filter can refuse.
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
    // The other threads keep running.
    live_as_a_daemon();
}

/// Returns the error number of a system call, or 0 for success.
fn errno(call: libc::c_long, arguments: [i64; 4]) -> i32 {
    let [a, b, c, d] = arguments;
    // SAFETY: all calls here have numbers for arguments, or null pointers, which the kernel checks.
    let rc = unsafe { libc::syscall(call, a, b, c, d, 0, 0) };
    if rc < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
}

/// Makes calls whose arguments the filter allows. They may fail, but only for lack of a descriptor or memory.
fn pass(call: libc::c_long, cases: &[[i64; 4]]) {
    for case in cases {
        assert_ne!(errno(call, *case), libc::EPERM, "{call} {case:?}");
    }
}

/// Makes calls with one argument each that the filter does not allow.
fn fail(call: libc::c_long, cases: &[[i64; 4]]) {
    for case in cases {
        assert_eq!(errno(call, *case), libc::EPERM, "{call} {case:?}");
    }
}

fn option(level: i32, name: i32) -> [i64; 4] {
    [-1, level.into(), name.into(), 0]
}

/// Runs as a daemon does, with all capabilities, so that only the filter can refuse.
fn arguments_of_a_daemon() {
    pass(libc::SYS_ioctl, &[[-1, libc::FIONBIO as i64, 0, 0], [-1, libc::TUNSETIFF as i64, 0, 0]]);
    fail(
        libc::SYS_ioctl,
        &[
            [-1, libc::TIOCSTI as i64, 0, 0],
            [-1, libc::TIOCLINUX as i64, 0, 0],
            [-1, libc::TUNSETPERSIST as i64, 0, 0],
            [-1, libc::SIOCSIFFLAGS as i64, 0, 0],
            // All 32 bits of the number must match.
            [-1, libc::FIONBIO as i64 | 1 << 31, 0, 0],
        ],
    );
    pass(libc::SYS_prctl, &[[libc::PR_GET_DUMPABLE.into(), 0, 0, 0]]);
    fail(
        libc::SYS_prctl,
        &[
            [libc::PR_SET_KEEPCAPS.into(), 0, 0, 0],
            [libc::PR_SET_SECCOMP.into(), 0, 0, 0],
            [libc::PR_SET_MM.into(), 0, 0, 0],
            [libc::PR_SET_PTRACER.into(), 0, 0, 0],
            [libc::PR_CAP_AMBIENT.into(), 0, 0, 0],
        ],
    );
    // The kernel itself refuses a thread that does not share memory: EINVAL.
    let thread = i64::from(libc::CLONE_THREAD);
    assert_eq!(errno(libc::SYS_clone, [thread, 0, 0, 0]), libc::EINVAL);
    let vm = i64::from(libc::CLONE_VM | libc::CLONE_VFORK);
    fail(libc::SYS_clone, &[[0, 0, 0, 0], [libc::SIGCHLD.into(), 0, 0, 0], [vm, 0, 0, 0]]);
    for namespace in [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ] {
        fail(libc::SYS_clone, &[[thread | i64::from(namespace), 0, 0, 0]]);
    }
    assert_eq!(errno(libc::SYS_clone3, [0, 0, 0, 0]), libc::ENOSYS);
    pass(
        libc::SYS_setsockopt,
        &[
            option(libc::SOL_SOCKET, libc::SO_MARK),
            option(libc::IPPROTO_TCP, libc::TCP_NODELAY),
            option(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP),
        ],
    );
    fail(
        libc::SYS_setsockopt,
        &[
            option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
            option(libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
            option(libc::IPPROTO_TCP, libc::TCP_ULP),
            option(libc::IPPROTO_TCP, libc::TCP_REPAIR),
            option(libc::IPPROTO_IP, libc::IP_TRANSPARENT),
            option(libc::IPPROTO_RAW, libc::SO_MARK),
            option(libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID),
        ],
    );
    for family in [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK] {
        pass(libc::SYS_socket, &[[family.into(), libc::SOCK_DGRAM.into(), 0, 0]]);
    }
    for family in [libc::AF_ALG, libc::AF_VSOCK, libc::AF_BLUETOOTH, libc::AF_KEY, libc::AF_RDS] {
        fail(libc::SYS_socket, &[[family.into(), libc::SOCK_RAW.into(), 0, 0]]);
    }
}

/// Calls that only a bridge makes.
fn packet_arguments() -> [(libc::c_long, [i64; 4]); 2] {
    [
        (libc::SYS_socket, [libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0, 0]),
        (libc::SYS_setsockopt, option(libc::SOL_PACKET, libc::PACKET_VNET_HDR)),
    ]
}

fn daemon_arguments() {
    NetNs::unnamed().unwrap().enter().unwrap();
    apply_seccomp(Profile::Daemon, Violation::Refuse).unwrap();
    arguments_of_a_daemon();
    packet_arguments().iter().for_each(|(call, case)| fail(*call, &[*case]));
    live_as_a_daemon();
}

fn bridge_arguments() {
    NetNs::unnamed().unwrap().enter().unwrap();
    apply_seccomp(Profile::Bridge, Violation::Refuse).unwrap();
    arguments_of_a_daemon();
    packet_arguments().iter().for_each(|(call, case)| pass(*call, &[*case]));
    fail(libc::SYS_setsockopt, &[option(libc::SOL_PACKET, libc::PACKET_RX_RING)]);
    live_as_a_daemon();
}

fn plane_arguments() {
    let [a, b] = sockets();
    let worker = std::thread::spawn(move || {
        apply_seccomp(Profile::DataPlane, Violation::Refuse).unwrap();
        exchange(&a, &b);
        a.set_gro(false).unwrap();
        pass(libc::SYS_ioctl, &[[-1, libc::TUNSETOFFLOAD as i64, 0, 0]]);
        fail(
            libc::SYS_ioctl,
            &[[-1, libc::TUNSETIFF as i64, 0, 0], [-1, libc::FIONBIO as i64, 0, 0]],
        );
        pass(libc::SYS_setsockopt, &[option(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT)]);
        fail(
            libc::SYS_setsockopt,
            &[
                option(libc::SOL_SOCKET, libc::SO_MARK),
                option(libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
                option(libc::IPPROTO_TCP, libc::TCP_ULP),
            ],
        );
        fail(libc::SYS_prctl, &[[libc::PR_SET_NAME.into(), 0, 0, 0]]);
        fail(libc::SYS_clone, &[[libc::CLONE_THREAD.into(), 0, 0, 0]]);
        fail(libc::SYS_clone3, &[[0, 0, 0, 0]]);
        fail(libc::SYS_socket, &[[libc::AF_INET.into(), libc::SOCK_DGRAM.into(), 0, 0]]);
    });
    worker.join().unwrap();
}

fn program_arguments() {
    apply_seccomp(Profile::DaemonWithPrograms, Violation::Refuse).unwrap();
    fail(libc::SYS_ioctl, &[[-1, libc::TIOCSTI as i64, 0, 0], [-1, libc::TIOCLINUX as i64, 0, 0]]);
    pass(libc::SYS_ioctl, &[[-1, libc::SIOCGIFFLAGS as i64, 0, 0]]);
    for namespace in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
        fail(libc::SYS_clone, &[[i64::from(namespace | libc::SIGCHLD), 0, 0, 0]]);
    }
    assert_eq!(errno(libc::SYS_clone3, [0, 0, 0, 0]), libc::ENOSYS);
    assert!(Command::new("true").status().unwrap().success());
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

/// Starts this program again as a child that goes to the background and reports to a file.
fn daemonized() {
    in_background("a_daemon_leaves_its_terminal", || {
        process::daemonize(false).unwrap();
        None
    });
}

/// Does the same as [`daemonized`] with a parent that waits.
fn detached() {
    in_background("a_detached_daemon_is_waited_for", || Some(process::detach().unwrap()));
}

fn in_background(scene: &str, leave: fn() -> Option<process::StartReport>) {
    if let Some(report) = std::env::var_os("ADIT_LINUX_REPORT") {
        let parent = std::process::id();
        let waiting = leave();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let cwd = std::env::current_dir().unwrap();
        let stdout = fs::read_link("/proc/self/fd/1").unwrap();
        let new = std::path::Path::new(&report).with_extension("new");
        let text = format!("{parent}\n{}\n{}\n{stat}", cwd.display(), stdout.display());
        fs::write(&new, text).unwrap();
        fs::rename(new, report).unwrap();
        waiting.into_iter().for_each(process::StartReport::ready);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(SCENE, scene).env("ADIT_LINUX_REPORT", &report);
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
    // State, parent, group, session, terminal: the process has its own session and no terminal.
    assert_ne!(pid, parent);
    assert_eq!((rest[3], rest[4]), (pid, "0"));
}
