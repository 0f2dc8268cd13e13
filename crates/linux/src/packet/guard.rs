//! Keeps an interface's frames from the host's own stack while a process lives.
//!
//! A packet socket gets a copy of each frame; the host's stack gets the frame itself, and would answer ARP for any of its addresses, refuse
//! TCP connections to them, and forward packets. Therefore a chain drops every frame that the interface receives after the packet sockets
//! and before the stack. It is of nftables' `netdev` family, at the hook `ingress`, with the policy drop. The table belongs to the netlink
//! socket that created it (`NFT_TABLE_F_OWNER`, Linux 5.12): the kernel removes it with the process, even after `kill -9`, and `nft flush
//! ruleset` does not remove it.
//!
//! Before Linux 6.16, such a chain requires its interface to exist. An interface that is removed and created again has
//! no chain until it is added again. Therefore a second set of rules matches the interface's name and does not require
//! it to exist: in tables of the families `inet`, before routing, and `arp`. These rules see only IP and ARP packets of
//! the interface itself, not packets received by VLAN interfaces or a kernel bridge on top of it.

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
const DELETE_CHAIN: u16 = NFTABLES << 8 | libc::NFT_MSG_DELCHAIN as u16;
const NEW_RULE: u16 = NFTABLES << 8 | libc::NFT_MSG_NEWRULE as u16;

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
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const META_DESTINATION: u16 = 1;
const META_KEY: u16 = 2;
const CMP_SOURCE: u16 = 1;
const CMP_OPERATION: u16 = 2;
const CMP_DATA: u16 = 3;
const IMMEDIATE_DESTINATION: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const NESTED: u16 = 0x8000;

/// `NFT_META_IIFNAME`, `NFT_CMP_EQ`, and the registers of verdicts and of the first value.
const IIFNAME: u32 = 6;
const EQUAL: u32 = 0;
const VERDICT: u32 = 0;
const VALUE: u32 = 1;

/// The table is removed with the socket that created it.
const OWNER: u32 = 2;

/// `NF_NETDEV_INGRESS`.
const INGRESS: u32 = 0;
/// Families of the second set of rules, and the first hook of each: `NF_INET_PRE_ROUTING` and `NF_ARP_IN`.
const BY_NAME: [(u8, u32); 2] = [(libc::NFPROTO_INET as u8, 0), (libc::NFPROTO_ARP as u8, 0)];
const CHAIN_BY_NAME: &str = "keep_from_host";
const NETDEV: u8 = libc::NFPROTO_NETDEV as u8;

/// Before every other chain of an interface, so that dropped packets skip those chains.
const FIRST: i32 = -500;

/// `NF_DROP`.
const DROP: u32 = 0;

/// The timeout for the kernel's answer, in seconds. The kernel answers before the call returns.
const PATIENCE_S: i64 = 5;

/// The reason why frames could not be kept from the host's stack.
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

/// A guard of interfaces: until it is dropped, the host's stack receives nothing from them.
#[derive(Debug)]
pub struct Guard {
    socket: OwnedFd,
    table: String,
    sequence: u32,
    /// Interfaces that were added.
    added: Vec<String>,
    /// The reason why the second set of rules is missing.
    gap: Option<GuardError>,
}

