//! The plane's tests over the trivial format.

mod common;
mod plane;
#[path = "common/trivial.rs"]
mod trivial;

use trivial::Trivial;

type Plane = adit_dataplane::Plane<Trivial>;
type LoopbackPlane = adit_dataplane::loopback::LoopbackPlane<Trivial>;
