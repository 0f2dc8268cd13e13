//! The interface of a source of verdicts.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::VlanId;
use adit_engine::auth::{ClientParams, Rejection};
use adit_engine::command::Counters;
use ipnet::IpNet;

use super::facts::ClientFacts;
use super::pending::Pending;

/// A verdict that may take some time.
pub(crate) type VerdictFuture = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// The parameters of a client, or the reason why it may not connect.
pub(crate) type ParamsFuture =
    Pin<Box<dyn Future<Output = Result<ClientParams, Rejection>> + Send>>;

/// The end of work that has no result.
pub(crate) type DoneFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The verdict of a [`Check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The check accepts.
    Accept,
    /// The check rejects, whatever the others say.
    Reject(Rejection),
    /// The check has no opinion.
    NotMine,
}

/// One source of verdicts about clients: scripts, plugins, the management client, the files of clients.
///
/// The futures run on the control thread, which serves all other clients meanwhile, so they must not block.
pub(crate) trait Check: Send + Sync {
    /// Returns whether the check reads the client's certificates, or the variables about them.
    fn reads_certificates(&self) -> bool {
        true
    }

    /// Judges the metadata of the client's tls-crypt-v2 key (`tls-crypt-v2-verify`), before TLS begins. Nothing else is
    /// known about the client but its address.
    fn verify_key(&self, facts: &Arc<ClientFacts>) -> VerdictFuture {
        let _ = facts;
        Box::pin(ready(Verdict::NotMine))
    }

    /// Judges one certificate of the chain (`tls-verify`). Called for the root first and for the client's own
    /// certificate, of depth 0, last.
    fn verify_certificate(&self, facts: &Arc<ClientFacts>, depth: usize) -> VerdictFuture {
        let _ = (facts, depth);
        Box::pin(ready(Verdict::NotMine))
    }

    /// Judges the user name and the password (`auth-user-pass-verify`), at the start and in each renegotiation.
    fn password(&self, facts: &Arc<ClientFacts>, pending: &Pending) -> VerdictFuture {
        let _ = (facts, pending);
        Box::pin(ready(Verdict::NotMine))
    }

    /// Returns the parameters on which the client's addresses depend (`client-config-dir`). A client that is disabled is
    /// refused by [`Self::connect`].
    fn parameters(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        let _ = facts;
        Box::pin(ready(Ok(params)))
    }

    /// Judges a client that has its addresses, and completes its parameters (`client-connect`).
    fn connect(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        let _ = facts;
        Box::pin(ready(Ok(params)))
    }

    /// Returns whether [`Self::learn`] does anything.
    fn learns(&self) -> bool {
        false
    }

    /// Judges an address that a client is about to get, or takes note of one that it has lost (`learn-address`).
    fn learn(&self, facts: &Arc<ClientFacts>, change: AddressChange) -> VerdictFuture {
        let _ = (facts, change);
        Box::pin(ready(Verdict::NotMine))
    }

    /// Takes note that a client has its session.
    fn established(&self, facts: &Arc<ClientFacts>) {
        let _ = facts;
    }

    /// Takes note of the end of an attempt to connect that [`Self::disconnected`] does not report.
    fn abandoned(&self, session: u64) {
        let _ = session;
    }

    /// Takes note of the end of a session, or of a client that was refused while it connected (`client-disconnect`). The
    /// check may not have been asked about such a client.
    fn disconnected(
        &self,
        facts: &Arc<ClientFacts>,
        traffic: Counters,
        duration: Duration,
    ) -> DoneFuture {
        let _ = (facts, traffic, duration);
        Box::pin(ready(()))
    }

    /// Takes a client's response to the challenge that [`Self::password`] sent (`client-crresponse`).
    fn challenge_response(&self, facts: &Arc<ClientFacts>, text: String) -> DoneFuture {
        let _ = (facts, text);
        Box::pin(ready(()))
    }
}

/// A change of the table of addresses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressChange {
    /// What happens to the address.
    pub(crate) kind: ChangeKind,
    /// The address.
    pub(crate) address: Address,
    /// Whether it is the client's own address.
    pub(crate) primary: bool,
}

impl AddressChange {
    /// Formats the address as openvpn does.
    pub(crate) fn text(&self) -> String {
        self.address.to_string()
    }
}

/// An address of a client or behind it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// The address of a client, or a network behind it.
    Net(IpNet),
    /// A station behind a client, with a TAP device, and its VLAN.
    Station([u8; 6], Option<VlanId>),
}

impl fmt::Display for Address {
    /// A prefix that is a single address is written without its length, and a station with its VLAN, as in openvpn: with
    /// 0 if frames are not sorted into VLANs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
            Self::Station([a, b, c, d, e, g], vlan) => {
                let vlan = vlan.map_or(0, VlanId::get);
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}@{vlan}")
            }
        }
    }
}

/// The kind of an [`AddressChange`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// A client gets an address that no other one had.
    Add,
    /// A client gets an address from another one.
    Update,
    /// A client has lost its address.
    Delete,
}

impl ChangeKind {
    /// Returns openvpn's word for the change.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_is_written_with_its_vlan() {
        let mac = [2, 0, 0, 0, 10, 255];
        assert_eq!(Address::Station(mac, None).to_string(), "02:00:00:00:0a:ff@0");
        assert_eq!(Address::Station(mac, VlanId::new(10)).to_string(), "02:00:00:00:0a:ff@10");
    }
}
