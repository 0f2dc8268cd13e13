//! The kernel's side of the comparison: a namespace that routes or bridges between two TAP devices, which this process holds open.
//!
//! A frame written to one TAP device passes the hooks, the connection tracking and the other TAP device before `write` returns, so a
//! verdict can be read at once, without waiting for a timeout.

use std::fs;
use std::io::{ErrorKind, IoSlice};
use std::path::Path;

use adit_linux::netns::NetNs;
use adit_linux::tun::{TunDevice, TunMode, TunOffloads, TunOptions, TunQueue, VNET_LEN};

use super::case::{Count, FrameResult, Mode};
use super::compare::Case;
use super::frame::Side;
use super::seen;
use crate::failure::{Context, Failure, Result, ensure};
use crate::process::run_with_input;

/// Tracks connections and reassembles fragments whatever the rules, as adit does; counts the packets that reached the
/// rules.
const BED: &str = "table inet bed {
 chain pre { type filter hook prerouting priority -150; ct state invalid counter; }
 chain in { type filter hook forward priority -1000; counter; }
}
";

/// Reports the conntrack state that the kernel assigns to a packet.
const WATCH: &str = "table inet watch {
 chain states { type filter hook forward priority -999;
  ct state new counter
  ct state established counter
  ct state related counter
  ct state invalid counter
  ct direction original counter
  ct direction reply counter
 }
}
";
const WATCHED: [&str; 6] = ["new", "established", "related", "invalid", "original", "reply"];

/// Routes for everything from the other side, so any destination is forwarded; answers leave through `ta`.
const ROUTES: &str = "link set ta address 02:ad:17:00:0a:01 mtu 9000 up
link set tb address 02:ad:17:00:0b:01 mtu 9000 up
address add 10.255.0.1/32 dev ta
address add 10.255.1.1/32 dev tb
neighbour add 10.255.0.2 lladdr 02:ad:17:00:0a:02 nud permanent dev ta
neighbour add 10.255.1.2 lladdr 02:ad:17:00:0b:02 nud permanent dev tb
route add default via 10.255.0.2 dev ta onlink
route add default via 10.255.1.2 dev tb onlink table 100
route add default via 10.255.0.2 dev ta onlink table 101
rule add iif ta lookup 100
rule add iif tb lookup 101
";

/// The same for IPv6.
const ROUTES6: &str = "address add fd00:ff::1/128 dev ta nodad
address add fd00:ff:1::1/128 dev tb nodad
neighbour add fd00:ff::2 lladdr 02:ad:17:00:0a:02 nud permanent dev ta
neighbour add fd00:ff:1::2 lladdr 02:ad:17:00:0b:02 nud permanent dev tb
route add default via fd00:ff::2 dev ta onlink
route add default via fd00:ff:1::2 dev tb onlink table 100
route add default via fd00:ff::2 dev ta onlink table 101
rule add iif ta lookup 100
rule add iif tb lookup 101
";

const BRIDGE: &str = "link add br0 type bridge stp_state 0 mcast_snooping 0
link set br0 up
link set ta master br0
link set tb master br0
link set ta type bridge_slave learning off
link set tb type bridge_slave learning off
link set ta mtu 9000 up
link set tb mtu 9000 up
";

