//! Streams through proxies, and a port that a web server shares.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::Stage;
use crate::cell::{Configs, Tunnel};
use crate::failure::{Context, Result, ensure};
use crate::net::{End, Pair};
use crate::process::Daemon;
use crate::wait::Moment;

/// The server's address, which only the proxy's host can reach.
const HIDDEN: &str = "198.18.0.1";
const HTTP_PORT: u16 = 8888;
const SOCKS_PORT: u16 = 1080;
/// Of both proxies.
const LOGIN: &str = "ann\nsecret\n";

/// A server behind the proxy's host, and configs to reach it over TCP.
fn behind(stage: &Stage<'_>) -> Result<(Pair, Configs)> {
    let pair = Pair::new()?;
    pair.server.run("ip", &["address", "add", &format!("{HIDDEN}/32"), "dev", "lo"])?;
    let mut configs = over_tcp(stage);
    let near = End::Server.outer(false).to_string();
    configs.client = configs.client.replace(&format!("remote {near}"), &format!("remote {HIDDEN}"));
    let login = stage.folder().join("login");
    fs::write(&login, LOGIN)?;
    Ok((pair, configs))
}

fn over_tcp(stage: &Stage<'_>) -> Configs {
    let mut configs = stage.configs();
    configs.server = configs.server.replace("proto udp4", "proto tcp4-server");
    configs.client = configs.client.replace("proto udp4", "proto tcp4-client");
    configs.client = configs.client.replace("explicit-exit-notify 1\n", "");
    configs
}

/// `http-proxy` with Basic authentication, through tinyproxy.
pub(super) fn http(stage: &Stage<'_>) -> Result<String> {
    let (pair, mut configs) = behind(stage)?;
    let proxy = tinyproxy(stage, &pair)?;
    configs.client(&http_proxy(stage));
    through(stage, pair, &configs, proxy, HTTP_PORT)
}

/// The same server in two `<connection>` blocks: without the proxy it cannot be reached.
pub(super) fn http_in_a_block(stage: &Stage<'_>) -> Result<String> {
    let (pair, mut configs) = behind(stage)?;
    let proxy = tinyproxy(stage, &pair)?;
    let lines = configs.client.lines().filter(|line| !line.starts_with("remote "));
    configs.client = lines.map(|line| format!("{line}\n")).collect();
    let block = |more: &str| {
        format!(
            "<connection>\nremote {HIDDEN} 1194 tcp4-client\nconnect-timeout 2\n{more}\n</connection>"
        )
    };
    configs.client(&block(""));
    configs.client(&block(&http_proxy(stage)));
    through(stage, pair, &configs, proxy, HTTP_PORT)
}

fn http_proxy(stage: &Stage<'_>) -> String {
    let (near, login) = (End::Server.outer(false), stage.folder().join("login"));
    format!("http-proxy {near} {HTTP_PORT} {} basic", login.display())
}

fn tinyproxy(stage: &Stage<'_>, pair: &Pair) -> Result<Daemon> {
    let path = stage.folder().join("tinyproxy.conf");
    let text = format!(
        "Port {HTTP_PORT}\nListen 0.0.0.0\nTimeout 600\nMaxClients 20\nAllow 0.0.0.0/0\nConnectPort 1194\n\
         BasicAuth ann secret\nDisableViaHeader Yes\n"
    );
    fs::write(&path, text)?;
    let mut command = pair.server.command("tinyproxy");
    command.arg("-d").arg("-c").arg(&path);
    Daemon::spawn("tinyproxy", command)
}

/// `socks-proxy` with user name and password, through microsocks.
pub(super) fn socks(stage: &Stage<'_>) -> Result<String> {
    let (pair, mut configs) = behind(stage)?;
    let mut command = pair.server.command("microsocks");
    command.args(["-p", &SOCKS_PORT.to_string(), "-u", "ann", "-P", "secret"]);
    let proxy = Daemon::spawn("microsocks", command)?;
    let near = End::Server.outer(false);
    let login = stage.folder().join("login");
    configs.client(&format!("socks-proxy {near} {SOCKS_PORT} {}", login.display()));
    through(stage, pair, &configs, proxy, SOCKS_PORT)
}

