//! Where the metrics are served, and to whom.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ipnet::IpNet;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of peers with samples of their own, unless the settings have another.
pub const DEFAULT_PEERS: u32 = 1000;

/// The extension of metrics sockets. `adit status` does not take them for control sockets.
const EXTENSION: &str = "metrics";

/// Returns whether a path is that of a metrics socket.
pub fn is_metrics_socket(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// An address at which metrics are served: `unix:/run/adit/server.metrics` or `127.0.0.1:9190`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Endpoint {
    /// A unix socket, which only its owner can access.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() && is_metrics_socket(&path) {
                Ok(Self::Unix(path))
            } else {
                Err(format!(
                    "{text:?} is not an absolute path that ends with .{EXTENSION}; write unix:/run/adit/server.{EXTENSION}"
                ))
            };
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Ok(Self::Tcp(address)),
            _ => Err(format!(
                "{text:?} is neither unix:PATH nor ADDRESS:PORT; write unix:/run/adit/server.{EXTENSION} or 127.0.0.1:9190"
            )),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

/// The names of the metrics.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// adit's own names.
    #[default]
    Adit,
    /// The names of the common OpenVPN exporter, for existing dashboards.
    Openvpn,
}

impl FromStr for Names {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "adit" => Ok(Self::Adit),
            "openvpn" => Ok(Self::Openvpn),
            _ => Err(format!("{text:?} are no known names; write openvpn")),
        }
    }
}

impl Names {
    /// Returns the value in settings files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adit => "adit",
            Self::Openvpn => "openvpn",
        }
    }
}

/// The key `metrics` of a settings file: an address, or a table with all settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The address.
    pub listen: Endpoint,
    /// The networks outside this machine whose requests over TCP are answered.
    pub allow: Vec<IpNet>,
    /// The number of peers with samples of their own. The others are added up.
    pub peers: u32,
    /// The names of the metrics.
    pub names: Names,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Raw {
    listen: Endpoint,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<IpNet>,
    #[serde(default = "default_peers")]
    peers: u32,
    #[serde(default)]
    compat: Names,
}

fn default_peers() -> u32 {
    DEFAULT_PEERS
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.has_defaults() {
            self.listen.serialize(serializer)
        } else {
            Raw::from(self.clone()).serialize(serializer)
        }
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::checked(text.parse()?, Vec::new(), None, Names::Adit)
    }
}

/// An untagged enum would hide which value is wrong.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AddressOrTable;

        impl<'de> Visitor<'de> for AddressOrTable {
            type Value = Config;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address such as \"127.0.0.1:9190\", or a table with listen = \"127.0.0.1:9190\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Config, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Config, A::Error> {
                let raw = Raw::deserialize(MapAccessDeserializer::new(map))?;
                Config::checked(raw.listen, raw.allow, Some(raw.peers), raw.compat)
                    .map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(AddressOrTable)
    }
}

impl From<Config> for Raw {
    fn from(config: Config) -> Self {
        let Config { listen, allow, peers, names } = config;
        Self { listen, allow, peers, compat: names }
    }
}

impl Config {
    /// Checks that metrics do not reach other machines by mistake.
    ///
    /// # Errors
    /// Returns what is wrong, with the correction.
    pub fn checked(
        listen: Endpoint,
        allow: Vec<IpNet>,
        peers: Option<u32>,
        names: Names,
    ) -> Result<Self, String> {
        match &listen {
            Endpoint::Tcp(address) if !address.ip().is_loopback() && allow.is_empty() => {
                let port = address.port();
                return Err(format!(
                    "metrics on {address} would show the names and traffic of all peers to anyone who reaches this \
                     machine: listen on 127.0.0.1:{port}, or name the networks of your monitoring in a settings file: \
                     metrics = {{ listen = \"{address}\", allow = [\"10.1.0.0/24\"] }}"
                ));
            }
            Endpoint::Unix(_) if !allow.is_empty() => {
                return Err(
                    "allow is for a TCP port; a unix socket is accessible to its owner only".into(),
                );
            }
            _ => {}
        }
        // The largest private networks are 10.0.0.0/8 and fc00::/7.
        let is_wide = |network: &&IpNet| match network {
            IpNet::V4(network) => network.prefix_len() < 8,
            IpNet::V6(network) => network.prefix_len() < 7,
        };
        if let Some(network) = allow.iter().find(is_wide) {
            return Err(format!(
                "allow with {network} would show the metrics to the internet; name the networks of your monitoring"
            ));
        }
        Ok(Self { listen, allow, peers: peers.unwrap_or(DEFAULT_PEERS), names })
    }

    /// Returns whether all settings but the address have their defaults.
    fn has_defaults(&self) -> bool {
        self.allow.is_empty() && self.peers == DEFAULT_PEERS && self.names == Names::Adit
    }

