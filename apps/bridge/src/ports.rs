//! Opens ports, at startup and again after one has disappeared.

use std::net::IpAddr;

use adit_bridge::{Port, PortSpec, Side};
use adit_linux::net::{Address, Link, Net, NetErrorKind};
use adit_linux::packet::Guard;

use crate::helper_duty::BridgeDuty;
use adit_runtime::fault::Fault;
use adit_runtime::plane_backend;
use adit_runtime::say;

/// The default MTU of TAPs.
const MTU: u32 = 1500;

/// Opens the ports of one bridge, repeatedly if necessary. It runs in the helper, if there is one.
pub(crate) struct PortOpener {
    specs: [PortSpec; 2],
    workers: usize,
    mtu: Option<u32>,
    net: Net,
    /// Keeps the frames that the interfaces receive from the host's stack.
    guard: Option<Guard>,
}

impl PortOpener {
    /// Creates an opener in the process's network namespace, inside a runtime.
    pub(crate) fn new(duty: &BridgeDuty) -> Result<Self, Fault> {
        let specs = specs(duty)?;
        let net = open_net()?;
        let existing = specs.iter().any(|spec| matches!(spec, PortSpec::Existing(_)));
        let guard = if existing && !duty.share_with_host {
            Some(Guard::new().map_err(|e| unguarded(&e))?)
        } else {
            None
        };
        Ok(Self { specs, workers: usize::from(duty.workers), mtu: duty.mtu, net, guard })
    }

    /// Opens both ports, after checks.
    pub(crate) async fn open_both(&mut self) -> Result<[Port; 2], Fault> {
        let [a, b] = self.specs.clone();
        if a.name() == b.name() {
            return Err(Fault::operator(format!(
                "both ports are {}: a bridge joins two different interfaces",
                a.name()
            )));
        }
        let (link_a, link_b) = (self.existing(&a).await?, self.existing(&b).await?);
        for link in [&link_a, &link_b].into_iter().flatten() {
            self.check(link).await?;
        }
        if let (Some(a), Some(b)) = (&link_a, &link_b) {
            check_pair(a, b)?;
        }
        let other = link_a.as_ref().or(link_b.as_ref()).map(|link| link.mtu);
        if let Some((wanted, has)) = self.mtu.zip(other).filter(|(wanted, has)| wanted != has) {
            return Err(Fault::operator(format!(
                "--mtu {wanted}, but the existing interface has {has}: a frame that fits one port must fit the other; \
                 omit --mtu"
            )));
        }
        self.mtu = self.mtu.or(other);
        Ok([self.open(&a, link_a).await?, self.open(&b, link_b).await?])
    }

    /// Opens a port that had disappeared. Returns `None` while it does not exist.
    pub(crate) async fn open_again(&mut self, side: Side) -> Result<Option<Port>, Fault> {
        let [a, b] = self.specs.clone();
        let spec = if side == Side::A { a } else { b };
        if let PortSpec::Existing(name) = &spec {
            match self.net.link(name).await {
                Err(e) if e.kind() == NetErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(Fault::environment(e.to_string())),
                Ok(link) => {
                    self.check(&link).await?;
                    return self.open(&spec, Some(link)).await.map(Some);
                }
            }
        }
        self.open(&spec, None).await.map(Some)
    }

    /// Enables or disables a port.
    pub(crate) async fn switch(&self, side: Side, on: bool) -> Result<(), Fault> {
        let [a, b] = &self.specs;
        let name = if side == Side::A { a.name() } else { b.name() };
        switch(&self.net, name, on).await
    }

    /// Returns the interface of a port that must exist.
    async fn existing(&self, spec: &PortSpec) -> Result<Option<Link>, Fault> {
        let PortSpec::Existing(name) = spec else { return Ok(None) };
        match self.net.link(name).await {
            Ok(link) => Ok(Some(link)),
            Err(e) if e.kind() == NetErrorKind::NotFound => Err(Fault::operator(format!(
                "there is no interface {name}: list them with `ip link`, or write tap:{name} to create a TAP"
            ))),
            Err(e) => Err(Fault::environment(e.to_string())),
        }
    }

    /// Checks whether an interface can be a port.
    async fn check(&self, link: &Link) -> Result<(), Fault> {
        let name = &link.name;
        if !link.ethernet {
            return Err(Fault::operator(format!(
                "{name} carries no Ethernet frames: choose an Ethernet-like interface or a TAP"
            )));
        }
        if link.master.is_some() {
            return Err(Fault::operator(format!(
                "{name} is already a port of another bridge or bond: frames would take both ways; remove it with `ip link \
                 set {name} nomaster`"
            )));
        }
        let addresses = self.net.addresses().await;
        let addresses = addresses.map_err(|e| Fault::environment(e.to_string()))?;
        let is_linklocal = |address: &&Address| match address.local.addr() {
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        };
        let own = addresses.iter().filter(|address| address.link == link.index);
        let (linklocal, others): (Vec<&Address>, Vec<&Address>) = own.partition(is_linklocal);
        if let (Some(address), Some(_)) = (others.first(), &self.guard) {
            return Err(Fault::operator(format!(
                "{name} has the address {}: the host could not be reached by it any more, for a port \
                 belongs to the bridge alone; if that is meant, remove it first with `ip addr flush \
                 dev {name}`",
                address.local
            )));
        }
        if !linklocal.is_empty() {
            tracing::warn!(
                "the host has a link-local IPv6 address on {name} and announces it there; to prevent that, set `sysctl -w \
                 net.ipv6.conf.{}.disable_ipv6=1`",
                name.replace('.', "/")
            );
        }
        Ok(())
    }

