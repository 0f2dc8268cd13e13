//! The allowed arguments of system calls: the values that this program uses.
//!
//! A filter sees registers but no memory. It cannot check arguments in memory (an address, the arguments of `clone3`).
#![allow(clippy::unnecessary_cast, reason = "numbers of ioctl have another type with musl")]

use std::collections::BTreeMap;

use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::Profile;

/// The rules of each allowed call; without rules any arguments are allowed.
pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Address families of every daemon's sockets. No packet sockets (except for a bridge), no AF_ALG, no rare families.
const FAMILIES: [libc::c_int; 4] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK];

/// Setting the device's offloads, which are disabled at run time if the kernel refuses them.
const PLANE_IOCTLS: [u64; 1] = [libc::TUNSETOFFLOAD as u64];

/// Opening devices, making descriptors non-blocking, reading interface names, and checking whether a descriptor is a
/// terminal.
const DAEMON_IOCTLS: [u64; 10] = [
    libc::TUNSETOFFLOAD as u64,
    libc::TUNSETIFF as u64,
    libc::TUNSETQUEUE as u64,
    libc::TUNSETVNETHDRSZ as u64,
    libc::SIOCGIFHWADDR as u64,
    libc::SIOCGIFINDEX as u64,
    libc::SIOCGIFNAME as u64,
    libc::FIONBIO as u64,
    libc::FIOCLEX as u64,
    libc::TCGETS as u64,
];

/// Injecting input into a terminal. This is forbidden to programs too, although their other requests are allowed.
const TERMINAL_IOCTLS: [u64; 2] = [libc::TIOCSTI as u64, libc::TIOCLINUX as u64];

/// `PR_GET_AUXV` (include/uapi/linux/prctl.h): the standard library asks for the processor's features.
const PR_GET_AUXV: libc::c_int = 0x4155_5856;

/// Setting the names of threads and of memory, no_new_privs and dumps of memory, and reading these settings.
const PRCTLS: [libc::c_int; 9] = [
    PR_GET_AUXV,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_VMA,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_SET_DUMPABLE,
    libc::PR_GET_DUMPABLE,
    libc::PR_GET_SECCOMP,
];

