//! A mesh for tests.

use std::path::Path;

use adit_mesh::roster::Layer;

use crate::{NewMesh, Paths, found};

/// Creates the mesh `home` below a folder. Its first node is `hub`, which may be a gateway.
pub(crate) fn found_mesh(dir: &Path, gateway: bool) -> Paths {
    found_layer(dir, gateway, Layer::Ip)
}

/// Creates a mesh of this layer.
pub(crate) fn found_layer(dir: &Path, gateway: bool, layer: Layer) -> Paths {
    let paths = Paths::new(Some(dir), "home").unwrap();
    let choices = NewMesh {
        node: Some("hub".into()),
        range: Some("100.87.0.0/16".parse().unwrap()),
        relay: true,
        gateway,
        openvpn: false,
        layer,
    };
    found(&paths, &choices).unwrap();
    paths
}