impl Guard {
    /// Creates a guard without interfaces, in the calling thread's network namespace. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The process lacks privileges, or the kernel lacks a required feature.
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
        let mut this = Self { socket, table, sequence: 0, added: Vec::new(), gap: None };
        this.make_table(NETDEV)?;
        this.gap = BY_NAME.into_iter().find_map(|(family, hook)| {
            this.make_table(family).and_then(|()| this.chain_by_name(family, hook)).err()
        });
        Ok(this)
    }

    /// Keeps all frames that this interface receives from now on from the host's stack. Call it again for an interface
    /// that was removed and created again.
    ///
    /// # Errors
    /// The interface does not exist. This is not an error on Linux 6.16 and later: the chain takes effect once an
    /// interface of that name exists.
    pub fn add(&mut self, interface: &str) -> Result<(), GuardError> {
        let known = self.added.iter().any(|known| known == interface);
        if !known {
            self.added.push(interface.to_owned());
            self.add_by_name(interface);
        }
        let error = match self.chain_at(interface, known) {
            // The kernel removed the chain with the interface.
            Err(e) if known && e.raw_os_error() == Some(libc::ENOENT) => {
                self.chain_at(interface, false)
            }
            done => done,
        };
        error.map_err(|error| GuardError { step: "making an nftables chain at ingress", error })
    }

    /// Adds the second set of rules for an interface. It need not exist.
    pub(super) fn add_by_name(&mut self, interface: &str) {
        if self.gap.is_some() {
            return;
        }
        for (family, _) in BY_NAME {
            let mut body = Attributes::default();
            body.text(RULE_TABLE, &self.table);
            body.text(RULE_CHAIN, CHAIN_BY_NAME);
            body.bytes(RULE_EXPRESSIONS | NESTED, &drop_from(interface).0);
            if let Err(error) = self.change(family, &[(NEW_RULE, &body)]) {
                self.gap = Some(GuardError { step: "making an nftables rule", error });
                return;
            }
        }
    }

    /// Returns, once, the reason why an interface that is removed and created again has no guard until it is added
    /// again. On Linux 6.16 and later it always has one.
    pub fn take_gap(&mut self) -> Option<GuardError> {
        self.gap.take()
    }

    /// Returns the table's name, in each of the families `netdev`, `inet` and `arp`.
    pub fn table(&self) -> &str {
        &self.table
    }

    fn make_table(&mut self, family: u8) -> Result<(), GuardError> {
        let mut body = Attributes::default();
        body.text(TABLE_NAME, &self.table);
        body.number(TABLE_FLAGS, OWNER);
        self.change(family, &[(NEW_TABLE, &body)])
            .map_err(|error| GuardError { step: "making an nftables table", error })
    }

    fn chain_by_name(&mut self, family: u8, number: u32) -> Result<(), GuardError> {
        let body = chain(&self.table, CHAIN_BY_NAME, hook(number, None), None);
        self.change(family, &[(NEW_CHAIN, &body)])
            .map_err(|error| GuardError { step: "making an nftables chain", error })
    }

    /// Creates the chain of an interface; with `again` it replaces the previous chain, which may have lost its hook.
    fn chain_at(&mut self, interface: &str, again: bool) -> io::Result<()> {
        let name = format!("keep_from_host_{interface}");
        let new = chain(&self.table, &name, hook(INGRESS, Some(interface)), Some(DROP));
        let mut former = Attributes::default();
        former.text(CHAIN_TABLE, &self.table);
        former.text(CHAIN_NAME, &name);
        let both = [(DELETE_CHAIN, &former), (NEW_CHAIN, &new)];
        self.change(NETDEV, if again { &both } else { both.get(1..).unwrap_or(&[]) })
    }

    /// Makes changes in one all-or-nothing transaction, and waits for the kernel's answer.
    fn change(&mut self, family: u8, changes: &[(u16, &Attributes)]) -> io::Result<()> {
        let mut bytes = Vec::new();
        let plain = libc::NLM_F_REQUEST as u16;
        let acknowledged = plain | libc::NLM_F_ACK as u16;
        let create = acknowledged | (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16;
        let begin = self.sequence.wrapping_add(1);
        message(&mut bytes, BATCH_BEGIN, plain, begin, (0, NFTABLES), &[]);
        let mut last = begin;
        for (kind, body) in changes {
            last = last.wrapping_add(1);
            let flags = if *kind == DELETE_CHAIN { acknowledged } else { create };
            message(&mut bytes, *kind, flags, last, (family, 0), &body.0);
        }
        let end = last.wrapping_add(1);
        message(&mut bytes, BATCH_END, plain, end, (0, NFTABLES), &[]);
        self.sequence = end;
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.socket.as_raw_fd(), &bytes, &kernel, MsgFlags::empty())?;
        let mut answer = [0; 8192];
        let mut left: Vec<u32> =
            (1..=changes.len() as u32).map(|n| begin.wrapping_add(n)).collect();
        while !left.is_empty() {
            let len = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            let answer = answer.get(..len).unwrap_or(&[]);
            let words: Vec<(u32, i32)> =
                left.iter().filter_map(|n| Some((*n, verdict(answer, *n)?))).collect();
            if let Some((_, code)) = words.iter().find(|(_, code)| *code != 0) {
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            left.retain(|n| !words.iter().any(|(known, _)| known == n));
        }
        Ok(())
    }
}

/// Describes the hook of a chain.
fn hook(number: u32, interface: Option<&str>) -> Attributes {
    let mut hook = Attributes::default();
    hook.number(HOOK_NUMBER, number);
    hook.number(HOOK_PRIORITY, FIRST.cast_unsigned());
    if let Some(interface) = interface {
        hook.text(HOOK_DEVICE, interface);
    }
    hook
}

/// Describes a chain; without a policy it accepts packets.
fn chain(table: &str, name: &str, hook: Attributes, policy: Option<u32>) -> Attributes {
    let mut body = Attributes::default();
    body.text(CHAIN_TABLE, table);
    body.text(CHAIN_NAME, name);
    body.bytes(CHAIN_HOOK | NESTED, &hook.0);
    if let Some(policy) = policy {
        body.number(CHAIN_POLICY, policy);
    }
    body.text(CHAIN_TYPE, "filter");
    body
}

/// Writes the expressions of `iifname INTERFACE drop`.
fn drop_from(interface: &str) -> Attributes {
    let mut name = [0; libc::IFNAMSIZ];
    name.iter_mut().zip(interface.bytes()).for_each(|(place, byte)| *place = byte);
    let mut load = Attributes::default();
    load.number(META_DESTINATION, VALUE);
    load.number(META_KEY, IIFNAME);
    let mut value = Attributes::default();
    value.bytes(DATA_VALUE, &name);
    let mut compare = Attributes::default();
    compare.number(CMP_SOURCE, VALUE);
    compare.number(CMP_OPERATION, EQUAL);
    compare.bytes(CMP_DATA | NESTED, &value.0);
    let mut code = Attributes::default();
    code.number(VERDICT_CODE, DROP);
    let mut decision = Attributes::default();
    decision.bytes(DATA_VERDICT | NESTED, &code.0);
    let mut immediate = Attributes::default();
    immediate.number(IMMEDIATE_DESTINATION, VERDICT);
    immediate.bytes(IMMEDIATE_DATA | NESTED, &decision.0);
    let mut list = Attributes::default();
    for (kind, data) in [("meta", load), ("cmp", compare), ("immediate", immediate)] {
        let mut expression = Attributes::default();
        expression.text(EXPRESSION_NAME, kind);
        expression.bytes(EXPRESSION_DATA | NESTED, &data.0);
        list.bytes(LIST_ELEMENT | NESTED, &expression.0);
    }
    list
}

/// Netlink attributes in sequence.
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

/// Returns the kernel's answer to the change with this sequence number: 0 or a negative error; `None` if these messages
/// do not contain it.
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
        // Truncated, or with a length of zero: this must cause neither an endless loop nor a panic.
        assert_eq!(verdict(&both[..19], 1), None);
        assert_eq!(verdict(&[0; 64], 1), None);
    }
}
