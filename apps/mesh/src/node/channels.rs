//! The source ports of the further channels of sessions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Running;
use super::start::socket_options;

impl Running {
    /// Opens a socket for each channel after the first. If that fails, the node's port sends all channels.
    pub(super) fn open_channel_sockets(&mut self, workers: u16) {
        let wanted = self.settings.channels_of(workers).saturating_sub(1);
        // The first one serves IPv4 as well.
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        for ip in any {
            let options = socket_options(SocketAddr::new(ip, 0), self.mark);
            let sockets = self.driver.open_sockets(&options, wanted);
            if !sockets.is_empty() {
                return self.driver.act(|node, _, _| node.set_channel_sockets(sockets));
            }
        }
    }
}
