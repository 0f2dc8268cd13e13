//! What differs on the nodes of a mesh that carries Ethernet frames.

use adit_dataplane::{OwnPort, Relay};
use adit_mesh::node::FIRST_APP;
use adit_mesh::roster::{Changes, Layer, ipv6_net};
use adit_runtime::fault::Fault;
use ipnet::IpNet;

use super::Running;
use crate::Settings;
use crate::found::check_roles;

/// Refuses settings that have no meaning in such a mesh.
///
/// # Errors
/// The fault names the setting.
pub(super) fn check_settings(settings: &Settings, changes: &Changes) -> Result<(), Fault> {
    match (changes.genesis().layer, &settings.exit) {
        (Layer::Ethernet, Some(exit)) => Err(Fault::operator(format!(
            "exit {exit}: this mesh carries Ethernet frames, and has no gateways to the internet; leave out --exit, and exit in \
             mesh.toml"
        ))),
        _ => Ok(()),
    }
}

/// Returns the treatment of what a member sends. A frame goes to the device only: each node sends its frames to all others, so forwarding a
/// frame of another member would send it around in a circle.
pub(super) fn relay(layer: Layer) -> Relay {
    match layer {
        Layer::Ip => Relay::Clients(FIRST_APP),
        Layer::Ethernet => Relay::Kernel,
    }
}

/// Returns the networks whose addresses only the members that have them may use.
pub(super) fn guarded(changes: &Changes) -> Vec<IpNet> {
    let ranges = changes.genesis().ranges.iter().copied().map(IpNet::V4);
    ranges.chain([ipv6_net(changes.mesh()).into()]).collect()
}

impl Running {
    /// Refuses roles that this mesh does not have.
    pub(super) fn check_roles(&self, gateway: bool, openvpn: bool) -> Result<(), Fault> {
        check_roles(self.driver.engine().changes().genesis().layer, gateway, openvpn)
    }

    /// Keeps packets of the node's own port out of the mesh, for all current addresses of this machine.
    pub(super) fn keep_out_own_packets(&mut self) {
        if let Some(hosts) = self.addresses.take_hosts() {
            let own = OwnPort { port: self.addresses.port(), hosts };
            self.driver.backend().plane().set_own_port(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;
    use crate::testing::found_layer;

    #[test]
    fn a_mesh_of_frames_has_no_exit_and_guards_its_own_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let paths = found_layer(dir.path(), false, Layer::Ethernet);
        let changes = State::open(&paths).unwrap().changes;
        let settings = Settings::load(&paths).unwrap();
        check_settings(&settings, &changes).unwrap();
        let exit = Settings { exit: Some("hub".into()), ..settings };
        let refused = check_settings(&exit, &changes).unwrap_err().to_string();
        assert!(refused.contains("exit hub") && refused.contains("mesh.toml"), "{refused}");
        let other = tempfile::tempdir().unwrap();
        let paths = found_layer(other.path(), true, Layer::Ip);
        check_settings(&exit, &State::open(&paths).unwrap().changes).unwrap();
        let guarded = guarded(&changes);
        assert_eq!(guarded[0].to_string(), "100.87.0.0/16");
        assert_eq!((guarded.len(), guarded[1].prefix_len()), (2, 64));
    }
}
