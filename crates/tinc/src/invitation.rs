//! Invitations: the URL that a new node is given, and the files that it receives.
//!
//! ```text
//! HOST[:PORT]/ key hash 24 characters | cookie 24 characters
//! ```
//!
//! The key hash is that of a key which the inviter uses for invitations alone. The inviter stores each invitation in a file whose
//! name does not reveal the cookie.

use std::fmt;
use std::str::FromStr;

use adit_crypto::{Digest, constant_time_eq, hash};
use adit_engine::Random;
use zeroize::Zeroizing;

use crate::base64;
use crate::config::variables::{Place, Variable};
use crate::config::{Broadcast, DEFAULT_PORT, Mode, split_line};
use crate::keys::PublicKey;
use crate::name::{NameError, NodeName};

/// Length of a cookie and of a key hash, bytes.
const LEN: usize = 18;

/// Length of either as text, characters.
const TEXT_LEN: usize = 24;

/// Length of the longest host name in a URL, bytes.
const MAX_HOST: usize = 255;

/// Length of the longest invitation file that a joining node accepts, bytes.
pub const MAX_FILE: usize = 1 << 20;

/// The number of hosts that a joining node accepts in an invitation.
pub const MAX_HOSTS: usize = 1024;

const SEPARATOR: &str = "#---------------------------------------------------------------#";

/// The secret that entitles to one use of an invitation.
#[derive(Clone)]
pub struct Cookie(Zeroizing<[u8; LEN]>);

impl Cookie {
    /// Generates a new cookie.
    pub fn generate(random: &mut Random) -> Self {
        let mut cookie = Self(Zeroizing::new([0; LEN]));
        random.fill(&mut *cookie.0);
        cookie
    }

    /// Returns the cookie with these bytes, as sent by a joining node. Returns `None` if they have another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(|bytes| Self(Zeroizing::new(bytes)))
    }

    /// Returns the bytes, which a joining node sends.
    pub fn as_bytes(&self) -> &[u8] {
        &*self.0
    }

    /// Returns the name of the invitation's file.
    pub fn file_name(&self, key: &PublicKey) -> String {
        let digest = hash(Digest::Sha512, &[&*self.0, key.to_string().as_bytes()]);
        base64::encode_url(digest.as_bytes().get(..LEN).unwrap_or_default())
    }
}

impl PartialEq for Cookie {
    fn eq(&self, other: &Self) -> bool {
        constant_time_eq(&*self.0, &*other.0)
    }
}

impl Eq for Cookie {}

// Written by hand so that cookies never reach a log.
impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(..)")
    }
}

/// An invitation's URL. Its `Display` is the text with the cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    key_hash: [u8; LEN],
    cookie: Cookie,
}

/// The reason why a text is not the URL of an invitation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The text has no host, or a wrong one.
    #[error("an invitation begins with HOST/ or HOST:PORT/")]
    Host,
    /// The port is no number from 1 to 65535.
    #[error("the port in the invitation is not a number from 1 to 65535")]
    Port,
    /// The secret part is damaged.
    #[error("the invitation is damaged: copy all of it, to its last character")]
    Damaged,
}

impl Url {
    /// Creates the URL of an invitation by the node at `host`. `key` is its key for invitations.
    ///
    /// # Errors
    /// Fails if the host or the port cannot be part of a URL.
    pub fn new(host: &str, port: u16, key: &PublicKey, cookie: Cookie) -> Result<Self, UrlError> {
        Self::from_parts(host, port, key_hash(key), cookie)
    }

    fn from_parts(
        host: &str,
        port: u16,
        key_hash: [u8; LEN],
        cookie: Cookie,
    ) -> Result<Self, UrlError> {
        let bad = |byte: u8| !byte.is_ascii_graphic() || matches!(byte, b'/' | b'[' | b']');
        if host.is_empty() || host.len() > MAX_HOST || host.bytes().any(bad) {
            return Err(UrlError::Host);
        }
        if port == 0 {
            return Err(UrlError::Port);
        }
        Ok(Self { host: host.to_owned(), port, key_hash, cookie })
    }

    /// Returns the host name or IP address of the inviter.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the inviter's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the cookie.
    pub fn cookie(&self) -> &Cookie {
        &self.cookie
    }

