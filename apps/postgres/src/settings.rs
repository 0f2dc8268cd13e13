//! The files `node.toml` and `node.key`.

use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use adit_postgres::key::settings::NetworkSettings;
use adit_postgres::key::{KeyRing, NetworkKey, NodeKeys};
use adit_postgres::{Durability, Generation, NodeId, limits};
use adit_postgres_client::Target;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ipnet::IpNet;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::paths::Paths;
use adit_runtime::fault::Fault;
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::paths::write_whole;

/// The parsed and checked `node.toml`: the identity of a node and its settings for sending. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The database, as a URL without user and password.
    pub database: String,
    /// This node's role in the database.
    pub role: String,
    /// This node's number.
    pub node: NodeId,
    /// This node's name.
    pub name: String,
    /// This node's addresses, with the length of the network's prefix.
    pub addresses: Vec<IpNet>,
    /// The networks behind this node.
    pub subnets: Vec<IpNet>,
    /// The name of the TUN device.
    pub device: String,
    /// The maximum length of an IP packet that it sends, in bytes, or `None` to use the network's setting.
    pub packet_size: Option<usize>,
    /// The durability of its packets, or `None` to use the network's setting.
    pub durability: Option<Durability>,
    /// Where metrics are served.
    pub metrics: Option<MetricsConfig>,
}

/// The file before it is checked.
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
    packet_size: Option<usize>,
    durability: Option<String>,
    metrics: Option<MetricsConfig>,
}

impl TryFrom<Raw> for Settings {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        if raw.addresses.is_empty() {
            return Err("addresses is empty; take it from what `adit postgres join` wrote".into());
        }
        if let Some(size) = raw.packet_size.filter(|size| !limits::PACKET_RANGE.contains(size)) {
            return Err(format!(
                "packet-size {size} is not between {} and {}",
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
            device: adit_runtime::settings::checked_device(&raw.device)?,
            packet_size: raw.packet_size,
            durability: raw
                .durability
                .map(|word| word.parse::<Durability>())
                .transpose()
                .map_err(|e| format!("durability: {e}"))?,
            metrics: raw.metrics,
        })
    }
}

impl Settings {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// Fails if the file is missing or a line is wrong. The fault contains the file and line.
    pub fn load(paths: &Paths) -> Result<Self, Fault> {
        let path = paths.settings_file();
        let text = read(&path)?;
        Self::parse(&text, &path)
    }

    /// Returns the database of the node, with the node's role.
    ///
    /// # Errors
    /// Fails if the URL is wrong.
    pub fn target(&self, secrets: &Secrets) -> Result<Target, Fault> {
        Target::of_node(&self.database, &self.role, &secrets.password)
            .map_err(|fault| Fault::operator(format!("in node.toml: {fault}")))
    }

    /// Returns the files that the node reads at each connection.
    ///
    /// # Errors
    /// Fails if the URL is wrong.
    pub(crate) fn database_files(&self) -> Result<Vec<PathBuf>, Fault> {
        Target::files_of_node(&self.database, &self.role)
    }

    /// Parses and checks the text of a file. `path` is for messages.
    ///
    /// # Errors
    /// Fails if a line is wrong. The fault contains the line.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Fault> {
        let raw: Raw = toml::from_str(text).map_err(|error| Fault::in_toml(path, text, &error))?;
        Self::try_from(raw).map_err(|message| {
            let key = message.split([' ', ':']).next().unwrap_or_default();
            let line = text.lines().position(|line| line.starts_with(key));
            Fault::in_line(path, line.map_or(1, |line| line.saturating_add(1)), &message)
        })
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// Fails if the file system refuses.
    pub fn store(&self, paths: &Paths) -> Result<(), Fault> {
        write_whole(&paths.settings_file(), 0o644, self.to_toml().as_bytes())
    }

