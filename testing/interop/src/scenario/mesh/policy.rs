//! Tests of a mesh's policy.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::traffic::silent;
use crate::wait::until;

const PORT: u16 = 7000;

/// The time limit for a policy to reach connected nodes.
const SPREAD: Duration = Duration::from_secs(5);

/// The time without an answer after which a connection counts as ended.
const SILENCE: Duration = Duration::from_secs(2);

/// The rule for the group `web`.
const POLICY: &str = "table inet mesh {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ip saddr @group:web icmp type echo-request accept
        ip saddr @group:web ip daddr @node:node3 tcp dport 7000 accept
    }
}
";

/// A policy that is set while nodes run separates members on all nodes. Withdrawing a right ends connections. A node that was down enforces
/// the policy from its first packet on.
pub(super) fn policy(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.found()?;
    bed.join(1, &["--group", "web"])?;
    bed.join(2, &[])?;
    let (web, other) = (bed.ipv4(1)?, bed.ipv4(2)?);
    ping_until(&bed.machines[1].space, other, LIMIT)?;
    ping_until(&bed.machines[2].space, web, LIMIT)?;
    let file = scenario.folder().join("policy.nft");
    let put = |bed: &MeshTestbed, text: &str| -> Result<()> {
        std::fs::write(&file, text)?;
        bed.machines[0].mesh(&["policy", "set", &file.to_string_lossy()]).map(drop)
    };
    let client = POLICY.replace("@node:node3", "@client:node3");
    std::fs::write(&file, client)?;
    let refused = bed.machines[0].refused(&["policy", "set", &file.to_string_lossy()])?;
    ensure(refused.contains("write @node:node3"), || refused.clone())?;
    put(&bed, POLICY)?;
    until("the policy is in force", SPREAD, || silent(&bed.machines[2].space, web))?;
    ping_until(&bed.machines[1].space, other, LIMIT)?;
    serve(&bed.machines[2].space, other)?;
    let mut stream = connect(&bed.machines[1].space, other)?;
    ensure(echoes(&mut stream)?, || "the service does not answer".into())?;
    explained(&bed)?;
    // The members of the group lose their right.
    put(&bed, &POLICY.replace("tcp dport 7000", "tcp dport 7001"))?;
    until("the connection ends", SPREAD, || Ok(!echoes(&mut stream)?))?;
    // A starting node enforces the policy of its last run at once.
    bed.stop(2)?;
    bed.up(2)?;
    ping_until(&bed.machines[1].space, other, LIMIT)?;
    ensure(silent(&bed.machines[2].space, web)?, || "no policy after a restart".into())?;
    let refused = bed.machines[1].refused(&["policy", "clear"])?;
    ensure(refused.contains("no right"), || refused.clone())?;
    bed.machines[0].mesh(&["policy", "clear"])?;
    ping_until(&bed.machines[2].space, web, LIMIT)?;
    Ok("enforced, changed and ended".into())
}

/// A node explains which packets pass.
fn explained(bed: &MeshTestbed) -> Result<()> {
    let explain = |packet: &str| bed.machines[2].mesh(&["policy", "explain", packet]);
    let passes = explain("tcp node2 > node3:7000")?;
    ensure(passes.contains("=> accepted"), || passes.clone())?;
    let by_filter = bed.machines[2].adit(&["filter", "explain", "tcp node2 > node3:7000"])?;
    ensure(by_filter == passes, || by_filter.clone())?;
    for packet in ["tcp node2 > node3:22", "icmp node3 > node2 echo-request"] {
        ensure(explain(packet).is_err(), || format!("{packet} is said to pass"))?;
    }
    Ok(())
}

/// Echoes one client's data.
fn serve(space: &Namespace, address: IpAddr) -> Result<()> {
    let listen = move || Ok(TcpListener::bind(SocketAddr::new(address, PORT))?);
    let listener = space.thread(listen)?.join().ok().context("a thread")??;
    std::thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept()
            && let Ok(mut from) = stream.try_clone()
        {
            let mut to = stream;
            let _ = std::io::copy(&mut from, &mut to);
        }
    });
    Ok(())
}

fn connect(space: &Namespace, address: IpAddr) -> Result<TcpStream> {
    let to = SocketAddr::new(address, PORT);
    let dial = move || Ok(TcpStream::connect_timeout(&to, LIMIT)?);
    let stream = space.thread(dial)?.join().ok().context("a thread")??;
    stream.set_read_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Returns whether the other end answers.
fn echoes(stream: &mut TcpStream) -> Result<bool> {
    if stream.write_all(b"x").is_err() {
        return Ok(false);
    }
    let mut answer = [0];
    Ok(stream.read_exact(&mut answer).is_ok())
}
