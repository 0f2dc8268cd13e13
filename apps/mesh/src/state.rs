//! The state that a node keeps on disk.

use std::fs;
use std::io;
use std::path::Path;

use adit_crypto::sign::{SEED_LEN, SigningKey};
use adit_engine::UnixTime;
use adit_mesh::roster::{Changes, Label};
use adit_mesh::session::MeshId;
use adit_mesh::token::{Invitation, Invitations, Terms};
use adit_runtime::clock::unix_time;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::paths::write_whole;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::Paths;
use super::admin_keys::AdminKeys;
use super::reach::Reach;
use super::roster_file::RosterFile;

/// A node's state, with the open roster file.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) key: SigningKey,
    pub(crate) admin: AdminKeys,
    pub(crate) roster: RosterFile,
    pub(crate) changes: Changes,
    pub(crate) invitations: Invitations,
    pub(crate) reach: Reach,
}

impl State {
    /// Opens a node's state.
    ///
    /// # Errors
    /// A file is missing or damaged, or another process uses them.
    pub(crate) fn open(paths: &Paths) -> Result<Self, Fault> {
        let (roster, changes) = RosterFile::open(&paths.roster_file())?;
        let key = load_key(&paths.node_key_file())?;
        let admin = AdminKeys::load(&paths.admin_key_file(), &changes)?;
        let invitations = load_invitations(&paths.invitations_file(), *changes.mesh())?;
        let reach = Reach::load(&paths.reach_file())?;
        Ok(Self { key, admin, roster, changes, invitations, reach })
    }
}

/// Generates a key.
///
/// # Errors
/// The kernel returned no random bytes.
pub(crate) fn new_key() -> Result<SigningKey, Fault> {
    let seed = Zeroizing::new(adit_runtime::random::bytes::<SEED_LEN>()?);
    SigningKey::from_seed(&seed).map_err(|error| Fault::ours(error.to_string()))
}

/// Writes a key in base64, readable only by its owner.
///
/// # Errors
/// The file system refuses.
pub(crate) fn store_key(path: &Path, key: &SigningKey) -> Result<(), Fault> {
    let mut text = Zeroizing::new(String::with_capacity(64));
    encode_key(key, &mut text);
    write_whole(path, 0o600, text.as_bytes())
}

/// Reads a key.
///
/// # Errors
/// The file cannot be read, or contains no key.
pub(crate) fn load_key(path: &Path) -> Result<SigningKey, Fault> {
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::environment(format!(
            "{} is missing, although this machine is in the mesh: restore the whole folder from a backup, or move it away and \
             join the mesh again",
            path.display()
        )),
        _ => file_fault("cannot read", path, &error),
    })?;
    let text = Zeroizing::new(text);
    decode_key(&text).ok_or_else(|| {
        Fault::environment(format!(
            "{}: not a key; put back a copy of the file, or join the mesh again",
            path.display()
        ))
    })
}

/// Encodes a key in base64, as a line.
pub(crate) fn encode_key(key: &SigningKey, text: &mut Zeroizing<String>) {
    BASE64.encode_string(key.seed(), text);
    text.push('\n');
}

/// Decodes a key in base64.
pub(crate) fn decode_key(text: &str) -> Option<SigningKey> {
    let mut seed = Zeroizing::new([0; SEED_LEN + 3]);
    let len = BASE64.decode_slice(text.trim(), &mut *seed).ok()?;
    let (seed, _) = seed.split_first_chunk()?;
    SigningKey::from_seed(seed).ok().filter(|_| len == SEED_LEN)
}

/// An invitation in its stored form, with only the secret's hash.
#[derive(Serialize, Deserialize)]
struct StoredInvitation {
    secret_hash: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    approve: bool,
    uses: u32,
    until: u64,
    #[serde(default)]
    range: Option<ipnet::Ipv4Net>,
    #[serde(default)]
    subnets: Vec<ipnet::IpNet>,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    relay: bool,
    #[serde(default)]
    gateway: bool,
    #[serde(default)]
    not_after: Option<u64>,
}

