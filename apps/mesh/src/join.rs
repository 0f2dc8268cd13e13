//! Joining a mesh.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use adit_engine::{Engine, Link};
use adit_mesh::join::Joined;
use adit_mesh::node::{JoinEvent, Joining};
use adit_mesh::path::MAIN_SOCKET;
use adit_mesh::token::Token;
use adit_openvpn::data_format::{Input, Outbox};
use adit_runtime::clock::{now, unix_time};
use adit_runtime::fault::Fault;
use tokio::net::UdpSocket;

use super::found::node_name;
use super::join_streams::{StreamEvent, Streams};
use super::reach::Reach;
use super::roster_file::RosterFile;
use super::state::{new_key, store_key};
use super::{Paths, short};

/// The longest datagram of a control channel.
const MAX_DATAGRAM: usize = 4096;

/// The choices of a node that joins.
#[derive(Clone, Debug, Default)]
pub struct NewNode {
    /// The name of this node; `None`: the machine's.
    pub node: Option<String>,
    /// The name of the mesh on this machine; `None`: its own.
    pub mesh: Option<String>,
}

/// A mesh that this machine has joined.
#[derive(Debug)]
pub struct JoinOutcome {
    /// The files of the node.
    pub paths: Paths,
    /// The mesh's id.
    pub mesh: [u8; 16],
    /// The name of this node.
    pub node: String,
    /// The addresses of this node.
    pub addresses: Vec<IpAddr>,
    /// The number of other members.
    pub others: usize,
    /// The time that it took.
    pub took: Duration,
}

/// Joins a mesh with a token. Nothing is written before this machine is a member.
///
/// # Errors
/// The inviter cannot be reached or refuses, or a file cannot be written.
pub fn join(
    dir: Option<&std::path::Path>,
    token: &str,
    choices: &NewNode,
) -> Result<JoinOutcome, Fault> {
    let token: Token = token.parse().map_err(|error| Fault::operator(format!("{error}")))?;
    if let Some(mesh) = &choices.mesh
        && Paths::new(dir, mesh)?.exists()
    {
        return Err(taken(mesh));
    }
    let (inviter, addresses) = (*token.inviter(), token.addresses().to_vec());
    let tcp_addresses = token.tcp_addresses();
    let (name, key) = (node_name(choices.node.as_deref())?, new_key()?);
    let began = now();
    let seed = adit_runtime::random::seed()?;
    let joining = Joining::new(&key, token, name.clone(), seed, began, unix_time())
        .map_err(|error| Fault::ours(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    let Joined { changes, roster } = *runtime.block_on(exchange(joining))?;
    let mesh = choices.mesh.clone().unwrap_or_else(|| changes.genesis().name.to_string());
    let paths = Paths::new(dir, &mesh).map_err(|fault| {
        Fault::operator(format!("{fault} (this machine is a member now; join again with it)"))
    })?;
    if paths.exists() {
        return Err(taken(&mesh));
    }
    let own = key.public_hash();
    let member = roster.member(&own).ok_or_else(|| Fault::ours("joined and not a member"))?;
    paths.create()?;
    store_key(&paths.node_key_file(), &key)?;
    let mut reach = Reach::default();
    reach.hint(&inviter, &addresses, &tcp_addresses);
    adit_runtime::paths::write_whole(&paths.reach_file(), 0o600, &reach.encode())?;
    RosterFile::create(&paths.roster_file(), &changes)?;
    let ipv4 = member.ipv4.map(IpAddr::from);
    Ok(JoinOutcome {
        mesh: *changes.mesh(),
        node: member.name.as_ref().map_or_else(|| short(&own), ToString::to_string),
        addresses: ipv4.into_iter().chain([member.ipv6.into()]).collect(),
        others: roster.members().count().saturating_sub(1),
        took: now().since(began),
        paths,
    })
}

fn taken(mesh: &str) -> Fault {
    Fault::operator(format!(
        "this machine is in a mesh of the name {mesh} already; join the other one under another name with --mesh NAME"
    ))
}

/// Exchanges packets with the inviter until it has answered.
async fn exchange(mut joining: Joining) -> Result<Box<Joined>, Fault> {
    let any: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()];
    // The first one serves IPv4 as well.
    let socket = UdpSocket::bind(&any[..])
        .await
        .map_err(|error| Fault::environment(format!("cannot open a UDP socket: {error}")))?;
    let is_ipv6 = socket.local_addr().is_ok_and(|local| local.is_ipv6());
    let mut streams = Streams::new();
    let mut out = Outbox::<JoinEvent>::new();
    joining.handle(now(), Input::Tick, &mut out);
    let mut packet = [0; MAX_DATAGRAM];
    loop {
        while let Some(output) = out.pop() {
            match output {
                adit_engine::Output::Send(link, packet) if link.is_stream() => {
                    streams.send(link, &packet);
                }
                adit_engine::Output::Send(link, packet) => {
                    let to = as_family(link.remote(), is_ipv6);
                    // An address that cannot be reached from here is one of several.
                    let _ = socket.send_to(&packet, to).await;
                }
                adit_engine::Output::Hangup(link) => streams.close(link),
                adit_engine::Output::Event(JoinEvent::OpenStream(to)) => streams.open(to),
                adit_engine::Output::Event(JoinEvent::Joined(joined)) => return Ok(joined),
                adit_engine::Output::Event(JoinEvent::Failed(failure)) => {
                    return Err(Fault::environment(failure.to_string()));
                }
                _ => {}
            }
        }
        let wait = joining.due().map_or(Duration::from_secs(1), |due| due.since(now()));
        tokio::select! {
            received = socket.recv_from(&mut packet) => match received {
                Ok((len, from)) => {
                    let link = Link::datagram(MAIN_SOCKET, None, from);
                    let packet = packet.get_mut(..len).unwrap_or_default();
                    joining.handle(now(), Input::ControlPacket(link, packet), &mut out);
                }
                // An ICMP error about one of the addresses.
                Err(_) => joining.handle(now(), Input::Tick, &mut out),
            },
            Some(event) = streams.next() => match event {
                StreamEvent::Opened(link) => joining.stream_opened(now(), link, &mut out),
                StreamEvent::Packet(link, mut packet) => {
                    joining.handle(now(), Input::ControlPacket(link, &mut packet), &mut out);
                }
                StreamEvent::Ended(link) => {
                    joining.handle(now(), Input::LinkDown(link), &mut out);
                }
            },
            () = tokio::time::sleep(wait) => joining.handle(now(), Input::Tick, &mut out),
        }
    }
}

/// Returns an address as a socket of this family takes it.
fn as_family(address: SocketAddr, ipv6: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if ipv6 => SocketAddr::from((v4.to_ipv6_mapped(), address.port())),
        _ => address,
    }
}
