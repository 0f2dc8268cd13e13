use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The state of a tinc net, as a guest in it sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TincNet {
    /// The name of the node that is the guest.
    pub node: String,
    /// The number of other nodes that it reaches.
    pub reachable: usize,
    /// The subnets of these nodes.
    pub subnets: Vec<TincSubnet>,
    /// The number of further subnets, for which there was no room.
    pub left_out: usize,
}

/// A subnet of a node of tinc.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TincSubnet {
    /// The node's name.
    pub owner: String,
    /// The network.
    pub net: IpNet,
}

/// A mesh node as a guest in a tinc net.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshTinc {
    /// The net's name.
    pub net: String,
    /// This machine's name in the net, once its node of tinc runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The reason why there is no connection to the net.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The number of other nodes of tinc that are reachable.
    pub reachable: usize,
    /// The subnets of the net that members of the mesh reach through this node.
    pub reached: Vec<IpNet>,
    /// The networks of the mesh that this node announces in the net.
    pub announced: Vec<IpNet>,
    /// The nodes of tinc that are guests of the same mesh. Their subnets are the mesh's own.
    #[serde(default)]
    pub guests: Vec<String>,
    /// The subnets of the net that the mesh does not reach.
    #[serde(default)]
    pub refused: Vec<RefusedSubnet>,
    /// The number of further networks, in both directions, for which there was no room.
    #[serde(default)]
    pub left_out: usize,
}

/// A subnet of a tinc net that the mesh does not reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedSubnet {
    /// The subnet and its owner.
    #[serde(flatten)]
    pub subnet: TincSubnet,
    /// The reason.
    pub reason: String,
}
