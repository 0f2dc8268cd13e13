//! The sockets that a server opens when it starts.

use adit_engine::Transport;
use adit_linux::tcp::{TcpListenOptions, TcpListener};
use adit_linux::udp::{UdpOptions, UdpSocket, steer};
use adit_openvpn_data::packet::SENDER;

use super::{Listener, Options, SocketTuning};
use adit_runtime::driver::bind_problem;
use adit_runtime::fault::Fault;
use adit_runtime::helper::sockets;
use adit_runtime::plane_backend::gates;

/// Returns the options of a listener's sockets.
pub(super) fn datagram_options(listener: &Listener, options: &Options) -> UdpOptions {
    let mut udp = UdpOptions::new(listener.bind);
    udp.v6only = listener.v6only;
    udp.gro = gates().udp_gro;
    let tuning = &options.socket;
    udp.fwmark = tuning.mark;
    udp.device.clone_from(&tuning.device);
    udp.recv_buffer = tuning.receive_buffer.unwrap_or(udp.recv_buffer);
    udp.send_buffer = tuning.send_buffer.unwrap_or(udp.send_buffer);
    udp.fragmentation = tuning.fragmentation;
    udp
}

/// Binds one socket for each worker.
pub(super) fn bind(listener: &Listener, options: &Options) -> Result<Vec<UdpSocket>, Fault> {
    let (udp, tuning) = (datagram_options(listener, options), &options.socket);
    let group = sockets::udp_group(&udp, options.workers)
        .map_err(|e| unbound(Transport::Udp, listener, tuning, &e))?;
    if let Err(e) = steer(&group, &SENDER) {
        // If the kernel cannot do this, chance spreads the clients.
        tracing::debug!("clients are spread over the workers by their addresses: {e}");
    }
    Ok(group)
}

/// Opens one listener, from which the control thread passes streams to the workers.
pub fn listen(listener: &Listener, socket: &SocketTuning) -> Result<TcpListener, Fault> {
    let mut tcp = TcpListenOptions::new(listener.bind);
    tcp.v6only = listener.v6only;
    tcp.fwmark = socket.mark;
    tcp.device.clone_from(&socket.device);
    tcp.recv_buffer = socket.receive_buffer;
    tcp.send_buffer = socket.send_buffer;
    sockets::listen(&tcp).map_err(|e| unbound(Transport::Tcp, listener, socket, &e))
}

/// Returns the fault of a socket that could not be opened.
pub fn unbound(
    transport: Transport,
    listener: &Listener,
    socket: &SocketTuning,
    e: &std::io::Error,
) -> Fault {
    Fault::environment(bind_problem(transport, listener.bind, socket.device.as_deref(), e))
}
