//! Opens the packet of a row.

use std::collections::HashMap;

use adit_postgres::key::epoch::{Epoch, EpochRecord, Expected, Wrap, accept, check};
use adit_postgres::row::{Row, rebuild};
use adit_postgres::seal::Opener;
use adit_postgres::{Audit, EpochNo, StreamId};
use tokio_postgres::Client;

use super::view::{LogStream, View};
use crate::admin::statement_fault;
use adit_runtime::fault::Fault;

/// The maximum number of epochs whose keys are cached.
const EPOCHS: usize = 1024;

const EPOCH: &str = "SELECT e.record, e.signature, w.enc, w.sealed FROM adit.epoch e \
    LEFT JOIN adit.wrap w ON w.stream = e.stream AND w.epoch = e.no AND w.reader = $3 WHERE e.stream = $1 AND e.no = $2";

/// The result of opening a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum OpenOutcome {
    /// The whole packet. The sender provably wrote it.
    Proven,
    /// The whole packet, according to the database.
    Claimed,
    /// The headers of a packet with this length, from the columns.
    Headers {
        /// The length in bytes.
        length: u32,
    },
    /// Nothing, because the packet is sealed.
    Sealed,
    /// The row is not what its sender wrote.
    Forged,
}

/// The trusted data of an epoch.
enum EpochAccess {
    Key(Opener),
    /// There is no key for the epoch, but the policy in its record is trusted.
    Policy(Audit),
    /// The record is not from the sender.
    Bad,
}

/// Opens packets from any stream in any order.
#[derive(Default)]
pub(super) struct Openers {
    known: HashMap<(StreamId, EpochNo), EpochAccess>,
}

impl Openers {
    /// Appends the packet, or its known part, to `out`.
    pub(super) async fn open_packet(
        &mut self,
        view: &View<'_>,
        log_stream: &LogStream,
        row: &Row<'_>,
        out: &mut Vec<u8>,
    ) -> Result<OpenOutcome, Fault> {
        let name = (log_stream.id, row.epoch);
        if !self.known.contains_key(&name) {
            if self.known.len() >= EPOCHS {
                self.known.clear();
            }
            self.known.insert(name, load_epoch(&view.client, view, log_stream, row.epoch).await?);
        }
        Ok(match self.known.get(&name) {
            Some(EpochAccess::Key(opener)) => match opener.open(row, out) {
                Ok(_) => OpenOutcome::Proven,
                Err(_) => OpenOutcome::Forged,
            },
            Some(EpochAccess::Policy(Audit::Full)) => {
                out.extend_from_slice(row.payload);
                OpenOutcome::Claimed
            }
            Some(EpochAccess::Policy(Audit::Headers)) => match rebuild(&row.columns, out) {
                Some(length) => OpenOutcome::Headers { length },
                None => OpenOutcome::Sealed,
            },
            Some(EpochAccess::Policy(Audit::Metadata | Audit::None)) => OpenOutcome::Sealed,
            Some(EpochAccess::Bad) | None => OpenOutcome::Forged,
        })
    }
}

async fn load_epoch(
    client: &Client,
    view: &View<'_>,
    log_stream: &LogStream,
    no: EpochNo,
) -> Result<EpochAccess, Fault> {
    let reader = view.key().map_or(-1, |(reader, _)| reader.id().0);
    let row = client.query_opt(EPOCH, &[&log_stream.id.0, &no.0, &reader]).await;
    let row = row.map_err(|error| statement_fault(&error))?;
    let Some(row) = row else { return Ok(EpochAccess::Bad) };
    let bytes = |at| row.try_get::<_, Option<Vec<u8>>>(at).map_err(|error| statement_fault(&error));
    let (record, signature) = (bytes(0)?.unwrap_or_default(), bytes(1)?.unwrap_or_default());
    let (enc, sealed) = (bytes(2)?, bytes(3)?);
    let Some(sender) = &log_stream.sender else {
        let parsed = EpochRecord::parse(&record);
        return Ok(
            parsed.map_or(EpochAccess::Bad, |record| EpochAccess::Policy(record.epoch.audit))
        );
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
            Ok(EpochRecord { epoch, .. }) if epoch.no == no => EpochAccess::Policy(epoch.audit),
            _ => EpochAccess::Bad,
        });
    };
    let wrap = Wrap { reader: reader.id(), enc, sealed };
    let accepted = accept(reader, ring, &expected, &record, &signature, &wrap);
    let Ok((EpochRecord { epoch: Epoch { audit, no: signed, .. }, .. }, secret)) = accepted else {
        return Ok(EpochAccess::Bad);
    };
    let hash = EpochRecord::hash(&record, &signature);
    let opener = Opener::new(&secret, audit, log_stream.id, signed, hash);
    Ok(opener.ok().filter(|_| signed == no).map_or(EpochAccess::Bad, EpochAccess::Key))
}
