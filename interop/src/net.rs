//! Namespaces joined by cables.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, setns};

use crate::failure::{Context, Result};
use crate::process::{output, run};

/// A network namespace of the private world, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new namespace with its loopback up. `label` is for a person who looks on.
    ///
    /// # Errors
    /// `ip netns` failed.
    pub fn new(label: &str) -> Result<Namespace> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{label}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name])?;
        let namespace = Namespace { name };
        namespace.run("ip", &["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its name for `ip netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a program inside to its end and returns what it printed.
    ///
    /// # Errors
    /// It failed: with what it said.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(program);
        command.args(arguments);
        output(command)
    }

    /// Runs `work` on a new thread that lives inside this namespace.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let handle = File::open(format!("/run/netns/{}", self.name)).context(&self.name)?;
        Ok(std::thread::spawn(move || {
            setns(handle, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
            work()
        }))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // What is left over ends with the private world.
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}

/// The interface of the cable, at both ends.
pub const CABLE: &str = "cable";

/// Two namespaces joined by one cable (a veth pair).
#[derive(Debug)]
pub struct Pair {
    /// Where the server runs: 192.0.2.1 and 2001:db8::1.
    pub server: Namespace,
    /// Where the client runs: 192.0.2.2 and 2001:db8::2.
    pub client: Namespace,
}

/// What the cable's ends may leave to the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// As veth comes: super-packets cross the cable whole.
    All,
    /// Every packet crosses alone, and the receiver's kernel merges them again: a network card with GRO.
    WireGro,
    /// Every packet crosses alone and stays alone.
    Wire,
}

/// Which end of a [`Pair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server's.
    Server,
    /// The client's.
    Client,
}

impl End {
    /// The outer address of this end.
    #[must_use]
    pub fn outer(self, v6: bool) -> IpAddr {
        let host = match self {
            End::Server => 1,
            End::Client => 2,
        };
        if v6 {
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host).into()
        } else {
            Ipv4Addr::new(192, 0, 2, u8::try_from(host).unwrap_or_default()).into()
        }
    }
}

impl Pair {
    /// Makes the two namespaces and the cable.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn new() -> Result<Pair> {
        let pair = Pair { server: Namespace::new("server")?, client: Namespace::new("client")? };
        let (server, client) = (pair.server.name(), pair.client.name());
        let ends = ["type", "veth", "peer", "name", CABLE, "netns", client];
        run("ip", &[&["link", "add", CABLE, "netns", server][..], &ends].concat())?;
        for end in [End::Server, End::Client] {
            let namespace = pair.namespace(end);
            let (v4, v6) = (format!("{}/24", end.outer(false)), format!("{}/64", end.outer(true)));
            namespace.run("ip", &["address", "add", &v4, "dev", CABLE])?;
            namespace.run("ip", &["address", "add", &v6, "dev", CABLE, "nodad"])?;
            namespace.run("ip", &["link", "set", CABLE, "up"])?;
        }
        Ok(pair)
    }

    /// The namespace of an end.
    #[must_use]
    pub fn namespace(&self, end: End) -> &Namespace {
        match end {
            End::Server => &self.server,
            End::Client => &self.client,
        }
    }

    /// Sets what the cable's ends leave to each other.
    ///
    /// # Errors
    /// `ethtool` failed.
    pub fn set_offload(&self, offload: Offload) -> Result<()> {
        let (send, gro) = match offload {
            Offload::All => return Ok(()),
            Offload::WireGro => ("off", "on"),
            Offload::Wire => ("off", "off"),
        };
        let features =
            ["-K", CABLE, "tso", send, "gso", send, "tx-udp-segmentation", send, "gro", gro];
        self.server.run("ethtool", &features)?;
        self.client.run("ethtool", &features)?;
        Ok(())
    }

    /// Drops this share of the datagrams that cross the cable, in both directions, at random.
    ///
    /// # Errors
    /// `nft` failed.
    pub fn set_loss(&self, percent: u32) -> Result<()> {
        for namespace in [&self.server, &self.client] {
            namespace.run("nft", &["add", "table", "inet", "loss"])?;
            let chain = "{ type filter hook input priority -300 ; }";
            namespace.run("nft", &["add", "chain", "inet", "loss", "input", chain])?;
            namespace.run("nft", &["flush", "chain", "inet", "loss", "input"])?;
            if percent > 0 {
                let rule = format!(
                    "iifname {CABLE} meta l4proto udp numgen random mod 100 < {percent} counter drop"
                );
                namespace.run("nft", &["add", "rule", "inet", "loss", "input", &rule])?;
            }
        }
        Ok(())
    }

    /// tcpdump of the server's end of the cable, one line for each UDP datagram.
    #[must_use]
    pub fn tcpdump(&self) -> Command {
        let mut command = self.server.command("tcpdump");
        command.args(["-i", CABLE, "-n", "-l", "--immediate-mode", "udp"]);
        command
    }

    /// How many datagrams the loss rules have eaten in both directions so far.
    ///
    /// # Errors
    /// `nft` failed, or there are no such rules.
    pub fn lost(&self) -> Result<u64> {
        let mut total = 0;
        for namespace in [&self.server, &self.client] {
            let listing = namespace.run("nft", &["list", "chain", "inet", "loss", "input"])?;
            let mut words = listing.split_whitespace().skip_while(|word| *word != "packets");
            let number: u64 = words.nth(1).unwrap_or("0").parse().context("nft's counter")?;
            total += number;
        }
        Ok(total)
    }

    /// How many packets the kernel has dropped so far at full sockets and at full devices, at both ends.
    ///
    /// # Errors
    /// The counters could not be read.
    pub fn dropped(&self) -> Result<u64> {
        let script =
            "cat /proc/net/snmp /proc/net/snmp6; cat /sys/class/net/*/statistics/tx_dropped";
        let mut total = 0;
        for namespace in [&self.server, &self.client] {
            total += dropped(&namespace.run("sh", &["-c", script])?);
        }
        Ok(total)
    }

    /// Moves the client to another outer address, as a phone that changes its network.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn move_client(&self) -> Result<()> {
        let client = &self.client;
        client.run("ip", &["address", "flush", "dev", CABLE, "scope", "global"])?;
        client.run("ip", &["address", "add", "192.0.2.77/24", "dev", CABLE])?;
        client.run("ip", &["address", "add", "2001:db8::77/64", "dev", CABLE, "nodad"])?;
        Ok(())
    }
}

