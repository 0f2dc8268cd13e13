//! Router mode: packets are routed by their IP destination, among the subnets of all nodes.

use adit_wire::ethernet::HEADER_LEN;
use adit_wire::ip::{self, Ip};

use super::icmp::IcmpError;
use super::{Decision, DropReason, FragmentPlan, MAX_MTU, Path, Refusal, Router, View, clamp};
use crate::config::Forwarding;
use crate::name::NodeName;

/// The longest frames that always pass, as if the path were wide enough: with IPv4 packets of 576 bytes, and IPv6 packets of 1,280 bytes.
pub(super) const MIN_FRAME_V4: u16 = 590;
pub(super) const MIN_FRAME_V6: u16 = 1294;

impl Router {
    /// Decides about an IP packet.
    pub(super) fn route_ip<'v, V: View>(
        &self,
        from: &NodeName,
        packet: &mut [u8],
        view: &'v V,
    ) -> Result<Decision<'v>, Refusal> {
        let ip = Ip::parse(packet).ok_or(Refusal::silent(DropReason::Malformed))?;
        let own = view.own();
        let address = ip.destination.into();
        let found = view.owner(address);
        if self.is_broadcast(address, found.map(|(_, subnet)| subnet.prefix())) {
            return self.route_broadcast(from, packet, Some(0), view);
        }
        let (owner, _) = found.ok_or(Refusal::with(DropReason::Unknown, IcmpError::UNKNOWN))?;
        if owner == from {
            return Err(Refusal::silent(DropReason::Own));
        }
        if owner == own {
            self.decrement_ttl(from == own, packet, Some(0))?;
            if let Some(path) = view.path(from) {
                clamp::clamp(packet, 0, HEADER_LEN, &path);
            }
            return Ok(Decision::Device);
        }
        let unreachable = Refusal::with(DropReason::Unreachable, IcmpError::UNREACHABLE);
        let path = view.path(owner).ok_or(unreachable)?;
        if from != own && self.settings.forwarding == Forwarding::Off {
            return Err(Refusal::with(DropReason::NotForwarded, IcmpError::PROHIBITED));
        }
        if path.via == from {
            return Err(Refusal::silent(DropReason::Loop));
        }
        if self.settings.direct_only && path.via != owner {
            return Err(Refusal::with(DropReason::Indirect, IcmpError::PROHIBITED));
        }
        let plan = fit(packet, &ip, &path)?;
        self.decrement_ttl(from == own, packet, Some(0))?;
        clamp::clamp(packet, 0, HEADER_LEN, &path);
        Ok(match plan {
            Some(plan) => Decision::Fragments { to: owner, plan },
            None => Decision::Node { to: owner },
        })
    }

    /// Decrements the TTL or the hop limit of another node's packet, if the settings say so. `ip_at` is where the IP packet begins, if there
    /// is one.
    pub(super) fn decrement_ttl(
        &self,
        from_device: bool,
        packet: &mut [u8],
        ip_at: Option<usize>,
    ) -> Result<(), Refusal> {
        if from_device || !self.settings.decrement_ttl {
            return Ok(());
        }
        match ip_at.and_then(|at| packet.get_mut(at..)).and_then(ip::decrement_ttl) {
            Some(false) => Err(Refusal::with(DropReason::TtlExceeded, IcmpError::TTL_EXCEEDED)),
            Some(true) | None => Ok(()),
        }
    }
}

/// Decides whether a packet fits into the path, or into how long fragments it is split.
///
/// tinc compares frames with the path MTU also in router mode, where datagrams carry no Ethernet header.
fn fit(packet: &[u8], ip: &Ip, path: &Path<'_>) -> Result<Option<FragmentPlan>, Refusal> {
    let mtu = if path.mtu == 0 { MAX_MTU } else { path.mtu };
    let is_v4 = ip.destination.is_ipv4();
    let limit = mtu.max(if is_v4 { MIN_FRAME_V4 } else { MIN_FRAME_V6 });
    let size = usize::from(limit).saturating_sub(HEADER_LEN);
    if packet.len() <= size {
        return Ok(None);
    }
    if is_v4 && !has_df(packet) {
        return Ok(Some(FragmentPlan { ip_at: 0, size }));
    }
    Err(Refusal::with(DropReason::TooBig, IcmpError::too_big(size)))
}

/// Returns whether an IPv4 packet must not be fragmented.
pub(super) fn has_df(packet: &[u8]) -> bool {
    packet.get(6).is_some_and(|flags| flags & 0x40 != 0)
}