    /// Returns the maximum length of an IP packet that the node sends: from its own settings, or else those of the `network`, or else the
    /// limit.
    pub(super) fn packet_size(&self, network: Option<&NetworkSettings>) -> usize {
        let network = || usize::try_from(network?.packet_size).ok();
        self.packet_size.or_else(network).unwrap_or(limits::DEFAULT_PACKET)
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
        key("The TUN device.", "device", quote(&self.device));
        let size = "Longest IP packet that goes into a row, bytes. The network's settings say it where this is left out.";
        match self.packet_size {
            Some(bytes) => key(size, "packet-size", bytes.to_string()),
            None => key(size, "# packet-size", limits::DEFAULT_PACKET.to_string()),
        }
        let stored = "When a packet counts as stored: strict (flushed), relaxed (flushed a moment later), volatile (lost when the \
                      database crashes). The network's settings say it where this is left out.";
        match self.durability {
            Some(word) => key(stored, "durability", quote(word.as_str())),
            None => key(stored, "# durability", quote(Durability::default().as_str())),
        }
        let metrics =
            "Where metrics for Prometheus are served: unix:PATH, or a port of this machine.";
        match &self.metrics {
            Some(config) => key(metrics, "metrics", config.to_toml()),
            None => key(metrics, "# metrics", quote("unix:/run/adit/postgres.metrics")),
        }
        text
    }
}

/// The content of `node.key`.
pub struct Secrets {
    /// The password of the node's role.
    pub password: Zeroizing<String>,
    /// The network's keys. This file contains the one that the node got when it joined; later ones are in `network.keys`.
    pub ring: KeyRing,
    /// The node's own keys.
    pub keys: NodeKeys,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Reads this file and that of the network's later keys. Only their owner may have access.
    ///
    /// # Errors
    /// Fails if the file is missing, or one of them is readable by other users or damaged. The fault never contains
    /// their content.
    pub fn load(paths: &Paths) -> Result<Self, Fault> {
        let path = paths.secrets_file();
        if paths.settings_file().exists() && !path.exists() {
            return Err(Fault::environment(format!(
                "{} is missing, although this machine is a node: restore the whole folder from a backup, or remove the node \
                 and join again",
                path.display()
            )));
        }
        let text = Zeroizing::new(read(&path)?);
        private(&path)?;
        let secrets = Self::parse(&text).ok_or_else(|| {
            Fault::operator(format!(
                "{} is damaged; restore it, or remove the node and join again",
                path.display()
            ))
        })?;
        let path = paths.ring_file();
        if !path.exists() {
            return Ok(secrets);
        }
        let text = Zeroizing::new(read(&path)?);
        private(&path)?;
        let ring = KeyRing::from_text(secrets.ring.newest().clone(), &text).map_err(|error| {
            Fault::operator(format!(
                "{} {error}; remove the file: the running node gets the network's keys from the database again",
                path.display()
            ))
        })?;
        Ok(Self { ring, ..secrets })
    }

    fn parse(text: &str) -> Option<Self> {
        let value =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        let bytes = |key: &str| Some(Zeroizing::new(BASE64.decode(value(key)?).ok()?));
        let network_key = bytes("network-key")?;
        let generation = value("network-generation").map_or(Some(1), |text| text.parse().ok());
        let generation =
            generation.map(Generation).filter(|number| *number >= Generation::FIRST)?;
        let keys = bytes("identity")?;
        Some(Self {
            password: Zeroizing::new(value("password")?.to_owned()),
            ring: NetworkKey::new(generation, network_key.as_slice().try_into().ok()?).into(),
            keys: NodeKeys::from_bytes(keys.as_slice().try_into().ok()?).ok()?,
        })
    }

    /// Writes the file of a node that has just joined, atomically and with mode 0600.
    ///
    /// # Errors
    /// Fails if the file system refuses.
    pub fn store(&self, paths: &Paths) -> Result<(), Fault> {
        // Remove the key ring of an earlier network with this name.
        match fs::remove_file(paths.ring_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let file = paths.ring_file();
                return Err(Fault::environment(format!(
                    "cannot remove {}: {error}",
                    file.display()
                )));
            }
            _ => {}
        }
        let key = self.ring.newest();
        let network_key = Zeroizing::new(BASE64.encode(key.as_bytes()));
        let identity = Zeroizing::new(BASE64.encode(self.keys.to_bytes().as_slice()));
        let mut text = Zeroizing::new(String::new());
        let _ = write!(
            text,
            "# Secrets of a node: for its machine alone.\npassword = {}\nnetwork-key = {}\nnetwork-generation = {}\nidentity = {}\n",
            self.password.as_str(),
            network_key.as_str(),
            key.generation(),
            identity.as_str()
        );
        write_whole(&paths.secrets_file(), 0o600, text.as_bytes())
    }
}

