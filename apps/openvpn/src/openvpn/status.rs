//! The `--status` file in the three versions that other programs parse.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Seek, Write as _};
use std::path::Path;

use adit_runtime::helper::files::{self, WriteMode};
use adit_runtime::log::stamp;

/// The text of the TITLE line; parsers look for the first word.
pub(super) const TITLE: &str = concat!("OpenVPN 2.6 (adit ", env!("CARGO_PKG_VERSION"), ")");

/// A status file, kept open because it could not be reopened after a change of user.
#[derive(Debug)]
pub(super) struct StatusFile {
    file: File,
    version: u8,
}

impl StatusFile {
    /// Opens and empties the file.
    pub(super) fn open(path: &Path, version: u8) -> io::Result<Self> {
        Ok(Self { file: files::write(path, WriteMode::Empty)?, version })
    }

    /// Replaces the contents.
    pub(super) fn write(&mut self, status: &Status, now: u64) -> io::Result<()> {
        let text = status.text(self.version, now);
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)
    }
}

/// The contents of a status file.
#[derive(Clone, Debug)]
pub(super) enum Status {
    /// The clients of a server.
    Server(Vec<ClientRow>),
    /// The totals of a client.
    Client(Totals),
}

/// One client of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientRow {
    /// Common name.
    pub name: String,
    /// Address and port outside the tunnel.
    pub real: String,
    /// IPv4 addresses inside the tunnel; empty if there are none.
    pub ipv4: String,
    /// The same for IPv6.
    pub ipv6: String,
    /// Networks behind the client.
    pub networks: Vec<String>,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    /// The time of its connection, in seconds since 1970.
    pub since: u64,
    /// The time of its last packet, in seconds since 1970.
    pub heard: u64,
    /// User name, if any.
    pub username: Option<String>,
    /// Sequence number of the session.
    pub client_id: u64,
    /// Peer id.
    pub peer_id: u32,
    /// Cipher of the data channel.
    pub cipher: String,
}

/// The traffic of a client.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Totals {
    /// Bytes read from the TUN.
    pub tun_read: u64,
    /// Bytes written to the TUN.
    pub tun_written: u64,
    /// Bytes received outside the tunnel.
    pub link_read: u64,
    /// Bytes sent outside the tunnel.
    pub link_written: u64,
}

impl Status {
    /// Formats the contents in version 1, 2 or 3.
    pub(super) fn text(&self, version: u8, now: u64) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Server(clients) if version <= 1 => server_v1(&mut text, clients, now),
            Self::Server(clients) => {
                server_v2(&mut text, clients, now, if version == 2 { ',' } else { '\t' })
            }
            Self::Client(totals) => client(&mut text, totals, now),
        };
        text
    }
}

fn server_v1(out: &mut String, clients: &[ClientRow], now: u64) -> std::fmt::Result {
    writeln!(out, "OpenVPN CLIENT LIST\nUpdated,{}", stamp(now))?;
    writeln!(out, "Common Name,Real Address,Bytes Received,Bytes Sent,Connected Since")?;
    for c in clients {
        let name = cell(&c.name, ',');
        writeln!(out, "{name},{},{},{},{}", c.real, c.received, c.sent, stamp(c.since))?;
    }
    writeln!(out, "ROUTING TABLE\nVirtual Address,Common Name,Real Address,Last Ref")?;
    for (c, inside) in clients.iter().flat_map(routes) {
        writeln!(out, "{inside},{},{},{}", cell(&c.name, ','), c.real, stamp(c.heard))?;
    }
    writeln!(out, "GLOBAL STATS\nMax bcast/mcast queue length,0\nEND")
}

fn server_v2(out: &mut String, clients: &[ClientRow], now: u64, sep: char) -> std::fmt::Result {
    let mut line = |cells: &[&str]| writeln!(out, "{}", cells.join(&sep.to_string()));
    line(&["TITLE", TITLE])?;
    line(&["TIME", &stamp(now), &now.to_string()])?;
    line(&[
        "HEADER",
        "CLIENT_LIST",
        "Common Name",
        "Real Address",
        "Virtual Address",
        "Virtual IPv6 Address",
        "Bytes Received",
        "Bytes Sent",
        "Connected Since",
        "Connected Since (time_t)",
        "Username",
        "Client ID",
        "Peer ID",
        "Data Channel Cipher",
    ])?;
    for c in clients {
        line(&[
            "CLIENT_LIST",
            &cell(&c.name, sep),
            &c.real,
            &c.ipv4,
            &c.ipv6,
            &c.received.to_string(),
            &c.sent.to_string(),
            &stamp(c.since),
            &c.since.to_string(),
            &cell(c.username.as_deref().unwrap_or("UNDEF"), sep),
            &c.client_id.to_string(),
            &c.peer_id.to_string(),
            &c.cipher,
        ])?;
    }
    line(&[
        "HEADER",
        "ROUTING_TABLE",
        "Virtual Address",
        "Common Name",
        "Real Address",
        "Last Ref",
        "Last Ref (time_t)",
    ])?;
    for (c, inside) in clients.iter().flat_map(routes) {
        let (name, heard) = (cell(&c.name, sep), c.heard.to_string());
        line(&["ROUTING_TABLE", inside, &name, &c.real, &stamp(c.heard), &heard])?;
    }
    line(&["GLOBAL_STATS", "Max bcast/mcast queue length", "0"])?;
    line(&["GLOBAL_STATS", "dco_enabled", "0"])?;
    line(&["END"])
}

