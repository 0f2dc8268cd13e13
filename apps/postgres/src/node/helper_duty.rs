//! The helper of a node, and the requests that the node's settings permit.

use std::path::PathBuf;

use adit_postgres::limits;
use adit_runtime::fault::Fault;
use adit_runtime::helper::{Duty, DutyKind, PlanCheck, Policy};
use adit_runtime::host::{HostPlan, PlannedRoute, Via};
use adit_runtime::metrics::Config as MetricsConfig;
use serde::{Deserialize, Serialize};

use super::host_plan::{is_elsewhere, without_routes};
use super::{UpOptions, settings};
use crate::{Paths, Settings};

/// The helper of `adit postgres up`; its arguments are the `NodeDuty`.
pub const NODE: DutyKind = DutyKind {
    name: "postgres",
    read: |arguments| Ok(Box::new(serde_json::from_value::<NodeDuty>(arguments)?)),
};

/// A PostgreSQL node's command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeDuty {
    /// The directory of all files, if it is not the default.
    pub(crate) dir: Option<PathBuf>,
    /// The network's name.
    pub(crate) name: String,
    /// The name of the device. Overrides the settings.
    pub(crate) device: Option<String>,
    /// The longest IP packet. Overrides the settings.
    pub(crate) packet_size: Option<usize>,
    /// Whether to add routes to other nodes' networks.
    pub(crate) routes: bool,
    /// Where metrics are served. Overrides the settings.
    pub(crate) metrics: Option<MetricsConfig>,
}

impl Duty for NodeDuty {
    /// Returns the policy for a node. The node's own keys are not among the files, because they are
    /// read earlier.
    fn policy(&self, _: &[(PathBuf, Vec<u8>)], _: u32) -> Result<Policy, Fault> {
        let paths = Paths::new(self.dir.as_deref(), &self.name)?;
        let options = UpOptions {
            device: self.device.clone(),
            packet_size: self.packet_size,
            metrics: self.metrics.clone(),
            ..UpOptions::default()
        };
        let settings = settings(&paths, &options)?;
        let (plan, metrics) = (without_routes(&settings), settings.metrics.clone());
        let mut policy = Policy {
            device: Some(plan.device.clone()),
            // The files that each connection needs.
            readable: settings.database_files()?.into_iter().collect(),
            replaceable: [paths.pins_file(), paths.ring_file()].into(),
            control: [paths.control_socket()].into(),
            plans: Some(Box::new(NodePlans { settings, plan, routes: self.routes })),
            ..Policy::default()
        };
        policy.add_metrics(metrics.as_ref());
        Ok(policy)
    }
}

/// Permits the plan of the settings, with routes to possible networks of other nodes.
#[derive(Debug)]
struct NodePlans {
    settings: Settings,
    /// The permitted plan, except for its routes, and for its MTU if that comes from the network's
    /// settings.
    plan: HostPlan,
    routes: bool,
}

impl PlanCheck for NodePlans {
    fn check(&self, plan: &HostPlan) -> Result<(), String> {
        let mtu = match self.settings.packet_size {
            None if limits::PACKET_RANGE.contains(&usize::from(plan.mtu)) => self.plan.mtu,
            _ => plan.mtu,
        };
        let bare = HostPlan { routes: Vec::new(), mtu, ..plan.clone() };
        if bare != self.plan {
            return Err("plan: the node's settings have another".into());
        }
        if !self.routes && !plan.routes.is_empty() {
            return Err("plan: routes with --no-routes".into());
        }
        let odd = plan.routes.iter().find(|route| !self.is_to_a_node(route));
        odd.map_or(Ok(()), |route| Err(format!("plan: the route {} is no node's", route.net)))
    }
}

impl NodePlans {
    fn is_to_a_node(&self, route: &PlannedRoute) -> bool {
        let PlannedRoute { net, via, metric } = route;
        *via == Via::Tunnel(None) && metric.is_none() && is_elsewhere(&self.settings, net)
    }
}

#[cfg(test)]
mod tests;