    /// Returns whether the inviter's key for invitations is the one that the URL was made with.
    #[must_use]
    pub fn is_of(&self, key: &PublicKey) -> bool {
        constant_time_eq(&self.key_hash, &key_hash(key))
    }
}

fn key_hash(key: &PublicKey) -> [u8; LEN] {
    let digest = hash(Digest::Sha512, &[key.to_string().as_bytes()]);
    digest.as_bytes().first_chunk().copied().unwrap_or_default()
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (address, secret) = text.rsplit_once('/').ok_or(UrlError::Host)?;
        let bracketed = address.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or(UrlError::Host)?)),
            None => match address.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        let port = port.map_or(Ok(DEFAULT_PORT), str::parse).map_err(|_| UrlError::Port)?;
        let (key_hash, cookie) = secret.split_at_checked(TEXT_LEN).ok_or(UrlError::Damaged)?;
        if cookie.len() != TEXT_LEN {
            return Err(UrlError::Damaged);
        }
        let part = |text: &str| base64::decode(text.as_bytes()).ok_or(UrlError::Damaged);
        let (key_hash, cookie) = (part(key_hash)?, part(cookie)?);
        let key_hash = key_hash.as_slice().try_into().map_err(|_| UrlError::Damaged)?;
        let cookie = Cookie::from_bytes(&cookie).ok_or(UrlError::Damaged)?;
        Self::from_parts(host, port, key_hash, cookie)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        if self.port != DEFAULT_PORT {
            write!(f, ":{}", self.port)?;
        }
        let (key, cookie) =
            (base64::encode_url(&self.key_hash), base64::encode_url(&*self.cookie.0));
        write!(f, "/{key}{cookie}")
    }
}

/// The inviter's side of an invitation.
#[derive(Clone, Debug)]
pub struct Offer<'a> {
    /// The name of the new node.
    pub name: &'a NodeName,
    /// The name of the net, if it has one.
    pub net_name: Option<&'a str>,
    /// The inviter.
    pub inviter: &'a NodeName,
    /// The mode, if the inviter sets it.
    pub mode: Option<Mode>,
    /// How packets to many nodes are sent, if the inviter sets it.
    pub broadcast: Option<Broadcast>,
    /// The inviter's host file.
    pub host_file: &'a str,
    /// The port that the inviter listens on, which replaces the one in its host file.
    pub port: u16,
}

impl Offer<'_> {
    /// Returns the content of the invitation's file.
    pub fn to_file(&self) -> String {
        let mut text = format!("Name = {}\n", self.name);
        let mut line = |name: &str, value: &str| text.push_str(&format!("{name} = {value}\n"));
        if let Some(net_name) = self.net_name {
            line("NetName", net_name);
        }
        line("ConnectTo", self.inviter.as_str());
        match self.mode {
            None => {}
            Some(Mode::Router) => line("Mode", "router"),
            Some(Mode::Switch) => line("Mode", "switch"),
            Some(Mode::Hub) => line("Mode", "hub"),
        }
        match self.broadcast {
            None => {}
            Some(Broadcast::Tree) => line("Broadcast", "mst"),
            Some(Broadcast::Direct) => line("Broadcast", "direct"),
            Some(Broadcast::No) => line("Broadcast", "no"),
        }
        text.push_str(SEPARATOR);
        text.push_str(&format!("\nName = {}\n", self.inviter));
        // A 'Name' line would begin the file of another host.
        let kept = |line: &&str| {
            let (name, _) = split_line(line.trim());
            !["port", "name"].contains(&name.to_ascii_lowercase().as_str())
        };
        for line in self.host_file.lines().filter(kept) {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str(&format!("Port = {}\n", self.port));
        text
    }
}

/// A variable and its value.
pub type Setting = (&'static str, String);

/// What a node receives when it accepts an invitation. It contains only what a joining node may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The name of the new node.
    pub name: NodeName,
    /// The name of the net, if the inviter suggests one. It is safe as the name of a folder.
    pub net_name: Option<String>,
    /// The lines of the new node's `tinc.conf`.
    pub server: Vec<Setting>,
    /// The lines of its host file.
    pub host: Vec<Setting>,
    /// The values of `Ifconfig`: what the new node's interface is to be set to, if its operator agrees.
    pub ifconfig: Vec<String>,
    /// The values of `Route`: routes for the same.
    pub routes: Vec<String>,
    /// The host files of other nodes.
    pub hosts: Vec<(NodeName, String)>,
    /// The lines that were left out, without their values.
    pub dropped: Vec<String>,
}

