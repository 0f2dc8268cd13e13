//! The machine's side of a tunnel: device, addresses, routes. What is applied is undone in reverse.

mod plan;

pub use plan::{Device, HostPlan, PlannedRoute, Redirect, Via};
