//! Tests of the plane that apply to every data format. The crate root defines `Plane` and `LoopbackPlane` for the format under test, and
//! has the module `common`.

mod channels;
mod clients;
mod ethernet;
mod filtered;
mod handed_up;
mod relay;
mod traffic;
mod tunnel;
mod vlans;
