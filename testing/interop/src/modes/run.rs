//! Runs one mode.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Credentials, Data, Device, Mode, Transport};
use crate::case::{
    Configs, EXIT_NOTICES, InnerAddrs, READY, SETUP_LIMIT, TestEnv, dial, inner_addrs_on, rekeys,
    serve,
};
use crate::failure::{Result, ensure};
use crate::matrix::Wrapping;
use crate::net::{End, Pair};
use crate::peer::Program;
use crate::pki::{Pki, PkiTool};
use crate::process::{Daemon, run as run_program};
use crate::traffic::{Stream, ping, tcp};
use crate::wait::ScaledInstant;

/// The maximum interruption of traffic after a move or a death. Over UDP, silence reveals the end ([`KEEPALIVE`]),
/// after which openvpn waits for up to a few seconds before it dials.
const RECOVERY: Duration = Duration::from_secs(30);
const KEEPALIVE: &str = "keepalive 1 5";
/// The addresses with a static key. They are configured by hand.
const SERVER_V4: &str = "10.88.0.1";
const CLIENT_V4: &str = "10.88.0.2";

/// Both ends, and everything needed to restart them.
struct Ends<'a> {
    mode: &'a Mode,
    folder: &'a Path,
    configs: Configs,
    programs: [&'a Program; 2],
    pair: Pair,
    server: Daemon,
    client: Daemon,
    inner: [InnerAddrs; 2],
}

/// Runs one mode; `name` is that of the test, and unique.
///
/// # Errors
/// Any deviation, with the logs that show the cause.
pub fn run(
    env: &TestEnv,
    name: &str,
    mode: &Mode,
    server: &Program,
    client: &Program,
) -> Result<String> {
    let folder = env.sandbox.folder(&name.replace('/', "_"))?;
    let mut ends = Ends::start(env, &folder, mode, [server, client])?;
    let told = ends.live().map_err(|failure| {
        format!("{failure}\n{}\n{}", ends.server.failure(""), ends.client.failure(""))
    })?;
    ends.part()?;
    Ok(told)
}

