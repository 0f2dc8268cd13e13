//! The files of a new node, and the settings of its interface, from the invitation that it accepted.

use std::collections::BTreeSet;
use std::net::IpAddr;

use zeroize::Zeroizing;

use crate::config::{ConfigError, Entries, HostConfig, ServerConfig};
use crate::invitation::{Accepted, Setting};
use crate::keys::PrivateKey;
use crate::name::{MAX_CONFIGURED_NAME, NodeName};
use crate::subnet::{Subnet, SubnetAddress};

/// A file in a node's configuration directory.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// The path within the directory: a name, or `hosts/` and a name.
    pub path: String,
    /// The content.
    pub content: Zeroizing<String>,
    /// Only the owner may read it.
    pub is_secret: bool,
}

// Written by hand so that keys never reach a log.
impl std::fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The reason why a node cannot use an invitation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesError {
    /// A line's value is invalid.
    #[error("the invitation has an invalid line: {0}")]
    Config(#[from] ConfigError),
    /// A name is too long for a file.
    #[error(
        "the invitation names a node with {0} characters, and at most {MAX_CONFIGURED_NAME} are allowed"
    )]
    Name(usize),
    /// A node's host file is there twice.
    #[error("the invitation has two host files of {0}")]
    Twice(NodeName),
}

impl Accepted {
    /// Returns the files of the new node, whose key is `key`: `tinc.conf`, the key, and the host files. No path leads out of the
    /// directory.
    ///
    /// # Errors
    /// Fails if a node could not start with these files.
    pub fn files(&self, key: &PrivateKey) -> Result<Vec<ConfigFile>, FilesError> {
        let mut names = BTreeSet::from([&self.name]);
        for name in self.hosts.iter().map(|(name, _)| name).chain([&self.name]) {
            if name.as_str().len() > MAX_CONFIGURED_NAME {
                return Err(FilesError::Name(name.as_str().len()));
            }
        }
        for (name, _) in &self.hosts {
            if !names.insert(name) {
                return Err(FilesError::Twice(name.clone()));
            }
        }
        let own_path = format!("hosts/{}", self.name);
        let server = format!("Name = {}\n{}", self.name, lines(&self.server));
        let host = format!("Ed25519PublicKey = {}\n{}", key.public(), lines(&self.host));
        let mut entries = Entries::default();
        entries.add_file("tinc.conf", &server)?;
        entries.add_file(&own_path, &host)?;
        ServerConfig::read(&entries)?;
        let public = |path: String, content: String| ConfigFile {
            path,
            content: Zeroizing::new(content),
            is_secret: false,
        };
        let secret = ConfigFile {
            path: "ed25519_key.priv".to_owned(),
            content: key.to_file(),
            is_secret: true,
        };
        let mut files =
            vec![public("tinc.conf".to_owned(), server), secret, public(own_path, host)];
        for (name, text) in &self.hosts {
            let path = format!("hosts/{name}");
            HostConfig::read(Entries::default(), &path, text)?;
            files.push(public(path, text.clone()));
        }
        Ok(files)
    }

    /// Returns the settings of the new node's interface that the inviter proposes. The operator decides about them.
    pub fn interface_plan(&self) -> InterfacePlan {
        let mut plan = InterfacePlan::default();
        for value in &self.ifconfig {
            match Ifconfig::read(value) {
                Some(setting) => plan.ifconfig.push(setting),
                None => plan.ignored.push(printable("Ifconfig", value)),
            }
        }
        for value in &self.routes {
            match Route::read(value) {
                Some(route) => plan.routes.push(route),
                None => plan.ignored.push(printable("Route", value)),
            }
        }
        plan
    }
}

fn lines(settings: &[Setting]) -> String {
    settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect()
}

/// Returns a line for a message, of whose value a stranger chose every byte.
fn printable(name: &str, value: &str) -> String {
    let value: String = value.chars().filter(|c| matches!(c, ' '..='~')).take(60).collect();
    format!("{name} = {value}")
}

/// How a new node's interface gets addresses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ifconfig {
    /// It has this address, in a network with this length of prefix.
    Address(IpAddr, u8),
    /// By DHCP.
    Dhcp,
    /// By DHCP for IPv6.
    Dhcp6,
    /// From router advertisements.
    Slaac,
}

impl Ifconfig {
    fn read(value: &str) -> Option<Self> {
        match value {
            "dhcp" => Some(Self::Dhcp),
            "dhcp6" => Some(Self::Dhcp6),
            "slaac" => Some(Self::Slaac),
            _ => network(value).map(|(address, prefix)| Self::Address(address, prefix)),
        }
    }
}

/// A route of a new node.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination network: its address, and the length of its prefix.
    pub network: (IpAddr, u8),
    /// The gateway; by default the interface itself.
    pub gateway: Option<IpAddr>,
}

impl Route {
    fn read(value: &str) -> Option<Self> {
        let mut words = value.split_ascii_whitespace();
        let network = network(words.next()?)?;
        let gateway = match words.next() {
            None => None,
            Some(word) => Some(word.parse::<IpAddr>().ok()?),
        };
        let fits = gateway.is_none_or(|gateway| gateway.is_ipv4() == network.0.is_ipv4());
        (fits && words.next().is_none()).then_some(Self { network, gateway })
    }
}

/// The settings of an interface that an inviter proposes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfacePlan {
    /// Its addresses.
    pub ifconfig: Vec<Ifconfig>,
    /// The routes through it.
    pub routes: Vec<Route>,
    /// The lines that could not be read, for a message.
    pub ignored: Vec<String>,
}

/// Reads `ADDRESS[/PREFIX]`.
fn network(text: &str) -> Option<(IpAddr, u8)> {
    let subnet: Subnet = (!text.contains('#')).then(|| text.parse().ok())??;
    let address = match subnet.address() {
        SubnetAddress::V4(address) => address.into(),
        SubnetAddress::V6(address) => address.into(),
        SubnetAddress::Mac(_) => return None,
    };
    Some((address, subnet.prefix()))
}
