//! A host file: what the other nodes know of a node.

use crate::aead::Cipher;
use crate::config::values::{host_and_port, number, yes_or_no};
use crate::config::{ConfigError, Entries, Entry, Mistakes, Reason, Warning, WarningReason};
use crate::keys::{KeyError, PublicKey};
use crate::subnet::Subnet;

/// The port of a node whose host file names none.
pub const DEFAULT_PORT: u16 = 655;

/// An address at which a node may be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A host name or an IP address.
    pub host: String,
    /// The port, if it is not the node's own.
    pub port: Option<u16>,
}

/// The settings of one node, from its host file. In the node's own configuration `tinc.conf` may contain them as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Addresses to connect to.
    pub addresses: Vec<Address>,
    /// The TCP and UDP port; 0 for any free one.
    pub port: u16,
    /// The addresses behind the node.
    pub subnets: Vec<Subnet>,
    /// The node's key, if the file contains it as a variable or a block.
    pub public_key: Option<PublicKey>,
    /// The node has a key that cannot be read, so no other one is learned for it.
    pub unusable_key: bool,
    /// Another file that contains the key. The variable takes precedence.
    pub public_key_file: Option<String>,
    /// Other nodes send nothing directly to the node, except its neighbours.
    pub indirect_data: bool,
    /// Packets go over TCP alone.
    pub tcp_only: bool,
    /// An upper bound for the path MTU.
    pub pmtu: Option<u16>,
    /// Whether to discover the path MTU; by default so unless packets go over TCP alone.
    pub pmtu_discovery: Option<bool>,
    /// Whether to lower the MSS of TCP connections to what fits; by default so.
    pub clamp_mss: Option<bool>,
    /// The compression that the node wants to receive: 0 for none. adit sends and receives none, which is always valid.
    pub compression: u8,
    /// The cipher of the sessions with the node, on which its configuration must agree; by default ChaCha20-Poly1305 for the connection with a
    /// neighbour, and for packets AES-256-GCM if both nodes offer it.
    pub cipher: Option<Cipher>,
    /// The weight of an edge to the node; by default what its connection took to start, in milliseconds.
    pub weight: Option<i32>,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            port: DEFAULT_PORT,
            subnets: Vec::new(),
            public_key: None,
            unusable_key: false,
            public_key_file: None,
            indirect_data: false,
            tcp_only: false,
            pmtu: None,
            pmtu_discovery: None,
            clamp_mss: None,
            compression: 0,
            cipher: None,
            weight: None,
        }
    }
}

impl HostConfig {
    /// Reads a host file that a new node or an inviter has sent. `options` are those of the command line for this host.
    ///
    /// # Errors
    /// Fails if the file has an invalid or refused line.
    pub fn read(
        options: Entries,
        file: &str,
        text: &str,
    ) -> Result<(Self, Vec<Warning>), ConfigError> {
        let mut entries = options;
        entries.add(file, text, Mistakes::Refuse)?;
        let mut host = Self::default();
        let warnings =
            entries.apply(true, Mistakes::Refuse, |name, value| host.set(name, value))?;
        host.add_block(text).map_err(|reason| ConfigError {
            file: file.to_owned(),
            line: 0,
            variable: None,
            reason: reason.into(),
        })?;
        Ok((host, warnings))
    }

    /// Reads the host file of another node. Like tinc, it skips each line that is invalid or refused, with a warning. If this is the key, the
    /// node has none: [`HostConfig::unusable_key`]. `replace` may replace values before they are read.
    pub fn read_other(
        options: Entries,
        file: &str,
        text: &str,
        replace: impl FnOnce(&mut Entries),
    ) -> (Self, Vec<Warning>) {
        let mut entries = options;
        entries.add_host_file(file, text);
        replace(&mut entries);
        let mut host = Self::default();
        let warnings = entries.apply(true, Mistakes::Skip, |name, value| host.set(name, value));
        debug_assert!(warnings.is_ok(), "a mistake was not skipped: {warnings:?}");
        let mut warnings = warnings.unwrap_or_default();
        let is_key = |warning: &Warning| {
            matches!(warning.reason, WarningReason::Invalid(_))
                && warning.entry.name.eq_ignore_ascii_case("Ed25519PublicKey")
        };
        let mut unusable = host.public_key.is_none() && warnings.iter().any(is_key);
        if !unusable && let Err(error) = host.add_block(text) {
            unusable = true;
            let name = "Ed25519PublicKey".to_owned();
            let entry = Entry { file: file.to_owned(), line: 0, name, value: String::new() };
            warnings.push(Warning { entry, reason: WarningReason::Invalid(error.into()) });
        }
        host.unusable_key = unusable;
        (host, warnings)
    }

    /// Takes the key from the file's block, if no variable has it.
    fn add_block(&mut self, text: &str) -> Result<(), KeyError> {
        if self.public_key.is_none() {
            self.public_key = match PublicKey::from_file(text) {
                Err(KeyError::NoBlock(_)) => None,
                key => Some(key?),
            };
        }
        Ok(())
    }

    /// Sets a variable. Variables of `tinc.conf` alone have no effect.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), Reason> {
        match name {
            "Address" => {
                let (host, port) = host_and_port(value, 1)?;
                self.addresses.push(Address { host: host.to_owned(), port });
            }
            "ClampMSS" => self.clamp_mss = Some(yes_or_no(value)?),
            "Compression" => self.compression = number(value, 0..=12, "a level from 0 to 12")?,
            "Ed25519PublicKey" => self.public_key = Some(value.parse()?),
            "Ed25519PublicKeyFile" => self.public_key_file = Some(value.to_owned()),
            "IndirectData" => self.indirect_data = yes_or_no(value)?,
            "PMTU" => {
                self.pmtu = Some(number(value, 512..=u16::MAX, "a number of bytes from 512")?);
            }
            "PMTUDiscovery" => self.pmtu_discovery = Some(yes_or_no(value)?),
            "Port" => self.port = number(value, 0..=u16::MAX, "a port from 0 to 65535")?,
            "SPTPSCipher" => self.cipher = Some(cipher(value)?),
            "Subnet" => self.subnets.push(Subnet::from_config(value)?),
            "TCPOnly" => self.tcp_only = yes_or_no(value)?,
            "Weight" => self.weight = Some(number(value, i32::MIN..=i32::MAX, "a number")?),
            _ => {}
        }
        Ok(())
    }
}

fn cipher(value: &str) -> Result<Cipher, Reason> {
    match value {
        "aes-256-gcm" => Ok(Cipher::Aes256Gcm),
        "chacha20-poly1305" => Ok(Cipher::ChaCha20Poly1305),
        other => Err(Reason::Value {
            value: other.to_owned(),
            allowed: "aes-256-gcm or chacha20-poly1305",
        }),
    }
}
