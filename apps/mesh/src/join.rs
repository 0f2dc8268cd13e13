//! Joining a mesh.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use adit_crypto::sign::SigningKey;
use adit_engine::{Engine, Link};
use adit_mesh::join::{Joined, Waits};
use adit_mesh::node::{JoinEvent, Joining};
use adit_mesh::path::MAIN_SOCKET;
use adit_mesh::roster::Changes;
use adit_mesh::session::KeyHash;
use adit_mesh::token::Token;
use adit_openvpn::data_format::{Input, Outbox, Output};
use adit_runtime::clock::{now, unix_time};
use adit_runtime::fault::Fault;
use adit_runtime::paths::{self, write_whole};
use tokio::net::UdpSocket;

use super::found::node_name;
use super::join_streams::{StreamEvent, Streams};
use super::reach::Reach;
use super::roster_file::RosterFile;
use super::state::{new_key, store_key};
use super::{Paths, fingerprint, short};

/// The longest datagram of a control channel.
const MAX_DATAGRAM: usize = 4096;

/// The choices of a node that joins.
#[derive(Clone, Debug, Default)]
pub struct NewNode {
    /// The name of this node, or `None` for the machine's.
    pub node: Option<String>,
    /// The name of the mesh on this machine, or `None` for the mesh's own.
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
    /// The time that joining took.
    pub took: Duration,
}

/// The state of a node that waits for an approval.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The name of the inviter, if it has one.
    pub inviter: Option<String>,
    /// The beginning of this node's key, as the inviter shows it.
    pub fingerprint: String,
}

