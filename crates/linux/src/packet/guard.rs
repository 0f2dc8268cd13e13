//! Keeping the host's own stack away from an interface, for as long as a process lives.
//!
//! A packet socket gets a copy of each frame; the host's stack gets the frame itself, and would answer
//! ARP for any of its addresses, refuse TCP connections to them, and forward. So everything that the
//! interface receives is dropped behind the packet sockets and before the stack: by a chain of nftables'
//! `netdev` family at the hook `ingress` whose policy is to drop. The table belongs to the netlink socket
//! that made it (`NFT_TABLE_F_OWNER`, Linux 5.12): the kernel removes it with the process, also after
//! `kill -9`, and nobody else's `nft flush ruleset` does.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

/// `nfgenmsg.res_id` and the upper byte of message types: nftables.
const NFTABLES: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = NFTABLES << 8 | libc::NFT_MSG_NEWTABLE as u16;
const NEW_CHAIN: u16 = NFTABLES << 8 | libc::NFT_MSG_NEWCHAIN as u16;

/// Attributes (include/uapi/linux/netfilter/nf_tables.h).
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
const NESTED: u16 = 0x8000;

/// The table goes with the socket that made it.
const OWNER: u32 = 2;

/// `NF_NETDEV_INGRESS`.
const INGRESS: u32 = 0;

/// Before every other chain of an interface: what is dropped need not pass them.
const FIRST: i32 = -500;

/// `NF_DROP`.
const DROP: u32 = 0;

/// How long the kernel may take to answer. It answers before the call returns.
const PATIENCE_S: i64 = 5;

/// Why the host's stack could not be kept away.
#[derive(Debug)]
pub struct GuardError {
    step: &'static str,
    error: io::Error,
}

impl fmt::Display for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, error } = self;
        write!(f, "{step} ({error})")?;
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                write!(f, ": run as root or with CAP_NET_ADMIN")
            }
            Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT) => write!(
                f,
                ": needs nftables with the netdev family and owned tables, Linux 5.12 or later \
                 (CONFIG_NF_TABLES_NETDEV)"
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for GuardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The host's stack receives nothing from the interfaces that it was told, until it is dropped.
#[derive(Debug)]
pub struct Guard {
    socket: OwnedFd,
    table: String,
    sequence: u32,
}

impl Guard {
    /// Guard no interface yet, in the calling thread's network namespace. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Missing rights, or a kernel without what it takes.
    pub fn new() -> Result<Self, GuardError> {
        let step = "opening a netlink socket to nftables";
        let opened = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkNetFilter,
        )
        .and_then(|socket| {
            setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
            Ok(socket)
        });
        let socket = opened.map_err(|e| GuardError { step, error: e.into() })?;
        let table = format!("adit_bridge_{}", std::process::id());
        let mut this = Self { socket, table, sequence: 0 };
        let mut body = Attributes::default();
        body.text(TABLE_NAME, &this.table);
        body.number(TABLE_FLAGS, OWNER);
        this.change(NEW_TABLE, &body.0)
            .map_err(|error| GuardError { step: "making an nftables table", error })?;
        Ok(this)
    }

    /// Keep the host's stack from all that this interface receives from now on. An interface that is
    /// guarded already stays so.
    ///
    /// # Errors
    /// No such interface; from Linux 6.16 on that is none: there the chain waits for one of that name.
    pub fn add(&mut self, interface: &str) -> Result<(), GuardError> {
        let mut hook = Attributes::default();
        hook.number(HOOK_NUMBER, INGRESS);
        hook.number(HOOK_PRIORITY, FIRST.cast_unsigned());
        hook.text(HOOK_DEVICE, interface);
        let mut body = Attributes::default();
        body.text(CHAIN_TABLE, &self.table);
        body.text(CHAIN_NAME, &format!("keep_from_host_{interface}"));
        body.bytes(CHAIN_HOOK | NESTED, &hook.0);
        body.number(CHAIN_POLICY, DROP);
        body.text(CHAIN_TYPE, "filter");
        match self.change(NEW_CHAIN, &body.0) {
            Err(e) if e.raw_os_error() != Some(libc::EEXIST) => {
                Err(GuardError { step: "making an nftables chain at ingress", error: e })
            }
            _ => Ok(()),
        }
    }

    /// The table's name, family `netdev`.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Sends one change in a transaction of its own, and waits for the kernel's word.
    fn change(&mut self, kind: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        let plain = libc::NLM_F_REQUEST as u16;
        let create = plain | (libc::NLM_F_CREATE | libc::NLM_F_ACK) as u16;
        message(&mut bytes, BATCH_BEGIN, plain, self.sequence, (0, NFTABLES), &[]);
        let family = libc::NFPROTO_NETDEV as u8;
        message(&mut bytes, kind, create, self.sequence, (family, 0), body);
        message(&mut bytes, BATCH_END, plain, self.sequence, (0, NFTABLES), &[]);
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.socket.as_raw_fd(), &bytes, &kernel, MsgFlags::empty())?;
        let mut answer = [0; 8192];
        loop {
            let len = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            if let Some(code) = verdict(answer.get(..len).unwrap_or(&[]), self.sequence) {
                return match code {
                    0 => Ok(()),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
        }
    }
}

/// Netlink attributes, one behind the other.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }
}

