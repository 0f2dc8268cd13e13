//! Namespaces joined by veth pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use adit_linux::ethtool;
use adit_linux::net::Address;
use adit_linux::netns::NetNs;
use ipnet::IpNet;
use nix::mount::{MntFlags, umount2};

use crate::failure::{Context, Failure, Result, ensure};
use crate::process::{Daemon, output, run_with_input};
use crate::wait::ScaledInstant;

/// The directory in which `ip netns` keeps its names.
const NAMES: &str = "/run/netns";

/// The number of threads that create namespaces: the kernel mostly waits while it creates one.
const PARALLEL: usize = 8;

/// A network namespace of the sandbox, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    files: Option<OwnFiles>,
}

/// A mount namespace in which a host has a separate /etc, /run and /var/lib.
#[derive(Debug)]
struct OwnFiles {
    /// The process that keeps the mount namespace alive.
    holder: Daemon,
}

/// Mounts a host's own files. `$1` is its /etc.
const MOUNT_OWN_FILES: &str = "set -e; mount --bind \"$1\" /etc; mount -t tmpfs -o mode=0755 tmpfs /run; \
     mount -t tmpfs -o mode=0755 tmpfs /var/lib; echo mounted; exec sleep infinity";

impl Namespace {
    /// Creates a namespace with its loopback up. `label` is part of its name.
    ///
    /// # Errors
    /// `ip netns` failed.
    pub fn new(label: &str) -> Result<Self> {
        Self::several(&[label])?.pop().context("no namespace was made")
    }

    /// Creates several namespaces with their loopbacks up, which is faster than one by one.
    ///
    /// # Errors
    /// `ip netns` failed.
    pub fn several(labels: &[&str]) -> Result<Vec<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = |label: &&str| format!("{label}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let namespaces: Vec<Self> =
            labels.iter().map(|label| Self { name: name(label), files: None }).collect();
        // The first one is created separately, because this also turns the folder of the names into a shared mount.
        let rest = namespaces.get(1..).unwrap_or_default();
        for group in [namespaces.get(..1).unwrap_or_default(), rest] {
            in_parallel(group, |part| {
                ip(None, part.iter().map(|namespace| format!("netns add {}", namespace.name)))
            })?;
        }
        in_parallel(&namespaces, |part| {
            part.iter().try_for_each(|namespace| {
                namespace.handle()?.configure(async |net| net.set_up(1).await)?.context("loopback")
            })
        })?;
        Ok(namespaces)
    }

    /// Returns its name for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the programs inside a separate /etc, which is the folder `etc`, and an empty /run and /var/lib.
    ///
    /// # Errors
    /// `unshare` or `mount` failed.
    pub fn separate_files(&mut self, etc: &Path) -> Result<()> {
        let mut command = self.command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT_OWN_FILES, "sh"]);
        command.arg(etc);
        let mut holder = Daemon::spawn("own files", command)?;
        holder.wait_for("mounted", Duration::from_secs(10))?;
        self.files = Some(OwnFiles { holder });
        Ok(())
    }

    /// Creates a command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        if let Some(OwnFiles { holder }) = &self.files {
            let mut command = Command::new("nsenter");
            let own = |kind: &str| format!("/proc/{}/ns/{kind}", holder.pid());
            command.arg(format!("--mount={}", own("mnt"))).arg(format!("--net={}", own("net")));
            command.args(["--", program]);
            return command;
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a program inside to completion and returns its output.
    ///
    /// # Errors
    /// The program failed; the error includes its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.command(program);
        command.args(arguments);
        output(command)
    }

    /// Runs `work` on a new thread inside this namespace.
    ///
    /// # Errors
    /// The namespace no longer exists.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let handle = self.handle()?;
        Ok(thread::spawn(move || {
            handle.enter()?;
            work()
        }))
    }

    /// Returns the namespace itself, for work inside that needs no program.
    ///
    /// # Errors
    /// The namespace no longer exists.
    pub fn handle(&self) -> Result<NetNs> {
        NetNs::open(&self.name).context(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Does what `ip netns del` does, without a process. Remnants end with the sandbox.
        let path = Path::new(NAMES).join(&self.name);
        let _ = umount2(&path, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_file(&path);
    }
}

/// Runs lines of `ip` in one process, in the sandbox's first namespace or another.
///
/// # Errors
/// A line failed; the error includes the output of `ip`. The lines after it have not run.
pub fn ip(inside: Option<&Namespace>, lines: impl Iterator<Item = String>) -> Result<()> {
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("ip");
    if let Some(namespace) = inside {
        command.args(["-n", &namespace.name]);
    }
    command.args(["-batch", "-"]);
    run_with_input(command, &(lines.join("\n") + "\n")).map(drop)
}

/// Processes all items, in chunks in parallel.
fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&[T]) -> Result<()> + Sync) -> Result<()> {
    let parts = items.chunks(items.len().div_ceil(PARALLEL).max(1));
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        running.into_iter().try_for_each(|part| {
            part.join().unwrap_or_else(|_| Err("a thread that makes namespaces panicked".into()))
        })
    })
}