impl StoredInvitation {
    fn new(invitation: &Invitation) -> Self {
        let Terms { name, approve, range, subnets, groups, relay, gateway, not_after } =
            &invitation.terms;
        Self {
            name: name.as_ref().map(ToString::to_string),
            approve: *approve,
            secret_hash: BASE64.encode(invitation.secret_hash),
            uses: invitation.uses,
            until: invitation.until.0,
            range: *range,
            subnets: subnets.iter().copied().collect(),
            groups: groups.iter().map(ToString::to_string).collect(),
            relay: *relay,
            gateway: *gateway,
            not_after: not_after.map(|time| time.0),
        }
    }

    fn invitation(self) -> Option<Invitation> {
        let secret_hash = BASE64.decode(&self.secret_hash).ok()?.try_into().ok()?;
        let groups = self.groups.iter().map(|group| Label::new(group));
        Some(Invitation {
            secret_hash,
            uses: self.uses,
            until: UnixTime(self.until),
            terms: Terms {
                // An invalid stored name must not let the joiner choose its own.
                name: match self.name {
                    Some(name) => Some(Label::new(&name)?),
                    None => None,
                },
                approve: self.approve,
                range: self.range,
                subnets: self.subnets.into_iter().collect(),
                groups: groups.collect::<Option<_>>()?,
                relay: self.relay,
                gateway: self.gateway,
                not_after: self.not_after.map(UnixTime),
            },
        })
    }
}

/// Returns the invitations in their stored form, except expired ones.
pub(crate) fn encode_invitations(invitations: &Invitations) -> Vec<u8> {
    let now = unix_time();
    let open = invitations.iter().filter(|it| it.uses > 0 && it.until >= now);
    let stored: Vec<_> = open.map(StoredInvitation::new).collect();
    let mut text = serde_json::to_vec(&stored).unwrap_or_default();
    text.push(b'\n');
    text
}

fn load_invitations(path: &Path, mesh: MeshId) -> Result<Invitations, Fault> {
    let mut invitations = Invitations::new(mesh);
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(invitations),
        text => text.map_err(|error| file_fault("cannot read", path, &error))?,
    };
    let damaged = || {
        Fault::environment(format!(
            "{}: damaged; remove it (open invitations then end)",
            path.display()
        ))
    };
    let stored: Vec<StoredInvitation> = serde_json::from_slice(&text).map_err(|_| damaged())?;
    for one in stored {
        let invitation = one.invitation().ok_or_else(damaged)?;
        // Expired invitations are not stored.
        let _ = invitations.add(invitation, unix_time());
    }
    Ok(invitations)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written_and_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        assert!(load_key(&path).unwrap_err().to_string().contains("from a backup"));
        let key = new_key().unwrap();
        store_key(&path, &key).unwrap();
        assert_eq!(load_key(&path).unwrap().seed(), key.seed());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for wrong in ["", "AAAA", &"A".repeat(48), "not base64 at all"] {
            fs::write(&path, wrong).unwrap();
            assert!(load_key(&path).unwrap_err().to_string().contains("not a key"), "{wrong:?}");
        }
    }

    #[test]
    fn invitations_are_read_as_they_were_written_without_those_that_are_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("invitations.json");
        let now = unix_time();
        let terms = Terms {
            range: Some("100.87.0.0/16".parse().unwrap()),
            groups: [Label::new("web").unwrap()].into(),
            relay: true,
            name: Label::new("web1"),
            approve: true,
            ..Terms::default()
        };
        let until = UnixTime(now.0 + 3600);
        let open = Invitation { secret_hash: [1; 32], uses: 2, until, terms };
        let used = Invitation { secret_hash: [2; 32], uses: 0, ..open.clone() };
        let mut invitations = Invitations::new([7; 16]);
        invitations.add(open.clone(), now).unwrap();
        invitations.add(used, now).unwrap();
        fs::write(&path, encode_invitations(&invitations)).unwrap();
        let read = load_invitations(&path, [7; 16]).unwrap();
        assert_eq!(read.iter().collect::<Vec<_>>(), [&open]);
        fs::write(&path, "[{").unwrap();
        assert!(load_invitations(&path, [7; 16]).unwrap_err().to_string().contains("damaged"));
    }
}