/// Appends a message: header, family and resource, attributes.
fn message(
    to: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    (family, resource): (u8, u16),
    body: &[u8],
) {
    let len = u32::try_from(20 + body.len()).unwrap_or(u32::MAX);
    to.extend(len.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend(sequence.to_ne_bytes());
    to.extend(0u32.to_ne_bytes());
    to.extend([family, 0]);
    to.extend(resource.to_be_bytes());
    to.extend(body);
}

/// The kernel's word about the change with this number: 0 or a negative error; `None` if it is not
/// among these messages.
fn verdict(mut bytes: &[u8], sequence: u32) -> Option<i32> {
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4)?.try_into().ok();
    while bytes.len() >= 20 {
        let len = u32::from_ne_bytes(word(bytes, 0)?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let about = u32::from_ne_bytes(word(bytes, 8)?);
        if i32::from(kind) == libc::NLMSG_ERROR && about == sequence {
            return word(bytes, 16).map(i32::from_ne_bytes);
        }
        bytes = bytes.get(len.max(16).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_count_themselves_without_padding() {
        let mut attributes = Attributes::default();
        attributes.text(TABLE_NAME, "ab");
        attributes.number(TABLE_FLAGS, 2);
        let length = |n: u16| n.to_ne_bytes();
        let mut expected = Vec::new();
        expected.extend(length(7));
        expected.extend(TABLE_NAME.to_ne_bytes());
        expected.extend(*b"ab\0\0");
        expected.extend(length(8));
        expected.extend(TABLE_FLAGS.to_ne_bytes());
        expected.extend([0, 0, 0, 2]);
        assert_eq!(attributes.0, expected);
    }

    #[test]
    fn the_verdict_is_that_of_the_same_number() {
        let error = |sequence: u32, code: i32| {
            let mut bytes = Vec::new();
            bytes.extend(36u32.to_ne_bytes());
            bytes.extend((libc::NLMSG_ERROR as u16).to_ne_bytes());
            bytes.extend([0; 2]);
            bytes.extend(sequence.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(code.to_ne_bytes());
            bytes.extend([0; 16]);
            bytes
        };
        let both = [error(1, -17), error(2, 0)].concat();
        assert_eq!(verdict(&both, 1), Some(-17));
        assert_eq!(verdict(&both, 2), Some(0));
        assert_eq!(verdict(&both, 3), None);
        assert_eq!(verdict(&both[..30], 1), Some(-17));
        // Cut short, or a length of nothing: no endless loop, no panic.
        assert_eq!(verdict(&both[..19], 1), None);
        assert_eq!(verdict(&[0; 64], 1), None);
    }
}
