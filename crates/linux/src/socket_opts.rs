//! Which way a socket's packets go, apart from its addresses.

use std::io;

use socket2::Socket;

/// Marks what the socket sends (`SO_MARK`), and binds it to an interface (`SO_BINDTODEVICE`), where there is such a wish.
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