/// Gives an end of a veth pair its addresses (IPv6 without duplicate address detection) and offloads, and switches it
/// on.
///
/// # Errors
/// The kernel refused.
pub fn configure_veth(namespace: &Namespace, addresses: &[IpNet], offload: Offload) -> Result<()> {
    let handle = namespace.handle()?;
    handle.run(|| offload.set(VETH))??;
    // No duplicate address detection for its link-local address either, during which it may not answer neighbour
    // solicitations for a second; and there is no router to discover.
    for key in ["accept_dad", "router_solicitations"] {
        handle.set_sysctl(&format!("net.ipv6.conf.{VETH}.{key}"), "0")?;
    }
    let done = handle.configure(async |net| {
        let index = net.link(VETH).await?.index;
        for address in addresses {
            net.add_address(&Address::new(index, *address)).await?;
        }
        net.set_up(index).await
    });
    done?.context(namespace.name())
}

/// The switch's own interface, whose carrier is irrelevant: only its ports carry packets.
const BRIDGE: &str = "bridge";

/// Waits until all interfaces that are up can carry packets. The kernel reports the carrier a moment after the other
/// end has come up; until then they receive no neighbour solicitation, and the next one follows a second later.
///
/// # Errors
/// An interface has no carrier after five seconds.
pub fn wait_for_carriers(namespaces: &[&Namespace]) -> Result<()> {
    let end = ScaledInstant::now() + Duration::from_secs(5);
    in_parallel(namespaces, |part| {
        part.iter().try_for_each(|namespace| {
            let handle = namespace.handle()?;
            loop {
                let links = handle.configure(async |net| net.links().await)?;
                let links = links.context(namespace.name())?;
                let Some(dead) =
                    links.iter().find(|link| link.up && !link.running && link.name != BRIDGE)
                else {
                    return Ok(());
                };
                ensure(ScaledInstant::now() < end, || {
                    format!("{} in {} stays without a carrier", dead.name, namespace.name())
                })?;
                thread::sleep(Duration::from_millis(1));
            }
        })
    })
}

/// A host of a [`star`]: a label and its addresses.
pub type Host = (String, Vec<IpNet>);

/// Creates hosts at one switch (a bridge), each with a veth pair to it; returns the switch's namespace and the hosts'.
/// The first host can reach all others, and they can reach only it; a switch that forwards every host's multicast to
/// all others would be busy with nothing else.
///
/// # Errors
/// `ip` or the kernel refused.
pub fn star(hosts: &[Host], offload: Offload) -> Result<(Namespace, Vec<Namespace>)> {
    let mut labels = vec!["switch"];
    labels.extend(hosts.iter().map(|(label, _)| label.as_str()));
    let mut all = Namespace::several(&labels)?;
    let switch = all.remove(0);
    ip(Some(&switch), [format!("link add {BRIDGE} up type bridge")].into_iter())?;
    let numbered: Vec<(usize, &Namespace, &Host)> =
        all.iter().zip(hosts).enumerate().map(|(n, (space, host))| (n, space, host)).collect();
    in_parallel(&numbered, |part| {
        ip(Some(&switch), part.iter().flat_map(|(n, namespace, _)| port(*n, namespace)))
    })?;
    // A switch forwards packets unchanged. It neither merges them nor keeps merged what the mode wants separate.
    let at_ports = if offload == Offload::All { Offload::All } else { Offload::Wire };
    switch
        .handle()?
        .run(|| (0..all.len()).try_for_each(|n| at_ports.set(&format!("port{n}"))))??;
    in_parallel(&numbered, |part| {
        part.iter().try_for_each(|(_, namespace, (_, addresses))| {
            configure_veth(namespace, addresses, offload)
        })
    })?;
    let everyone: Vec<&Namespace> = std::iter::once(&switch).chain(&all).collect();
    wait_for_carriers(&everyone)?;
    Ok((switch, all))
}

