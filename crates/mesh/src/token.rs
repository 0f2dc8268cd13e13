//! The invitation token, a text that an operator copies once to the joining node.
//!
//! ```text
//! adit-mesh1-BASE64URL(mesh id 16 | inviter's key hash 32 | secret 16 | count 1, addresses | TCP port 2 | checksum 4)
//! ```
//!
//! The joining node verifies the inviter's key against the token, and sends the secret inside TLS. The inviter keeps only the hash of the
//! secret, counts its uses, and refuses it after its expiry, so a used token is worthless.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use adit_crypto::{sha256, text};
use adit_engine::{Random, UnixTime};
use ipnet::{IpNet, Ipv4Net};
use zeroize::Zeroizing;

use crate::join::Pending;
use crate::roster::Label;
use crate::session::{KeyHash, MeshId};
use crate::wire::{DecodeError, Decoder, is_usable, put_address};

/// The number of addresses in a token.
pub const MAX_ADDRESSES: usize = 8;

/// The number of invitations that an inviter can have at the same time.
pub const MAX_INVITATIONS: usize = 256;

const PREFIX: &str = "adit-mesh1-";
const DOMAIN: &[u8] = b"adit-mesh/1 token";

/// The length of the longest text after the prefix: 64 bytes, a count, IPv6 addresses with ports, a port, a checksum.
const MAX_TEXT: usize = (64 + 1 + MAX_ADDRESSES * 19 + 2 + 4) * 4 / 3 + 1;

/// The one-time secret of an invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinSecret(Zeroizing<[u8; Self::LEN]>);

impl JoinSecret {
    /// The length of the secret, in bytes.
    pub const LEN: usize = 16;

    /// Generates a new secret.
    pub fn generate(random: &mut Random) -> Self {
        let mut secret = Self(Zeroizing::new([0; Self::LEN]));
        random.fill(&mut *secret.0);
        secret
    }

    /// Returns the secret with these bytes, as sent by a joining node.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the bytes of the secret.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns the hash that the inviter keeps.
    pub fn hash(&self, mesh: &MeshId) -> [u8; 32] {
        sha256(&[b"adit-mesh/1 invitation", mesh, &*self.0])
    }
}

// Written by hand to keep the secret out of logs.
impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret(..)")
    }
}

/// An invitation to a mesh. Its `Display` is the text with the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    mesh: MeshId,
    inviter: KeyHash,
    secret: JoinSecret,
    addresses: Vec<SocketAddr>,
    tcp_port: Option<NonZeroU16>,
}

/// The reason why a text is not a token, or why there is no token.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text does not begin like a token.
    #[error("a token begins with {PREFIX}")]
    Prefix,
    /// The text was not copied correctly.
    #[error("the token is damaged: copy all of it, to its last character")]
    Damaged,
    /// The token has no address, or more than [`MAX_ADDRESSES`].
    #[error("{0} addresses: a token has 1 to {MAX_ADDRESSES}")]
    AddressCount(usize),
    /// A node on another machine cannot have this address, or the address appears twice.
    #[error("an address in the token is not usable")]
    Address,
}

impl Token {
    /// Creates a token.
    ///
    /// # Errors
    /// Fails if there are no or too many addresses, or if one of them is not usable or appears twice.
    pub fn new(
        mesh: MeshId,
        inviter: KeyHash,
        secret: JoinSecret,
        addresses: Vec<SocketAddr>,
    ) -> Result<Self, TokenError> {
        if !(1..=MAX_ADDRESSES).contains(&addresses.len()) {
            return Err(TokenError::AddressCount(addresses.len()));
        }
        let twice = |(at, address)| addresses.iter().skip(at).skip(1).any(|it| it == address);
        let usable = addresses.iter().all(|address| is_usable(*address));
        if !usable || addresses.iter().enumerate().any(twice) {
            return Err(TokenError::Address);
        }
        Ok(Self { mesh, inviter, secret, addresses, tcp_port: None })
    }

    /// Adds the port at which the inviter accepts TCP connections, at the same addresses.
    #[must_use]
    pub fn with_tcp_port(self, tcp_port: Option<NonZeroU16>) -> Self {
        Self { tcp_port, ..self }
    }

    /// Returns the id of the mesh.
    pub fn mesh(&self) -> &MeshId {
        &self.mesh
    }

    /// Returns the hash of the inviter's key.
    pub fn inviter(&self) -> &KeyHash {
        &self.inviter
    }

    /// Returns the secret.
    pub fn secret(&self) -> &JoinSecret {
        &self.secret
    }

