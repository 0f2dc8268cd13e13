use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_postgres::NoTls;

use super::*;

/// The numbers of the types of a change's columns in PostgreSQL.
const COLUMNS: [u32; 4] = [20, 17, 20, 17];

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).unwrap();
    [&[kind][..], &len.to_be_bytes(), body].concat()
}

/// Returns the descriptions of a statement with two parameters and the columns of a change.
fn description() -> Vec<u8> {
    let parameters = [&[0, 2][..], &20_u32.to_be_bytes(), &20_u32.to_be_bytes()].concat();
    let mut columns = 4_u16.to_be_bytes().to_vec();
    for kind in COLUMNS {
        columns.extend(b"name\0\0\0\0\0\0\0");
        columns.extend(kind.to_be_bytes());
        columns.extend([0, 0, 0, 0, 0, 0, 0, 0]);
    }
    [message(b'1', &[]), message(b't', &parameters), message(b'T', &columns)].concat()
}

fn change(place: i64) -> Vec<u8> {
    let mut row = 4_u16.to_be_bytes().to_vec();
    for column in [&place.to_be_bytes()[..], &[1; 32], &7_i64.to_be_bytes(), &[2; 200]] {
        row.extend(u32::try_from(column.len()).unwrap().to_be_bytes());
        row.extend(column);
    }
    message(b'D', &row)
}

/// A database that answers the first statement with this many rows, regardless of the request.
async fn false_database(mut stream: DuplexStream, count: i64) {
    let ready = message(b'Z', b"I");
    let len = stream.read_u32().await.unwrap();
    stream.read_exact(&mut vec![0; len as usize - 4]).await.unwrap();
    stream.write_all(&[message(b'R', &[0; 4]), ready.clone()].concat()).await.unwrap();
    let mut syncs = 0;
    while let Ok(kind) = stream.read_u8().await {
        let len = stream.read_u32().await.unwrap();
        stream.read_exact(&mut vec![0; len as usize - 4]).await.unwrap();
        if kind != b'S' {
            continue;
        }
        syncs += 1;
        let answer = match syncs {
            1 => description(),
            2 => {
                let rows = (1..=count).flat_map(change);
                let end = message(b'C', b"SELECT\0");
                message(b'2', &[]).into_iter().chain(rows).chain(end).collect()
            }
            _ => message(b'3', &[]),
        };
        if stream.write_all(&[answer, ready.clone()].concat()).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn no_more_rows_are_kept_than_were_asked_for() {
    for (sent, kept) in [(READ_LIMIT - 1, 255), (READ_LIMIT, 256), (READ_LIMIT + 1000, 256)] {
        let (ours, theirs) = tokio::io::duplex(4096);
        tokio::spawn(false_database(theirs, sent));
        let mut config = tokio_postgres::Config::new();
        let (client, connection) = config.user("x").connect_raw(ours, NoTls).await.unwrap();
        tokio::spawn(connection);
        let event = perform(&client, Request::Read { after: 0 }).await.unwrap();
        let DirectoryEvent::Answer(Answer::Entries(entries)) = event else { panic!("{event:?}") };
        assert_eq!(entries.len(), kept);
        assert_eq!((entries[0].place, entries[0].number), (1, 7));
        assert_eq!((entries[0].signer, entries[0].bytes.len()), ([1; 32], 200));
    }
}
