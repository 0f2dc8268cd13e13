//! What a node's settings let it ask its helper for.

use std::path::PathBuf;

use adit_postgres::limits;

use super::host_plan::{is_elsewhere, without_routes};
use super::{UpOptions, settings};
use crate::fault::Fault;
use crate::helper::NodeDuty;
use crate::host::{Device, HostPlan, PlannedRoute, Via};
use crate::postgres::database::Target;
use crate::postgres::{Paths, Settings};

/// What the helper checks requests against.
#[derive(Debug)]
pub(crate) struct Bounds {
    paths: Paths,
    settings: Settings,
    /// Every plan, but for its routes, and for its MTU where the network's settings have it.
    plan: HostPlan,
    routes: bool,
    readable: Vec<PathBuf>,
}

impl Bounds {
    /// Reads the settings.
    ///
    /// # Errors
    /// They are wrong.
    pub(crate) fn of(duty: &NodeDuty) -> Result<Self, Fault> {
        let paths = Paths::new(duty.dir.as_deref(), &duty.name)?;
        let options = UpOptions {
            device: duty.device.clone(),
            packet_size: duty.packet_size,
            ..UpOptions::default()
        };
        let settings = settings(&paths, &options)?;
        let readable = Target::files_of_node(&settings)?;
        let plan = without_routes(&settings);
        Ok(Self { paths, settings, plan, routes: duty.routes, readable })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.plan.device
    }

    /// Files that are read at each connection.
    pub(crate) fn readable(&self) -> Vec<PathBuf> {
        self.readable.clone()
    }

    /// The keys of nodes seen before.
    pub(crate) fn pins(&self) -> PathBuf {
        self.paths.pins_file()
    }

    /// The network's later keys.
    pub(crate) fn ring(&self) -> PathBuf {
        self.paths.ring_file()
    }

    /// The control socket.
    pub(crate) fn control(&self) -> PathBuf {
        self.paths.control_socket()
    }

    /// Whether a plan is the settings' one, with routes that may be other nodes'.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, plan: &HostPlan) -> Result<(), String> {
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

    fn is_to_a_node(&self, route: &PlannedRoute) -> bool {
        let PlannedRoute { net, via, metric } = route;
        *via == Via::Tunnel(None) && metric.is_none() && is_elsewhere(&self.settings, net)
    }
}