/// Refuses a file of secrets that other users can read.
fn private(path: &Path) -> Result<(), Fault> {
    let mode = fs::metadata(path).map(|meta| meta.permissions().mode()).unwrap_or_default();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(Fault::operator(format!(
        "{} can be read by others; correct this: chmod 600 {0}",
        path.display()
    )))
}

fn read(path: &Path) -> Result<String, Fault> {
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
            packet_size: Some(7900),
            durability: Some(Durability::Strict),
            metrics: None,
        }
    }

    #[test]
    fn what_is_written_reads_back_equal() {
        let mut odd = sample();
        odd.database = "postgres://%2Ftmp%2Fa%22b/vpn".into();
        odd.subnets.clear();
        (odd.packet_size, odd.durability) = (None, None);
        for settings in [sample(), odd] {
            let text = settings.to_toml();
            assert_eq!(Settings::parse(&text, Path::new("node.toml")).unwrap(), settings, "{text}");
        }
    }

    #[test]
    fn a_mistake_names_file_line_and_what_is_allowed() {
        let good = sample().to_toml();
        for (from, to, said) in [
            ("durability = \"strict\"", "durability = \"lax\"", "strict, relaxed, volatile"),
            ("packet-size = 7900", "packet-size = 9000", "between 1280 and 7900"),
            ("device = \"adit-vpn\"", "device = \"a/b\"", "device name"),
            ("node = 1", "nod = 1", "unknown field"),
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
        let paths = Paths::new(Some(dir.path()), "vpn").unwrap();
        paths.create().unwrap();
        let secrets = Secrets {
            password: Zeroizing::new("geheim+/=".into()),
            ring: NetworkKey::new(Generation(3), &[7; 32]).into(),
            keys: NodeKeys::from_bytes(&[9; 64]).unwrap(),
        };
        secrets.store(&paths).unwrap();
        let path = paths.secrets_file();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let back = Secrets::load(&paths).unwrap();
        assert_eq!(*back.password, "geheim+/=");
        assert_eq!((back.ring.newest().as_bytes(), *back.keys.to_bytes()), (&[7; 32], [9; 64]));
        assert_eq!(back.ring.generation(), Generation(3));
        assert_eq!(format!("{back:?}"), "Secrets(..)");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Secrets::load(&paths).unwrap_err().to_string().contains("chmod 600"));
        // A folder that was restored in part.
        fs::remove_file(&path).unwrap();
        assert!(Secrets::load(&paths).unwrap_err().to_string().contains("there is no"));
        sample().store(&paths).unwrap();
        assert!(Secrets::load(&paths).unwrap_err().to_string().contains("from a backup"));
        fs::write(&path, "password = geheim\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let fault = Secrets::load(&paths).unwrap_err().to_string();
        assert!(fault.contains("damaged") && !fault.contains("geheim"), "{fault}");
    }

    #[test]
    fn keys_after_the_first_are_read_from_a_file_of_their_own() {
        use adit_engine::{Instant, Random, UnixTime};
        use adit_postgres::key::{Members, rekey::Renewal};

        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "vpn").unwrap();
        paths.create().unwrap();
        let first = NetworkKey::new(Generation::FIRST, &[7; 32]);
        let secrets = Secrets {
            password: Zeroizing::new("geheim".into()),
            ring: first.clone().into(),
            keys: NodeKeys::from_bytes(&[9; 64]).unwrap(),
        };
        secrets.store(&paths).unwrap();
        let mut ring = KeyRing::from(first.clone());
        let key = first.successor(&mut Random::new([1; 32])).unwrap();
        let members = Members::new(NodeId(2), [NodeId(1), NodeId(2)]);
        let made = UnixTime(1_795_000_000);
        ring.take(Instant::default(), made, Renewal { key, members, made });
        let path = paths.ring_file();
        write_whole(&path, 0o600, ring.to_text().as_bytes()).unwrap();
        let back = Secrets::load(&paths).unwrap();
        assert_eq!(*back.ring.to_text(), *ring.to_text());

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Secrets::load(&paths).unwrap_err().to_string().contains("chmod 600"));
        fs::write(&path, "key geheim\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let fault = Secrets::load(&paths).unwrap_err().to_string();
        assert!(fault.contains("network.keys line 1") && !fault.contains("geheim"), "{fault}");
        // A node that joins another network of this name begins without it.
        secrets.store(&paths).unwrap();
        assert_eq!(Secrets::load(&paths).unwrap().ring.generation(), Generation::FIRST);
    }
}