    /// Returns the addresses at which the inviter may be reachable, best first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the addresses at which the inviter may accept TCP connections.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let Some(port) = self.tcp_port else { return Vec::new() };
        let mut all: Vec<SocketAddr> = Vec::new();
        for address in &self.addresses {
            let at = SocketAddr::new(address.ip(), port.get());
            if !all.contains(&at) {
                all.push(at);
            }
        }
        all
    }

    fn decode(bytes: &[u8]) -> Result<Self, TokenError> {
        let form = |_: DecodeError| TokenError::Damaged;
        let mut from = Decoder::new(bytes);
        let mesh = from.array().map_err(form)?;
        let inviter = from.array().map_err(form)?;
        let secret = JoinSecret(Zeroizing::new(from.array().map_err(form)?));
        let count = usize::from(from.u8().map_err(form)?);
        if count > MAX_ADDRESSES {
            return Err(TokenError::AddressCount(count));
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            addresses.push(from.address().map_err(|error| match error {
                DecodeError::Address => TokenError::Address,
                _ => TokenError::Damaged,
            })?);
        }
        let tcp_port = NonZeroU16::new(from.u16().map_err(form)?);
        from.end().map_err(form)?;
        Ok(Self::new(mesh, inviter, secret, addresses)?.with_tcp_port(tcp_port))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TEXT));
        bytes.extend(self.mesh);
        bytes.extend(self.inviter);
        bytes.extend(*self.secret.0);
        bytes.push(u8::try_from(self.addresses.len()).unwrap_or(u8::MAX));
        self.addresses.iter().for_each(|address| put_address(*address, &mut bytes));
        bytes.extend(self.tcp_port.map_or(0, NonZeroU16::get).to_be_bytes());
        write!(f, "{PREFIX}{}", *text::encode(DOMAIN, &bytes))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim().strip_prefix(PREFIX).ok_or(TokenError::Prefix)?;
        let bytes = text::decode(DOMAIN, text, MAX_TEXT).ok_or(TokenError::Damaged)?;
        Self::decode(&bytes)
    }
}

/// The part of an invitation that an inviter keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The secret's [`JoinSecret::hash`].
    pub secret_hash: [u8; 32],
    /// The number of nodes that may still join.
    pub uses: u32,
    /// The time after which no node may join.
    pub until: UnixTime,
    /// The terms for the nodes.
    pub terms: Terms,
}

/// The terms of an invitation for the nodes that join with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Its name, or `None` for the name that it requests.
    pub name: Option<Label>,
    /// Whether it waits for the approval of the inviter's operator.
    pub approve: bool,
    /// The range of its IPv4 address, or `None` for no IPv4 address.
    pub range: Option<Ipv4Net>,
    /// The networks behind it.
    pub subnets: BTreeSet<IpNet>,
    /// Its groups.
    pub groups: BTreeSet<Label>,
    /// Whether it is a relay for other members.
    pub relay: bool,
    /// Whether other members may send all their traffic through it.
    pub gateway: bool,
    /// The time until which it is a member.
    pub not_after: Option<UnixTime>,
}

/// The invitations of one inviter.
#[derive(Clone, Debug)]
pub struct Invitations {
    mesh: MeshId,
    by_hash: BTreeMap<[u8; 32], Invitation>,
    pending: Pending,
    counters: InvitationCounters,
}

/// Counts the uses of secrets and invitations, by result.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct InvitationCounters {
    /// Secrets that admitted a node.
    pub accepted: u64,
    /// Secrets that belong to no invitation.
    pub unknown: u64,
    /// Secrets of invitations that have expired or are used up.
    pub over: u64,
    /// Invitations for which there was no room.
    pub full: u64,
}

/// The reason why an inviter does not accept a secret or an invitation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvitationError {
    /// There is no such invitation.
    #[error("no invitation has this secret")]
    Unknown,
    /// The invitation has expired.
    #[error("the invitation is too old")]
    Expired,
    /// The invitation has no uses left.
    #[error("the invitation has been used")]
    Used,
    /// There are [`MAX_INVITATIONS`] invitations.
    #[error("there are too many invitations: at most {MAX_INVITATIONS}")]
    Full,
}

impl Invitations {
    /// Creates an empty set of invitations to a mesh.
    pub fn new(mesh: MeshId) -> Self {
        let counters = InvitationCounters::default();
        Self { mesh, by_hash: BTreeMap::new(), pending: Pending::default(), counters }
    }

    /// Adds an invitation, in place of one with the same secret.
    ///
    /// # Errors
    /// Fails if there are too many valid invitations.
    pub fn add(&mut self, invitation: Invitation, now: UnixTime) -> Result<(), InvitationError> {
        if self.by_hash.len() >= MAX_INVITATIONS {
            self.by_hash.retain(|_, it| it.until >= now && it.uses > 0);
        }
        let known = self.by_hash.contains_key(&invitation.secret_hash);
        if self.by_hash.len() >= MAX_INVITATIONS && !known {
            self.counters.full = self.counters.full.saturating_add(1);
            return Err(InvitationError::Full);
        }
        self.by_hash.insert(invitation.secret_hash, invitation);
        Ok(())
    }

