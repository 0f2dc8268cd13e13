//! Socket options, besides addresses, that decide how packets are routed, and the user at the other end of a socket.

use std::io;
use std::os::fd::AsFd;

use socket2::Socket;

/// Sets the firewall mark (`SO_MARK`) and the interface (`SO_BINDTODEVICE`) of a socket, where given.
pub(crate) fn set_routing(
    socket: &Socket,
    fwmark: Option<u32>,
    device: Option<&str>,
) -> io::Result<()> {
    if let Some(mark) = fwmark {
        socket.set_mark(mark)?;
    }
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    Ok(())
}

/// Returns the user id and the group id of the process at the other end of a unix socket, when it connected.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<(u32, u32)> {
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    Ok((peer.uid.as_raw(), peer.gid.as_raw()))
}
