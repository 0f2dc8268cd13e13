//! Log lines of programs that implement OpenVPN, and the addresses in a tunnel.

use std::net::IpAddr;
use std::time::Duration;

use crate::failure::{Context, Result};
use crate::net::Namespace;

/// The exact log line of every program once the tunnel is established.
pub const READY: &str = "Initialization Sequence Completed";
/// Part of the line that every program logs once for each TLS handshake, the first and each rekey.
pub const HANDSHAKE: &str = "Control Channel: TLSv1";
/// Parts of the line that a server logs when a client sends an exit message, in band or on the control channel.
pub const EXIT_NOTICES: &[&str] = &["exit message received by peer", "remote-exit"];
/// The time limit for establishing a tunnel. Under loss, retransmissions start at 2 s and double.
pub const SETUP_LIMIT: Duration = Duration::from_secs(40);

/// Addresses in the tunnel.
#[derive(Debug, Clone, Copy)]
pub struct InnerAddrs {
    /// IPv4.
    pub v4: IpAddr,
    /// The IPv6 address, if the tunnel has one.
    pub v6: Option<IpAddr>,
}

impl InnerAddrs {
    /// Returns the IPv6 address if the tunnel has one, else the IPv4 address.
    pub fn newest(self) -> IpAddr {
        self.v6.unwrap_or(self.v4)
    }
}

/// Returns the addresses of the tunnel's interface at one end.
///
/// # Errors
/// `ip` failed, or there is no IPv4 address.
pub fn inner_addrs(namespace: &Namespace) -> Result<InnerAddrs> {
    inner_addrs_on(namespace, "tun0")
}

/// Returns the addresses of an interface.
///
/// # Errors
/// As [`inner_addrs`].
pub fn inner_addrs_on(namespace: &Namespace, device: &str) -> Result<InnerAddrs> {
    let listing =
        namespace.run("ip", &["-o", "address", "show", "dev", device, "scope", "global"])?;
    let address = |family: &str| -> Option<IpAddr> {
        let address = listing.split_whitespace().skip_while(|word| *word != family).nth(1)?;
        address.split('/').next()?.parse().ok()
    };
    let v4 = address("inet")
        .context(format!("no IPv4 address on {device} in {}: {listing}", namespace.name()))?;
    Ok(InnerAddrs { v4, v6: address("inet6") })
}
