//! SQL statements. Values are always parameters, and names are built here from numbers.

use crate::{LeafNo, NodeId};

/// The SQL text of the tables, functions and privileges. [`schema`] fills in `{owner}` and the other placeholders.
const SCHEMA: &str = include_str!("schema.sql");

/// The version of the schema.
pub const VERSION: i32 = 2;

/// The columns that a sender fills, in the order of its COPY.
pub const SENT_COLUMNS: &str =
    "seq, stream, epoch, len, sport, dport, proto, flags, src, dst, tag, chain, payload";

/// Returns the statements that create the schema, for the roles with `tag` in their names (lower-case letters and digits).
/// They must run in one transaction.
///
/// # Errors
/// Fails if the tag is empty or has other characters.
pub fn schema(tag: &str) -> Result<String, TagError> {
    if tag.is_empty()
        || tag.len() > 16
        || !tag.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    {
        return Err(TagError);
    }
    Ok(SCHEMA
        .replace("{owner_text}", &format!("'{}'", owner(tag)))
        .replace("{owner}", &owner(tag))
        .replace("{nodes}", &nodes(tag))
        .replace("{guests}", &invitation_role(tag))
        .replace("{auditors}", &auditors(tag))
        .replace("{version}", &VERSION.to_string())
        .replace("{tag}", &format!("'{tag}'")))
}

/// Returns the statements that create the roles which [`schema`] needs. They run before it, in the same transaction.
/// `member` is true if the executing role must become a member of the owner's role (a superuser is a member of every
/// role). The role needs CREATEROLE.
///
/// # Errors
/// See [`schema`].
pub fn roles(tag: &str, member: bool) -> Result<String, TagError> {
    schema(tag)?;
    let (owner, nodes, guests, auditors) =
        (owner(tag), nodes(tag), invitation_role(tag), auditors(tag));
    let member = if member { format!("GRANT {owner} TO CURRENT_USER;\n") } else { String::new() };
    // Since version 16, only a role with ADMIN on a group may add members to it.
    Ok(format!(
        "CREATE ROLE {owner} NOLOGIN CREATEROLE;\n\
         CREATE ROLE {nodes} NOLOGIN;\n\
         CREATE ROLE {guests} NOLOGIN;\n\
         CREATE ROLE {auditors} NOLOGIN;\n\
         GRANT {nodes}, {guests} TO {owner} WITH ADMIN OPTION;\n{member}"
    ))
}

/// The error for an invalid tag.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tag is 1 to 16 lower-case letters and digits")]
pub struct TagError;

/// Returns the role that owns every object.
pub fn owner(tag: &str) -> String {
    format!("adit_{tag}_owner")
}

/// Returns the group of all nodes.
pub fn nodes(tag: &str) -> String {
    format!("adit_{tag}_nodes")
}

/// Returns the group of all invitations.
pub fn invitation_role(tag: &str) -> String {
    format!("adit_{tag}_guests")
}

/// Returns the group of the roles that may read everything.
pub fn auditors(tag: &str) -> String {
    format!("adit_{tag}_auditors")
}

/// Returns the table of a sender's leaf, with its schema.
pub fn leaf(sender: NodeId, no: LeafNo) -> String {
    format!("adit.packet_{sender}_{no}")
}

/// Returns the view of a leaf that shows a node the rows addressed to it, with its schema.
pub fn inbox(sender: NodeId, no: LeafNo) -> String {
    format!("adit.inbox_{sender}_{no}")
}

/// Returns the sequence that counts the wake-ups of a node, with its schema.
pub fn wake_up_sequence(node: NodeId) -> String {
    format!("adit.bell_{node}")
}

/// Returns the channel on which a node is notified. The notification's payload is `STREAM.LEAF`.
pub fn channel(node: NodeId) -> String {
    format!("adit_{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in() {
        let sql = schema("t1").unwrap();
        for left in ["_text}", "{owner}", "{nodes}", "{guests}", "{auditors}", "{tag}", "{version}"]
        {
            assert!(!sql.contains(left), "{left}");
        }
        assert!(sql.contains("AUTHORIZATION adit_t1_owner"));
    }

    #[test]
    fn a_tag_that_could_end_a_name_is_refused() {
        for tag in ["", "a b", "a\"", "a'", "A", "abcdefghijklmnopq"] {
            assert_eq!(schema(tag), Err(TagError), "{tag:?}");
        }
    }
}
