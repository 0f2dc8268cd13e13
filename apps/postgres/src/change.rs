//! `adit postgres set` and `adit postgres auditor`: change the network's settings, which its owner signs.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use adit_engine::{Random, UnixTime};
use adit_postgres::key::settings::{NetworkSettings, SignedSettings};
use adit_postgres::key::{AuditorKey, NetworkKey};
use adit_postgres::{Audit, Durability, NodeId, limits};
use tokio_postgres::GenericClient;

use super::admin::{block_on, open, random, statement_fault};
use super::member::Member;
use super::paths::Paths;
use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;

/// The minimum retention size. A sender's leaves have at least 8 MiB.
const LEAST_RETENTION: i64 = 64 << 20;
const LEAST_AGE: Duration = Duration::from_secs(600);

const CHANGE: &str = "SELECT adit.change_settings($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// The settings of a network to change; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    /// `--audit`.
    pub audit: Option<Audit>,
    /// `--durability`.
    pub durability: Option<Durability>,
    /// `--retention`, in bytes.
    pub retention_bytes: Option<i64>,
    /// `--retention-age`.
    pub retention_age: Option<Duration>,
    /// `--packet-size`.
    pub packet_size: Option<usize>,
}

impl SettingsChange {
    /// Returns the settings with the requested changes.
    ///
    /// # Errors
    /// Fails if a value is out of bounds.
    pub(super) fn apply(&self, to: &NetworkSettings) -> Result<NetworkSettings, Fault> {
        let mut settings = to.clone();
        if let Some(size) = self.packet_size {
            if !limits::PACKET_RANGE.contains(&size) {
                return Err(Fault::operator(format!(
                    "--packet-size must be between {} and {}",
                    limits::PACKET_RANGE.start(),
                    limits::PACKET_RANGE.end()
                )));
            }
            settings.packet_size = i32::try_from(size).unwrap_or(i32::MAX);
        }
        if let Some(bytes) = self.retention_bytes {
            if bytes < LEAST_RETENTION {
                return Err(Fault::operator("--retention must be at least 64 MiB"));
            }
            settings.retention_bytes = bytes;
        }
        if let Some(age) = self.retention_age {
            if age < LEAST_AGE {
                return Err(Fault::operator("--retention-age must be at least 10 minutes"));
            }
            settings.retention_age = age;
        }
        settings.audit = self.audit.unwrap_or(settings.audit);
        settings.durability = self.durability.unwrap_or(settings.durability);
        Ok(settings)
    }

    /// Returns the first option that contradicts the settings.
    pub(super) fn first_difference(&self, from: &NetworkSettings) -> Option<&'static str> {
        let size = self.packet_size.and_then(|size| i32::try_from(size).ok());
        let differs = [
            ("--audit", self.audit.is_some_and(|audit| audit != from.audit)),
            ("--durability", self.durability.is_some_and(|word| word != from.durability)),
            ("--retention", self.retention_bytes.is_some_and(|n| n != from.retention_bytes)),
            ("--retention-age", self.retention_age.is_some_and(|age| age != from.retention_age)),
            ("--packet-size", size.is_some_and(|size| size != from.packet_size)),
        ];
        differs.iter().find(|(_, differs)| *differs).map(|(option, _)| *option)
    }
}

/// Returns a network's first settings if no option changes them.
pub(super) fn defaults() -> NetworkSettings {
    NetworkSettings {
        serial: 1,
        made: unix_time(),
        packet_size: i32::try_from(limits::DEFAULT_PACKET).unwrap_or(i32::MAX),
        audit: Audit::default(),
        durability: Durability::default(),
        retention_bytes: 1_000_000_000,
        retention_age: Duration::from_secs(30 * 86_400),
        auditor_key: None,
        previous: [0; 32],
    }
}

/// Formats settings in one line.
pub(super) fn in_words(settings: &NetworkSettings) -> String {
    let auditor =
        if settings.auditor_key.is_some() { "; an auditor can read everything" } else { "" };
    format!(
        "audit {}, durability {}, packets of up to {} bytes; kept: at most {} for {}{auditor}",
        settings.audit,
        settings.durability,
        settings.packet_size,
        bytes(settings.retention_bytes),
        span(settings.retention_age)
    )
}

fn bytes(bytes: i64) -> String {
    format!("{} MB", bytes.div_euclid(1_000_000))
}

