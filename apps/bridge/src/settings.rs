//! The settings file of a bridge that a service manager starts (`adit bridge --settings FILE`).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    BridgeOptions, LinkState, NeighbourArg, PortAddress, PortSpec, RouteArg, RoutedOptions,
};
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::settings::Key;

/// The file before it is checked.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Raw {
    ports: [String; 2],
    #[serde(default)]
    rules: Option<PathBuf>,
    #[serde(default)]
    relay: bool,
    #[serde(default)]
    routed: bool,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    routes: Vec<String>,
    #[serde(default)]
    neighbours: Vec<String>,
    #[serde(default)]
    workers: Option<u16>,
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    share_with_host: bool,
    #[serde(default)]
    link_state: LinkState,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    metrics: Option<MetricsConfig>,
}

/// The keys of the file, in the order of the manual page.
pub const BRIDGE_KEYS: [Key; 13] = [
    Key {
        name: "ports",
        comment: "The two ports: an interface that exists, or `tap:NAME` to create a TAP device.",
        example: r#"["eth1", "eth2"]"#,
        default: None,
        restart: true,
    },
    Key {
        name: "rules",
        comment: "The file with the rules. A relative path starts at the settings' folder. Either this or `relay` is required.",
        example: r#""fw.nft""#,
        default: Some("no rules"),
        restart: true,
    },
    Key {
        name: "relay",
        comment: "true: let all frames pass, without rules.",
        example: "true",
        default: Some("false"),
        restart: true,
    },
    Key {
        name: "routed",
        comment: "true: forward packets from one network to the other, as a router does, instead of frames. `addresses` \
                  is required.",
        example: "true",
        default: Some("false"),
        restart: true,
    },
    Key {
        name: "addresses",
        comment: "The router's own addresses on its ports, with their networks.",
        example: r#"["eth1=10.0.1.1/24", "eth2=10.0.2.1/24"]"#,
        default: Some("[]"),
        restart: true,
    },
    Key {
        name: "routes",
        comment: "Routes to networks behind other routers.",
        example: r#"["default via 10.0.2.254"]"#,
        default: Some("[]"),
        restart: true,
    },
    Key {
        name: "neighbours",
        comment: "Neighbours with fixed MAC addresses. They are not resolved, and other stations cannot claim their addresses.",
        example: r#"["10.0.1.5=02:00:00:00:00:05"]"#,
        default: Some("[]"),
        restart: true,
    },
    Key {
        name: "workers",
        comment: "The number of threads that move frames.",
        example: "2",
        default: Some("one per core up to 16; one with up to 2 cores"),
        restart: true,
    },
    Key {
        name: "mtu",
        comment: "The MTU of new TAPs.",
        example: "9000",
        default: Some("that of the other port, 1500 for two TAPs"),
        restart: true,
    },
    Key {
        name: "share-with-host",
        comment: "true: let the host's own stack receive and answer the ports' frames.",
        example: "true",
        default: Some("false"),
        restart: true,
    },
    Key {
        name: "link-state",
        comment: "\"carry\": if one port loses its link, the other is switched off until the link is back, so that both \
                  ends notice at once. \"ignore\": do nothing.",
        example: r#""carry""#,
        default: Some("\"ignore\""),
        restart: true,
    },
    Key {
        name: "user",
        comment: "Run as this user once everything is open.",
        example: r#""adit""#,
        default: Some("`adit`, or `nobody` if there is no such user"),
        restart: true,
    },
    Key {
        name: "metrics",
        comment: "Where metrics for Prometheus are served: `unix:PATH`, or a port of this machine such as `127.0.0.1:9190`.",
        example: r#""unix:/run/adit/office.metrics""#,
        default: Some("none"),
        restart: true,
    },
];

impl BridgeOptions {
    /// Reads a settings file. The bridge is named after the file, without its extension.
    ///
    /// # Errors
    /// Fails if the file cannot be read or contains an error. The fault names the line.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let text = files::open(path).and_then(std::io::read_to_string).map_err(|error| {
            Fault::operator(format!("{}: settings not read: {error}", path.display()))
        })?;
        Self::parse(&text, path)
    }

    /// Parses the text of a settings file.
    ///
    /// # Errors
    /// Returns the error with its line.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Fault> {
        let raw: Raw = toml::from_str(text).map_err(|error| Fault::in_toml(path, text, &error))?;
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let folder = path.parent().unwrap_or(Path::new(""));
        raw.options(name, folder)
            .map_err(|why| Fault::operator(format!("{}: {why}", path.display())))
    }
}

/// Parses each value of a list. `key` is for messages.
fn each<T: std::str::FromStr<Err = String>>(key: &str, list: &[String]) -> Result<Vec<T>, String> {
    let read = |text: &String| text.parse().map_err(|why| format!("{key}: {why}"));
    list.iter().map(read).collect()
}

