//! `node.toml` and `node.key`.

use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use adit_postgres::key::{Fingerprint, NetworkKey, NodeKeys};
use adit_postgres::{Audit, Durability, NodeId, limits};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ipnet::IpNet;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::places::Places;
use crate::fault::Fault;
use crate::managed::{Outcome, write_whole};

/// `node.toml`, read and checked: what a node is and how it sends. No secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The database, as a URL without user and password.
    pub database: String,
    /// The role that this node is in the database.
    pub role: String,
    /// This node's number.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its addresses, with the length of the network's prefix.
    pub addresses: Vec<IpNet>,
    /// The networks behind it.
    pub subnets: Vec<IpNet>,
    /// Name of the TUN device.
    pub device: String,
    /// Longest IP packet that it sends, bytes.
    pub packet_size: usize,
    /// What the rows say in the clear; agreed on when joining.
    pub audit: Audit,
    /// Who reads every packet beside its receiver; agreed on when joining. `None`: nobody.
    pub auditor: Option<Fingerprint>,
    /// When what it sends counts as stored.
    pub durability: Durability,
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Raw {
    database: String,
    role: String,
    node: i32,
    name: String,
    addresses: Vec<IpNet>,
    #[serde(default)]
    subnets: Vec<IpNet>,
    device: String,
    packet_size: usize,
    audit: String,
    auditor: String,
    durability: String,
}

impl TryFrom<Raw> for Settings {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        if raw.addresses.is_empty() {
            return Err("addresses is empty; take it from what `adit postgres join` wrote".into());
        }
        if !limits::PACKET_RANGE.contains(&raw.packet_size) {
            return Err(format!(
                "packet-size {} is not between {} and {}",
                raw.packet_size,
                limits::PACKET_RANGE.start(),
                limits::PACKET_RANGE.end()
            ));
        }
        Ok(Self {
            database: raw.database,
            role: raw.role,
            node: NodeId(raw.node),
            name: raw.name,
            addresses: raw.addresses,
            subnets: raw.subnets,
            device: crate::managed::checked_device(&raw.device)?,
            packet_size: raw.packet_size,
            audit: raw.audit.parse::<Audit>().map_err(|e| format!("audit: {e}"))?,
            auditor: match raw.auditor.as_str() {
                "none" => None,
                digits => Some(
                    digits
                        .parse()
                        .map_err(|e| format!("auditor is neither \"none\" nor a key: {e}"))?,
                ),
            },
            durability: raw
                .durability
                .parse::<Durability>()
                .map_err(|e| format!("durability: {e}"))?,
        })
    }
}

impl Settings {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// It is missing, or a line is wrong: the fault names file and line.
    pub fn load(places: &Places) -> Outcome<Self> {
        let path = places.settings_file();
        let text = read(&path)?;
        Self::parse(&text, &path)
    }

    /// Checks the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// A line is wrong: the fault names it.
    pub fn parse(text: &str, path: &Path) -> Outcome<Self> {
        let wrong = |line: usize, message: &str| {
            Fault::operator(format!("{} line {line}: {}", path.display(), message.trim()))
        };
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |text| text.matches('\n').count().saturating_add(1));
            wrong(line, error.message())
        })?;
        Self::try_from(raw).map_err(|message| {
            let key = message.split([' ', ':']).next().unwrap_or_default();
            let line = text.lines().position(|line| line.starts_with(key));
            wrong(line.map_or(1, |line| line.saturating_add(1)), &message)
        })
    }

    /// Writes the file, whole.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn store(&self, places: &Places) -> Outcome<()> {
        write_whole(&places.settings_file(), 0o644, self.to_toml().as_bytes())
    }

    fn to_toml(&self) -> String {
        let list = |nets: &[IpNet]| {
            let quoted: Vec<String> = nets.iter().map(|net| format!("\"{net}\"")).collect();
            format!("[{}]", quoted.join(", "))
        };
        let mut text = String::from(
            "# A node of a network whose wire is a database. Secrets are in node.key; after a change: restart\n\
             # `adit postgres up`.\n",
        );
        let mut key = |comment: &str, key: &str, value: String| {
            let _ = write!(text, "\n# {comment}\n{key} = {value}\n");
        };
        let quote = |value: &str| toml::Value::from(value).to_string();
        key("The database; user and password are in node.key.", "database", quote(&self.database));
        key(
            "Who this node is there. Part of what the others have checked: not to be edited.",
            "role",
            quote(&self.role),
        );
        key("Likewise.", "node", self.node.to_string());
        key("Likewise.", "name", quote(&self.name));
        key("Likewise.", "addresses", list(&self.addresses));
        key("Networks behind this node; likewise.", "subnets", list(&self.subnets));
        key(
            "What the rows say in the clear (full, headers, metadata, none): refused where the network says otherwise.",
            "audit",
            quote(self.audit.word()),
        );
        key(
            "Fingerprint of the auditor's key, which opens every packet; likewise.",
            "auditor",
            quote(&self.auditor.map_or_else(|| "none".into(), |auditor| auditor.to_string())),
        );
        key("The TUN device.", "device", quote(&self.device));
        key(
            "Longest IP packet that goes into a row, bytes.",
            "packet-size",
            self.packet_size.to_string(),
        );
        key(
            "When a packet counts as stored: strict (flushed), relaxed (flushed a moment later), volatile (lost when the database crashes).",
            "durability",
            quote(self.durability.word()),
        );
        text
    }
}

