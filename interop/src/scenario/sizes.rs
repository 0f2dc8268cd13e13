//! Sizes: fragments inside the tunnel, compression framing, and paths that are narrower than they look.

use std::time::Duration;

use super::Stage;
use crate::cell::Tunnel;
use crate::failure::{Result, ensure};
use crate::net::End;
use crate::traffic::{ping, tcp};

const SOON: Duration = Duration::from_secs(10);
/// Enough for some hundred packets each way.
const BULK: usize = 300_000;

/// Pings of many sizes and TCP both ways.
fn everything_passes(tunnel: &Tunnel) -> Result<()> {
    tunnel.ping_all(4)?;
    let (client, server) = (&tunnel.pair.client, &tunnel.pair.server);
    for size in [1100, 1240, 1250, 1260, 1300, 1400, 1472, 2600, 8000] {
        for (from, to) in [(client, tunnel.server_inner.v4), (server, tunnel.client_inner.v4)] {
            let got = ping(from, to, size, 2)?;
            ensure(got == 2, || {
                let what = format!("{got} of 2 pings of {size} bytes from {}", from.name());
                format!("{what}\n{}\n{}", tunnel.server.failure(""), tunnel.client.failure(""))
            })?;
        }
    }
    tcp(client, server, tunnel.server_inner.v4, BULK)?;
    tcp(server, client, tunnel.client_inner.newest(), BULK)?;
    Ok(())
}

/// `fragment`: nothing larger leaves, and everything arrives.
fn fragments(stage: &Stage<'_>, lines: &str, limit: usize) -> Result<String> {
    let mut configs = stage.configs();
    configs.both(lines);
    configs.server("disable-dco");
    configs.client("disable-dco");
    let tunnel = stage.tunnel(&configs)?;
    // Whatever is longer than one datagram may be does not pass the cable at all.
    for namespace in [&tunnel.pair.server, &tunnel.pair.client] {
        let mtu = (limit + 28).to_string();
        namespace.run("ip", &["link", "set", "cable", "mtu", &mtu.clone()])?;
        let rule = format!(
            "add table inet t; add chain inet t o {{ type filter hook postrouting priority 0; }}; \
             add rule inet t o ip frag-off & 0x3fff != 0 counter drop"
        );
        namespace.run("nft", &[&rule])?;
    }
    everything_passes(&tunnel)?;
    Ok(String::new())
}

pub(super) fn fragment(stage: &Stage<'_>) -> Result<String> {
    fragments(stage, "fragment 1300", 1300)
}

pub(super) fn fragment_of_all(stage: &Stage<'_>) -> Result<String> {
    fragments(stage, "fragment 600 mtu\nmssfix 0\ncomp-lzo no", 572)
}

fn framed(stage: &Stage<'_>, server: &str, client: &str) -> Result<String> {
    let mut configs = stage.configs();
    configs.server(server);
    configs.client(client);
    let tunnel = stage.tunnel(&configs)?;
    everything_passes(&tunnel)?;
    Ok(String::new())
}

pub(super) fn comp_lzo_no(stage: &Stage<'_>) -> Result<String> {
    framed(stage, "comp-lzo no", "comp-lzo no")
}

pub(super) fn compress(stage: &Stage<'_>) -> Result<String> {
    framed(stage, "compress", "compress")
}

pub(super) fn compress_stub(stage: &Stage<'_>) -> Result<String> {
    framed(stage, "compress stub", "compress stub")
}

pub(super) fn compress_stub_v2(stage: &Stage<'_>) -> Result<String> {
    framed(stage, "compress stub-v2", "compress stub-v2")
}

/// The client has nothing of it configured and is told.
pub(super) fn pushed_stub(stage: &Stage<'_>) -> Result<String> {
    framed(stage, "comp-lzo no\npush \"comp-lzo no\"", "")
}

/// Stock compresses what it sends; adit says what to change there, once, and counts.
fn compressing(stage: &Stage<'_>, lines: &str, ours: &str) -> Result<String> {
    let mut configs = stage.configs();
    let adit_serves = matches!(stage.server, crate::peer::Program::Adit(_));
    let stock = format!("allow-compression yes\n{lines}");
    if adit_serves {
        configs.server(ours);
        configs.client(&stock);
    } else {
        configs.client(&format!("{ours}\npull-filter ignore comp"));
        configs.server(&stock);
    }
    let mut tunnel = stage.tunnel(&configs)?;
    let (from, to) = if adit_serves {
        (End::Client, tunnel.server_inner.v4)
    } else {
        (End::Server, tunnel.client_inner.v4)
    };
    // Zeroes compress well.
    let namespace = tunnel.pair.namespace(from).name().to_owned();
    let _ = namespace;
    let _ = tunnel.pair.namespace(from).run(
        "ping",
        &[
            "-q",
            "-n",
            "-i",
            "0.05",
            "-c",
            "10",
            "-W",
            "1",
            "-w",
            "2",
            "-p",
            "00",
            "-s",
            "1000",
            &to.to_string(),
        ],
    );
    let adit = if adit_serves { &mut tunnel.server } else { &mut tunnel.client };
    adit.wait_for("compressed", SOON)?;
    ensure(adit.count("allow-compression") == 1, || adit.failure("said more than once").0)?;
    Ok(String::new())
}

pub(super) fn compressed_lzo(stage: &Stage<'_>) -> Result<String> {
    compressing(stage, "comp-lzo yes", "comp-lzo no")
}

pub(super) fn compressed_lz4(stage: &Stage<'_>) -> Result<String> {
    compressing(stage, "compress lz4", "compress stub")
}

/// A large `tun-mtu`: the kernel cuts outside what exceeds the cable.
pub(super) fn jumbo(stage: &Stage<'_>) -> Result<String> {
    let mut configs = stage.configs();
    configs.both("tun-mtu 9000");
    let tunnel = stage.tunnel(&configs)?;
    let (client, to) = (&tunnel.pair.client, tunnel.server_inner.v4);
    for size in [1400, 5000, 8972] {
        let mut command = client.command("ping");
        let size = size.to_string();
        command.args(["-q", "-n", "-M", "do", "-c", "2", "-W", "2", "-s", &size, &to.to_string()]);
        crate::process::output(command)?;
    }
    everything_passes(&tunnel)?;
    Ok(String::new())
}