type Options = (libc::c_int, &'static [libc::c_int]);

/// Options that a worker sets on open sockets.
const PLANE_OPTIONS: [Options; 4] = [
    (libc::IPPROTO_IP, &[libc::IP_MTU_DISCOVER]),
    (libc::IPPROTO_IPV6, &[libc::IPV6_MTU_DISCOVER, libc::IPV6_DONTFRAG]),
    (libc::IPPROTO_TCP, &[libc::TCP_NODELAY, libc::TCP_NOTSENT_LOWAT]),
    (libc::SOL_UDP, &[libc::UDP_GRO]),
];

/// Options of sockets that a daemon creates, by level.
const DAEMON_OPTIONS: [Options; 6] = [
    (
        libc::SOL_SOCKET,
        &[
            libc::SO_REUSEADDR,
            libc::SO_REUSEPORT,
            libc::SO_KEEPALIVE,
            libc::SO_SNDBUF,
            libc::SO_RCVBUF,
            libc::SO_SNDBUFFORCE,
            libc::SO_RCVBUFFORCE,
            libc::SO_RCVTIMEO,
            libc::SO_SNDTIMEO,
            libc::SO_PASSCRED,
            libc::SO_MARK,
            libc::SO_BINDTODEVICE,
            libc::SO_ATTACH_REUSEPORT_CBPF,
        ],
    ),
    (libc::IPPROTO_IP, &[libc::IP_PKTINFO, libc::IP_RECVERR, libc::IP_MTU_DISCOVER]),
    (
        libc::IPPROTO_IPV6,
        &[
            libc::IPV6_V6ONLY,
            libc::IPV6_RECVPKTINFO,
            libc::IPV6_RECVERR,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_DONTFRAG,
        ],
    ),
    (
        libc::IPPROTO_TCP,
        &[
            libc::TCP_NODELAY,
            libc::TCP_NOTSENT_LOWAT,
            libc::TCP_USER_TIMEOUT,
            libc::TCP_KEEPIDLE,
            libc::TCP_KEEPINTVL,
            libc::TCP_KEEPCNT,
        ],
    ),
    (libc::SOL_UDP, &[libc::UDP_GRO]),
    (
        libc::SOL_NETLINK,
        &[
            libc::NETLINK_ADD_MEMBERSHIP,
            libc::NETLINK_EXT_ACK,
            libc::NETLINK_GET_STRICT_CHK,
            libc::NETLINK_NO_ENOBUFS,
        ],
    ),
];

/// Options that a bridge sets on packet sockets.
const PACKET_OPTIONS: Options = (
    libc::SOL_PACKET,
    &[
        libc::PACKET_VNET_HDR,
        libc::PACKET_AUXDATA,
        libc::PACKET_IGNORE_OUTGOING,
        libc::PACKET_ADD_MEMBERSHIP,
        libc::PACKET_FANOUT,
    ],
);

/// Flags of `clone` that create namespaces. (The flag for a time namespace is part of the signal number in `clone`.)
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Restricts the calls of a profile's lists to the arguments that are used.
pub(super) fn narrow(profile: Profile, rules: &mut Rules) -> Result<(), BackendError> {
    let packets = (profile == Profile::Bridge).then_some(libc::AF_PACKET);
    let families = || FAMILIES.into_iter().chain(packets);
    match profile {
        Profile::DataPlane => {
            rules.insert(libc::SYS_ioctl, one_of(1, PLANE_IOCTLS)?);
            rules.insert(libc::SYS_setsockopt, options(&PLANE_OPTIONS)?);
        }
        Profile::Daemon | Profile::Bridge => {
            rules.insert(libc::SYS_ioctl, one_of(1, DAEMON_IOCTLS)?);
            rules.insert(libc::SYS_prctl, one_of(0, PRCTLS.map(number))?);
            // A thread of this process, not another process.
            let thread = bits(libc::CLONE_THREAD | NAMESPACES, libc::CLONE_THREAD)?;
            rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
            let mut allowed = DAEMON_OPTIONS.to_vec();
            allowed.extend(packets.map(|_| PACKET_OPTIONS));
            rules.insert(libc::SYS_setsockopt, options(&allowed)?);
            rules.insert(libc::SYS_socket, one_of(0, families().map(number))?);
        }
        Profile::DaemonWithPrograms => {
            let none_of = TERMINAL_IOCTLS.map(|request| condition(1, SeccompCmpOp::Ne, request));
            let none_of = none_of.into_iter().collect::<Result<Vec<_>, _>>()?;
            rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(none_of)?]);
            let process = bits(NAMESPACES, 0)?;
            rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![process])?]);
            rules.insert(libc::SYS_socket, one_of(0, families().map(number))?);
        }
    }
    Ok(())
}

/// Returns the value as the kernel compares it: 32 bits.
fn number(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

fn condition(
    argument: u8,
    compare: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value & 0xffff_ffff)
}

fn one_of(
    argument: u8,
    values: impl IntoIterator<Item = u64>,
) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |value| SeccompRule::new(vec![condition(argument, SeccompCmpOp::Eq, value)?]);
    values.into_iter().map(rule).collect()
}

/// Requires that, of the bits in `of`, exactly those in `those` are set in the first argument.
fn bits(of: libc::c_int, those: libc::c_int) -> Result<SeccompCondition, BackendError> {
    condition(0, SeccompCmpOp::MaskedEq(number(of)), number(those))
}

fn options(allowed: &[Options]) -> Result<Vec<SeccompRule>, BackendError> {
    let each = |(level, names): &Options| {
        let level = number(*level);
        names.iter().map(move |name| (level, number(*name))).collect::<Vec<_>>()
    };
    let rule = |(level, name)| {
        let level = condition(1, SeccompCmpOp::Eq, level)?;
        SeccompRule::new(vec![level, condition(2, SeccompCmpOp::Eq, name)?])
    };
    allowed.iter().flat_map(each).map(rule).collect()
}
