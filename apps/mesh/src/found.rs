//! Creates a mesh with its first node.

use std::collections::BTreeSet;
use std::fs;

use adit_crypto::sign::SigningKey;
use adit_mesh::roster::{
    Action, Change, Changes, Genesis, Label, Layer, NodeInfo, free_ipv4, ipv6_of,
};
use adit_mesh::session::{KeyHash, MeshId};
use adit_mesh::token::Invitations;
use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;
use adit_runtime::netinfo;
use adit_runtime::paths::write_whole;
use ipnet::{IpNet, Ipv4Net};

use super::Paths;
use super::roster_file::RosterFile;
use super::state::{encode_invitations, new_key, store_key};

/// The choices for a new mesh.
#[derive(Clone, Debug)]
pub struct NewMesh {
    /// The name of this node, or `None` for the machine's.
    pub node: Option<String>,
    /// The range of the nodes' IPv4 addresses, or `None` for one that overlaps no network of this machine.
    pub range: Option<Ipv4Net>,
    /// Whether this node is a relay for others.
    pub relay: bool,
    /// Whether others may reach the internet through this node.
    pub gateway: bool,
    /// Whether OpenVPN apps may be leaves of this node.
    pub openvpn: bool,
    /// What the nodes send to each other.
    pub layer: Layer,
    /// The networks behind this node.
    pub subnets: BTreeSet<IpNet>,
}

/// A new mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founded {
    /// The mesh's id.
    pub mesh: [u8; 16],
    /// The name of this node.
    pub node: String,
}

/// Creates a mesh with the keys of an admin and of this node, and with this node as the only member
/// of the roster.
///
/// # Errors
/// A name is not valid, or a file cannot be written. In that case there is no mesh.
pub fn found(paths: &Paths, choices: &NewMesh) -> Result<Founded, Fault> {
    let roster = NewRoster::create(paths, choices)?;
    roster.store(paths, None)?;
    Ok(Founded { mesh: *roster.mesh(), node: roster.name })
}

/// A new mesh that is not stored yet.
#[derive(Debug)]
pub(crate) struct NewRoster {
    name: String,
    admin: SigningKey,
    key: SigningKey,
    changes: Changes,
}

impl NewRoster {
    /// Generates the keys, and signs the change that makes this node a member.
    ///
    /// # Errors
    /// A name is not valid, or the range overlaps a network of this machine.
    pub(crate) fn create(paths: &Paths, choices: &NewMesh) -> Result<Self, Fault> {
        check_roles(choices.layer, choices.gateway, choices.openvpn)?;
        let node = node_name(choices.node.as_deref())?;
        let range = range(choices.range, &netinfo::local_networks())?;
        let name = Label::new(paths.name()).ok_or_else(|| Fault::ours("a mesh without a name"))?;
        let (admin, key) = (new_key()?, new_key()?);
        let (admin_hash, own) = (admin.public_hash(), key.public_hash());
        let genesis = Genesis {
            name,
            admins: vec![admin_hash],
            threshold: 1,
            ranges: vec![range],
            random: adit_runtime::random::bytes()?,
            layer: choices.layer,
        };
        let wrong = |error: adit_mesh::roster::ObjectError| Fault::operator(error.to_string());
        let mut changes = Changes::new(genesis).map_err(wrong)?;
        let info = NodeInfo {
            ipv4: free_ipv4(range, &own, |_| true),
            relay: choices.relay,
            gateway: choices.gateway,
            openvpn: choices.openvpn,
            subnets: choices.subnets.clone(),
            ..NodeInfo::named(node.clone())
        };
        let admit = Action::Admit { key: own, node: info };
        let ours = |error: String| Fault::ours(error);
        let body = changes
            .draft(admin_hash, unix_time(), admit)
            .map_err(|error| ours(error.to_string()))?;
        let change = Change::sign(changes.mesh(), &admin, body).map_err(wrong)?;
        changes.insert(change).map_err(|error| ours(error.to_string()))?;
        debug_assert_eq!(ipv6_of(changes.mesh(), &own).segments()[0] >> 8, 0xfd);
        Ok(Self { name: node.to_string(), admin, key, changes })
    }