/// The reason why a file is not an invitation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The file is too long.
    #[error("the invitation has more than {MAX_FILE} bytes")]
    TooLong,
    /// The first line does not name the new node.
    #[error("the invitation does not begin with the new node's name")]
    NoName,
    /// A name is invalid.
    #[error("the invitation names a node wrongly: {0}")]
    Name(#[from] NameError),
    /// There are more than [`MAX_HOSTS`] hosts.
    #[error("the invitation has more than {MAX_HOSTS} hosts")]
    TooManyHosts,
}

impl Accepted {
    /// Reads an invitation's file. Variables that an inviter must not choose for another node are left out: of the new node's own
    /// those that could run programs or name files, and of the other hosts those that do not belong into a host file.
    ///
    /// # Errors
    /// Fails if the file is no invitation.
    pub fn read(text: &str) -> Result<Self, FileError> {
        if text.len() > MAX_FILE {
            return Err(FileError::TooLong);
        }
        let mut lines = text.lines();
        let name = match lines.next().map(|line| split_line(line.trim())) {
            Some((variable, name)) if variable.eq_ignore_ascii_case("Name") => name.parse()?,
            _ => return Err(FileError::NoName),
        };
        let mut accepted = Self {
            name,
            net_name: None,
            server: Vec::new(),
            host: Vec::new(),
            ifconfig: Vec::new(),
            routes: Vec::new(),
            hosts: Vec::new(),
            dropped: Vec::new(),
        };
        let mut in_block = false;
        for line in lines {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (variable, value) = split_line(line);
            let begins_host = !in_block && variable.eq_ignore_ascii_case("Name");
            if begins_host && value != accepted.name.as_str() {
                accepted.begin_host(value)?;
            } else if accepted.hosts.is_empty() {
                accepted.own_line(variable, value);
            } else {
                accepted.host_line(line, &mut in_block);
            }
        }
        Ok(accepted)
    }

    fn begin_host(&mut self, name: &str) -> Result<(), FileError> {
        if self.hosts.len() >= MAX_HOSTS {
            return Err(FileError::TooManyHosts);
        }
        self.hosts.push((name.parse()?, String::new()));
        Ok(())
    }

    fn own_line(&mut self, variable: &str, value: &str) {
        let value = value.to_owned();
        let is = |name: &str| variable.eq_ignore_ascii_case(name);
        match Variable::find(variable) {
            _ if value.is_empty() => self.drop_line(variable),
            Some(row) if row.safe && row.place == Place::Server => {
                self.server.push((row.name, value));
            }
            Some(row) if row.safe => self.host.push((row.name, value)),
            None if is("Ifconfig") => self.ifconfig.push(value),
            None if is("Route") => self.routes.push(value),
            None if is("NetName") && is_folder_name(&value) => self.net_name = Some(value),
            // The new node's name, once more.
            None | Some(_) => self.drop_line(variable),
        }
    }

    fn host_line(&mut self, line: &str, in_block: &mut bool) {
        let (variable, _) = split_line(line);
        let is_block = *in_block || line.starts_with("-----BEGIN");
        if is_block {
            *in_block = !line.starts_with("-----END");
        }
        let row = Variable::find(variable);
        if is_block
            || row
                .is_some_and(|row| row.place != Place::Server && row.name != "Ed25519PublicKeyFile")
        {
            if let Some((_, file)) = self.hosts.last_mut() {
                file.push_str(line);
                file.push('\n');
            }
        } else {
            self.drop_line(variable);
        }
    }

    /// Remembers a name, of which a stranger chose every byte.
    fn drop_line(&mut self, variable: &str) {
        const MOST: usize = 100;
        const LONGEST: usize = 40;
        if self.dropped.len() < MOST {
            self.dropped
                .push(variable.chars().filter(|c| c.is_ascii_graphic()).take(LONGEST).collect());
        }
    }
}

