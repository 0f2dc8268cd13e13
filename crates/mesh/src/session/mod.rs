//! Sessions between nodes.
//!
//! A session is one of [`adit_openvpn::records`]. Each node has an Ed25519 key, and others know it by the key's hash. A node that connects
//! expects one hash; a node that accepts a session knows the hashes of all members. The tls-crypt key of a node is derived from the mesh id
//! and its key's hash, so senders who know neither get no answer.
//!
//! There are two protocols (ALPN). `adit-mesh/1` is for members and has data channels.
//! `adit-mesh-join/1` accepts any key, and has only records.
//!
//! A session has one or more data channels, numbered from 0, each of which is a peer of the data plane with its own id, keys, counter and
//! replay window. Each end's hello lists the ids of its own; the session has as many channels as the shorter list. [`keys`] derives their
//! keys.
//!
//! If two nodes connect to each other at the same time, the session begun by the node with the smaller hash remains.

mod admission;
mod channel_ids;
mod engine;
mod hello;
mod inputs;
pub mod keys;
mod policy;
mod reason;
mod state;
mod streams;

pub use adit_openvpn::tls::KeyHash;
pub use engine::{Event, SessionConfig, SessionCounters, SessionEngine, SessionNumber};
pub use hello::{Hello, HelloError, MAX_CHANNELS};
pub use policy::Policy;
pub use reason::Reason;
pub use state::Protocol;

/// The first bytes of the SHA-256 of a mesh's genesis. They identify the mesh.
pub type MeshId = [u8; 16];
