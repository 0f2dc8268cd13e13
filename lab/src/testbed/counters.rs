//! Counts the packets that the kernel dropped, read in all namespaces of a testbed without starting a process.

use std::fs::File;
use std::os::unix::fs::FileExt;

use adit_testbed::failure::{Context, Result};
use adit_testbed::net::{Namespace, VETH};

use super::Drops;

/// The kernel's tables of some namespaces, kept open because a file of /proc/net shows the namespace that it was opened
/// in.
#[derive(Debug)]
pub(crate) struct Counters {
    hosts: Vec<Tables>,
}

#[derive(Debug)]
struct Tables {
    snmp: File,
    snmp6: File,
    devices: File,
}

impl Counters {
    /// Opens the tables; the first namespace is the server's.
    pub(crate) fn open<'a>(namespaces: impl Iterator<Item = &'a Namespace>) -> Result<Self> {
        let tables = |namespace: &Namespace| {
            // /proc/net is that of the process's first thread.
            let open = |name| File::open(format!("/proc/thread-self/net/{name}"));
            let open = || -> std::io::Result<Tables> {
                Ok(Tables { snmp: open("snmp")?, snmp6: open("snmp6")?, devices: open("dev")? })
            };
            namespace.handle()?.run(open)?.context("the kernel's counters")
        };
        Ok(Self { hosts: namespaces.map(tables).collect::<Result<_>>()? })
    }

    /// Returns the number of namespaces.
    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the drops so far in one namespace.
    pub(crate) fn read(&self, host: usize) -> Result<Drops> {
        let tables = self.hosts.get(host).context("no such host")?;
        let [snmp, snmp6, devices] = [&tables.snmp, &tables.snmp6, &tables.devices].map(read);
        let mut drops = of_devices(&devices.context("/proc/net/dev")?);
        drops.sockets =
            of_udp(&snmp.context("/proc/net/snmp")?) + of_udp6(&snmp6.context("/proc/net/snmp6")?);
        Ok(drops)
    }

    /// Returns the drops so far in all namespaces.
    pub(crate) fn total(&self) -> Result<Drops> {
        let mut total = Drops::default();
        for host in 0..self.len() {
            total = total.plus(self.read(host)?);
        }
        Ok(total)
    }
}

/// Reads a whole file of /proc from its beginning, which updates its contents.
fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 8192];
    loop {
        match file.read_at(&mut part, bytes.len() as u64)? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            length => bytes.extend_from_slice(part.get(..length).unwrap_or_default()),
        }
    }
}

/// Returns the number of datagrams lost to full buffers from /proc/net/snmp: one line with names, one with numbers.
fn of_udp(table: &str) -> u64 {
    let mut lines = table.lines().filter(|line| line.starts_with("Udp:"));
    let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let columns = names.split_whitespace().zip(numbers.split_whitespace());
    let full = columns.filter(|(name, _)| matches!(*name, "RcvbufErrors" | "SndbufErrors"));
    full.filter_map(|(_, number)| number.parse::<u64>().ok()).sum()
}

/// Returns the same number from /proc/net/snmp6, which has one pair per line.
fn of_udp6(table: &str) -> u64 {
    let pairs = table.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let full = pairs.filter(|(name, _)| matches!(*name, "Udp6RcvbufErrors" | "Udp6SndbufErrors"));
    full.filter_map(|(_, number)| number.trim().parse::<u64>().ok()).sum()
}

/// Returns the packets dropped when leaving and entering the devices of /proc/net/dev.
fn of_devices(table: &str) -> Drops {
    let mut drops = Drops::default();
    for (name, numbers) in table.lines().skip(2).filter_map(|line| line.split_once(':')) {
        // Received: bytes, packets, errs, drop, fifo, frame, compressed, multicast; then the same for sent.
        let number = |n| numbers.split_whitespace().nth(n).and_then(|word| word.parse().ok());
        let dropped = number(3).unwrap_or(0) + number(11).unwrap_or(0);
        match name.trim() {
            "lo" => {}
            VETH => drops.veths += dropped,
            _ => drops.tun += dropped,
        }
    }
    drops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_full_sockets_from_the_table_of_ipv4() {
        let table = "Ip: Forwarding\nIp: 1\n\
            Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors\n\
            Udp: 1000 5 12 900 7 3 2\n\
            UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\n\
            UdpLite: 0 0 0 0 100 100\n";
        assert_eq!(of_udp(table), 10);
        assert_eq!(of_udp("Tcp: A\nTcp: 1\n"), 0);
    }

    #[test]
    fn reads_full_sockets_from_the_table_of_ipv6() {
        let table = "Udp6InDatagrams                 \t1234\nUdp6RcvbufErrors                \t30\n\
            Udp6SndbufErrors                \t4\nUdpLite6RcvbufErrors            \t9\n";
        assert_eq!(of_udp6(table), 34);
    }

    #[test]
    fn tells_tunnels_from_cables() {
        let table = "Inter-|   Receive                                                |  Transmit\n\
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n\
                lo:     100       1    0   50    0     0          0         0      100       1    0   50    0     0       0          0\n\
             veth0: 7000 10 0 3 0 0 0 0 9000 11 0 4 0 0 0 0\n\
              tun0:9000 12 0 1 0 0 0 0 8000 13 0 20 0 0 0 0\n";
        assert_eq!(of_devices(table), Drops { sockets: 0, tun: 21, veths: 7 });
    }
}
