//! The data plane's tests over OpenVPN's format.

mod common;
#[path = "../../dataplane/tests/plane/mod.rs"]
mod plane;

use adit_openvpn_data::{LoopbackPlane, Plane};