    async fn open(&mut self, spec: &PortSpec, link: Option<Link>) -> Result<Port, Fault> {
        let fault = |error: &dyn std::fmt::Display| Fault::environment(format!("{spec}: {error}"));
        let port = match (spec, &link) {
            (PortSpec::Existing(name), Some(link)) => {
                // Install the guard first, because the host must not answer even the first frame.
                if let Some(guard) = &mut self.guard {
                    guard.add(name).map_err(|e| unguarded(&e))?;
                    if let Some(error) = guard.take_gap() {
                        tracing::warn!(
                            "{name}: when it disappears and returns, the host sees it until the bridge has opened it: {error}"
                        );
                    }
                }
                Port::existing(name, link.index, self.workers).map_err(|e| fault(&e))?
            }
            (spec, _) => self.make_tap(spec.name()).await?,
        };
        if link.is_none_or(|link| !link.up) {
            self.net.set_up(port.index).await.map_err(|e| fault(&e))?;
        }
        Ok(port)
    }

    async fn make_tap(&self, name: &str) -> Result<Port, Fault> {
        if self.net.link(name).await.is_ok() {
            return Err(Fault::operator(format!(
                "tap:{name}: there is already an interface {name}; write {name} to use it as it is, or choose another name"
            )));
        }
        let offloads = plane_backend::tun_offloads();
        let port = Port::tap(name, self.workers, offloads)
            .map_err(|e| Fault::environment(format!("tap:{name}: {e}")))?;
        if port.offloads != offloads {
            say!(2, "tap:{name}: the kernel grants {:?} of {offloads:?}", port.offloads);
        }
        let mtu = self.mtu.unwrap_or(MTU);
        self.net.set_mtu(port.index, mtu).await.map_err(|e| {
            Fault::operator(format!("tap:{name}: {e}; choose another --mtu (68 to 65521)"))
        })?;
        Ok(port)
    }
}

/// Enables or disables an interface.
pub(super) async fn switch(net: &Net, name: &str, on: bool) -> Result<(), Fault> {
    let failed = |error| Fault::environment(format!("{name}: not switched: {error}"));
    let link = net.link(name).await.map_err(failed)?;
    if on {
        net.set_up(link.index).await.map_err(failed)
    } else {
        net.set_down(link.index).await.map_err(failed)
    }
}

/// Returns the configured ports.
pub(super) fn specs(duty: &BridgeDuty) -> Result<[PortSpec; 2], Fault> {
    let [a, b] = duty.ports.each_ref().map(|text| text.parse().map_err(Fault::operator));
    Ok([a?, b?])
}

pub(super) fn open_net() -> Result<Net, Fault> {
    Net::open().map_err(|e| Fault::environment(format!("cannot query interfaces: {e}")))
}

/// Checks whether two interfaces can be joined.
fn check_pair(a: &Link, b: &Link) -> Result<(), Fault> {
    if a.lower == Some(b.index) || b.lower == Some(a.index) {
        return Err(Fault::operator(format!(
            "{} and {} are two ends of one cable, or one is a VLAN of the other: frames that leave by one would return by \
             the other endlessly",
            a.name, b.name
        )));
    }
    if a.macvlan && b.macvlan && a.lower.is_some() && a.lower == b.lower {
        return Err(Fault::operator(format!(
            "{} and {} are macvlans of one interface, which already joins them: frames that leave by one would return by \
             the other endlessly",
            a.name, b.name
        )));
    }
    if a.mtu != b.mtu {
        let (small, large) = if a.mtu < b.mtu { (a, b) } else { (b, a) };
        return Err(Fault::operator(format!(
            "{} has MTU {} and {} has {}: oversized frames would be dropped silently; make them \
             equal with `ip link set {} mtu {}`",
            a.name, a.mtu, b.name, b.mtu, large.name, small.mtu
        )));
    }
    Ok(())
}

fn unguarded(error: &dyn std::fmt::Display) -> Fault {
    Fault::environment(format!(
        "cannot keep the host's own stack from answering frames: {error}; or let it receive them with --share-with-host, \
         if it has no addresses and forwards nothing"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, index: u32) -> Link {
        Link {
            index,
            name: name.into(),
            mtu: 1500,
            up: true,
            running: true,
            ethernet: true,
            ..Link::default()
        }
    }

    #[test]
    fn a_pair_that_loops_or_differs_is_refused_with_the_remedy() {
        let (a, b) = (link("a", 1), link("b", 2));
        assert!(check_pair(&a, &b).is_ok());
        let looped = check_pair(&Link { lower: Some(2), ..a.clone() }, &b).unwrap_err();
        assert!(looped.to_string().contains("one cable"), "{looped}");
        let looped = check_pair(&a, &Link { lower: Some(1), ..b.clone() }).unwrap_err();
        assert!(looped.to_string().contains("one cable"), "{looped}");
        let of_one = |macvlan| Link { lower: Some(9), macvlan, ..a.clone() };
        let other = Link { lower: Some(9), macvlan: true, ..b.clone() };
        let looped = check_pair(&of_one(true), &other).unwrap_err();
        assert!(looped.to_string().contains("macvlans of one interface"), "{looped}");
        assert!(check_pair(&of_one(false), &other).is_ok(), "a VLAN of the same interface");
        let differs = check_pair(&a, &Link { mtu: 9000, ..b }).unwrap_err();
        assert!(differs.to_string().ends_with("`ip link set b mtu 1500`"), "{differs}");
    }
}