fn span(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.iter().find(|(length, _)| seconds.is_multiple_of(*length));
    match unit {
        Some((length, name)) => format!("{} {name}", seconds.div_euclid(*length)),
        None => format!("{seconds} seconds"),
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsChanged {
    /// The serial number of the current settings.
    pub serial: i64,
    /// The changes: the setting, its old and its new value. Empty if nothing changed.
    pub changes: Vec<(&'static str, String, String)>,
}

/// Changes the network's settings, as its owner.
///
/// # Errors
/// Fails if this host's node is not the owner, a value is out of bounds, or the database cannot be reached.
pub fn set(paths: &Paths, change: &SettingsChange) -> Result<SettingsChanged, Fault> {
    store_change(paths, "set", |now, _| change.apply(now))
}

/// Creates an auditor's key in the new file `file`, and lets the auditor read packets sent from now on.
///
/// # Errors
/// See [`set`]. Also fails if the network has an auditor, or the file cannot be created.
pub fn add_auditor(paths: &Paths, file: &Path) -> Result<SettingsChanged, Fault> {
    let mut made = false;
    let added = store_change(paths, "auditor", |now, network| {
        if now.auditor_key.is_some() {
            return Err(Fault::operator(
                "the network has an auditor; to replace it: adit postgres auditor remove, then this command again",
            ));
        }
        let key = new_auditor(file, network, &mut random()?)?;
        made = true;
        Ok(NetworkSettings { auditor_key: Some(key), ..now.clone() })
    });
    added.inspect_err(|_| {
        if made {
            let _ = std::fs::remove_file(file);
        }
    })
}

/// Revokes the auditor's right to read packets sent from now on.
///
/// # Errors
/// See [`set`]. Also fails if the network has no auditor.
pub fn remove_auditor(paths: &Paths) -> Result<SettingsChanged, Fault> {
    store_change(paths, "auditor", |now, _| match now.auditor_key {
        Some(_) => Ok(NetworkSettings { auditor_key: None, ..now.clone() }),
        None => Err(Fault::operator("the network has no auditor")),
    })
}

/// Creates an auditor's key in a new file. Returns the public key.
pub(super) fn new_auditor(
    file: &Path,
    network: &NetworkKey,
    random: &mut Random,
) -> Result<Vec<u8>, Fault> {
    let auditor = AuditorKey::generate(network, random);
    let public = auditor.public().map_err(|error| Fault::ours(format!("making keys: {error}")))?;
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).and_then(
        |mut out| {
            out.write_all(auditor.to_text().as_bytes())?;
            out.sync_all()
        },
    );
    written.map_err(|error| {
        Fault::operator(format!("cannot write the auditor's key to {}: {error}", file.display()))
    })?;
    Ok(public.as_bytes().to_vec())
}

/// Applies `change` to the current settings, signs the result and stores it.
fn store_change(
    paths: &Paths,
    purpose: &str,
    change: impl FnOnce(&NetworkSettings, &NetworkKey) -> Result<NetworkSettings, Fault>,
) -> Result<SettingsChanged, Fault> {
    let mut member = Member::load(paths)?;
    let settings = &member.settings;
    if settings.node != NodeId::OWNER {
        return Err(Fault::operator(format!(
            "this machine is the node {} (number {}): only node {}, which created the network, may change its settings",
            settings.name,
            settings.node,
            NodeId::OWNER
        )));
    }
    let target = member.target()?;
    block_on(async {
        let client = open(&target, purpose).await?;
        let (record, ring) = member.network(&client).await?;
        let history = member.signed_settings(&client, &record.tag).await?;
        let now = history.current();
        let wanted = change(now, ring.newest())?;
        if wanted == *now {
            return Ok(SettingsChanged { serial: now.serial, changes: Vec::new() });
        }
        let signed = history.next(&record.tag, &member.secrets.keys, unix_time(), wanted);
        let signed = signed.map_err(|error| Fault::operator(error.to_string()))?;
        store(&client, &signed).await?;
        // From now on, this node refuses older settings, like the others.
        member.pins.pin_settings(signed.pin(&record.tag));
        member.pins.save()?;
        let serial = signed.settings.serial;
        Ok(SettingsChanged { serial, changes: changes(now, &signed.settings) })
    })
}

/// Adds signed settings to the database.
pub(super) async fn store(
    client: &impl GenericClient,
    signed: &SignedSettings,
) -> Result<(), Fault> {
    let SignedSettings { settings, signature } = signed;
    let UnixTime(made) = settings.made;
    let made = i64::try_from(made).unwrap_or(i64::MAX);
    let age = i64::try_from(settings.retention_age.as_secs()).unwrap_or(i64::MAX);
    client
        .execute(
            CHANGE,
            &[
                &settings.serial,
                &made,
                &settings.packet_size,
                &settings.audit.as_str(),
                &settings.durability.as_str(),
                &settings.retention_bytes,
                &age,
                &settings.auditor_key,
                &settings.previous.as_slice(),
                &signature.as_slice(),
            ],
        )
        .await
        .map_err(|error| statement_fault(&error))?;
    Ok(())
}

fn changes(from: &NetworkSettings, to: &NetworkSettings) -> Vec<(&'static str, String, String)> {
    let auditor = |settings: &NetworkSettings| match settings.auditor() {
        None => "none".to_owned(),
        Some(key) => key.fingerprint().to_string().chars().take(16).collect(),
    };
    let all = [
        ("audit", from.audit.to_string(), to.audit.to_string()),
        ("durability", from.durability.to_string(), to.durability.to_string()),
        ("retention", bytes(from.retention_bytes), bytes(to.retention_bytes)),
        ("retention-age", span(from.retention_age), span(to.retention_age)),
        ("packet-size", from.packet_size.to_string(), to.packet_size.to_string()),
        ("auditor", auditor(from), auditor(to)),
    ];
    all.into_iter().filter(|(_, from, to)| from != to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_applied_and_the_rest_stays() {
        let change = SettingsChange {
            retention_bytes: Some(2_000_000_000),
            audit: Some(Audit::None),
            ..SettingsChange::default()
        };
        let (from, to) = (defaults(), change.apply(&defaults()).unwrap());
        let changed = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        let found = changes(&from, &to);
        let expected =
            [("audit", changed("headers", "none")), ("retention", changed("1000 MB", "2000 MB"))];
        assert_eq!(found, expected.map(|(what, (from, to))| (what, from, to)));
        assert_eq!(change.first_difference(&from), Some("--audit"));
        assert_eq!(change.first_difference(&to), None);
        assert_eq!(
            in_words(&to),
            "audit none, durability strict, packets of up to 7900 bytes; kept: at most 2000 MB for 30 days"
        );
    }

    #[test]
    fn times_are_in_the_largest_unit_that_fits() {
        let said = [90, 5400, 7200, 86_400 * 3, 61].map(|s| span(Duration::from_secs(s)));
        assert_eq!(said, ["90 seconds", "90 minutes", "2 hours", "3 days", "61 seconds"]);
    }
}
