//! One port mapped at one gateway.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::{
    InternetProtocol, MappingFailure, PortMapping, PortMappingOptions, PortMappingType,
    TimeoutConfig, natpmp, pcp,
};
use tokio::time::Instant;

use super::Timing;
use super::gateways::Gateway;

/// A mapping that a gateway granted.
pub(super) struct Lease {
    mapping: PortMapping,
    /// The address at which others reach the port.
    pub(super) external: SocketAddr,
    /// The time when the mapping ends unless it is renewed.
    pub(super) expires: Instant,
}

impl Lease {
    /// Renews `former` or requests a new mapping, with PCP or, if that fails for any reason, NAT-PMP. Many routers with only NAT-PMP do not
    /// answer PCP requests at all.
    pub(super) async fn obtain(
        gateway: Gateway,
        port: NonZeroU16,
        timing: &Timing,
        former: Option<&Self>,
    ) -> Result<Self, LeaseFailure> {
        if let Some(former) = former {
            let mut mapping = former.mapping.clone();
            if mapping.renew().await.is_ok() {
                return Self::granted(mapping).await;
            }
        }
        // The gateway may have restarted, with other software or without its previous state.
        let external_port = former.map_or(port, |former| former.mapping.external_port());
        let options = PortMappingOptions {
            external_port: Some(external_port),
            lifetime_seconds: Some(timing.lifetime),
            timeout_config: Some(timing.request),
        };
        let (address, udp) = (gateway.address.into(), InternetProtocol::Udp);
        let request = pcp::BaseMapRequest::new(address, gateway.client.into(), udp, port);
        let pcp = match pcp::port_mapping(request, None, None, options).await {
            Ok(mapping) => return Self::granted(mapping).await,
            Err(failure) => failure,
        };
        match natpmp::port_mapping(address, udp, port, options).await {
            Ok(mapping) => Self::granted(mapping).await,
            Err(natpmp) => Err(LeaseFailure::Refused { pcp, natpmp }),
        }
    }

    async fn granted(mapping: PortMapping) -> Result<Self, LeaseFailure> {
        if mapping.lifetime() == 0 {
            return Err(LeaseFailure::NoLifetime);
        }
        let lifetime = Duration::from_secs(mapping.lifetime().into());
        let ip = match mapping.mapping_type() {
            PortMappingType::Pcp { external_ip, .. } => external_ip,
            PortMappingType::NatPmp => {
                natpmp::external_address(mapping.gateway(), Some(mapping.timeout_config))
                    .await
                    .map_err(LeaseFailure::ExternalAddress)?
                    .into()
            }
        };
        // A router without an address of its own reports 0.0.0.0.
        let usable = match ip {
            IpAddr::V4(ip) => {
                !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
            }
            IpAddr::V6(_) => false,
        };
        if !usable {
            return Err(LeaseFailure::NotAnAddress(ip));
        }
        let external = SocketAddr::new(ip, mapping.external_port().get());
        Ok(Self { mapping, external, expires: Instant::now() + lifetime })
    }

    /// Returns the time until the renewal: half of the granted or the requested lifetime, whichever is shorter.
    pub(super) fn renewal(&self, timing: &Timing) -> Duration {
        let lifetime = self.mapping.lifetime().min(timing.lifetime);
        (Duration::from_secs(lifetime.into()) / 2).max(timing.shortest_renewal)
    }

    /// Deletes the mapping at the gateway.
    pub(super) async fn delete(mut self, timeout: TimeoutConfig) -> Result<(), MappingFailure> {
        self.mapping.timeout_config = timeout;
        self.mapping.try_drop().await.map_err(|(failure, _)| failure)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mapping, external, .. } = self;
        let (protocol, port) = (mapping.mapping_type(), mapping.internal_port());
        let lifetime = mapping.lifetime();
        write!(f, "{external} forwards to UDP port {port} for {lifetime} s ({protocol})")
    }
}

/// The reason why a gateway does not map the port.
#[derive(Debug)]
pub(super) enum LeaseFailure {
    /// Neither protocol succeeded.
    Refused { pcp: pcp::Failure, natpmp: natpmp::Failure },
    /// The gateway granted a lifetime of zero.
    NoLifetime,
    /// The gateway mapped the port, but did not report its external address.
    ExternalAddress(natpmp::Failure),
    /// Its external address cannot be the address of a router.
    NotAnAddress(IpAddr),
}

impl fmt::Display for LeaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { pcp, natpmp } => write!(f, "PCP: {pcp}; NAT-PMP: {natpmp}"),
            Self::NoLifetime => f.write_str("a lifetime of 0 s granted"),
            Self::ExternalAddress(failure) => write!(f, "external address: {failure}"),
            Self::NotAnAddress(ip) => write!(f, "external address: {ip} is not a router's address"),
        }
    }
}