fn client(out: &mut String, totals: &Totals, now: u64) -> std::fmt::Result {
    writeln!(out, "OpenVPN STATISTICS\nUpdated,{}", stamp(now))?;
    writeln!(out, "TUN/TAP read bytes,{}", totals.tun_read)?;
    writeln!(out, "TUN/TAP write bytes,{}", totals.tun_written)?;
    writeln!(out, "TCP/UDP read bytes,{}", totals.link_read)?;
    writeln!(out, "TCP/UDP write bytes,{}", totals.link_written)?;
    // Payload that passed authentication and is written to the TUN device.
    writeln!(out, "Auth read bytes,{}\nEND", totals.tun_written)
}

/// Returns the tunnel addresses of a client and the networks behind it, one row each.
fn routes(client: &ClientRow) -> impl Iterator<Item = (&ClientRow, &str)> {
    [client.ipv6.as_str(), client.ipv4.as_str()]
        .into_iter()
        .chain(client.networks.iter().map(String::as_str))
        .filter(|inside| !inside.is_empty())
        .map(move |inside| (client, inside))
}

/// Escapes a name that would break the table. A separator or newline in a common name would forge a column or row for a parser.
fn cell(text: &str, sep: char) -> String {
    adit_runtime::log::clean(text).replace(sep, "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_166_363;

    fn one() -> Status {
        Status::Server(vec![ClientRow {
            name: "client".into(),
            real: "10.90.0.2:45827".into(),
            ipv4: "10.91.0.2".into(),
            ipv6: "fd91::1000".into(),
            networks: vec!["10.50.1.0/24".into()],
            received: 2364,
            sent: 2373,
            since: NOW - 6,
            heard: NOW - 6,
            username: None,
            client_id: 0,
            peer_id: 0,
            cipher: "AES-256-GCM".into(),
        }])
    }

    // The expected texts are those that openvpn 2.6.14 wrote for the same client, except for the title and the queue
    // length, which adit does not have.
    #[test]
    fn version_1_is_openvpns() {
        assert_eq!(
            one().text(1, NOW),
            "OpenVPN CLIENT LIST\nUpdated,2026-11-20 09:19:23\n\
             Common Name,Real Address,Bytes Received,Bytes Sent,Connected Since\n\
             client,10.90.0.2:45827,2364,2373,2026-11-20 09:19:17\n\
             ROUTING TABLE\nVirtual Address,Common Name,Real Address,Last Ref\n\
             fd91::1000,client,10.90.0.2:45827,2026-11-20 09:19:17\n\
             10.91.0.2,client,10.90.0.2:45827,2026-11-20 09:19:17\n\
             10.50.1.0/24,client,10.90.0.2:45827,2026-11-20 09:19:17\n\
             GLOBAL STATS\nMax bcast/mcast queue length,0\nEND\n"
        );
    }

    #[test]
    fn version_2_is_openvpns() {
        assert_eq!(
            one().text(2, NOW),
            format!(
                "TITLE,{TITLE}\nTIME,2026-11-20 09:19:23,1795166363\n\
                 HEADER,CLIENT_LIST,Common Name,Real Address,Virtual Address,Virtual IPv6 Address,\
                 Bytes Received,Bytes Sent,Connected Since,Connected Since (time_t),Username,\
                 Client ID,Peer ID,Data Channel Cipher\n\
                 CLIENT_LIST,client,10.90.0.2:45827,10.91.0.2,fd91::1000,2364,2373,\
                 2026-11-20 09:19:17,1795166357,UNDEF,0,0,AES-256-GCM\n\
                 HEADER,ROUTING_TABLE,Virtual Address,Common Name,Real Address,Last Ref,\
                 Last Ref (time_t)\n\
                 ROUTING_TABLE,fd91::1000,client,10.90.0.2:45827,2026-11-20 09:19:17,1795166357\n\
                 ROUTING_TABLE,10.91.0.2,client,10.90.0.2:45827,2026-11-20 09:19:17,1795166357\n\
                 ROUTING_TABLE,10.50.1.0/24,client,10.90.0.2:45827,2026-11-20 09:19:17,1795166357\n\
                 GLOBAL_STATS,Max bcast/mcast queue length,0\nGLOBAL_STATS,dco_enabled,0\nEND\n"
            )
        );
    }

    #[test]
    fn version_3_is_version_2_with_tabs() {
        let two = one().text(2, NOW).replace(',', "\t");
        assert_eq!(one().text(3, NOW), two);
    }

    #[test]
    fn a_common_name_cannot_forge_a_column_or_a_row() {
        let Status::Server(mut rows) = one() else { unreachable!() };
        rows[0].name = "a,b\nEND".into();
        let text = Status::Server(rows).text(2, NOW);
        assert!(text.contains("CLIENT_LIST,a_b\\x0aEND,10.90"), "{text}");
    }

    #[test]
    fn a_client_writes_statistics() {
        let totals = Totals { tun_read: 180, tun_written: 48, link_read: 2439, link_written: 2418 };
        assert_eq!(
            Status::Client(totals).text(2, NOW),
            "OpenVPN STATISTICS\nUpdated,2026-11-20 09:19:23\nTUN/TAP read bytes,180\n\
             TUN/TAP write bytes,48\nTCP/UDP read bytes,2439\nTCP/UDP write bytes,2418\n\
             Auth read bytes,48\nEND\n"
        );
    }

    #[test]
    fn a_shorter_status_leaves_no_rest_of_the_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let mut file = StatusFile::open(&path, 2).unwrap();
        file.write(&one(), NOW).unwrap();
        file.write(&Status::Server(Vec::new()), NOW).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, Status::Server(Vec::new()).text(2, NOW));
    }
}
