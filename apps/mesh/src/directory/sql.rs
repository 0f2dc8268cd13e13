//! The statements of the directory.

use adit_mesh::roster::{MAX_CHAIN, MAX_CHAINS, MAX_CHANGES, MAX_OBJECT, MAX_READ};
use adit_mesh::session::MeshId;
use adit_postgres_client::operator::{has_schema, statement_fault};
use adit_runtime::fault::Fault;
use tokio_postgres::{Client, GenericClient};

/// The SQL text of the tables, functions and privileges, with placeholders for role names and bounds.
const SCHEMA: &str = include_str!("schema.sql");

/// The version of the schema.
pub(crate) const VERSION: i32 = 1;

/// The number of changes that one signer may append within a day.
pub(super) const MAX_PER_DAY: usize = 4096;

/// The length of the shortest change, in bytes.
const MIN_CHANGE: usize = 144;

pub(crate) const LISTEN: &str = "LISTEN adit_mesh";

/// Returns the version and the mesh's id.
pub(crate) const IDENTITY: &str = "SELECT version, id FROM adit_mesh.mesh";

/// Appends a change: signer, number, bytes.
pub(crate) const APPEND: &str = "SELECT result, other FROM adit_mesh.append($1, $2, $3)";

/// Reads the changes after a place.
pub(crate) const READ: &str = "SELECT place, signer, number, bytes FROM adit_mesh.change WHERE place > $1 \
    ORDER BY place LIMIT $2";

/// Summarizes the chains up to a place.
pub(crate) const SUMMARY: &str = "SELECT signer, count(*), \
    sha256(string_agg(sha256(bytes), ''::bytea ORDER BY number)) \
    FROM adit_mesh.change WHERE place <= $1 GROUP BY signer LIMIT $2";

/// Returns whether the session's role appends the changes of a signer.
pub(super) const IS_OWN: &str =
    "SELECT EXISTS (SELECT FROM adit_mesh.signer WHERE signer = $1 AND role = session_user)";

/// The maximum number of rows of one [`READ`], as the statement's parameter.
pub(crate) const READ_LIMIT: i64 = MAX_READ as i64;

/// The maximum number of rows of one [`SUMMARY`]: one more than valid, to detect too many.
pub(crate) const SUMMARY_LIMIT: i64 = MAX_CHAINS as i64 + 1;

/// Returns the role that owns everything.
pub(super) fn owner(tag: &str) -> String {
    format!("adit_mesh_{tag}_owner")
}

/// Returns the group of all nodes.
pub(super) fn nodes(tag: &str) -> String {
    format!("adit_mesh_{tag}_nodes")
}

/// Returns the role of a node.
pub(super) fn node(tag: &str, key: &[u8; 32]) -> String {
    let key: String = key.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("adit_mesh_{tag}_{key}")
}

/// Returns the statements that create the roles. `is_member` means that the session's role must become a member of the
/// owner's; a superuser is a member of every role.
pub(super) fn roles(tag: &str, is_member: bool) -> String {
    let (owner, nodes) = (owner(tag), nodes(tag));
    let member = if is_member { format!("GRANT {owner} TO CURRENT_USER;") } else { String::new() };
    format!("CREATE ROLE {owner} NOLOGIN; CREATE ROLE {nodes} NOLOGIN; {member}")
}

/// Returns the statements that create the schema. They run in one transaction, after [`roles`].
pub(super) fn schema(tag: &str) -> String {
    SCHEMA
        .replace("{owner}", &owner(tag))
        .replace("{nodes}", &nodes(tag))
        .replace("{min_change}", &MIN_CHANGE.to_string())
        .replace("{max_object}", &MAX_OBJECT.to_string())
        .replace("{max_chain}", &MAX_CHAIN.to_string())
        .replace("{max_changes}", &MAX_CHANGES.to_string())
        .replace("{max_per_day}", &MAX_PER_DAY.to_string())
}

/// Returns the version of the directory in a database, and the id of its mesh.
///
/// # Errors
/// The database refuses, or has a schema of this name that is not a directory.
pub(super) async fn identity(client: &impl GenericClient) -> Result<Option<(i32, Vec<u8>)>, Fault> {
    if !has_schema(client, "adit_mesh", "mesh", "a mesh's directory").await? {
        return Ok(None);
    }
    let row = client.query_one(IDENTITY, &[]).await.map_err(|error| statement_fault(&error))?;
    match (row.try_get(0), row.try_get(1)) {
        (Ok(version), Ok(id)) => Ok(Some((version, id))),
        _ => Err(Fault::operator("the directory in the database is not valid")),
    }
}

/// Checks that a database is the directory of this mesh, in a version that this adit supports.
///
/// # Errors
/// It is not.
pub(crate) async fn check_identity(client: &Client, mesh: &MeshId) -> Result<(), Fault> {
    match identity(client).await? {
        Some(found) => is_of(&found, mesh),
        None => Err(Fault::operator(
            "the database has no directory of a mesh; create it with: adit mesh directory postgres URL --init",
        )),
    }
}

/// Checks an [`identity`].
pub(super) fn is_of((version, id): &(i32, Vec<u8>), mesh: &MeshId) -> Result<(), Fault> {
    if *version != VERSION {
        return Err(Fault::operator(format!(
            "the directory in the database has version {version}, and this adit supports {VERSION}: use the adit that the other \
             nodes use"
        )));
    }
    if id != mesh {
        return Err(Fault::operator(format!(
            "the database has the directory of another mesh ({}): each mesh needs its own database",
            crate::short(id)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in() {
        let sql = schema("7f3ac21b");
        assert!(!sql.contains(['{', '}']), "{sql}");
        assert!(sql.contains("AUTHORIZATION adit_mesh_7f3ac21b_owner"));
        assert_eq!(node("7f3ac21b", &[0xab; 32]).len(), 35);
    }

    #[test]
    fn the_shortest_change_has_the_length_that_the_database_demands() {
        use adit_crypto::sign::SigningKey;
        use adit_engine::UnixTime;
        use adit_mesh::roster::{Action, Body, Change};
        let key = SigningKey::from_seed(&[1; 32]).unwrap();
        let body = Body {
            number: 0x0102_0304,
            previous: [3; 32],
            time: UnixTime(1_800_000_000),
            heads: [[9; 32]].into(),
            action: Action::SetThreshold(1),
        };
        let change = Change::sign(&[0; 16], &key, body).unwrap();
        let bytes = change.encode();
        assert_eq!(bytes.len(), MIN_CHANGE + 1 + 32);
        // The positions in the schema's text, counted from 1.
        assert_eq!(&bytes[..2], [2, 1]);
        assert_eq!(&bytes[2..34], key.public());
        assert_eq!(&bytes[34..38], [1, 2, 3, 4]);
        assert_eq!((bytes[78], bytes[79 + 32]), (1, 6));
    }

    #[test]
    fn another_version_and_another_mesh_are_refused() {
        assert!(is_of(&(VERSION, vec![1; 16]), &[1; 16]).is_ok());
        let version = is_of(&(VERSION + 1, vec![1; 16]), &[1; 16]).unwrap_err().to_string();
        assert!(version.contains("version 2"), "{version}");
        let mesh = is_of(&(VERSION, vec![2; 16]), &[1; 16]).unwrap_err().to_string();
        assert!(mesh.contains("another mesh (02020202)"), "{mesh}");
    }
}