impl Raw {
    fn options(self, name: Option<String>, folder: &Path) -> Result<BridgeOptions, String> {
        let [a, b] = self.ports.each_ref().map(|port| port.parse::<PortSpec>());
        let ports = [a?, b?];
        match (&self.rules, self.relay) {
            (None, false) => {
                return Err(
                    "write rules = \"fw.nft\", or relay = true to let all frames pass".into()
                );
            }
            (Some(_), true) => return Err("rules and relay = true: write one of them".into()),
            _ => {}
        }
        let addresses: Vec<PortAddress> = each("addresses", &self.addresses)?;
        let routes: Vec<RouteArg> = each("routes", &self.routes)?;
        let neighbours: Vec<NeighbourArg> = each("neighbours", &self.neighbours)?;
        if self.routed && addresses.is_empty() {
            return Err("routed = true: write addresses = [\"eth1=10.0.1.1/24\"]".into());
        }
        let of_router = addresses.len().max(routes.len()).max(neighbours.len());
        if !self.routed && of_router > 0 {
            return Err("addresses, routes and neighbours are for routed = true".into());
        }
        if self.routed && self.link_state == LinkState::Carry {
            return Err("link-state = \"carry\" is not for routed = true: a router's networks have separate links".into());
        }
        if let Some(mtu) = self.mtu.filter(|mtu| !(68..=65_521).contains(mtu)) {
            return Err(format!("mtu {mtu}: write a number from 68 to 65521"));
        }
        Ok(BridgeOptions {
            ports,
            rules: self.rules.map(|rules| folder.join(rules)),
            routed: self.routed.then_some(RoutedOptions { addresses, routes, neighbours }),
            workers: self.workers,
            mtu: self.mtu,
            share_with_host: self.share_with_host,
            link_state: self.link_state,
            name,
            dir: None,
            user: self.user,
            metrics: self.metrics,
            verbose: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BridgeOptions, String> {
        let path = Path::new("/etc/adit/bridge/office.toml");
        BridgeOptions::parse(text, path).map_err(|fault| fault.to_string())
    }

    #[test]
    fn every_key_is_in_the_table_and_its_example_can_be_read() {
        let mut text = String::from("routed = true\n");
        for key in
            BRIDGE_KEYS.iter().filter(|key| !["routed", "relay", "link-state"].contains(&key.name))
        {
            text.push_str(&format!("{} = {}\n", key.name, key.example));
        }
        let options = read(&text).unwrap();
        assert_eq!(options.name.as_deref(), Some("office"));
        assert_eq!(options.rules.as_deref(), Some(Path::new("/etc/adit/bridge/fw.nft")));
        let routed = options.routed.unwrap();
        assert_eq!(
            (routed.addresses.len(), routed.routes.len(), routed.neighbours.len()),
            (2, 1, 1)
        );
        let raw: Raw = toml::from_str(&text).unwrap();
        let written = toml::to_string(&raw).unwrap();
        let known = written.lines().filter_map(|line| Some(line.split_once(" = ")?.0));
        for key in known {
            assert!(BRIDGE_KEYS.iter().any(|row| row.name == key), "{key} is not in the table");
        }
        let least = read("ports = [\"a\", \"tap:b\"]\nrelay = true\n").unwrap();
        assert!(least.rules.is_none() && least.routed.is_none() && !least.share_with_host);
        assert_eq!(least.link_state, LinkState::Ignore);
        let key = BRIDGE_KEYS.iter().find(|key| key.name == "link-state").unwrap();
        let carries =
            format!("ports = [\"a\", \"b\"]\nrelay = true\n{} = {}\n", key.name, key.example);
        assert_eq!(read(&carries).unwrap().link_state, LinkState::Carry);
    }

    #[test]
    fn what_is_wrong_is_said_with_file_and_line() {
        let base = "ports = [\"eth1\", \"eth2\"]\n";
        for (text, said) in [
            ("", "line 1: missing field `ports`"),
            (base, "relay = true to let all frames pass"),
            ("ports = [\"eth1\"]\nrelay = true\n", "line 1"),
            ("ports = [\"a/b\", \"eth2\"]\nrelay = true\n", "tap:private"),
            ("ports = [\"a\", \"b\"]\nrelay = true\nrule = 1\n", "line 3: unknown field `rule`"),
            ("ports = [\"a\", \"b\"]\nrelay = true\nrules = \"x\"\n", "write one of them"),
            ("ports = [\"a\", \"b\"]\nrelay = true\nrouted = true\n", "write addresses"),
            (
                "ports = [\"a\", \"b\"]\nrelay = true\nroutes = [\"default via 10.0.0.1\"]\n",
                "are for routed",
            ),
            (
                "ports = [\"a\", \"b\"]\nrelay = true\nrouted = true\naddresses = [\"a\"]\n",
                "addresses: write",
            ),
            ("ports = [\"a\", \"b\"]\nrelay = true\nmtu = 1\n", "68 to 65521"),
            (
                "ports = [\"a\", \"b\"]\nrelay = true\nlink-state = \"x\"\n",
                "line 3: unknown variant `x`",
            ),
            (
                "ports = [\"a\", \"b\"]\nrelay = true\nrouted = true\naddresses = [\"a=10.0.0.1/24\"]\n\
                 link-state = \"carry\"\n",
                "is not for routed",
            ),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.starts_with("/etc/adit/bridge/office.toml"), "{wrong}");
            assert!(wrong.contains(said), "{text}: {wrong}");
        }
    }
}
