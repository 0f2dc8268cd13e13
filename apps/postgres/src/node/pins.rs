//! The file `pins`, in which a node records the others' keys, the removed nodes, and the newest settings of the
//! network.
//!
//! ```text
//!   settings 3 5d41..  newest settings that were seen: their serial number and hash
//!   2 b10a.. berlin    a node's number, the fingerprint of its keys and its name when it was first seen
//!   3 c9f0.. paris removed
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use adit_postgres::key::settings::{History, SettingsPin};
use adit_postgres::key::{Fingerprint, NodePublic};
use adit_postgres::{NodeId, limits};

use adit_runtime::fault::Fault;
use adit_runtime::helper::files;

/// The maximum number of recorded nodes. Removed nodes remain.
const MOST: usize = 32 * limits::PEERS;

/// The content of the file.
#[derive(Debug)]
pub(crate) struct Pins {
    path: PathBuf,
    known: BTreeMap<NodeId, Pin>,
    settings: Option<SettingsPin>,
    changed: bool,
}

/// A recorded node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pin {
    keys: Fingerprint,
    name: String,
    removed: bool,
}

/// A line of the file.
enum Line {
    Node(NodeId, Pin),
    Settings(SettingsPin),
}

impl Pins {
    /// Reads the file, which need not exist.
    pub(crate) fn load(path: &Path) -> Result<Self, Fault> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(Fault::environment(format!("cannot read {}: {error}", path.display())));
            }
        };
        let (mut known, mut settings) = (BTreeMap::new(), None);
        for (at, line) in text.lines().enumerate() {
            match parse(line) {
                Some(Line::Node(id, pin)) => drop(known.insert(id, pin)),
                Some(Line::Settings(seen)) => settings = Some(seen),
                None => {
                    return Err(Fault::operator(format!(
                        "{} line {}: not a number, a fingerprint and a name; remove the line to learn the node again",
                        path.display(),
                        at + 1
                    )));
                }
            }
        }
        Ok(Self { path: path.to_owned(), known, settings, changed: false })
    }

    /// Returns the pinned nodes with their keys and names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (NodeId, Fingerprint, &str)> {
        self.known.iter().map(|(id, pin)| (*id, pin.keys, pin.name.as_str()))
    }

    /// Returns the keys that a node had when it was first seen.
    pub(super) fn keys(&self, id: NodeId) -> Option<Fingerprint> {
        self.known.get(&id).map(|pin| pin.keys)
    }

    /// Returns the newest settings that were seen.
    pub(crate) fn settings(&self) -> Option<SettingsPin> {
        self.settings
    }

    /// Records the newest settings.
    pub(crate) fn pin_settings(&mut self, seen: SettingsPin) {
        self.changed |= self.settings != Some(seen);
        self.settings = Some(seen);
    }

    /// Records settings. If they equal the `former` ones, returns those.
    pub(crate) fn update_settings(
        &mut self,
        history: History,
        former: Option<&Rc<History>>,
    ) -> Rc<History> {
        self.pin_settings(history.pin());
        match former.filter(|former| former.pin() == history.pin()) {
            Some(former) => Rc::clone(former),
            None => Rc::new(history),
        }
    }

    /// Checks that the node has its pinned keys. An unknown node is trusted only if there are no pins: this node has never run.
    pub(crate) fn trust(&self, node: &NodePublic) -> Result<(), String> {
        match self.keys(node.id) {
            Some(keys) if keys == node.fingerprint() => Ok(()),
            Some(_) => {
                Err(format!("node {} has other keys than those that this node first saw", node.id))
            }
            None if self.known.is_empty() => Ok(()),
            None => Err(format!("this node has never seen node {}", node.id)),
        }
    }

    /// Checks that a node has its pinned keys, and that it has not returned after its removal. If it has no pins, they
    /// are recorded now.
    pub(crate) fn check(
        &mut self,
        name: &str,
        id: NodeId,
        keys: Fingerprint,
        removed: bool,
    ) -> Result<(), String> {
        match self.known.get_mut(&id) {
            Some(pin) if pin.keys != keys => Err(format!(
                "its keys have changed since this node first saw it ({} then, {keys} now); if that was you, remove its line \
                 from {}",
                pin.keys,
                self.path.display()
            )),
            Some(pin) if pin.removed && !removed => {
                Err("it was removed from the network, but the database shows it as it was before"
                    .into())
            }
            Some(pin) => {
                self.changed |= pin.removed != removed;
                pin.removed = removed;
                Ok(())
            }
            None => {
                if self.known.len() < MOST {
                    self.known.insert(id, Pin { keys, name: name.to_owned(), removed });
                    self.changed = true;
                }
                Ok(())
            }
        }
    }

    /// Writes the file if something has changed.
    pub(crate) fn save(&mut self) -> Result<(), Fault> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let mut text = String::new();
        if let Some(SettingsPin { serial, hash }) = self.settings {
            text.push_str(&format!("settings {serial} {}\n", Fingerprint(hash)));
        }
        for (id, Pin { keys, name, removed }) in &self.known {
            let removed = if *removed { " removed" } else { "" };
            text.push_str(&format!("{id} {keys} {name}{removed}\n"));
        }
        files::replace(&self.path, text.as_bytes()).map_err(|error| {
            Fault::environment(format!("cannot write {}: {error}", self.path.display()))
        })
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    if first == "settings" {
        let serial = words.next()?.parse().ok()?;
        let Fingerprint(hash) = words.next()?.parse().ok()?;
        return words.next().is_none().then_some(Line::Settings(SettingsPin { serial, hash }));
    }
    let id = NodeId(first.parse().ok()?);
    let keys = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    let removed = match words.next() {
        None => false,
        Some("removed") => true,
        Some(_) => return None,
    };
    words.next().is_none().then_some(Line::Node(id, Pin { keys, name, removed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(byte: u8) -> Fingerprint {
        Fingerprint([byte; 32])
    }

    #[test]
    fn a_node_is_pinned_when_it_is_first_seen_and_refused_with_other_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pins");
        let mut pins = Pins::load(&path).unwrap();
        assert_eq!(pins.check("a", NodeId(2), keys(1), false), Ok(()));
        pins.save().unwrap();
        let mut pins = Pins::load(&path).unwrap();
        assert_eq!(pins.check("a", NodeId(2), keys(1), false), Ok(()));
        let refused = pins.check("a", NodeId(2), keys(2), false).unwrap_err();
        assert!(refused.contains("keys have changed") && refused.contains("pins"), "{refused}");
        assert_eq!(pins.check("b", NodeId(3), keys(2), false), Ok(()));
    }

    #[test]
    fn a_node_that_was_removed_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pins");
        let mut pins = Pins::load(&path).unwrap();
        assert_eq!(pins.check("a", NodeId(2), keys(1), false), Ok(()));
        assert_eq!(pins.check("a", NodeId(2), keys(1), true), Ok(()));
        // A node that is first seen after its removal.
        assert_eq!(pins.check("b", NodeId(3), keys(2), true), Ok(()));
        pins.save().unwrap();
        let mut pins = Pins::load(&path).unwrap();
        for (name, id, byte) in [("a", 2, 1), ("b", 3, 2)] {
            let refused = pins.check(name, NodeId(id), keys(byte), false).unwrap_err();
            assert!(refused.contains("it was removed"), "{refused}");
            assert_eq!(pins.check(name, NodeId(id), keys(byte), true), Ok(()));
        }
        // Another node with the same name.
        assert_eq!(pins.check("a", NodeId(4), keys(3), false), Ok(()));
    }

    #[test]
    fn the_owner_is_trusted_by_its_pin_and_one_never_seen_by_a_node_that_has_seen_none() {
        use adit_engine::Random;
        use adit_postgres::key::NodeKeys;

        let public = |seed: u8, id| {
            let keys = NodeKeys::generate(&mut Random::new([seed; 32])).unwrap();
            keys.public(NodeId(id)).unwrap()
        };
        let dir = tempfile::tempdir().unwrap();
        let mut pins = Pins::load(&dir.path().join("pins")).unwrap();
        assert_eq!(pins.trust(&public(1, 2)), Ok(()));
        pins.check("a", NodeId(2), public(1, 2).fingerprint(), false).unwrap();
        assert_eq!(pins.trust(&public(1, 2)), Ok(()));
        assert!(pins.trust(&public(3, 2)).unwrap_err().contains("other keys"));
        assert!(pins.trust(&public(1, 3)).unwrap_err().contains("never seen node 3"));
    }

    #[test]
    fn the_newest_settings_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pins");
        let line = format!("settings 3 {}\n2 {} a\n", keys(7), keys(1));
        fs::write(&path, &line).unwrap();
        let mut pins = Pins::load(&path).unwrap();
        assert_eq!(pins.settings(), Some(SettingsPin { serial: 3, hash: [7; 32] }));
        pins.changed = true;
        pins.save().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), line);
    }

    #[test]
    fn a_damaged_line_is_named_and_not_taken_for_a_node_never_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pins");
        let word = keys(1).to_string();
        for bad in ["2 00 a".to_owned(), "settings 3".into(), format!("2 {word} a gone")] {
            fs::write(&path, format!("{bad}\n")).unwrap();
            assert!(Pins::load(&path).unwrap_err().to_string().contains("pins line 1: "), "{bad}");
        }
    }
}
