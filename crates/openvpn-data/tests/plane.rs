//! The plane's tests over OpenVPN's format.

#[path = "../../dataplane/tests/common/mod.rs"]
mod common;
#[path = "../../dataplane/tests/plane/mod.rs"]
mod plane;

use adit_openvpn_data::{LoopbackPlane, Plane};
