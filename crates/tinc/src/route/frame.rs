//! Switch mode, where frames are sent to the node that announced their destination's MAC address, and hub mode, where all nodes get them.

use adit_engine::Instant;
use adit_wire::ethernet::{self, Ethernet, Mac};
use adit_wire::ip::Ip;

use super::icmp::IcmpError;
use super::ip::{MIN_FRAME_V4, MIN_FRAME_V6, has_df};
use super::{Decision, DropReason, FragmentPlan, Path, Refusal, Router, View, clamp};
use crate::config::{Forwarding, Mode};
use crate::name::NodeName;
use crate::subnet::{Subnet, SubnetAddress};

impl Router {
    /// Decides about a frame.
    pub(super) fn route_frame<'v, V: View>(
        &self,
        from: &NodeName,
        frame: &mut [u8],
        header: &Ethernet,
        view: &'v V,
    ) -> Result<Decision<'v>, Refusal> {
        let own = view.own();
        let ip_at = header.ip(frame);
        let address = SubnetAddress::Mac(header.destination.0);
        let is_hub = self.settings.mode == Mode::Hub || header.destination.is_group();
        let found = if is_hub { None } else { view.owner(address) };
        let known = found.filter(|(_, subnet)| !self.is_broadcast(address, Some(subnet.prefix())));
        let Some((owner, _)) = known else { return self.route_broadcast(from, frame, ip_at, view) };
        if owner == from {
            return Err(Refusal::silent(DropReason::Own));
        }
        if owner == own {
            self.decrement_ttl(from == own, frame, ip_at)?;
            if let (Some(at), Some(path)) = (ip_at, view.path(from)) {
                clamp::clamp(frame, at, 0, &path);
            }
            return Ok(Decision::Device);
        }
        let path = view.path(owner).ok_or(Refusal::silent(DropReason::Unreachable))?;
        if from != own && self.settings.forwarding == Forwarding::Off {
            return Err(Refusal::silent(DropReason::NotForwarded));
        }
        if path.via == from {
            return Err(Refusal::silent(DropReason::Loop));
        }
        if self.settings.direct_only && path.via != owner {
            return Err(Refusal::silent(DropReason::Indirect));
        }
        let plan = match ip_at {
            Some(at) => fit(frame, header.ethertype, at, &path)?,
            None => None,
        };
        self.decrement_ttl(from == own, frame, ip_at)?;
        if let Some(at) = ip_at {
            clamp::clamp(frame, at, 0, &path);
        }
        Ok(match plan {
            Some(plan) => Decision::Fragments { to: owner, plan },
            None => Decision::Node { to: owner },
        })
    }

    /// Learns the sender of a frame from the device, unless it is configured.
    pub(super) fn learn(&mut self, frame: &[u8], now: Instant) {
        let configured = |mac: &Mac| {
            let address = SubnetAddress::Mac(mac.0);
            self.settings.own_stations.iter().any(|subnet| subnet.address() == address)
        };
        let source = Ethernet::parse(frame).map(|header| header.source);
        if let Some(mac) = source.filter(|mac| mac.is_station() && !configured(mac)) {
            self.stations.learn(mac, now, self.settings.mac_expire);
        }
    }

    /// Returns the subnet of a station that was learnt from the device's last frame: to be added to the own subnets and announced. The router
    /// learns no other one before this is called.
    pub fn take_learnt(&mut self) -> Option<Subnet> {
        self.stations.take_learnt().map(subnet)
    }

    /// Another layer has carried frames of the device: `heard` returns when a station last sent one of them. Call it before [`Router::expire`].
    pub fn refresh(&mut self, heard: impl Fn([u8; 6]) -> Option<Instant>) {
        self.stations.refresh(|mac| heard(mac.0));
    }

    /// Forgets the stations that sent nothing for some time. Returns their subnets, which are no longer the own node's. Call it at
    /// [`Router::due`].
    pub fn expire(&mut self, now: Instant) -> Vec<Subnet> {
        let gone = self.stations.expire(now, self.settings.mac_expire);
        // A station may have been configured after it was learnt.
        gone.into_iter().map(subnet).filter(|subnet| !self.is_configured(subnet)).collect()
    }

    fn is_configured(&self, subnet: &Subnet) -> bool {
        self.settings.own_stations.contains(subnet)
    }

    /// Returns when to call [`Router::expire`].
    pub fn due(&self) -> Option<Instant> {
        self.stations.due()
    }

    /// Forgets a station, because another node announced its subnet: it has moved there. Returns the subnet if the station was
    /// learnt, and is to be removed from the own subnets.
    pub fn forget(&mut self, announced: &Subnet) -> Option<Subnet> {
        let SubnetAddress::Mac(mac) = announced.address() else { return None };
        let moved = self.stations.forget(Mac(mac)).then(|| subnet(Mac(mac)));
        moved.filter(|subnet| !self.is_configured(subnet))
    }

    /// Returns the number of stations that were not learnt because there were too many.
    pub fn stations_refused(&self) -> u64 {
        self.stations.refused()
    }
}

fn subnet(mac: Mac) -> Subnet {
    Subnet::host(SubnetAddress::Mac(mac.0))
}

/// Decides whether a frame with an IP packet fits into the path, or into how long fragments it is split.
fn fit(
    frame: &[u8],
    ethertype: u16,
    ip_at: usize,
    path: &Path<'_>,
) -> Result<Option<FragmentPlan>, Refusal> {
    let is_v4 = ethertype == ethernet::IPV4;
    let limit = path.mtu.max(if is_v4 { MIN_FRAME_V4 } else { MIN_FRAME_V6 });
    if path.mtu == 0 || frame.len() <= usize::from(limit) {
        return Ok(None);
    }
    let size = usize::from(limit).saturating_sub(ip_at);
    let packet = frame.get(ip_at..).unwrap_or_default();
    if Ip::parse(packet).is_none() {
        return Err(Refusal::silent(DropReason::Malformed));
    }
    if is_v4 && !has_df(packet) {
        return Ok(Some(FragmentPlan { ip_at, size }));
    }
    Err(Refusal::with(DropReason::TooBig, IcmpError::too_big(size)))
}