    /// Returns the mesh's id.
    pub(crate) fn mesh(&self) -> &MeshId {
        self.changes.mesh()
    }

    /// Returns the hash of this node's key.
    pub(crate) fn node(&self) -> KeyHash {
        self.key.public_hash()
    }

    /// Writes the files.
    ///
    /// # Errors
    /// The file system refuses, or the folder was restored in part. In that case there is no mesh.
    pub(crate) fn store(
        &self,
        paths: &Paths,
        invitations: Option<&Invitations>,
    ) -> Result<(), Fault> {
        paths.check_complete()?;
        let write = || {
            paths.create()?;
            store_key(&paths.admin_key_file(), &self.admin)?;
            store_key(&paths.node_key_file(), &self.key)?;
            if let Some(invitations) = invitations {
                write_whole(&paths.invitations_file(), 0o600, &encode_invitations(invitations))?;
            }
            // Write this file last: it makes the machine a node.
            RosterFile::create(&paths.roster_file(), &self.changes)
        };
        write().inspect_err(|_| {
            // Another mesh of this name must not find them.
            for file in [paths.admin_key_file(), paths.node_key_file(), paths.invitations_file()] {
                let _ = fs::remove_file(file);
            }
        })
    }
}

/// Refuses roles that nodes of a mesh with Ethernet frames cannot have.
///
/// # Errors
/// The fault names the role.
pub(crate) fn check_roles(layer: Layer, gateway: bool, openvpn: bool) -> Result<(), Fault> {
    let refusal = match layer {
        Layer::Ethernet if gateway => {
            "this mesh carries Ethernet frames (--tap), and has no gateways to the internet: leave out --gateway"
        }
        Layer::Ethernet if openvpn => {
            "this mesh carries Ethernet frames (--tap), and OpenVPN apps carry IP packets: leave out --openvpn and \
             --openvpn-gateway, or create another mesh for the apps"
        }
        _ => return Ok(()),
    };
    Err(Fault::operator(refusal))
}

/// Returns the requested range, or one in the shared address space (RFC 6598).
///
/// # Errors
/// It overlaps a network that this machine has.
pub(crate) fn range(wanted: Option<Ipv4Net>, taken: &[IpNet]) -> Result<Ipv4Net, Fault> {
    let overlapped =
        |range: &Ipv4Net| taken.iter().find(|other| netinfo::overlap(other, &IpNet::V4(*range)));
    if let Some(range) = wanted {
        return overlapped(&range).map_or(Ok(range), |other| {
            Err(Fault::operator(format!(
                "{range} overlaps {other}, which this machine already has; choose another one: --range"
            )))
        });
    }
    let candidates =
        (87..128).chain(64..87).map(|second| Ipv4Net::new_assert([100, second, 0, 0].into(), 16));
    candidates.into_iter().find(|range| overlapped(range).is_none()).ok_or_else(|| {
        Fault::operator("this machine has routes to all of 100.64.0.0/10; choose a range for the mesh: --range 10.77.0.0/16")
    })
}

