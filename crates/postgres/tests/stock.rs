//! Rows in a real server. Its COPY accepts sealed rows, the longest rows occupy one page each, and rows from its SELECT
//! open. The test needs PostgreSQL and root, and is skipped without them.

use std::fs;
use std::path::Path;

use adit_postgres::limits::PACKET_RANGE;
use adit_postgres::row::{Row, copy, decode};
use adit_postgres::seal::{EpochSecret, Opener, Sealer};
use adit_postgres::sql::{self, SENT_COLUMNS};
use adit_postgres::{Audit, EpochNo, LeafNo, Seq, StreamId};
use adit_testbed::postgres::{Cluster, Options, SUPERUSER, missing, scratch};

const EPOCH: EpochNo = EpochNo(1);
const LEAF: LeafNo = LeafNo(1);
const HASH: [u8; 32] = [1; 32];
const PAGE: i64 = 8192;

/// Returns the stream of a policy's rows.
fn stream(audit: Audit) -> StreamId {
    StreamId(((audit as i32 + 1) << 16) | 9)
}

/// Builds a TCP segment over IPv6, which has all columns and the longest ones.
fn packet(len: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
    packet[..4].copy_from_slice(&[0x60, 0, 0, 0]);
    packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
    packet[6..8].copy_from_slice(&[6, 64]);
    packet
}

fn create_leaf(cluster: &Cluster, database: &str, leaf: &str) {
    let plain = ["tag", "chain", "payload"].map(|name| format!("ALTER {name} SET STORAGE PLAIN"));
    let sql = format!(
        "CREATE TABLE {leaf} () INHERITS (adit.packet); ALTER TABLE {leaf} {}",
        plain.join(", ")
    );
    cluster.sql(database, &sql).unwrap();
}

fn psql(cluster: &Cluster, database: &str, command: &str) {
    let output = cluster.psql(SUPERUSER, database).args(["--command", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Reads all rows as binary values of a SELECT, which are the same as those of a COPY.
fn read_back(cluster: &Cluster, folder: &Path, leaf: &str) -> Vec<u8> {
    let file = folder.join("read");
    let query = format!("SELECT {SENT_COLUMNS} FROM {leaf} ORDER BY seq");
    psql(cluster, "vpn", &format!("\\copy ({query}) TO '{}' WITH (FORMAT binary)", file.display()));
    fs::read(file).unwrap()
}

#[test]
fn rows_pass_through_a_real_server_and_the_longest_fill_one_page_each() {
    let name = "rows_pass_through_a_real_server_and_the_longest_fill_one_page_each";
    if let Some(why) = missing() {
        adit_testbed::skip::skip(name, &why);
        return;
    }
    let folder = scratch().unwrap();
    let cluster = Cluster::start(&folder.path().join("pg"), &Options::default()).unwrap();
    cluster.create("vpn", "secret", "").unwrap();
    let (roles, schema) = (sql::roles("t", false).unwrap(), sql::schema("t").unwrap());
    cluster.sql("vpn", &format!("BEGIN;\n{roles}{schema};\nCOMMIT")).unwrap();
    let secret = EpochSecret::new([2; 32]);
    for &audit in Audit::ALL {
        let (stream, longest) = (stream(audit), *PACKET_RANGE.end());
        let leaf = sql::leaf(stream.sender(), LEAF);
        create_leaf(&cluster, "vpn", &leaf);
        let mut sealer = Sealer::new(&secret, audit, stream, EPOCH, HASH).unwrap();
        let mut packets = vec![packet(longest); 5];
        packets.extend([60, 256, 1280].map(packet));
        let mut rows = copy::HEADER.to_vec();
        for (seq, packet) in (1..).zip(&packets) {
            sealer.seal_into(Seq(seq), packet, &mut rows).unwrap();
            if seq <= 5 {
                sealer.end_batch(&mut rows).unwrap();
            }
        }
        rows.extend_from_slice(copy::TRAILER);
        let file = folder.path().join("rows");
        fs::write(&file, &rows).unwrap();
        let file = file.display();
        let command = format!("\\copy {leaf} ({SENT_COLUMNS}) FROM '{file}' WITH (FORMAT binary)");
        psql(&cluster, "vpn", &command);

        let number = |sql: &str| cluster.number("vpn", sql).unwrap();
        let pages =
            format!("SELECT count(DISTINCT (ctid::text::point)[0]) FROM {leaf} WHERE seq <= 5");
        assert_eq!(number(&pages), 5, "{audit}: one page each");
        assert!(number(&format!("SELECT pg_relation_size('{leaf}')")) <= 7 * PAGE, "{audit}");
        let elsewhere = format!(
            "SELECT coalesce(sum(pg_relation_size(reltoastrelid)), 0) FROM pg_class
             WHERE oid = '{leaf}'::regclass AND reltoastrelid <> 0"
        );
        assert_eq!(number(&elsewhere), 0, "{audit}: nothing lies elsewhere");

        let bytes = read_back(&cluster, folder.path(), &leaf);
        let mut rest = bytes.strip_prefix(copy::HEADER).unwrap();
        let opener = Opener::new(&secret, audit, stream, EPOCH, HASH).unwrap();
        for (seq, packet) in (1..).zip(&packets) {
            let (fields, behind) = copy::split_row(rest).unwrap();
            let row: Row<'_> = decode::row(fields).unwrap();
            let mut opened = Vec::new();
            assert_eq!((row.seq, opener.open(&row, &mut opened)), (Seq(seq), Ok(packet.len())));
            assert_eq!((&opened, row.chain.is_some()), (packet, seq <= 5), "{audit}");
            rest = behind;
        }
        assert_eq!(rest, copy::TRAILER);
        // An operator's query shows the fields of the packet.
        let shown = format!("SELECT count(*) FROM {leaf} WHERE src = '{}' AND proto = 6", source());
        let expected = if matches!(audit, Audit::Full | Audit::Headers) { 8 } else { 0 };
        assert_eq!(number(&shown), expected, "{audit}");
    }
}

fn source() -> std::net::Ipv6Addr {
    let bytes: [u8; 16] = packet(60)[8..24].try_into().unwrap();
    bytes.into()
}
