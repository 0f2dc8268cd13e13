use ipnet::IpNet;

use crate::PeerId;

/// The tunnel addresses of a peer, with their names in rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddresses {
    /// Its id in the data plane.
    pub peer: PeerId,
    /// Its common name.
    pub name: String,
    /// Its groups: those in the authorization response, and its certificate's units.
    pub groups: Vec<String>,
    /// Its tunnel addresses, and the networks behind it.
    pub prefixes: Vec<IpNet>,
}