/// Returns the name of this node: the given one, or one derived from the machine's name.
///
/// # Errors
/// The given name is not valid, or no valid name can be derived from the machine's.
pub(crate) fn node_name(given: Option<&str>) -> Result<Label, Fault> {
    if let Some(given) = given {
        return Label::new(given).ok_or_else(|| {
            Fault::operator(format!(
                "{given:?} is not a name for a node: lower-case letters, digits and inner hyphens"
            ))
        });
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    from_host(host.trim()).ok_or_else(|| {
        Fault::operator("the machine's name cannot be the node's; choose one with --name NAME")
    })
}

/// Derives a node's name from a host name: its first label, in lower case.
fn from_host(host: &str) -> Option<Label> {
    let first = host.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = first.chars().map(plain).take(63).collect();
    Label::new(name.trim_matches('-'))
}

#[cfg(test)]
mod tests {
    use adit_mesh::roster::Roster;

    use super::*;
    use crate::state::State;
    use crate::testing::hub;

    #[test]
    fn a_new_mesh_has_this_node_as_its_member() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        let range: Ipv4Net = "100.87.0.0/16".parse().unwrap();
        let choices = NewMesh {
            node: Some("hub".into()),
            range: Some(range),
            relay: true,
            gateway: false,
            openvpn: false,
            layer: Layer::Ip,
            subnets: BTreeSet::new(),
        };
        let founded = found(&paths, &choices).unwrap();
        let state = State::open(&paths).unwrap();
        assert_eq!(founded, Founded { mesh: *state.changes.mesh(), node: "hub".into() });
        let roster = Roster::evaluate(&state.changes);
        let own = roster.member(&state.key.public_hash()).unwrap();
        assert_eq!((own.name.as_ref().unwrap().as_str(), own.relay), ("hub", true));
        assert!(range.contains(&own.ipv4.unwrap()));
        let admin = state.admin.current().unwrap().unwrap().public_hash();
        assert!(roster.admins().contains(&admin));
        assert!(roster.warnings().is_empty());
    }

    #[test]
    fn the_keys_of_a_mesh_that_was_restored_in_part_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        found(&paths, &hub()).unwrap();
        let keys = || [paths.admin_key_file(), paths.node_key_file()].map(|key| fs::read(key).ok());
        let before = keys();
        let away = dir.path().join("away");
        fs::rename(paths.roster_file(), &away).unwrap();
        let refused = found(&paths, &hub()).unwrap_err().to_string();
        assert!(refused.contains("roster is missing"), "{refused}");
        assert_eq!(keys(), before);
        fs::rename(&away, paths.roster_file()).unwrap();
        State::open(&paths).unwrap();
    }

    /// A file system that becomes full, for example.
    #[test]
    fn a_mesh_that_cannot_be_written_leaves_no_keys() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        fs::create_dir_all(paths.roster_file().join("in the way")).unwrap();
        found(&paths, &hub()).unwrap_err();
        assert!(!paths.admin_key_file().exists() && !paths.node_key_file().exists());
        fs::remove_dir_all(paths.roster_file()).unwrap();
        found(&paths, &hub()).unwrap();
    }

    #[test]
    fn a_mesh_of_frames_refuses_roles_for_packets_by_name() {
        let check = |layer, gateway, openvpn| {
            check_roles(layer, gateway, openvpn).err().map(|fault| fault.to_string())
        };
        for (gateway, openvpn) in [(false, false), (true, false), (false, true)] {
            assert_eq!(check(Layer::Ip, gateway, openvpn), None);
        }
        assert_eq!(check(Layer::Ethernet, false, false), None);
        let refused = |gateway, openvpn| check(Layer::Ethernet, gateway, openvpn).unwrap();
        assert!(refused(true, false).contains("leave out --gateway"));
        assert!(refused(false, true).contains("leave out --openvpn and --openvpn-gateway"));
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        let choices = NewMesh { gateway: true, layer: Layer::Ethernet, ..hub() };
        found(&paths, &choices).unwrap_err();
        assert!(!paths.exists(), "nothing is written");
        found(&paths, &NewMesh { gateway: false, ..choices }).unwrap();
        assert_eq!(State::open(&paths).unwrap().changes.genesis().layer, Layer::Ethernet);
    }

    #[test]
    fn the_range_overlaps_no_network_of_this_machine() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let taken = [net("100.87.0.0/16"), net("100.88.7.0/24"), net("fd00::/8")];
        assert_eq!(range(None, &taken).unwrap().to_string(), "100.89.0.0/16");
        let wanted = "10.77.0.0/16".parse().unwrap();
        assert_eq!(range(Some(wanted), &taken).unwrap(), wanted);
        let refused = range(Some(wanted), &[net("10.0.0.0/8")]).unwrap_err().to_string();
        assert!(refused.contains("10.0.0.0/8") && refused.contains("--range"), "{refused}");
        assert!(range(None, &[net("100.64.0.0/10")]).is_err());
    }

    #[test]
    fn the_name_of_the_host_becomes_the_nodes() {
        let name = |host| from_host(host).map(|label| label.to_string());
        assert_eq!(name("Web1.example.org").as_deref(), Some("web1"));
        assert_eq!(name("my_host").as_deref(), Some("my-host"));
        assert_eq!(name("_x_").as_deref(), Some("x"));
        assert_eq!(name("---"), None);
    }
}