/// `node.key`.
pub struct Secrets {
    /// Of the node's role.
    pub password: Zeroizing<String>,
    /// The network's key.
    pub network_key: NetworkKey,
    /// The node's own keys.
    pub keys: NodeKeys,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Reads the file; nobody but its owner may be able to.
    ///
    /// # Errors
    /// It is missing, readable by others, or damaged. The fault never quotes it.
    pub fn load(places: &Places) -> Outcome<Self> {
        let path = places.secrets_file();
        let text = Zeroizing::new(read(&path)?);
        let mode = fs::metadata(&path).map(|meta| meta.permissions().mode()).unwrap_or_default();
        if mode & 0o077 != 0 {
            return Err(Fault::operator(format!(
                "{} can be read by others; take that away: chmod 600 {0}",
                path.display()
            )));
        }
        Self::parse(&text).ok_or_else(|| {
            Fault::operator(format!(
                "{} is damaged; restore it, or remove the node and join again",
                path.display()
            ))
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let value =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        let bytes = |key: &str| Some(Zeroizing::new(BASE64.decode(value(key)?).ok()?));
        let network_key = bytes("network-key")?;
        let keys = bytes("identity")?;
        Some(Self {
            password: Zeroizing::new(value("password")?.to_owned()),
            network_key: NetworkKey::from_bytes(network_key.as_slice().try_into().ok()?),
            keys: NodeKeys::from_bytes(keys.as_slice().try_into().ok()?).ok()?,
        })
    }

    /// Writes the file, whole, with mode 0600.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn store(&self, places: &Places) -> Outcome<()> {
        let network_key = Zeroizing::new(BASE64.encode(self.network_key.as_bytes()));
        let identity = Zeroizing::new(BASE64.encode(self.keys.to_bytes().as_slice()));
        let mut text = Zeroizing::new(String::new());
        let _ = write!(
            text,
            "# Secrets of a node: for its machine alone.\npassword = {}\nnetwork-key = {}\nidentity = {}\n",
            self.password.as_str(),
            network_key.as_str(),
            identity.as_str()
        );
        write_whole(&places.secrets_file(), 0o600, text.as_bytes())
    }
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::operator(format!(
            "there is no {}; this machine joins a network with: adit postgres join URL",
            path.display()
        )),
        io::ErrorKind::PermissionDenied => Fault::environment(format!(
            "cannot read {}: {error}; run it as root: sudo adit ...",
            path.display()
        )),
        _ => Fault::environment(format!("cannot read {}: {error}", path.display())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Settings {
        Settings {
            database: "postgres://db.example.net:5432/vpn?sslmode=verify-full".into(),
            role: "adit_vpn_node_hub".into(),
            node: NodeId(1),
            name: "hub".into(),
            addresses: vec!["10.9.0.1/24".parse().unwrap(), "fd09::1/64".parse().unwrap()],
            subnets: vec!["192.168.7.0/24".parse().unwrap()],
            device: "adit-vpn".into(),
            packet_size: 7900,
            audit: Audit::Headers,
            auditor: Some(Fingerprint([0xab; 32])),
            durability: Durability::Strict,
        }
    }

    #[test]
    fn what_is_written_reads_back_equal() {
        let mut odd = sample();
        odd.database = "postgres://%2Ftmp%2Fa%22b/vpn".into();
        odd.subnets.clear();
        odd.auditor = None;
        for settings in [sample(), odd] {
            let text = settings.to_toml();
            assert_eq!(Settings::parse(&text, Path::new("node.toml")).unwrap(), settings, "{text}");
        }
    }

    #[test]
    fn a_mistake_names_file_line_and_what_is_allowed() {
        let good = sample().to_toml();
        for (from, to, said) in [
            ("audit = \"headers\"", "audit = \"some\"", "full, headers, metadata, none"),
            ("durability = \"strict\"", "durability = \"lax\"", "strict, relaxed, volatile"),
            ("packet-size = 7900", "packet-size = 9000", "between 1280 and 7900"),
            ("device = \"adit-vpn\"", "device = \"a/b\"", "device name"),
            ("node = 1", "nod = 1", "unknown field"),
            (
                &*format!("auditor = \"{}\"", "ab".repeat(32)),
                "auditor = \"ab\"",
                "64 hexadecimal digits",
            ),
        ] {
            let text = good.replace(from, to);
            let line = text.lines().position(|line| line == to).unwrap() + 1;
            let fault = Settings::parse(&text, Path::new("node.toml")).unwrap_err().to_string();
            assert!(fault.starts_with(&format!("node.toml line {line}: ")), "{fault}");
            assert!(fault.contains(said), "{fault}");
        }
    }

    #[test]
    fn secrets_are_their_owners_only_and_are_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(Some(dir.path()), "vpn").unwrap();
        places.create().unwrap();
        let secrets = Secrets {
            password: Zeroizing::new("geheim+/=".into()),
            network_key: NetworkKey::from_bytes(&[7; 32]),
            keys: NodeKeys::from_bytes(&[9; 64]).unwrap(),
        };
        secrets.store(&places).unwrap();
        let path = places.secrets_file();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let back = Secrets::load(&places).unwrap();
        assert_eq!(*back.password, "geheim+/=");
        assert_eq!((back.network_key.as_bytes(), *back.keys.to_bytes()), (&[7; 32], [9; 64]));
        assert_eq!(format!("{back:?}"), "Secrets(..)");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Secrets::load(&places).unwrap_err().to_string().contains("chmod 600"));
        fs::write(&path, "password = geheim\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let fault = Secrets::load(&places).unwrap_err().to_string();
        assert!(fault.contains("damaged") && !fault.contains("geheim"), "{fault}");
    }
}
