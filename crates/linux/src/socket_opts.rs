//! Socket options, besides addresses, that decide how packets are routed.

use std::io;

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