/// Settings that are made before the devices exist: no rate limit for ICMP, no reverse path filter, no unsolicited
/// messages.
const SYSCTLS: [(&str, &str); 13] = [
    ("net/ipv4/icmp_msgs_per_sec", "1000000000"),
    ("net/ipv4/icmp_msgs_burst", "1000000000"),
    ("net/ipv4/conf/all/forwarding", "1"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/addr_gen_mode", "1"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    ("net/ipv6/conf/all/forwarding", "1"),
];

/// A namespace with a rule set.
#[derive(Debug)]
pub struct Kernel {
    mode: Mode,
    namespace: NetNs,
    taps: [TunQueue; 2],
}

impl Kernel {
    /// Creates a namespace without rules through which a first packet has passed.
    ///
    /// # Errors
    /// No root, or a kernel without the required features.
    pub fn new(mode: Mode) -> Result<Self> {
        let namespace = NetNs::unnamed()?;
        let set = || -> Result<()> {
            for (key, value) in SYSCTLS {
                fs::write(Path::new("/proc/sys").join(key), value).context(key)?;
            }
            if mode == Mode::Bridge {
                fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
                for key in [
                    "bridge-nf-call-iptables",
                    "bridge-nf-call-ip6tables",
                    "bridge-nf-call-arptables",
                ] {
                    // Without br_netfilter there is nothing to disable.
                    let _ = fs::write(Path::new("/proc/sys/net/bridge").join(key), "0");
                }
            }
            Ok(())
        };
        namespace.run(set)??;
        let taps = [tap(&namespace, Side::A)?, tap(&namespace, Side::B)?];
        let batches = match mode {
            Mode::Route => [("-4", ROUTES), ("-6", ROUTES6)],
            Mode::Bridge => [("-4", BRIDGE), ("-6", "")],
        };
        for (family, lines) in batches {
            let mut command = namespace.command("ip")?;
            command.args([family, "-batch", "-"]);
            run_with_input(command, lines)?;
        }
        let kernel = Self { mode, namespace, taps };
        if mode == Mode::Route {
            kernel.load(BED).map_err(Failure)?;
        }
        kernel.drain()?;
        Ok(kernel)
    }

    /// Adds rules.
    ///
    /// # Errors
    /// The output of `nft`.
    pub fn load(&self, rules: &str) -> std::result::Result<(), String> {
        let mut command = self.namespace.command("nft").map_err(|error| error.to_string())?;
        command.args(["-f", "-"]);
        run_with_input(command, rules).map(drop).map_err(|failure| failure.0)
    }

    /// Sends a frame through and returns the result.
    ///
    /// # Errors
    /// A TAP device failed.
    pub fn pass(&self, side: Side, frame: &[u8]) -> Result<FrameResult> {
        let header = [0u8; VNET_LEN];
        let taken = self.tap(side).write(&[IoSlice::new(&header), IoSlice::new(frame)]);
        match taken {
            Ok(_) => {}
            // A frame that the TAP device itself refuses was not sent.
            Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => {
                return Ok(FrameResult::Nothing);
            }
            Err(error) => return Err(error).context("writing to a TAP"),
        }
        let mut came = Vec::new();
        self.read(|side, frame| came.push((side, frame)))?;
        Ok(seen::judge(self.mode, side, frame, &came))
    }

    /// Returns the rules' counters in the order of the rules, which is a table's named counters followed by its rules.
    ///
    /// # Errors
    /// `nft` failed.
    pub fn counts(&self) -> Result<Vec<Count>> {
        let listing = self.list()?;
        let own = listing.find("table inet bed").map_or(listing.clone(), |at| {
            let rest = &listing[at..];
            let end = rest.find("\n}\n").map_or(rest.len(), |end| end + 3);
            format!("{}{}", &listing[..at], &rest[end..])
        });
        Ok(counts(&own))
    }

    /// Returns the state in which the kernel sees each frame of a case, for a human reader.
    ///
    /// # Errors
    /// The testbed fails.
    pub fn states(case: &Case) -> Result<Vec<String>> {
        let kernel = Self::new(case.mode)?;
        kernel.load(&case.rules).map_err(Failure)?;
        kernel.load(WATCH).map_err(Failure)?;
        let watched = || -> Result<Vec<Count>> {
            let listing = kernel.list()?;
            Ok(counts(listing.split("table inet watch").nth(1).unwrap_or_default()))
        };
        let mut before = watched()?;
        let mut states = Vec::new();
        for sent in &case.frames {
            kernel.pass(sent.side, &sent.frame)?;
            let now = watched()?;
            let moved = WATCHED.iter().zip(before.iter().zip(&now));
            let names: Vec<&str> =
                moved.filter(|(_, (had, has))| had != has).map(|(name, _)| *name).collect();
            states.push(names.join(" "));
            before = now;
        }
        Ok(states)
    }

    /// Returns how many packets reached the rules, excluding those that the kernel's own checks dropped.
    ///
    /// # Errors
    /// `nft` failed.
    pub fn judged(&self) -> Result<u64> {
        let listing = self.list()?;
        let bed = listing.split("table inet bed").nth(1).context("the bed's table")?;
        counts(bed).get(1).map(|count| count.packets).context("the bed's counter")
    }

    fn list(&self) -> Result<String> {
        let mut command = self.namespace.command("nft")?;
        command.args(["list", "ruleset"]);
        run_with_input(command, "")
    }

    fn tap(&self, side: Side) -> &TunQueue {
        &self.taps[side as usize]
    }

    fn read(&self, mut each: impl FnMut(Side, Vec<u8>)) -> Result<()> {
        let (mut header, mut buffer) = ([0; VNET_LEN], vec![0; 65_536]);
        for side in [Side::A, Side::B] {
            loop {
                match self.tap(side).read(&mut header, &mut buffer) {
                    Ok(length) => each(side, buffer[..length].to_vec()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("reading from a TAP"),
                }
            }
        }
        Ok(())
    }

    /// Discards the packets that interfaces send when they come up.
    fn drain(&self) -> Result<()> {
        let mut count = 0;
        self.read(|_, _| count += 1)?;
        ensure(count < 1000, || "the interfaces do not fall silent".to_owned())
    }
}

fn tap(namespace: &NetNs, side: Side) -> Result<TunQueue> {
    let options = TunOptions {
        name: Some(side.interface().to_owned()),
        queues: 1,
        offloads: TunOffloads::NONE,
        mode: TunMode::Tap,
        ..TunOptions::default()
    };
    let device = namespace.run(|| TunDevice::open(&options))?.context("making a TAP")?;
    device.queues.into_iter().next().context("a TAP without a queue")
}

/// Returns every `packets N bytes M` of a listing, in order.
fn counts(listing: &str) -> Vec<Count> {
    let words: Vec<&str> = listing.split_whitespace().collect();
    let count = |four: &[&str]| match *four {
        ["packets", packets, "bytes", bytes] => {
            Some(Count { packets: packets.parse().ok()?, bytes: bytes.parse().ok()? })
        }
        _ => None,
    };
    words.windows(4).filter_map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_a_listing_and_limits_are_not() {
        let listing = "chain x { limit rate 5/second burst 5 packets counter packets 7 bytes 90 accept\n\
                       counter packets 1 bytes 2 }";
        let expected = [Count { packets: 7, bytes: 90 }, Count { packets: 1, bytes: 2 }];
        assert_eq!(counts(listing), expected);
    }
}
