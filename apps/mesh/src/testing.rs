//! A mesh for tests.

use std::collections::BTreeSet;
use std::path::Path;

use adit_engine::{Instant, UnixTime};
use adit_mesh::node::{Node, NodeConfig};
use adit_mesh::roster::Layer;

use crate::roster_file::RosterFile;
use crate::state::State;
use crate::{NewMesh, Paths, found};

/// Creates the mesh `home` below a folder. Its first node is `hub`, which may be a gateway.
pub(crate) fn found_mesh(dir: &Path, gateway: bool) -> Paths {
    found_layer(dir, gateway, Layer::Ip)
}

/// Creates a mesh of this layer.
pub(crate) fn found_layer(dir: &Path, gateway: bool, layer: Layer) -> Paths {
    let paths = Paths::new(Some(dir), "home").unwrap();
    found(&paths, &NewMesh { gateway, layer, ..hub() }).unwrap();
    paths
}

/// Returns the choices for a mesh whose first node is `hub`, a relay.
pub(crate) fn hub() -> NewMesh {
    NewMesh {
        node: Some("hub".into()),
        range: Some("100.87.0.0/16".parse().unwrap()),
        relay: true,
        gateway: false,
        openvpn: false,
        layer: Layer::Ip,
        subnets: BTreeSet::new(),
    }
}

/// Returns a mesh's first node, with the text of a policy from its last run, and its roster.
pub(crate) fn open_node(
    paths: &Paths,
    policy_text: Option<&str>,
    now: Instant,
    unix: UnixTime,
) -> (Node, RosterFile) {
    let State { key, admin, roster, changes, invitations, .. } = State::open(paths).unwrap();
    let config = NodeConfig {
        admin: admin.current().unwrap(),
        invitations,
        policy_text: policy_text.map(str::to_owned),
        ..NodeConfig::new(key, changes)
    };
    (Node::new(config, [7; 32], now, unix).unwrap(), roster)
}