    /// Removes an invitation. Returns whether there was one.
    pub fn withdraw(&mut self, secret_hash: &[u8; 32]) -> bool {
        self.by_hash.remove(secret_hash).is_some()
    }

    /// Returns the invitations, to be kept across a restart.
    pub fn iter(&self) -> impl Iterator<Item = &Invitation> {
        self.by_hash.values()
    }

    /// Returns the counters.
    pub fn counters(&self) -> InvitationCounters {
        self.counters
    }

    /// Returns the invitation with this secret, if a node may join with it now.
    ///
    /// # Errors
    /// Fails if there is no such invitation, or if it has expired or is used up.
    pub fn find(
        &mut self,
        secret: &JoinSecret,
        now: UnixTime,
    ) -> Result<&Invitation, InvitationError> {
        let hash = secret.hash(&self.mesh);
        if let Err(error) = self.valid(&hash, now) {
            let counter = match error {
                InvitationError::Unknown => &mut self.counters.unknown,
                _ => &mut self.counters.over,
            };
            *counter = counter.saturating_add(1);
        }
        self.valid(&hash, now)
    }

    /// Returns the invitation whose secret has this hash, if a node may join with it now.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn valid(
        &self,
        secret_hash: &[u8; 32],
        now: UnixTime,
    ) -> Result<&Invitation, InvitationError> {
        match self.by_hash.get(secret_hash) {
            None => Err(InvitationError::Unknown),
            Some(it) if it.until < now => Err(InvitationError::Expired),
            Some(it) if it.uses == 0 => Err(InvitationError::Used),
            Some(it) => Ok(it),
        }
    }

    /// Returns the joiners that wait for an approval.
    pub fn pending(&self) -> &Pending {
        &self.pending
    }

    pub(crate) fn pending_mut(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// Records that an invitation admitted a node.
    pub fn take_use(&mut self, secret_hash: &[u8; 32]) {
        if let Some(invitation) = self.by_hash.get_mut(secret_hash) {
            invitation.uses = invitation.uses.saturating_sub(1);
            self.counters.accepted = self.counters.accepted.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn secret() -> JoinSecret {
        JoinSecret::generate(&mut Random::new([3; 32]))
    }

    fn invitation(secret_hash: [u8; 32], uses: u32) -> Invitation {
        Invitation { secret_hash, uses, until: NOW, terms: Terms::default() }
    }

    fn token() -> Token {
        let addresses = ["203.0.113.7:1194", "[2001:db8::1]:443"].map(|it| it.parse().unwrap());
        let token = Token::new([1; 16], [2; 32], secret(), addresses.to_vec()).unwrap();
        token.with_tcp_port(NonZeroU16::new(443))
    }

    const TEXT: &str = "adit-mesh1-AQEBAQEBAQEBAQEBAQEBAQICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICkEpkUkzjyHO5ShFAJRLHaQIEywBxBwSqBiABDbgAAAAAAAAAAAAAAAEBuwG7ru0aWg";

    #[test]
    fn a_token_is_this_text_and_reads_back() {
        assert_eq!(token().to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(token()));
        assert_eq!(format!("  {TEXT}\n").parse(), Ok(token()), "as it is pasted");
    }

    #[test]
    fn the_longest_token_reads_back() {
        let address = |n| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], u16::MAX));
        let addresses = (1..=MAX_ADDRESSES as u16).map(address).collect();
        let token = Token::new([0xff; 16], [0xff; 32], secret(), addresses).unwrap();
        let token = token.with_tcp_port(NonZeroU16::new(u16::MAX));
        assert!(token.to_string().len() <= PREFIX.len() + MAX_TEXT);
        assert_eq!(token.to_string().parse(), Ok(token));
    }

    #[test]
    fn a_character_changed_or_lost_anywhere_is_noticed() {
        for at in PREFIX.len()..TEXT.len() {
            let (head, tail) = TEXT.split_at(at);
            let other = if tail.starts_with('A') { "B" } else { "A" };
            let rest = &tail[1..];
            for bad in [format!("{head}{other}{rest}"), format!("{head}{rest}"), head.to_owned()] {
                assert_eq!(bad.parse::<Token>(), Err(TokenError::Damaged), "at {at}: {bad}");
            }
        }
    }

    #[test]
    fn each_part_refuses_alone() {
        let good = text::decode(DOMAIN, &TEXT[PREFIX.len()..], MAX_TEXT).unwrap();
        let parse = |bytes: &[u8]| {
            format!("{PREFIX}{}", *text::encode(DOMAIN, bytes)).parse::<Token>().map(drop)
        };
        let altered = |at: usize, value: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            parse(&bytes)
        };
        assert_eq!(parse(&good), Ok(()));
        assert_eq!(TEXT[1..].parse::<Token>(), Err(TokenError::Prefix));
        assert_eq!(parse(&[&good[..], &[0]].concat()), Err(TokenError::Damaged));
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]), Err(TokenError::Damaged), "{len}");
        }
        assert_eq!(good[64], 2);
        assert_eq!(altered(64, 9), Err(TokenError::AddressCount(9)));
        assert_eq!(parse(&[&good[..64], &[0; 3]].concat()), Err(TokenError::AddressCount(0)));
        assert_eq!(altered(65, 5), Err(TokenError::Address), "a family");
        assert_eq!(altered(66, 127), Err(TokenError::Address), "a loopback address");
        let twice = [&good[..72], &good[65..72], &[0; 2]].concat();
        assert_eq!(parse(&twice), Err(TokenError::Address), "twice");
    }

    #[test]
    fn the_tcp_port_is_that_of_all_addresses() {
        let all = ["203.0.113.7:443", "[2001:db8::1]:443"].map(|it| it.parse().unwrap());
        assert_eq!(token().tcp_addresses(), all);
        assert!(token().with_tcp_port(None).tcp_addresses().is_empty());
    }

    #[test]
    fn the_secret_is_not_printed() {
        let shown = format!("{:?}", token());
        assert!(shown.contains("JoinSecret(..)"), "{shown}");
        let bytes = format!("{:?}", secret().as_bytes());
        assert!(!shown.contains(&bytes[1..bytes.len() - 1]));
    }

    #[test]
    fn an_inviter_keeps_no_secret() {
        let mut invitations = Invitations::new([1; 16]);
        let secret_hash = secret().hash(&[1; 16]);
        invitations.add(invitation(secret_hash, 1), NOW).unwrap();
        let shown = format!("{invitations:?}");
        let bytes = format!("{:?}", secret().as_bytes());
        assert!(!shown.contains(&bytes[1..bytes.len() - 1]));
        assert_ne!(secret().hash(&[2; 16]), secret_hash, "another mesh");
    }

    #[test]
    fn an_invitation_is_for_so_many_nodes_and_so_long() {
        let mut invitations = Invitations::new([1; 16]);
        let secret_hash = secret().hash(&[1; 16]);
        let find = |invitations: &mut Invitations, secret: &JoinSecret, now| {
            invitations.find(secret, now).map(|it| it.uses)
        };
        assert_eq!(find(&mut invitations, &secret(), NOW), Err(InvitationError::Unknown));
        invitations.add(invitation(secret_hash, 2), NOW).unwrap();
        let other = JoinSecret::from_bytes([9; 16]);
        assert_eq!(find(&mut invitations, &other, NOW), Err(InvitationError::Unknown));
        assert_eq!(find(&mut invitations, &secret(), NOW), Ok(2));
        assert_eq!(find(&mut invitations, &secret(), NOW), Ok(2), "finding takes no use");
        invitations.take_use(&secret_hash);
        let late = UnixTime(NOW.0 + 1);
        assert_eq!(find(&mut invitations, &secret(), late), Err(InvitationError::Expired));
        assert_eq!(find(&mut invitations, &secret(), NOW), Ok(1));
        invitations.take_use(&secret_hash);
        assert_eq!(find(&mut invitations, &secret(), NOW), Err(InvitationError::Used));
        let counters = InvitationCounters { accepted: 2, unknown: 2, over: 2, full: 0 };
        assert_eq!(invitations.counters(), counters);
        assert!(invitations.withdraw(&secret_hash) && !invitations.withdraw(&secret_hash));
        assert_eq!(find(&mut invitations, &secret(), NOW), Err(InvitationError::Unknown));
    }

    #[test]
    fn invitations_are_bounded_and_old_ones_make_room() {
        let mut invitations = Invitations::new([1; 16]);
        let invitation = |n: usize, uses| invitation(sha256(&[&n.to_be_bytes()]), uses);
        for n in 0..MAX_INVITATIONS {
            invitations.add(invitation(n, 1), NOW).unwrap();
        }
        let more = invitation(MAX_INVITATIONS, 1);
        assert_eq!(invitations.add(more.clone(), NOW), Err(InvitationError::Full));
        assert_eq!(invitations.counters().full, 1);
        assert_eq!(invitations.add(invitation(0, 0), NOW), Ok(()), "in place of the first");
        assert_eq!(invitations.add(more, NOW), Ok(()), "the first is used up");
        assert_eq!(invitations.add(invitation(0, 1), UnixTime(NOW.0 + 1)), Ok(()));
        assert_eq!(invitations.iter().count(), 1);
    }
}