/// Joins a mesh with a token. Writes nothing before this machine is a member. Calls `on_waiting` if the inviter's operator must approve it
/// first.
///
/// # Errors
/// The inviter cannot be reached or refuses, or a file cannot be written.
pub fn join(
    dir: Option<&Path>,
    token: &str,
    choices: &NewNode,
    on_waiting: impl FnMut(&Waiting),
) -> Result<JoinOutcome, Fault> {
    let token: Token = token.parse().map_err(|error| Fault::operator(format!("{error}")))?;
    match &choices.mesh {
        Some(mesh) if Paths::new(dir, mesh)?.exists() => return Err(taken(mesh)),
        Some(mesh) => Paths::new(dir, mesh)?.check_complete()?,
        // The name of the mesh is not known yet.
        None => Paths::check_all_complete(dir)?,
    }
    // If the disk were full, a new member would lose its key after using up the token.
    check_room(&paths::Paths::new(dir)?.data)?;
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
    let exchange = exchange(joining, key.public_hash(), on_waiting);
    let Joined { changes, roster } = *runtime.block_on(exchange)?;
    let mesh = choices.mesh.clone().unwrap_or_else(|| changes.genesis().name.to_string());
    let paths = Paths::new(dir, &mesh).map_err(|fault| {
        Fault::operator(format!("{fault} (this machine is a member now; join again with it)"))
    })?;
    if paths.exists() {
        return Err(taken(&mesh));
    }
    let own = key.public_hash();
    let member = roster.member(&own).ok_or_else(|| Fault::ours("joined and not a member"))?;
    let mut reach = Reach::default();
    reach.hint(&inviter, &addresses, &tcp_addresses);
    reach.set_compared(&[(inviter, unix_time())]);
    write_node(&paths, &key, &reach, &changes).map_err(|fault| {
        Fault::environment(format!(
            "{fault}; this machine was admitted as {name}, and has lost its key: remove {name} from the mesh, and join again \
             with another token"
        ))
    })?;
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

/// Writes all files of a new node, or none.
fn write_node(
    paths: &Paths,
    key: &SigningKey,
    reach: &Reach,
    changes: &Changes,
) -> Result<(), Fault> {
    let write = || {
        paths.create()?;
        store_key(&paths.node_key_file(), key)?;
        write_whole(&paths.reach_file(), 0o600, &reach.encode())?;
        RosterFile::create(&paths.roster_file(), changes)
    };
    write().inspect_err(|_| {
        for file in [paths.node_key_file(), paths.reach_file(), paths.roster_file()] {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir(&paths.folders.state);
    })
}

/// The disk space that a new node needs for its files.
const ROOM: usize = 1 << 20;

/// Checks that a folder, or its closest existing ancestor, has room for a new node.
fn check_room(folder: &Path) -> Result<(), Fault> {
    let exists = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let path = exists.join(format!(".adit-room-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let written = file.and_then(fill);
    let _ = fs::remove_file(&path);
    written.map_err(|error| {
        Fault::environment(format!(
            "this machine cannot keep the files of a node in {}: {error}; correct this, and join again with the same token",
            exists.display()
        ))
    })
}

/// Writes [`ROOM`] bytes to a file.
fn fill(mut file: File) -> io::Result<()> {
    file.write_all(&vec![0xad; ROOM])?;
    file.sync_data()
}

fn taken(mesh: &str) -> Fault {
    Fault::operator(format!(
        "this machine is already in a mesh named {mesh}; join the other one under another name with --mesh NAME"
    ))
}

/// Exchanges packets with the inviter until it has answered.
async fn exchange(
    mut joining: Joining,
    own: KeyHash,
    mut on_waiting: impl FnMut(&Waiting),
) -> Result<Box<Joined>, Fault> {
    let any: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()];
    // The first socket serves IPv4 as well.
    let socket = UdpSocket::bind(&any[..])
        .await
        .map_err(|error| Fault::environment(format!("cannot open a UDP socket: {error}")))?;
    let mut on_waiting = |waits: Waits| {
        let inviter = waits.inviter.map(|name| name.to_string());
        on_waiting(&Waiting { inviter, fingerprint: fingerprint(&own) });
    };
    let mut streams = Streams::new();
    let mut out = Outbox::<JoinEvent>::new();
    joining.handle(now(), Input::Tick, &mut out);
    let mut packet = [0; MAX_DATAGRAM];
    loop {
        if let Some(result) = perform(&mut out, &socket, &mut streams, &mut on_waiting).await {
            return result;
        }
        let wait = joining.due().map_or(Duration::from_secs(1), |due| due.since(now()));
        tokio::select! {
            received = socket.recv_from(&mut packet) => match received {
                Ok((len, from)) => {
                    let link = Link::datagram(MAIN_SOCKET, None, from);
                    let packet = packet.get_mut(..len).unwrap_or_default();
                    joining.handle(now(), Input::ControlPacket(link, packet), &mut out);
                }
                // Ignore an ICMP error about one of the addresses.
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

/// Performs all outputs. Returns the result, if there is one. The packets that follow it end the session at the inviter,
/// which otherwise keeps it, with a copy of the roster, for a minute.
async fn perform(
    out: &mut Outbox<JoinEvent>,
    socket: &UdpSocket,
    streams: &mut Streams,
    on_waiting: &mut impl FnMut(Waits),
) -> Option<Result<Box<Joined>, Fault>> {
    let is_ipv6 = socket.local_addr().is_ok_and(|local| local.is_ipv6());
    let mut result = None;
    while let Some(output) = out.pop() {
        match output {
            Output::Send(link, packet) if link.is_stream() => streams.send(link, &packet),
            Output::Send(link, packet) => {
                let to = as_family(link.remote(), is_ipv6);
                // Ignore an unreachable address: it is one of several.
                let _ = socket.send_to(&packet, to).await;
            }
            Output::Hangup(link) => streams.close(link),
            Output::Event(JoinEvent::OpenStream(to)) => streams.open(to),
            Output::Event(JoinEvent::Joined(joined)) => result = Some(Ok(joined)),
            Output::Event(JoinEvent::Waiting(waits)) => on_waiting(waits),
            Output::Event(JoinEvent::Failed(failure)) => {
                result = Some(Err(Fault::environment(failure.to_string())));
            }
            _ => {}
        }
    }
    result
}

/// Returns an address in the form that a socket of this family accepts.
fn as_family(address: SocketAddr, ipv6: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if ipv6 => SocketAddr::from((v4.to_ipv6_mapped(), address.port())),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use adit_mesh::node::JoinFailure;
    use adit_mesh::roster::{Genesis, Label, Layer};

    use super::*;

    #[test]
    fn a_full_disk_is_found_before_the_token_is_used() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(fill(full).unwrap_err().kind(), io::ErrorKind::StorageFull);
        let refused = check_room(Path::new("/proc/adit/mesh")).unwrap_err().to_string();
        assert!(refused.contains("/proc") && refused.contains("same token"), "{refused}");
        let dir = tempfile::tempdir().unwrap();
        check_room(&dir.path().join("data/mesh")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn the_packets_after_the_result_reach_the_inviter() {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let (socket, inviter) = (bind().await.unwrap(), bind().await.unwrap());
        let mut out = Outbox::new();
        out.event(JoinEvent::Failed(JoinFailure::NotApproved));
        let link = Link::datagram(MAIN_SOCKET, None, inviter.local_addr().unwrap());
        out.send(link, b"the end".to_vec());
        let result = perform(&mut out, &socket, &mut Streams::new(), &mut |_| {}).await;
        assert!(result.unwrap().unwrap_err().to_string().contains("did not approve"));
        let mut packet = [0; 16];
        let len = inviter.recv(&mut packet).await.unwrap();
        assert_eq!(&packet[..len], b"the end");
    }

    #[test]
    fn a_node_is_written_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        let key = new_key().unwrap();
        let genesis = Genesis {
            name: Label::new("home").unwrap(),
            admins: vec![key.public_hash()],
            threshold: 1,
            ranges: Vec::new(),
            random: [7; 32],
            layer: Layer::Ip,
        };
        let changes = Changes::new(genesis).unwrap();
        // A folder in place of the file makes the last step but one fail.
        fs::create_dir_all(paths.reach_file()).unwrap();
        write_node(&paths, &key, &Reach::default(), &changes).unwrap_err();
        assert!(!paths.node_key_file().exists() && !paths.exists());
        fs::remove_dir(paths.reach_file()).unwrap();
        write_node(&paths, &key, &Reach::default(), &changes).unwrap();
        assert!(paths.node_key_file().exists() && paths.exists());
    }
}
