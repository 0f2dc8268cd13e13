//! Rate limits of interfaces: the kernel's token bucket (`tc-tbf(8)`).

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use rtnetlink::packet_utils::nla::DefaultNla;

use super::{Mode, Net, NetError};

/// `TCA_TBF_PARMS`: a `struct tc_tbf_qopt`.
const PARAMETERS: u16 = 1;
/// `TCA_TBF_BURST`, in bytes.
const BURST: u16 = 6;
/// `TC_LINKLAYER_ETHERNET`: the size of a packet is its length.
const PLAIN_LENGTHS: u8 = 1;

impl Net {
    /// Limits the rate at which packets leave through an interface. Packets wait for up to half a second, and then they are dropped.
    ///
    /// # Errors
    /// There is no such interface, the right is missing, or the kernel has no token bucket.
    pub async fn set_rate_limit(
        &self,
        index: u32,
        bytes_per_second: u32,
        mtu: u16,
    ) -> Result<(), NetError> {
        let mtu = u32::from(mtu);
        let burst = (bytes_per_second / 25).max(mtu.saturating_mul(2));
        let limit = burst.saturating_add((bytes_per_second / 2).max(mtu.saturating_mul(8)));
        let mut change = root(index, "tbf");
        change.attributes.push(TcAttribute::Options(vec![
            TcOption::Other(DefaultNla::new(PARAMETERS, parameters(bytes_per_second, limit))),
            TcOption::Other(DefaultNla::new(BURST, burst.to_ne_bytes().to_vec())),
        ]));
        let action = || format!("limiting the rate of interface number {index}");
        let message = RouteNetlinkMessage::NewQueueDiscipline(change);
        self.talk(message, Mode::Replace, action).await.map(drop)
    }

    /// Removes the rate limit of an interface.
    ///
    /// # Errors
    /// There is none.
    pub async fn remove_rate_limit(&self, index: u32) -> Result<(), NetError> {
        let action = || format!("removing the rate limit of interface number {index}");
        let message = RouteNetlinkMessage::DelQueueDiscipline(root(index, "tbf"));
        self.talk(message, Mode::Change, action).await.map(drop)
    }
}

/// Returns a request about the interface's first queueing discipline.
fn root(index: u32, kind: &str) -> TcMessage {
    let mut message = TcMessage::with_index(i32::try_from(index).unwrap_or(0));
    message.header.parent = TcHandle::ROOT;
    message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    message
}

/// Returns a `struct tc_tbf_qopt`: two `struct tc_ratespec`, of which the second is empty, the limit, and two fields that
/// other attributes replace.
fn parameters(rate: u32, limit: u32) -> Vec<u8> {
    let mut bytes = vec![0, PLAIN_LENGTHS, 0, 0, 0, 0, 0, 0];
    bytes.extend(rate.to_ne_bytes());
    bytes.extend([0; 12]);
    bytes.extend(limit.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}