/// Returns whether a text can be the name of a folder: not hidden, and without separators.
fn is_folder_name(text: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    text.len() <= 64 && text.bytes().all(valid) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{Entries, HostConfig};
    use crate::keys::PrivateKey;
    use crate::testing::{alice, bob};

    fn vector() -> (PublicKey, Cookie) {
        let cookie: Vec<u8> = (0..18).collect();
        (PrivateKey::from_seed(&[3; 32]).public(), Cookie::from_bytes(&cookie).unwrap())
    }

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    /// Specification 20.5.
    #[test]
    fn the_vectors_of_the_specification() {
        let (key, cookie) = vector();
        assert_eq!(key.to_string(), "tnEKGjS0Cbs6pPAOQmVlhlSWnoDXjlvN2EsRUw6h3EN");
        assert_eq!(cookie.file_name(&key), "ZxE35y_AmscMMzGRMH1LxM-0");
        let url = Url::new("HOST", 655, &key, cookie.clone()).unwrap();
        let text = "HOST/2YcAtdR0IAsIkI1NwCA1Yv0dAEgADQQBGcACJowCM0gDPARE";
        assert_eq!(url.to_string(), text);
        let read: Url = text.parse().unwrap();
        assert_eq!(read, url);
        assert!(read.is_of(&key) && !read.is_of(&alice().public()));
        assert_eq!(read.cookie().as_bytes(), cookie.as_bytes());
        assert!(!format!("{url:?}").contains("AEgADQQB"), "{url:?}");
    }

    /// Specification 14.1.
    #[test]
    fn a_url_names_a_host_and_perhaps_a_port() {
        let secret = "2YcAtdR0IAsIkI1NwCA1Yv0dAEgADQQBGcACJowCM0gDPARE";
        let forms = [
            ("vpn.example.org", "vpn.example.org", 655),
            ("vpn.example.org:700", "vpn.example.org", 700),
            ("[2001:db8::1]", "2001:db8::1", 655),
            ("[2001:db8::1]:700", "2001:db8::1", 700),
        ];
        for (address, host, port) in forms {
            let text = format!("{address}/{secret}");
            let url: Url = text.parse().unwrap();
            assert_eq!((url.host(), url.port()), (host, port));
            assert_eq!(url.to_string(), text);
        }
        let parse = |text: String| text.parse::<Url>().unwrap_err();
        assert_eq!(parse(secret.to_owned()), UrlError::Host);
        for host in ["", "[]", "[::1]x", "a b", "a/b", "[host"] {
            assert_eq!(parse(format!("{host}/{secret}")), UrlError::Host, "{host}");
        }
        for port in ["", "0", "x", "65536"] {
            assert_eq!(parse(format!("host:{port}/{secret}")), UrlError::Port, "{port}");
        }
        for bad in [&secret[1..], &format!("{secret}A"), &secret.replace('Y', "=")] {
            assert_eq!(parse(format!("host/{bad}")), UrlError::Damaged);
        }
        let (key, cookie) = vector();
        assert_eq!(Url::new("a/b", 1, &key, cookie.clone()), Err(UrlError::Host));
        assert_eq!(Url::new("a", 0, &key, cookie), Err(UrlError::Port));
        assert_eq!(Cookie::from_bytes(&[0; 17]), None);
    }

    /// Specification 14.3.
    #[test]
    fn an_offer_is_accepted_as_it_was_made() {
        let host_file = format!(
            "Address = vpn.example.org\nPort = 0\nName = x\nSubnet = 10.1.0.0/16\nEd25519PublicKey = {}\n",
            bob().public()
        );
        let offer = Offer {
            name: &name("alice"),
            net_name: Some("office"),
            inviter: &name("bob"),
            mode: Some(Mode::Switch),
            broadcast: Some(Broadcast::Direct),
            host_file: &host_file,
            port: 700,
        };
        let file = offer.to_file();
        let own =
            "Name = alice\nNetName = office\nConnectTo = bob\nMode = switch\nBroadcast = direct\n";
        assert_eq!(file.split_once(SEPARATOR).unwrap().0, own);
        let accepted = Accepted::read(&file).unwrap();
        assert_eq!(accepted.name, name("alice"));
        assert_eq!(accepted.net_name.as_deref(), Some("office"));
        let setting = |name, value: &str| (name, value.to_owned());
        let expected = [
            setting("ConnectTo", "bob"),
            setting("Mode", "switch"),
            setting("Broadcast", "direct"),
        ];
        assert_eq!(accepted.server, expected);
        assert_eq!((accepted.host.len(), accepted.dropped.len()), (0, 0));
        let [(host, text)] = &accepted.hosts[..] else { panic!("{accepted:?}") };
        assert_eq!(*host, name("bob"));
        let (config, _) = HostConfig::read(Entries::default(), "hosts/bob", text).unwrap();
        assert_eq!((config.port, config.public_key), (700, Some(bob().public())));
        assert_eq!((config.addresses.len(), config.subnets.len()), (1, 1));
    }

    /// Specification 14.5.
    #[test]
    fn an_inviter_cannot_choose_what_runs_or_is_read_on_the_new_node() {
        let text = "Name = alice\nNetName = ../x\nDevice = /etc/passwd\nProxy = exec reboot\nSubnet = 10.2.0.0/16\n\
            Ed25519PrivateKeyFile = x\nIfconfig = 10.2.0.1/16\nRoute = 10.0.0.0/8\nPort = 1\nUnknown = \u{1b}[2J\nMode =\n\
            Name = alice\nPingTimeout = 7\n#---#\nName = bob\nSubnet = 10.1.0.0/16\nProxy = exec reboot\n\
            Ed25519PublicKeyFile = /etc/shadow\n-----BEGIN ED25519 PUBLIC KEY-----\nName = eve\n-----END ED25519 PUBLIC KEY-----\n\
            Name = carol\nPort = 7\n";
        let accepted = Accepted::read(text).unwrap();
        assert_eq!(accepted.net_name, None);
        assert_eq!(accepted.server, [("PingTimeout", "7".to_owned())]);
        assert_eq!(accepted.host, [("Subnet", "10.2.0.0/16".to_owned())]);
        assert_eq!(accepted.ifconfig, ["10.2.0.1/16"]);
        assert_eq!(accepted.routes, ["10.0.0.0/8"]);
        let dropped = [
            "NetName",
            "Device",
            "Proxy",
            "Ed25519PrivateKeyFile",
            "Port",
            "Unknown",
            "Mode",
            "Name",
            "Proxy",
            "Ed25519PublicKeyFile",
        ];
        assert_eq!(accepted.dropped, dropped);
        let block =
            "-----BEGIN ED25519 PUBLIC KEY-----\nName = eve\n-----END ED25519 PUBLIC KEY-----\n";
        let bob = format!("Subnet = 10.1.0.0/16\n{block}");
        assert_eq!(accepted.hosts, [(name("bob"), bob), (name("carol"), "Port = 7\n".to_owned())]);
    }

    #[test]
    fn what_is_no_invitation_is_refused() {
        for bad in ["", "ConnectTo = bob\nName = alice\n", "\nName = alice\n"] {
            assert_eq!(Accepted::read(bad), Err(FileError::NoName), "{bad:?}");
        }
        let bad_name = FileError::Name(NameError::Characters);
        assert_eq!(Accepted::read("Name = ../alice\n"), Err(bad_name.clone()));
        assert_eq!(Accepted::read("Name = alice\nName = ../../etc/x\n"), Err(bad_name));
        let many = format!("Name = alice\n{}", "Name = b\n".repeat(MAX_HOSTS + 1));
        assert_eq!(Accepted::read(&many), Err(FileError::TooManyHosts));
        let long = format!("Name = alice\n{}", "#\n".repeat(MAX_FILE / 2));
        assert_eq!(Accepted::read(&long), Err(FileError::TooLong));
        // The new node's own host file is never among the others.
        let twice = Accepted::read("Name = alice\nName = bob\nName = alice\nPort = 1\n").unwrap();
        assert!(twice.hosts.iter().all(|(host, _)| *host != name("alice")));
    }

    proptest! {
        #[test]
        fn every_url_is_read_as_it_was_written(host in "[a-z0-9.-]{1,60}", port in 1..=u16::MAX, seed: [u8; 32]) {
            let mut random = Random::new(seed);
            let key = PrivateKey::generate(&mut random).public();
            let url = Url::new(&host, port, &key, Cookie::generate(&mut random)).unwrap();
            prop_assert_eq!(url.to_string().parse(), Ok(url));
        }

        #[test]
        fn no_text_panics(text in "(Name = [a-c]{1,2}\n)?([A-Za-z]{0,12}[ =]{0,3}[ -~]{0,20}\n){0,8}", url: String) {
            let _ = Accepted::read(&text);
            let _ = url.parse::<Url>();
        }
    }
}