    /// Returns the value in a settings file, in one line.
    pub fn to_toml(&self) -> String {
        let listen = format!("\"{}\"", self.listen);
        if self.has_defaults() {
            return listen;
        }
        let allow: Vec<String> =
            self.allow.iter().map(|network| format!("\"{network}\"")).collect();
        format!(
            "{{ listen = {listen}, allow = [{}], peers = {}, compat = \"{}\" }}",
            allow.join(", "),
            self.peers,
            self.names.name()
        )
    }

    /// Returns the path of the unix socket, which the helper must be permitted to open.
    pub fn socket(&self) -> Option<&Path> {
        match &self.listen {
            Endpoint::Unix(path) => Some(path),
            Endpoint::Tcp(_) => None,
        }
    }

    /// Returns whether requests from an address are answered.
    pub(super) fn allows(&self, from: IpAddr) -> bool {
        let from = from.to_canonical();
        from.is_loopback() || self.allow.iter().any(|network| network.contains(&from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_unix_socket_or_a_port() {
        for text in ["unix:/run/adit/server.metrics", "127.0.0.1:9190", "[::1]:9190"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for (text, hint) in [
            ("9190", "127.0.0.1:9190"),
            ("localhost:9190", "127.0.0.1:9190"),
            ("127.0.0.1:0", "127.0.0.1:9190"),
            ("unix:run/server.metrics", "absolute path"),
            ("unix:/run/adit/server.sock", "ends with .metrics"),
        ] {
            let wrong = text.parse::<Endpoint>().unwrap_err();
            assert!(wrong.contains(hint), "{wrong}");
        }
    }

    #[test]
    fn metrics_do_not_meet_the_internet_by_mistake() {
        let checked = |listen: &str, allow: &[&str]| {
            let allow = allow.iter().map(|network| network.parse().unwrap()).collect();
            Config::checked(listen.parse().unwrap(), allow, None, Names::Adit)
        };
        assert!(checked("127.0.0.1:9190", &[]).is_ok());
        assert!(checked("[::1]:9190", &[]).is_ok());
        for open in ["0.0.0.0:9190", "[::]:9190", "192.0.2.1:9190"] {
            let wrong = checked(open, &[]).unwrap_err();
            assert!(wrong.contains("listen on 127.0.0.1:9190"), "{wrong}");
            assert!(checked(open, &["0.0.0.0/0"]).unwrap_err().contains("internet"));
            assert!(checked(open, &["10.0.0.0/8", "::/0"]).is_err());
            assert!(checked(open, &["0.0.0.0/1", "128.0.0.0/1"]).is_err());
            assert!(checked(open, &["2000::/3"]).is_err());
            assert!(checked(open, &["10.0.0.0/8", "fc00::/7"]).is_ok());
        }
        let config = checked("0.0.0.0:9190", &["10.1.0.0/16"]).unwrap();
        let allowed = |from: &str| config.allows(from.parse().unwrap());
        assert!(allowed("10.1.2.3") && allowed("::ffff:10.1.2.3") && allowed("127.0.0.1"));
        assert!(!allowed("10.2.0.1") && !allowed("192.0.2.1") && !allowed("2001:db8::1"));
        assert!(checked("unix:/run/adit/a.metrics", &["10.0.0.0/8"]).is_err());
    }

    #[test]
    fn a_settings_file_has_an_address_or_a_table() {
        #[derive(Deserialize)]
        struct File {
            metrics: Config,
        }
        let read = |text: &str| toml::from_str::<File>(text).map(|file| file.metrics);
        let short = read("metrics = \"unix:/run/adit/server.metrics\"\n").unwrap();
        assert_eq!(short.to_toml(), "\"unix:/run/adit/server.metrics\"");
        let full = "{ listen = \"0.0.0.0:9190\", allow = [\"10.0.0.0/8\"], peers = 5, compat = \"openvpn\" }";
        assert_eq!(read(&format!("metrics = {full}\n")).unwrap().to_toml(), full);
        for (text, hint) in [
            ("metrics = \"0.0.0.0:9190\"", "listen on 127.0.0.1:9190"),
            ("metrics = { listen = \"9190\" }", "write unix:/run/adit"),
            ("metrics = 9190", "an address such as"),
        ] {
            let wrong = read(text).unwrap_err().to_string();
            assert!(wrong.contains(hint), "{wrong}");
        }
    }

    #[test]
    fn the_table_has_four_keys() {
        let text = "listen = \"0.0.0.0:9190\"\nallow = [\"10.0.0.0/8\"]\npeers = 5000\ncompat = \"openvpn\"\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!((config.peers, config.names), (5000, Names::Openvpn));
        assert_eq!(toml::to_string(&config).unwrap(), text);
        let least: Config = toml::from_str("listen = \"unix:/run/adit/server.metrics\"\n").unwrap();
        assert_eq!((least.peers, least.names), (DEFAULT_PEERS, Names::Adit));
        assert!(toml::from_str::<Config>("listen = \"0.0.0.0:9190\"\n").is_err());
        assert!(toml::from_str::<Config>("listen = \"127.0.0.1:1\"\nport = 1\n").is_err());
    }
}
