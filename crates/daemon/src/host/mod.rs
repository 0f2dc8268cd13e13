//! The machine's side of a tunnel: device, addresses, routes. What is applied is undone in reverse.

mod apply;
mod change;
mod handle;
mod ledger;
mod plan;
mod routes;

pub use apply::{Applied, Host};
pub use handle::HostHandle;
pub use plan::{Device, HostPlan, PlannedRoute, Redirect, Via};
pub use routes::{KernelRoute, NextHop, Outside, Through, expand};