/// Lets this many hosts of a [`star`], besides the first, reach each other.
///
/// # Errors
/// `ip` failed.
pub fn join_ports(switch: &Namespace, hosts: usize) -> Result<()> {
    ip(
        Some(switch),
        (1..=hosts).map(|n| format!("link set port{n} type bridge_slave isolated off")),
    )
}

/// Returns the lines that connect a host to the switch.
fn port(n: usize, namespace: &Namespace) -> Vec<String> {
    let peer = format!("type veth peer name {VETH} netns {}", namespace.name);
    let mut lines = vec![format!("link add port{n} up master {BRIDGE} {peer}")];
    if n > 0 {
        lines.push(format!("link set port{n} type bridge_slave isolated on"));
    }
    lines
}

/// Creates a veth pair between two namespaces; both ends are called [`VETH`] and down.
///
/// # Errors
/// `ip` failed.
pub fn veth_pair(one: &Namespace, other: &Namespace) -> Result<()> {
    let (one, other) = (one.name(), other.name());
    // For interfaces with the same index as their peer the kernel reports a carrier only once a second
    // (linkwatch_urgent_event in net/core/link_watch.c): different indices save that second.
    let (near, far) = (format!("{VETH} index 10"), format!("{VETH} index 11"));
    let line = format!("link add {near} netns {one} type veth peer name {far} netns {other}");
    ip(None, [line].into_iter())
}

/// The interface of the veth pair, at both ends.
pub const VETH: &str = "veth0";

/// Two namespaces joined by one veth pair.
#[derive(Debug)]
pub struct Pair {
    /// The server's namespace: 192.0.2.1 and 2001:db8::1.
    pub server: Namespace,
    /// The client's namespace: 192.0.2.2 and 2001:db8::2.
    pub client: Namespace,
}

/// The offloads of each end of the veth pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// The default of veth: super-packets cross the pair whole.
    All,
    /// Every packet crosses separately, and the receiver's kernel merges them again, as with a network card with GRO.
    WireGro,
    /// Every packet crosses separately and stays separate.
    Wire,
}

impl Offload {
    /// Applies these offloads to an interface of the calling thread's namespace. [`Offload::All`] is the default of a
    /// new interface.
    ///
    /// # Errors
    /// The interface refuses.
    pub fn set(self, interface: &str) -> Result<()> {
        let (send, gro) = match self {
            Self::All => return Ok(()),
            Self::WireGro => (false, true),
            Self::Wire => (false, false),
        };
        let features = SEGMENTATION.map(|name| (name, send));
        let features = [&features[..], &[("rx-gro", gro)]].concat();
        ethtool::set_features(interface, &features).map_err(Failure::from)
    }
}

/// The names for which `ethtool -K` has tso, gso and tx-udp-segmentation.
const SEGMENTATION: [&str; 7] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
    "tx-generic-segmentation",
    "tx-udp-segmentation",
];

/// An end of a [`Pair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server's end.
    Server,
    /// The client's end.
    Client,
}

impl End {
    /// Returns the outer address of this end.
    pub fn outer(self, v6: bool) -> IpAddr {
        let host = match self {
            Self::Server => 1,
            Self::Client => 2,
        };
        if v6 {
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host).into()
        } else {
            Ipv4Addr::new(192, 0, 2, u8::try_from(host).unwrap_or_default()).into()
        }
    }

    /// Returns both addresses with their networks.
    ///
    /// # Errors
    /// None: the prefix lengths fit.
    pub fn addresses(self) -> Result<Vec<IpNet>> {
        let net = |v6, length| IpNet::new(self.outer(v6), length).context("a prefix length");
        Ok(vec![net(false, 24)?, net(true, 64)?])
    }
}

