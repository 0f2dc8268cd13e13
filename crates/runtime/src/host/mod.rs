//! The host's side of a tunnel: its device, addresses and routes. Changes are undone in reverse order.

mod apply;
mod block_ipv6;
mod changes;
pub mod dns;
mod enforce;
mod forward;
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
pub use plan::{Device, Forward, HostPlan, PlannedRoute, Redirect, Via};
pub use policy_routing::{Capture, CaptureMode};
pub use routes::{KernelRoute, NextHop, OutsideRoutes, RouteInterface, expand};
pub use watch::HostEvent;

/// Parses files that outlive the process that wrote them, for the fuzzer. The first byte selects
/// the kind.
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
