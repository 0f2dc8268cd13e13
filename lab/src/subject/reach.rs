//! Checks whether hosts reach each other, from many namespaces at once. It sends its own echo requests, because a hundred `ping` processes
//! take longer than a hundred handshakes.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::net::Namespace;
use adit_testbed::tunnel::InnerAddrs;
use nix::ifaddrs::getifaddrs;
use socket2::{Domain, Protocol, Socket, Type};

/// The time to wait for an echo before the next request is sent.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Waits until `to` answers each of these hosts, probing from all of them at once.
///
/// # Errors
/// Names the first host, by its number, that had no answer within `limit`.
pub(super) fn all(from: &[Namespace], to: IpAddr, limit: Duration) -> Result<()> {
    let IpAddr::V4(to) = to else { return Err("only IPv4 is asked for its echo".into()) };
    everywhere(from, move || echo(to, limit)).map(drop)
}

/// Waits until each client reaches the next one.
///
/// # Errors
/// As [`all`].
pub(super) fn members(clients: &[Namespace], inner: &[InnerAddrs], limit: Duration) -> Result<()> {
    let mut pairs = clients.iter().zip(inner.iter().skip(1));
    pairs.try_for_each(|(from, to)| all(std::slice::from_ref(from), to.v4, limit))
}

/// Returns the addresses of a device in each of these hosts.
///
/// # Errors
/// The device does not exist or has no IPv4 address.
pub(super) fn inner(hosts: &[Namespace], device: &'static str) -> Result<Vec<InnerAddrs>> {
    everywhere(hosts, move || addresses(device))
}

/// Returns the addresses of a device in one host.
///
/// # Errors
/// As [`inner`].
pub(super) fn inner_addrs(host: &Namespace, device: &'static str) -> Result<InnerAddrs> {
    joined(host.thread(move || addresses(device))?, 0)
}

/// Runs a function in all hosts at once, and returns the results in the order of the hosts.
fn everywhere<T: Send + 'static>(
    hosts: &[Namespace],
    work: impl Fn() -> Result<T> + Clone + Send + 'static,
) -> Result<Vec<T>> {
    let threads = hosts.iter().map(|host| host.thread(work.clone()));
    let threads: Vec<_> = threads.collect::<Result<_>>()?;
    threads.into_iter().enumerate().map(|(index, thread)| joined(thread, index)).collect()
}

fn joined<T>(thread: std::thread::JoinHandle<Result<T>>, index: usize) -> Result<T> {
    let done = thread.join().unwrap_or_else(|_| Err("the thread panicked".into()));
    done.map_err(|failure| Failure(format!("host {}: {failure}", index + 1)))
}

fn addresses(device: &str) -> Result<InnerAddrs> {
    let (mut v4, mut v6) = (None, None);
    for address in getifaddrs().context("addresses")?.filter(|a| a.interface_name == device) {
        let Some(address) = address.address else { continue };
        if let Some(found) = address.as_sockaddr_in() {
            v4 = v4.or(Some(IpAddr::from(found.ip())));
        } else if let Some(found) = address.as_sockaddr_in6().map(|found| found.ip()) {
            let link_local = found.is_unicast_link_local();
            v6 = v6.or((!link_local).then_some(IpAddr::from(found)));
        }
    }
    Ok(InnerAddrs { v4: v4.context(format!("no IPv4 address on {device}"))?, v6 })
}

/// Sends echo requests until one is answered.
fn echo(to: Ipv4Addr, limit: Duration) -> Result<()> {
    let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let end = Instant::now() + limit;
    let mut sequence = 0_u16;
    loop {
        sequence = sequence.wrapping_add(1);
        // Without a route, or while the device is down, no reply arrives, and the next request is sent.
        let sent = socket.send_to(&request(sequence), &SocketAddr::from((to, 0)).into());
        let next = Instant::now() + TIMEOUT;
        while Instant::now() < next {
            if sent.is_err() {
                std::thread::sleep(TIMEOUT);
                continue;
            }
            let mut buffer = [0; 256];
            match socket.read(&mut buffer) {
                Ok(length) if answers(buffer.get(..length).unwrap_or_default(), to) => {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if Instant::now() >= end {
            return Err(format!(
                "{to} did not answer {sequence} echo requests within {} s",
                limit.as_secs()
            )
            .into());
        }
    }
}

/// Builds an echo request (RFC 792: type 8, code 0, checksum, identifier, sequence number).
fn request(sequence: u16) -> [u8; 8] {
    let identifier = 0x4144_u16;
    let [s0, s1] = sequence.to_be_bytes();
    let [i0, i1] = identifier.to_be_bytes();
    let sum = 0x0800 + u32::from(identifier) + u32::from(sequence);
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, c0, c1] = (!((folded & 0xffff) + (folded >> 16))).to_be_bytes();
    [8, 0, c0, c1, i0, i1, s0, s1]
}

/// Returns whether an IPv4 packet is an echo reply from this address. No other requests are sent in these hosts, so the
/// identifier is not compared.
fn answers(packet: &[u8], from: Ipv4Addr) -> bool {
    let header = usize::from(packet.first().copied().unwrap_or_default() & 0x0f) * 4;
    packet.get(12..16) == Some(&from.octets()[..]) && packet.get(header) == Some(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_request_adds_up() {
        for sequence in [0, 1, 0x7fff, 0xb6bb, 0xffff] {
            let request = request(sequence);
            let sum: u32 =
                request.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{sequence}: {request:?}");
        }
    }

    #[test]
    fn only_a_reply_from_there_is_an_answer() {
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&[10, 88, 0, 1]);
        assert!(answers(&packet, Ipv4Addr::new(10, 88, 0, 1)));
        assert!(!answers(&packet, Ipv4Addr::new(10, 88, 0, 2)));
        packet[20] = 8;
        assert!(!answers(&packet, Ipv4Addr::new(10, 88, 0, 1)));
        assert!(!answers(&[], Ipv4Addr::new(10, 88, 0, 1)));
    }
}
