//! Tests of the data plane with OpenVPN's format: in memory, over real sockets, and with several workers. They are one program, because
//! each test program is linked with all crates. Tests that need their own process are separate programs.

mod attacks;
mod formats;
mod live;
mod races;
mod sizes;
mod static_streams;
mod stock_static;
mod streams;
mod taps;
mod workers;

#[path = "../common/mod.rs"]
mod common;
/// The data plane's tests over OpenVPN's format.
#[path = "../../../dataplane/tests/plane/mod.rs"]
mod plane;

use adit_openvpn_data::{LoopbackPlane, Plane};
