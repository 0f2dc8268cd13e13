//! The sockets that a daemon listens on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use adit_linux::tcp::TcpListenOptions;
use adit_linux::udp::{Fragmentation, UdpOptions, UdpSocket};
use adit_runtime::fault::Fault;
use adit_runtime::say;
use adit_tinc::config::{AddressFamily, BindAddress, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// The number of pairs of sockets.
const MAX_SOCKETS: usize = 16;

/// The number of accepted connections that wait for the loop.
const WAITING: usize = 16;

/// The sockets of a daemon.
pub(super) struct Listening {
    pub(super) tcp: Vec<adit_linux::tcp::TcpListener>,
    /// The sockets of each address, one for each worker of the data plane.
    pub(super) udp: Vec<Vec<UdpSocket>>,
    /// The port of the first one.
    pub(super) port: u16,
}

/// Opens a TCP and a UDP socket for each address. `workers`: the number of workers of the data plane, if there is one.
pub(super) fn open(server: &ServerConfig, workers: Option<u16>) -> Result<Listening, Fault> {
    let addresses = addresses(server)?;
    let mut listening = Listening { tcp: Vec::new(), udp: Vec::new(), port: 0 };
    for mut address in addresses {
        // All sockets have the same port, even if the kernel chose it.
        if address.port() == 0 {
            address.set_port(listening.port);
        }
        match open_pair(server, address, workers) {
            Ok((tcp, udp)) => {
                if listening.port == 0 {
                    listening.port = tcp.local_addr().port();
                }
                say!(1, "Listening on {} port {}", address.ip(), tcp.local_addr().port());
                listening.tcp.push(tcp);
                listening.udp.push(udp);
            }
            // A kernel without IPv6.
            Err(error) if error.raw_os_error() == Some(no_family()) => {}
            Err(error) => {
                return Err(Fault::environment(format!(
                    "Can't bind to {} port {}: {error}",
                    address.ip(),
                    address.port()
                )));
            }
        }
    }
    if listening.tcp.is_empty() {
        return Err(Fault::environment("Unable to create any listening socket!"));
    }
    Ok(listening)
}

fn no_family() -> i32 {
    rustix::io::Errno::AFNOSUPPORT.raw_os_error()
}

fn open_pair(
    server: &ServerConfig,
    address: SocketAddr,
    workers: Option<u16>,
) -> io::Result<(adit_linux::tcp::TcpListener, Vec<UdpSocket>)> {
    let mark = Some(server.fwmark).filter(|mark| *mark != 0);
    let mut options = TcpListenOptions::new(address);
    options.v6only = true;
    options.fwmark = mark;
    options.device.clone_from(&server.bind_to_interface);
    let tcp = adit_linux::tcp::TcpListener::bind(&options)?;
    let mut options = UdpOptions::new(SocketAddr::new(address.ip(), tcp.local_addr().port()));
    options.v6only = true;
    options.fwmark = mark;
    options.device.clone_from(&server.bind_to_interface);
    options.gro = workers.is_some();
    // The path MTU is discovered by probes, which must not be fragmented.
    options.fragmentation = Fragmentation::Forbidden;
    let size = |bytes: u32, usual: usize| if bytes == 0 { usual } else { bytes as usize };
    options.recv_buffer = size(server.udp_rcv_buf, options.recv_buffer);
    options.send_buffer = size(server.udp_snd_buf, options.send_buffer);
    Ok((tcp, UdpSocket::bind_group(&options, workers.unwrap_or(1).into())?))
}

/// Returns the addresses to listen on.
fn addresses(server: &ServerConfig) -> Result<Vec<SocketAddr>, Fault> {
    let own = server.own.port;
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let allowed = |address: &IpAddr| match server.address_family {
        AddressFamily::Any => true,
        AddressFamily::V4 => address.is_ipv4(),
        AddressFamily::V6 => address.is_ipv6(),
    };
    let configured: Vec<BindAddress> =
        server.bind_to_address.iter().chain(&server.listen_address).copied().collect();
    let configured = if configured.is_empty() {
        vec![BindAddress { address: None, port: None }]
    } else {
        configured
    };
    let each = configured.iter().flat_map(|bind| {
        let port = bind.port.unwrap_or(own);
        let found: Vec<IpAddr> = bind.address.map_or_else(|| any.to_vec(), |one| vec![one]);
        found.into_iter().filter(allowed).map(move |address| SocketAddr::new(address, port))
    });
    let mut addresses: Vec<SocketAddr> = each.collect();
    addresses.dedup();
    if addresses.len() > MAX_SOCKETS {
        return Err(Fault::operator(format!("ListenAddress: more than {MAX_SOCKETS} addresses")));
    }
    Ok(addresses)
}

/// Accepts connections in tasks, and passes them on.
pub(super) fn accept(
    listeners: Vec<adit_linux::tcp::TcpListener>,
) -> Result<mpsc::Receiver<(TcpStream, SocketAddr)>, Fault> {
    let (tx, rx) = mpsc::channel(WAITING);
    for listener in listeners {
        let listener = std::net::TcpListener::from(OwnedFd::from(listener));
        let listener = TcpListener::from_std(listener)
            .map_err(|error| Fault::environment(format!("cannot listen: {error}")))?;
        let tx = tx.clone();
        tokio::spawn(async move {
            loop {
                let Ok(accepted) = listener.accept().await else {
                    // No descriptor is free.
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                };
                if tx.send(accepted).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(rx)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Vec<String> {
        let mut entries = adit_tinc::config::Entries::default();
        entries.add_file("tinc.conf", lines).unwrap();
        let (server, _) = ServerConfig::read(&entries).unwrap();
        addresses(&server).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_are_those_of_the_configuration() {
        assert_eq!(of(""), ["0.0.0.0:655", "[::]:655"]);
        assert_eq!(of("AddressFamily = ipv4\nPort = 7"), ["0.0.0.0:7"]);
        assert_eq!(
            of("BindToAddress = 192.0.2.1\nListenAddress = * 8"),
            ["192.0.2.1:655", "0.0.0.0:8", "[::]:8"]
        );
        assert_eq!(
            of("AddressFamily = ipv6\nListenAddress = 192.0.2.1\nListenAddress = ::1"),
            ["[::1]:655"]
        );
    }
}
