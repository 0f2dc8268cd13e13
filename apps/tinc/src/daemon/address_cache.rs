//! The addresses at which nodes were reached, kept across restarts: one node a line, with its addresses, the latest first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use adit_engine::Instant;
use adit_runtime::helper::files;
use adit_tinc::name::NodeName;
use adit_tinc::node::Node;

/// The time between two writes. The end of the daemon writes at once.
const INTERVAL: Duration = Duration::from_secs(60);

/// The number of addresses of a node.
const MAX_ADDRESSES: usize = 8;

/// Length of the longest file, bytes.
const MAX_FILE: usize = 8 << 20;

/// The addresses by node.
type Addresses = BTreeMap<NodeName, Vec<SocketAddr>>;

/// The file of addresses.
pub(super) struct AddressCache {
    path: PathBuf,
    /// The content of the file.
    written: String,
    /// There are addresses that the file may lack.
    is_changed: bool,
    write_at: Instant,
    /// A failure was reported.
    has_failed: bool,
}

impl AddressCache {
    /// Reads the addresses of an earlier run into the node. Nodes without a host file are forgotten.
    pub(super) fn load(path: PathBuf, node: &mut Node, now: Instant) -> Self {
        // The file is missing at the first start.
        let bytes = files::contents(&path).unwrap_or_default();
        let written = String::from_utf8(bytes).unwrap_or_default();
        for (name, addresses) in parse(&written) {
            if node.host(&name).is_some() {
                node.set_recent_addresses(&name, &addresses);
            }
        }
        Self { path, written, is_changed: false, write_at: now, has_failed: false }
    }

    /// A node was reached.
    pub(super) fn changed(&mut self) {
        self.is_changed = true;
    }

    /// Writes the file, if an address is new and the last write is long enough ago.
    pub(super) fn tick(&mut self, node: &Node, now: Instant) {
        if now >= self.write_at && self.write(node) {
            // The sum is saturated.
            #[allow(clippy::arithmetic_side_effects)]
            {
                self.write_at = now + INTERVAL;
            }
        }
    }

    /// Writes the file if an address is new. Returns whether it did.
    pub(super) fn write(&mut self, node: &Node) -> bool {
        if !std::mem::take(&mut self.is_changed) {
            return false;
        }
        let text = text(node);
        if text == self.written {
            return false;
        }
        match files::replace(&self.path, text.as_bytes()) {
            Ok(()) => self.written = text,
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                tracing::warn!("{}: cannot be written: {error}", self.path.display());
            }
            Err(_) => {}
        }
        true
    }
}

fn text(node: &Node) -> String {
    let mut text = String::new();
    for (name, addresses) in node.all_recent_addresses() {
        text.push_str(name.as_str());
        for address in addresses {
            text.push(' ');
            text.push_str(&address.to_string());
        }
        text.push('\n');
    }
    text
}

/// Reads the file. Lines that are not as this program writes them are ignored.
fn parse(text: &str) -> Addresses {
    let text = text.get(..MAX_FILE).unwrap_or(text);
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.parse().ok()?;
        let addresses: Vec<SocketAddr> =
            words.map_while(|word| word.parse().ok()).take(MAX_ADDRESSES).collect();
        (!addresses.is_empty()).then_some((name, addresses))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use adit_engine::Random;
    use adit_tinc::config::{HostConfig, ServerConfig};
    use adit_tinc::keys::PrivateKey;
    use adit_tinc::node::NodeConfig;

    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000_000);

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    /// Returns a node that has host files of bob and carol.
    fn node() -> Node {
        let host = |node: &str| (name(node), HostConfig::default());
        let config = NodeConfig {
            name: name("alice"),
            key: Arc::new(PrivateKey::from_seed(&[1; 32])),
            server: ServerConfig::default(),
            hosts: [host("bob"), host("carol")].into(),
            udp_port: 655,
        };
        Node::new(config, START, Random::new([1; 32]))
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adit.addresses");
        let mut first = node();
        let mut cache = AddressCache::load(path.clone(), &mut first, START);
        let bob = addresses(&["192.0.2.2:655", "[2001:db8::2]:655"]);
        first.set_recent_addresses(&name("bob"), &bob);
        cache.tick(&first, START);
        assert!(!path.exists(), "nothing was reached");
        cache.changed();
        cache.tick(&first, START);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "bob 192.0.2.2:655 [2001:db8::2]:655\n"
        );
        let mut second = node();
        AddressCache::load(path, &mut second, START);
        assert_eq!(second.recent_addresses(&name("bob")), bob);
    }

    #[test]
    fn the_file_is_written_once_a_minute_and_only_if_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adit.addresses");
        let mut node = node();
        let mut cache = AddressCache::load(path.clone(), &mut node, START);
        let mut reach = |cache: &mut AddressCache, address: &str, seconds: u64| {
            node.set_recent_addresses(&name("bob"), &addresses(&[address]));
            cache.changed();
            cache.tick(&node, START + Duration::from_secs(seconds));
            let now = std::fs::read_to_string(&path).unwrap_or_default();
            std::fs::write(&path, "").unwrap();
            now
        };
        assert_eq!(reach(&mut cache, "192.0.2.2:1", 0), "bob 192.0.2.2:1\n");
        assert_eq!(reach(&mut cache, "192.0.2.2:2", 59), "");
        assert_eq!(reach(&mut cache, "192.0.2.2:2", 60), "bob 192.0.2.2:2 192.0.2.2:1\n");
        assert_eq!(reach(&mut cache, "192.0.2.2:2", 200), "", "the same");
        node.set_recent_addresses(&name("bob"), &addresses(&["192.0.2.2:3"]));
        cache.changed();
        assert!(cache.write(&node), "the end does not wait");
    }

    #[test]
    fn only_addresses_of_nodes_with_a_host_file_are_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adit.addresses");
        let text = "dave 192.0.2.4:655\ncarol junk 192.0.2.3:655\nca-rol 192.0.2.3:655\n\nbob 192.0.2.2:655 x\n";
        std::fs::write(&path, text).unwrap();
        let mut node = node();
        AddressCache::load(path, &mut node, START);
        let all: Vec<String> =
            node.all_recent_addresses().map(|(name, it)| format!("{name} {it:?}")).collect();
        assert_eq!(all, ["bob [192.0.2.2:655]"]);
    }

    #[test]
    fn a_node_has_at_most_eight_addresses() {
        let line: String = (1..=20).map(|port| format!(" 192.0.2.2:{port}")).collect();
        let parsed = parse(&format!("bob{line}\n"));
        assert_eq!(parsed[&name("bob")].len(), MAX_ADDRESSES);
    }
}