impl Pair {
    /// Creates the two namespaces and the veth pair.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn new() -> Result<Self> {
        let [server, client] = Namespace::several(&["server", "client"])?
            .try_into()
            .map_err(|_| Failure("two namespaces were asked for".to_owned()))?;
        veth_pair(&server, &client)?;
        configure_veth(&server, &End::Server.addresses()?, Offload::All)?;
        configure_veth(&client, &End::Client.addresses()?, Offload::All)?;
        wait_for_carriers(&[&server, &client])?;
        Ok(Self { server, client })
    }

    /// Returns the namespace of an end.
    pub fn namespace(&self, end: End) -> &Namespace {
        match end {
            End::Server => &self.server,
            End::Client => &self.client,
        }
    }

    /// Drops this share of the datagrams that cross the veth pair, in both directions, at random.
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
                    "iifname {VETH} meta l4proto udp numgen random mod 100 < {percent} counter drop"
                );
                namespace.run("nft", &["add", "rule", "inet", "loss", "input", &rule])?;
            }
        }
        Ok(())
    }

    /// Starts tcpdump at the server's end of the veth pair, with one line for each UDP datagram.
    pub fn tcpdump(&self) -> Command {
        let mut command = self.server.command("tcpdump");
        command.args(["-i", VETH, "-n", "-l", "--immediate-mode", "udp"]);
        command
    }

    /// Counts the datagrams that the loss rules have dropped in both directions so far.
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

    /// Counts the packets that the kernel has dropped at both ends; see [`dropped`].
    ///
    /// # Errors
    /// The counters could not be read.
    pub fn dropped(&self) -> Result<u64> {
        dropped(&[&self.server, &self.client])
    }

    /// Moves the client to another outer address, like a phone that changes its network.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn move_client(&self) -> Result<()> {
        let client = &self.client;
        client.run("ip", &["address", "flush", "dev", VETH, "scope", "global"])?;
        client.run("ip", &["address", "add", "192.0.2.77/24", "dev", VETH])?;
        client.run("ip", &["address", "add", "2001:db8::77/64", "dev", VETH, "nodad"])?;
        Ok(())
    }
}

/// A server and several clients at one switch.
#[derive(Debug)]
pub struct Star {
    /// The server's namespace: 192.0.2.1.
    pub server: Namespace,
    /// The clients' namespaces: 192.0.2.11 and up.
    pub clients: Vec<Namespace>,
    _switch: Namespace,
}

impl Star {
    /// Creates the namespaces and their veth pairs to a bridge.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn new(clients: u8) -> Result<Self> {
        let address = |host: u8| IpNet::new(Ipv4Addr::new(192, 0, 2, host).into(), 24);
        let host = |label: &str, host| -> Result<Host> {
            Ok((label.to_owned(), vec![address(host).context("a prefix length")?]))
        };
        let mut hosts = vec![host("server", 1)?];
        hosts.extend((11..11 + clients).map(|n| host("client", n)).collect::<Result<Vec<_>>>()?);
        let (switch, mut all) = star(&hosts, Offload::All)?;
        Ok(Self { server: all.remove(0), clients: all, _switch: switch })
    }
}

/// Counts the packets that the kernel has dropped so far: at full sockets and full devices of these namespaces, and at
/// the processors' full queues between devices, which all namespaces of the machine share. No program causes these
/// losses.
///
/// # Errors
/// The counters could not be read.
pub fn dropped(namespaces: &[&Namespace]) -> Result<u64> {
    let script = "cat /proc/net/snmp /proc/net/snmp6; cat /sys/class/net/*/statistics/tx_dropped";
    let mut total = softnet_drops(&std::fs::read_to_string("/proc/net/softnet_stat")?);
    for namespace in namespaces {
        total += socket_and_device_drops(&namespace.run("sh", &["-c", script])?);
    }
    Ok(total)
}

/// Sums the second number of each processor's line, which is hexadecimal.
fn softnet_drops(softnet: &str) -> u64 {
    let dropped = softnet.lines().filter_map(|line| line.split_whitespace().nth(1));
    dropped.filter_map(|number| u64::from_str_radix(number, 16).ok()).sum()
}

/// Sums the receive buffer errors of UDP and the bare numbers, which are the devices' counters.
fn socket_and_device_drops(counters: &str) -> u64 {
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
        assert_eq!(super::socket_and_device_drops(tables), 42);
        let softnet = "00001f 0000000a 00 00\n000001 00000001 00 00\n";
        assert_eq!(super::softnet_drops(softnet), 11);
    }
}
