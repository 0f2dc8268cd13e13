//! Opens the packet of a row.

use std::collections::HashMap;

use adit_postgres::key::epoch::{Epoch, EpochRecord, Expected, Wrap, accept, check};
use adit_postgres::row::{Row, rebuild};
use adit_postgres::seal::Opener;
use adit_postgres::{Audit, EpochNo, StreamId};
use tokio_postgres::Client;

use super::view::{LogStream, View};
use crate::admin::said;
use adit_runtime::fault::Fault;

/// Epochs whose keys are remembered.
const EPOCHS: usize = 1024;

const EPOCH: &str = "SELECT e.record, e.signature, w.enc, w.sealed FROM adit.epoch e \
    LEFT JOIN adit.wrap w ON w.stream = e.stream AND w.epoch = e.no AND w.reader = $3 WHERE e.stream = $1 AND e.no = $2";

/// The result of opening a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// All of it, as the sender wrote it.
    Proven,
    /// All of it, as the database says.
    Claimed,
    /// Its headers, from the columns, of a packet that is so long.
    Headers {
        /// Bytes.
        length: u32,
    },
    /// Nothing: it is sealed.
    Sealed,
    /// The row is not what its sender wrote.
    Forged,
}

/// An epoch as far as it can be believed.
enum Known {
    Key(Opener),
    /// There is no key to it; what it says of its columns is believed.
    Policy(Audit),
    /// Not the sender's.
    Bad,
}

/// Opens packets of any stream in any order.
#[derive(Default)]
pub(super) struct Openers {
    known: HashMap<(StreamId, EpochNo), Known>,
}

impl Openers {
    /// Appends the packet, or what is known of it, to `out`.
    pub(super) async fn look(
        &mut self,
        view: &View<'_>,
        log_stream: &LogStream,
        row: &Row<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Seen, Fault> {
        let name = (log_stream.id, row.epoch);
        if !self.known.contains_key(&name) {
            if self.known.len() >= EPOCHS {
                self.known.clear();
            }
            self.known.insert(name, learn(&view.client, view, log_stream, row.epoch).await?);
        }
        Ok(match self.known.get(&name) {
            Some(Known::Key(opener)) => match opener.open(row, out) {
                Ok(_) => Seen::Proven,
                Err(_) => Seen::Forged,
            },
            Some(Known::Policy(Audit::Full)) => {
                out.extend_from_slice(row.payload);
                Seen::Claimed
            }
            Some(Known::Policy(Audit::Headers)) => match rebuild(&row.columns, out) {
                Some(length) => Seen::Headers { length },
                None => Seen::Sealed,
            },
            Some(Known::Policy(Audit::Metadata | Audit::None)) => Seen::Sealed,
            Some(Known::Bad) | None => Seen::Forged,
        })
    }
}

async fn learn(
    client: &Client,
    view: &View<'_>,
    log_stream: &LogStream,
    no: EpochNo,
) -> Result<Known, Fault> {
    let reader = view.key().map_or(-1, |(reader, _)| reader.id().0);
    let row = client.query_opt(EPOCH, &[&log_stream.id.0, &no.0, &reader]).await;
    let row = row.map_err(|error| said(&error))?;
    let Some(row) = row else { return Ok(Known::Bad) };
    let bytes = |at| row.try_get::<_, Option<Vec<u8>>>(at).map_err(|error| said(&error));
    let (record, signature) = (bytes(0)?.unwrap_or_default(), bytes(1)?.unwrap_or_default());
    let (enc, sealed) = (bytes(2)?, bytes(3)?);
    let Some(sender) = &log_stream.sender else {
        let parsed = EpochRecord::parse(&record);
        return Ok(parsed.map_or(Known::Bad, |record| Known::Policy(record.epoch.audit)));
    };
    let expected = Expected {
        network: &view.tag,
        stream: log_stream.id,
        sender,
        receiver: log_stream.receiver,
    };
    let checked = check(&expected, &record, &signature);
    let is_anothers = checked.as_ref().is_ok_and(|record| view.is_anothers(record));
    let key = view.key().filter(|_| !is_anothers);
    let (Some((reader, ring)), Some(enc), Some(sealed)) = (key, enc, sealed) else {
        return Ok(match checked {
            Ok(EpochRecord { epoch, .. }) if epoch.no == no => Known::Policy(epoch.audit),
            _ => Known::Bad,
        });
    };
    let wrap = Wrap { reader: reader.id(), enc, sealed };
    let accepted = accept(reader, ring, &expected, &record, &signature, &wrap);
    let Ok((EpochRecord { epoch: Epoch { audit, no: signed, .. }, .. }, secret)) = accepted else {
        return Ok(Known::Bad);
    };
    let hash = EpochRecord::hash(&record, &signature);
    let opener = Opener::new(&secret, audit, log_stream.id, signed, hash);
    Ok(opener.ok().filter(|_| signed == no).map_or(Known::Bad, Known::Key))
}