impl<'a> Ends<'a> {
    fn start(
        env: &TestEnv,
        folder: &'a Path,
        mode: &'a Mode,
        programs: [&'a Program; 2],
    ) -> Result<Self> {
        let configs = configs(&env.pki, mode, programs)?;
        let pair = Pair::new()?;
        let mut server = serve(&pair, folder, &configs, programs[0])?;
        if mode.credentials == Credentials::StaticKey {
            // It is ready only after the other end has sent something, so only its socket can be waited for.
            std::thread::sleep(Duration::from_secs(1));
        } else {
            server.wait_for(READY, SETUP_LIMIT)?;
        }
        let mut client = dial(&pair, folder, &configs, programs[1])?;
        if let Err(failure) = client.wait_for(READY, SETUP_LIMIT) {
            return Err(format!("{failure}\n{}", server.failure("meanwhile")).into());
        }
        server.wait_for(READY, SETUP_LIMIT)?;
        let device = format!("{}0", mode.device.name());
        let inner =
            [inner_addrs_on(&pair.server, &device)?, inner_addrs_on(&pair.client, &device)?];
        Ok(Ends { mode, folder, configs, programs, pair, server, client, inner })
    }

    /// Runs a tunnel through all events between its beginning and its end.
    fn live(&mut self) -> Result<String> {
        self.pings(56)?;
        self.pings(3000)?;
        self.transfers(4_000_000)?;
        let mut told = Vec::new();
        if self.mode.credentials != Credentials::StaticKey {
            told.push(self.rekey()?);
        }
        if self.mode.transport == Transport::Udp {
            self.pair.move_client()?;
            told.push(format!("moved in {} ms", self.wait_for_ping()?.as_millis()));
            self.transfers(500_000)?;
        }
        told.push(format!("client back in {} ms", self.kill_client()?.as_millis()));
        told.push(format!("server back in {} ms", self.kill_server()?.as_millis()));
        self.transfers(500_000)?;
        Ok(told.join(", "))
    }

    fn pings(&self, size: usize) -> Result<()> {
        let [server, client] = self.inner;
        for (from, to) in [(End::Client, server), (End::Server, client)] {
            for address in std::iter::once(to.v4).chain(to.v6) {
                // The first packet may wait for a neighbour's hardware address, and be dropped when another one takes
                // its place.
                let got = ping(self.pair.namespace(from), address, size, 4)?;
                ensure(got >= 3, || format!("{got} of 4 pings of {size} bytes to {address}"))?;
            }
        }
        Ok(())
    }

    fn transfers(&self, bytes: usize) -> Result<()> {
        let (pair, [server, client]) = (&self.pair, self.inner);
        tcp(&pair.client, &pair.server, server.v4, bytes)?;
        tcp(&pair.server, &pair.client, client.v4, bytes)?;
        Ok(())
    }

    /// Waits for a rekey under traffic; no packet may be missing, changed or duplicated.
    fn rekey(&mut self) -> Result<String> {
        let up = Stream::start(&self.pair.client, &self.pair.server, self.inner[0].v4, 1300)?;
        let end = ScaledInstant::now() + Duration::from_secs(40);
        let before = rekeys(&self.client).min(rekeys(&self.server));
        while rekeys(&self.client).min(rekeys(&self.server)) <= before {
            ensure(ScaledInstant::now() < end, || "no rekey".to_owned())?;
            std::thread::sleep(Duration::from_millis(100));
        }
        // The initiator keeps sending under the old key for a while. Its switch to the new key is part of the test.
        std::thread::sleep(Duration::from_millis(1500));
        let delivery = up.finish()?;
        let dropped = self.pair.dropped()?;
        ensure(
            delivery.duplicated == 0
                && delivery.corrupted == 0
                && u64::from(delivery.sent - delivery.received) <= dropped,
            || format!("across a rekey: {delivery:?}, the kernel dropped {dropped}"),
        )?;
        Ok(format!("{} of {} datagrams across a rekey", delivery.received, delivery.sent))
    }

    /// Kills the client, which returns, perhaps from another port.
    fn kill_client(&mut self) -> Result<Duration> {
        self.client.signal(Signal::SIGKILL)?;
        self.client.wait_exit(Duration::from_secs(5))?;
        self.client = dial(&self.pair, self.folder, &self.configs, self.programs[1])?;
        self.client.wait_for(READY, SETUP_LIMIT)?;
        self.wait_for_ping()
    }

    /// Kills the server. The client notices the end of the stream or the silence, and dials again on its own.
    fn kill_server(&mut self) -> Result<Duration> {
        self.server.signal(Signal::SIGKILL)?;
        self.server.wait_exit(Duration::from_secs(5))?;
        self.server = serve(&self.pair, self.folder, &self.configs, self.programs[0])?;
        if self.mode.device == Device::Tap {
            // The new device has another hardware address, which the client's kernel would notice within a minute.
            self.pair.client.run("ip", &["neighbour", "flush", "dev", "tap0"])?;
        }
        self.wait_for_ping()
    }

    fn wait_for_ping(&self) -> Result<Duration> {
        let (begin, address) = (ScaledInstant::now(), self.inner[0].v4);
        while ping(&self.pair.client, address, 56, 1)? == 0 {
            ensure(begin.elapsed() < RECOVERY, || format!("{address} does not answer any more"))?;
        }
        Ok(begin.elapsed())
    }

    /// Ends the client; the server notices at once if the protocol has an exit message.
    fn part(mut self) -> Result<()> {
        self.client.signal(Signal::SIGTERM)?;
        if self.mode.transport == Transport::Udp && self.mode.credentials != Credentials::StaticKey
        {
            self.server.wait_for_any(EXIT_NOTICES, Duration::from_secs(5))?;
        }
        let status = self.client.wait_exit(Duration::from_secs(10))?;
        ensure(status.success(), || self.client.failure(&format!("ended with {status}")).0)?;
        self.server.stop()
    }
}

fn configs(pki: &Pki, mode: &Mode, programs: [&Program; 2]) -> Result<Configs> {
    let mut configs = Configs::default();
    let six = if mode.outer_v6 { "6" } else { "" };
    let [proto_server, proto_client] = match mode.transport {
        Transport::Udp => [format!("udp{six}"), format!("udp{six}")],
        Transport::Tcp => [format!("tcp{six}-server"), format!("tcp{six}-client")],
    };
    let device = mode.device.name();
    configs.both(&format!("dev {device}\nverb 3\npersist-key\npersist-tun"));
    configs.server(&format!("proto {proto_server}\nport 1194\n{KEEPALIVE}"));
    configs.client(&format!("proto {proto_client}\nnobind\nconnect-retry 1 2"));
    configs.client(&format!("remote {} 1194", End::Server.outer(mode.outer_v6)));
    if mode.data == Data::Cbc {
        configs.both("auth SHA256");
    }
    match mode.credentials {
        Credentials::StaticKey => static_key(&mut configs, pki, mode.device),
        Credentials::Certificates | Credentials::Fingerprint => tls(&mut configs, pki, mode)?,
    }
    for (program, lines) in programs.iter().zip([&mut configs.server, &mut configs.client]) {
        // The kernel's module, if present, is a different implementation.
        if program.may_offload() {
            lines.push_str("disable-dco\n");
        }
    }
    Ok(configs)
}

fn static_key(configs: &mut Configs, pki: &Pki, device: Device) {
    let key = pki.wrapping_key("static.key");
    configs.server(&format!("secret {} 0\nfloat", key.display()));
    configs.client(&format!("secret {} 1\n{KEEPALIVE}", key.display()));
    configs.both(&format!("cipher {}", Data::Cbc.cipher()));
    let (server, client) = match device {
        Device::Tun => (format!("{SERVER_V4} {CLIENT_V4}"), format!("{CLIENT_V4} {SERVER_V4}")),
        Device::Tap => (format!("{SERVER_V4} 255.255.255.0"), format!("{CLIENT_V4} 255.255.255.0")),
    };
    configs.server(&format!("ifconfig {server}"));
    configs.client(&format!("ifconfig {client}"));
}

fn tls(configs: &mut Configs, pki: &Pki, mode: &Mode) -> Result<()> {
    configs.server("dh none\ntopology subnet\nserver 10.88.0.0 255.255.255.0");
    configs.server("server-ipv6 fd88::/64\nreneg-sec 6\nhand-window 5");
    configs.client("client\nreneg-sec 0");
    if mode.transport == Transport::Udp {
        configs.client("explicit-exit-notify 1");
    }
    configs.wrap(
        pki,
        if mode.wrapping == Wrapping::TlsAuth {
            Wrapping::TlsAuthBidirectional
        } else {
            mode.wrapping
        },
    );
    configs.both(&format!("data-ciphers {}", mode.data.cipher()));
    let path = |name: &str| pki.file(PkiTool::OpenSslEc, name).display().to_string();
    for (end, name, other) in [(End::Server, "server", "client"), (End::Client, "client", "server")]
    {
        let trust = if mode.credentials == Credentials::Fingerprint {
            format!("peer-fingerprint {}", fingerprint(&path(&format!("{other}.crt")))?)
        } else {
            format!("ca {}", path("ca.crt"))
        };
        let lines = format!(
            "{trust}\ncert {}\nkey {}\nremote-cert-tls {other}",
            path(&format!("{name}.crt")),
            path(&format!("{name}.key")),
        );
        match end {
            End::Server => configs.server(&lines),
            End::Client => configs.client(&lines),
        }
    }
    Ok(())
}

/// Returns the SHA-256 of a certificate, in hexadecimal with colons.
fn fingerprint(path: &str) -> Result<String> {
    let told = run_program("openssl", &["x509", "-noout", "-fingerprint", "-sha256", "-in", path])?;
    let (_, digits) = told.trim().split_once('=').ok_or("openssl told no fingerprint")?;
    Ok(digits.to_owned())
}