/// A server and several clients at one switch.
#[derive(Debug)]
pub struct Star {
    /// 192.0.2.1
    pub server: Namespace,
    /// 192.0.2.11 and on.
    pub clients: Vec<Namespace>,
    _switch: Namespace,
}

impl Star {
    /// Makes the namespaces and their cables to a bridge.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn new(clients: u8) -> Result<Star> {
        let switch = Namespace::new("switch")?;
        switch.run("ip", &["link", "add", "bridge", "type", "bridge"])?;
        switch.run("ip", &["link", "set", "bridge", "up"])?;
        let plug = |label: &str, host: u8| -> Result<Namespace> {
            let namespace = Namespace::new(label)?;
            let port = format!("port{host}");
            let cable =
                ["link", "add", &port, "netns", switch.name(), "type", "veth", "peer", "name"];
            run("ip", &[&cable[..], &[CABLE, "netns", namespace.name()]].concat())?;
            switch.run("ip", &["link", "set", &port, "master", "bridge", "up"])?;
            let address = format!("192.0.2.{host}/24");
            namespace.run("ip", &["address", "add", &address, "dev", CABLE])?;
            namespace.run("ip", &["link", "set", CABLE, "up"])?;
            Ok(namespace)
        };
        let server = plug("server", 1)?;
        let clients = (11..11 + clients).map(|host| plug("client", host)).collect::<Result<_>>()?;
        Ok(Star { server, clients, _switch: switch })
    }
}

/// The sum of the receive buffer errors of UDP and of bare numbers, which are the devices' counters.
fn dropped(counters: &str) -> u64 {
    let mut total = 0;
    let mut names: Vec<&str> = Vec::new();
    for line in counters.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [number] => total += number.parse().unwrap_or(0),
            ["Udp6RcvbufErrors", number] => total += number.parse().unwrap_or(0),
            ["Udp:", ..] if names.is_empty() => names = words,
            ["Udp:", ..] => {
                let column = names.iter().position(|name| *name == "RcvbufErrors");
                let number = column.and_then(|column| words.get(column)?.parse::<u64>().ok());
                total += number.unwrap_or(0);
            }
            _ => {}
        }
    }
    total
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_drops_from_the_kernels_tables() {
        let tables = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams RcvbufErrors X\nUdp: 100 7 9\nUdp6RcvbufErrors 30\n\
                      Udp6InErrors 1\n5\n0\n";
        assert_eq!(super::dropped(tables), 42);
    }
}