/// `socks-proxy` over UDP, through dante: a relay for datagrams.
pub(super) fn socks_udp(stage: &Stage<'_>) -> Result<String> {
    let (pair, mut configs) = behind(stage)?;
    for lines in [&mut configs.server, &mut configs.client] {
        *lines = lines
            .replace("proto tcp4-server", "proto udp4")
            .replace("proto tcp4-client", "proto udp4");
    }
    let near = End::Server.outer(false);
    let path = stage.folder().join("danted.conf");
    let text = format!(
        "logoutput: stderr\ninternal: {near} port = {SOCKS_PORT}\nexternal: lo\nexternal: {near}\n\
         external.rotation: route\nclientmethod: none\nsocksmethod: none\nuser.privileged: root\n\
         user.unprivileged: root\n\
         client pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n\
         socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 command: udpassociate }}\n\
         socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 command: udpreply }}\n"
    );
    fs::write(&path, text)?;
    for end in [&pair.server, &pair.client] {
        end.run("ip", &["link", "set", "lo", "up"])?;
    }
    let mut command = pair.server.command("danted");
    command.arg("-f").arg(&path);
    let proxy = Daemon::spawn("danted", command)?;
    configs.client(&format!("socks-proxy {near} {SOCKS_PORT}"));
    through(stage, pair, &configs, proxy, SOCKS_PORT)
}

fn through(
    stage: &Stage<'_>,
    pair: Pair,
    configs: &Configs,
    proxy: Daemon,
    port: u16,
) -> Result<String> {
    let address = SocketAddr::new(End::Server.outer(false), port);
    wait_for_port(&pair, address)?;
    let tunnel = Tunnel::start(pair, stage.folder(), configs, stage.server, stage.client)
        .map_err(|failure| format!("{failure}\n{}", proxy.failure("the proxy")))?;
    tunnel.ping_all(4)?;
    needs(&tunnel, proxy)
}

/// A static key over TCP between two points, of which the one that dials has to pass tinyproxy.
pub(super) fn http_between_two_points(stage: &Stage<'_>) -> Result<String> {
    let (pair, _) = behind(stage)?;
    let proxy = tinyproxy(stage, &pair)?;
    let mut configs = super::p2p::secret_on_stream(stage, false, false);
    let near = End::Server.outer(false);
    configs.client = configs.client.replace(&format!("remote {near}"), &format!("remote {HIDDEN}"));
    configs.client(&http_proxy(stage));
    wait_for_port(&pair, SocketAddr::new(near, HTTP_PORT))?;
    let tunnel = super::p2p::start_on_stream(stage, &configs, pair)?;
    needs(&tunnel, proxy)
}

/// Ends the proxy, and the tunnel must fall.
fn needs(tunnel: &Tunnel, mut proxy: Daemon) -> Result<String> {
    // Its helpers first: they would go on without it. Not all proxies have some.
    let _ = tunnel.pair.server.run("pkill", &["-KILL", "-P", &proxy.pid().to_string()]);
    proxy.signal(nix::sys::signal::Signal::SIGKILL)?;
    proxy.wait_exit(Duration::from_secs(5))?;
    let address = tunnel.server_inner.v4;
    let end = Moment::now() + Duration::from_secs(10);
    while !crate::traffic::silent(&tunnel.pair.client, address)? {
        ensure(Moment::now() < end, || tunnel.client.failure("it does not need the proxy").0)?;
    }
    Ok(String::new())
}

fn wait_for_port(pair: &Pair, address: SocketAddr) -> Result<()> {
    let connected = pair.client.thread(move || {
        for _ in 0..50 {
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(false)
    })?;
    let connected = connected.join().map_err(|_| "a thread panicked")??;
    ensure(connected, || format!("nobody listens on {address}"))
}

/// `port-share`: a browser at the tunnel's port gets the web server, while a client has its tunnel there.
pub(super) fn port_share(stage: &Stage<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let mut configs = over_tcp(stage);
    configs.server("port-share 127.0.0.1 8080");
    pair.server.run("ip", &["link", "set", "lo", "up"])?;
    let (ready, wait) = std::sync::mpsc::channel();
    let web = pair.server.thread(move || -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:8080")?;
        // Who waits has given up, or hears it.
        let _ = ready.send(());
        for _ in 0..2 {
            let (mut connection, _) = listener.accept()?;
            let mut request = [0; 18];
            connection.read_exact(&mut request)?;
            connection.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello")?;
        }
        Ok(())
    })?;
    wait.recv_timeout(Duration::from_secs(5)).context("the web server did not start")?;
    let tunnel = Tunnel::start(pair, stage.folder(), &configs, stage.server, stage.client)?;
    for _ in 0..2 {
        let page = tunnel.pair.client.thread(|| -> Result<String> {
            let mut connection = TcpStream::connect("192.0.2.1:1194")?;
            connection.set_read_timeout(Some(Duration::from_secs(10)))?;
            connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut page = String::new();
            connection.read_to_string(&mut page)?;
            Ok(page)
        })?;
        let page = page.join().map_err(|_| "the browser panicked")??;
        ensure(page.ends_with("hello"), || tunnel.server.failure(&format!("got {page:?}")).0)?;
        tunnel.ping_all(4)?;
    }
    web.join().map_err(|_| "the web server panicked")??;
    Ok(String::new())
}
