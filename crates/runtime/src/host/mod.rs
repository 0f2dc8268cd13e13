//! The machine's side of a tunnel: device, addresses, routes. Changes are undone in reverse order.

mod apply;
mod block_ipv6;
pub mod dns;
mod enforce;
mod handle;
mod kernel;
mod leftover;
mod orphan_rules;
mod owner;
mod plan;
mod policy_routing;
mod routes;
mod sysctl;
mod undo_log;
mod update;
mod watch;

pub use apply::{ApplyOutcome, Host};
pub use dns::{BackEnd, DnsChange, DnsEvent, DnsInUse, DnsPlan, Transport};
pub use handle::HostHandle;
pub use leftover::clean_up_dns;
pub use leftover::{Leftover, leftovers, release, unfinished};
pub use plan::{Device, HostPlan, PlannedRoute, Redirect, Via};
pub use policy_routing::{Capture, CaptureMode};
pub use routes::{KernelRoute, NextHop, OutsideRoutes, RouteInterface, expand};
pub use watch::HostEvent;

/// Fuzzes files that outlive the process that wrote them. The first byte chooses.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => undo_log::fuzz(rest),
        Some((1, rest)) => dns::resolv_conf::fuzz(rest),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
