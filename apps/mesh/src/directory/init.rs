//! Creates a directory in a database, and the nodes' roles in it.

use std::path::{Path, PathBuf};

use adit_mesh::roster::{Change, Changes, Label, Roster};
use adit_mesh::session::KeyHash;
use adit_postgres_client::operator::{block_on, new_password, open_own, statement_fault, verifier};
use adit_postgres_client::{Environment, Target};
use adit_runtime::fault::Fault;
use adit_runtime::paths::write_whole;
use tokio_postgres::{Client, Transaction};
use zeroize::Zeroizing;

use super::sql::{self, VERSION};
use super::{DirectoryChosen, DirectoryConfig, own_signers, tag};
use crate::Paths;
use crate::roster_file::RosterFile;

/// The oldest server version with all necessary features.
const OLDEST: i32 = 150_000;

/// The maximum number of connections of one node's role.
const CONNECTIONS: u32 = 4;

/// The options of `adit mesh directory postgres --init`.
#[derive(Clone, Debug, Default)]
pub struct InitOptions {
    /// The member to create a role for, and the file for its password; `None` for this node.
    pub node: Option<(String, PathBuf)>,
}

/// The result of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryInit {
    /// Whether the schema is new.
    pub is_new: bool,
    /// The database, and the role of the node.
    pub chosen: DirectoryChosen,
    /// The number of changes that the directory lacked and that were appended.
    pub appended: usize,
    /// The number of removed rows that were not valid changes.
    pub removed: usize,
    /// The roles of former members. They can no longer log in.
    pub retired: Vec<String>,
}

/// Creates the directory in the database `url` if necessary, appends all changes of this node to it, and creates or renews a node's role.
/// Needs a role that may create roles and a schema.
///
/// # Errors
/// The database cannot be reached, is too old, has another mesh's directory, or the role lacks a right.
pub fn init_directory(
    paths: &Paths,
    url: &str,
    options: &InitOptions,
) -> Result<DirectoryInit, Fault> {
    let changes = RosterFile::peek(&paths.roster_file())?;
    let roster = Roster::evaluate(&changes);
    let signers = match &options.node {
        Some((name, _)) => vec![member(&roster, name)?],
        None => own_signers(paths)?,
    };
    let target = Target::of_operator(url, &Environment::of_process())?;
    let mut random = adit_runtime::random::generator()?;
    let new = new_password(&mut random);
    let role = match signers.first() {
        Some(key) => sql::node(&tag(changes.mesh()), key),
        None => return Err(Fault::ours("a node without a key")),
    };
    // A running node's password stays the same.
    let former = match options.node {
        Some(_) => None,
        None => DirectoryConfig::load(paths)?.filter(|former| former.role == role),
    };
    let password = former.map_or(new, |former| former.password);
    let config = DirectoryConfig { database: target.to_url(), role, password };
    block_on(async {
        let mut client = open_own(&target, "mesh directory").await?;
        let transaction = client.transaction().await.map_err(|error| statement_fault(&error))?;
        let work = Init { transaction: &transaction, target: &target, changes: &changes };
        let done = work.run(&roster, &signers, &config).await?;
        // Write the file first: a role whose password is lost is useless.
        match &options.node {
            Some((_, file)) => {
                write_whole(file, 0o600, passfile_line(&target, &config).as_bytes())?;
            }
            None => config.store(paths)?,
        }
        transaction.commit().await.map_err(|error| {
            Fault::environment(format!(
                "the database did not commit: {error}; run the command again"
            ))
        })?;
        let mut notes = target.warnings().to_vec();
        notes.extend(rights_of_all(&client, &target).await?);
        Ok(DirectoryInit { chosen: DirectoryChosen { notes, ..done.chosen }, ..done })
    })
}

/// Returns the key of a member.
fn member(roster: &Roster, name: &str) -> Result<KeyHash, Fault> {
    let member = Label::new(name).and_then(|label| roster.by_name(&label));
    member.map(|member| member.key).ok_or_else(|| {
        Fault::operator(format!(
            "{name}: not a member of the mesh; list them with: adit mesh peers"
        ))
    })
}

/// Returns a password file's line for a node's role.
fn passfile_line(target: &Target, config: &DirectoryConfig) -> Zeroizing<String> {
    let database = target.database().replace('\\', "\\\\").replace(':', "\\:");
    Zeroizing::new(format!("*:*:{database}:{}:{}\n", config.role, *config.password))
}

/// Returns a note if every role of the server may store data in this database.
async fn rights_of_all(client: &Client, target: &Target) -> Result<Option<String>, Fault> {
    let asked = "SELECT has_database_privilege('public', current_database(), 'CONNECT') \
        OR has_database_privilege('public', current_database(), 'TEMPORARY')";
    let row = client.query_one(asked, &[]).await.and_then(|row| row.try_get(0));
    let open: bool = row.map_err(|error| statement_fault(&error))?;
    let database = target.database();
    Ok(open.then(|| {
        format!(
            "every role of the server may connect to the database {database:?} and use its disk for temporary tables; where no \
             other program needs that, as its owner: REVOKE CONNECT, TEMPORARY ON DATABASE \"{database}\" FROM PUBLIC"
        )
    }))
}

/// Does the work in one transaction.
struct Init<'a> {
    transaction: &'a Transaction<'a>,
    target: &'a Target,
    changes: &'a Changes,
}

impl Init<'_> {
    async fn run(
        &self,
        roster: &Roster,
        signers: &[KeyHash],
        config: &DirectoryConfig,
    ) -> Result<DirectoryInit, Fault> {
        let tag = tag(self.changes.mesh());
        let is_new = match sql::identity(self.transaction).await? {
            Some(found) => {
                sql::is_of(&found, self.changes.mesh())?;
                false
            }
            None => {
                self.create(&tag).await?;
                true
            }
        };
        self.execute("RESET ROLE").await?;
        self.make_role(&tag, config).await?;
        self.execute(&format!("SET LOCAL ROLE {}", sql::owner(&tag))).await?;
        for signer in signers {
            let map = "INSERT INTO adit_mesh.signer (signer, role) VALUES ($1, $2::text::name) \
                ON CONFLICT (signer) DO UPDATE SET role = excluded.role";
            self.transaction
                .execute(map, &[&signer.as_slice(), &config.role])
                .await
                .map_err(|error| statement_fault(&error))?;
        }
        let removed = self.remove_invalid().await?;
        let appended = self.append_missing().await?;
        let retired = self.forget_removed(roster).await?;
        self.execute("RESET ROLE").await?;
        for role in &retired {
            self.execute(&format!("ALTER ROLE {} NOLOGIN", quoted(role))).await?;
        }
        self.execute("NOTIFY adit_mesh").await?;
        let (database, role) = (config.database.clone(), config.role.clone());
        let chosen = DirectoryChosen { database, role, notes: Vec::new() };
        Ok(DirectoryInit { is_new, chosen, appended, removed, retired })
    }

    async fn execute(&self, statement: &str) -> Result<(), Fault> {
        self.transaction.batch_execute(statement).await.map_err(|error| statement_fault(&error))
    }

    /// Creates the schema and its roles.
    async fn create(&self, tag: &str) -> Result<(), Fault> {
        let asked = "SELECT current_setting('server_version_num')::int, rolsuper, rolcreaterole, \
            has_database_privilege(current_database(), 'CREATE'), \
            has_database_privilege(current_database(), 'CONNECT WITH GRANT OPTION') \
            FROM pg_catalog.pg_roles WHERE rolname = current_user";
        let row = self.transaction.query_one(asked, &[]).await;
        let row = row.map_err(|error| statement_fault(&error))?;
        let of = |error: tokio_postgres::Error| statement_fault(&error);
        let version: i32 = row.try_get(0).map_err(of)?;
        let flag = |at: usize| row.try_get::<_, bool>(at).map_err(of);
        let (is_superuser, makes_roles) = (flag(1)?, flag(2)?);
        let (user, database) = (self.target.user(), self.target.database());
        if version < OLDEST {
            let version = version.div_euclid(10_000);
            return Err(Fault::operator(format!(
                "the database is PostgreSQL {version}; adit needs 15 or later"
            )));
        }
        if !is_superuser && !makes_roles {
            return Err(Fault::operator(format!(
                "{user:?} may not create roles, and each node needs one; as a superuser: ALTER ROLE \"{user}\" CREATEROLE"
            )));
        }
        if !flag(3)? {
            return Err(Fault::operator(format!(
                "{user:?} may not create a schema in {database:?}; as its owner: GRANT CREATE ON DATABASE \"{database}\" TO \"{user}\""
            )));
        }
        self.execute(&sql::roles(tag, !is_superuser)).await?;
        if flag(4)? {
            let nodes = sql::nodes(tag);
            let database = quoted(database);
            self.execute(&format!("GRANT CONNECT ON DATABASE {database} TO {nodes}")).await?;
        }
        self.execute(&sql::schema(tag)).await?;
        let genesis = self.changes.genesis();
        let bytes = genesis.encode().map_err(|error| Fault::ours(error.to_string()))?;
        let mesh = self.changes.mesh().as_slice();
        let insert =
            "INSERT INTO adit_mesh.mesh (version, id, name, genesis) VALUES ($1, $2, $3, $4)";
        self.transaction
            .execute(insert, &[&VERSION, &mesh, &genesis.name.to_string(), &bytes])
            .await
            .map(drop)
            .map_err(of)
    }

    /// Creates a node's role, or changes its password.
    async fn make_role(&self, tag: &str, config: &DirectoryConfig) -> Result<(), Fault> {
        let role = &config.role;
        let there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)";
        let row = self.transaction.query_one(there, &[role]).await;
        let is_there: bool =
            row.and_then(|row| row.try_get(0)).map_err(|error| statement_fault(&error))?;
        // Send only the verifier, so the database's log never contains the password.
        let verifier = verifier(&config.password);
        let rights = format!("LOGIN PASSWORD '{verifier}' CONNECTION LIMIT {CONNECTIONS}");
        if is_there {
            return self.execute(&format!("ALTER ROLE {role} {rights}")).await;
        }
        let nodes = sql::nodes(tag);
        self.execute(&format!("CREATE ROLE {role} {rights} IN ROLE {nodes}")).await
    }

    /// Removes the rows that are not valid changes, which prevent valid ones from being appended.
    async fn remove_invalid(&self) -> Result<usize, Fault> {
        let select = "SELECT place, signer, number, bytes FROM adit_mesh.change ORDER BY place";
        let rows = self.transaction.query(select, &[]).await;
        let mut removed = 0_usize;
        for row in rows.map_err(|error| statement_fault(&error))? {
            let of = |error: tokio_postgres::Error| statement_fault(&error);
            let place: i64 = row.try_get(0).map_err(of)?;
            let (signer, number): (Vec<u8>, i64) =
                (row.try_get(1).map_err(of)?, row.try_get(2).map_err(of)?);
            let bytes: Vec<u8> = row.try_get(3).map_err(of)?;
            let change = Change::decode(self.changes.mesh(), &bytes);
            let is_valid = change.is_ok_and(|change| {
                change.signer().as_slice() == signer && i64::from(change.body().number) == number
            });
            if !is_valid {
                let delete = "DELETE FROM adit_mesh.change WHERE place = $1";
                self.transaction.execute(delete, &[&place]).await.map_err(of)?;
                removed = removed.saturating_add(1);
            }
        }
        Ok(removed)
    }

    /// Appends the changes of all signers that the directory lacks.
    async fn append_missing(&self) -> Result<usize, Fault> {
        let insert = "INSERT INTO adit_mesh.change (signer, number, bytes) VALUES ($1, $2, $3) \
            ON CONFLICT (signer, number) DO NOTHING";
        let of = |error: tokio_postgres::Error| statement_fault(&error);
        let insert = self.transaction.prepare(insert).await.map_err(of)?;
        let mut appended = 0_usize;
        for change in self.changes.in_causal_order() {
            let (signer, number) = (change.signer(), i64::from(change.body().number));
            let bytes = change.encode();
            let count =
                self.transaction.execute(&insert, &[&signer.as_slice(), &number, &bytes]).await;
            appended = appended.saturating_add(usize::from(count.map_err(of)? > 0));
        }
        Ok(appended)
    }

    /// Revokes the right to append from the roles of former members. Returns these roles.
    async fn forget_removed(&self, roster: &Roster) -> Result<Vec<String>, Fault> {
        let of = |error: tokio_postgres::Error| statement_fault(&error);
        let rows = self.transaction.query("SELECT signer, role::text FROM adit_mesh.signer", &[]);
        let mut retired = Vec::new();
        let mut stays = Vec::new();
        for row in rows.await.map_err(of)? {
            let (signer, role): (Vec<u8>, String) =
                (row.try_get(0).map_err(of)?, row.try_get(1).map_err(of)?);
            let key = KeyHash::try_from(signer.as_slice()).unwrap_or_default();
            if roster.member(&key).is_some() || roster.admins().contains(&key) {
                stays.push(role);
                continue;
            }
            let delete = "DELETE FROM adit_mesh.signer WHERE signer = $1";
            self.transaction.execute(delete, &[&signer]).await.map_err(of)?;
            retired.push(role);
        }
        retired.sort();
        retired.dedup();
        retired.retain(|role| !stays.contains(role));
        Ok(retired)
    }
}

/// Quotes a name for a statement.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns the instructions for the operator of a node to use its new role.
pub fn use_hint(chosen: &DirectoryChosen, file: &Path) -> String {
    let rest = chosen.database.strip_prefix("postgres://").unwrap_or(&chosen.database);
    let join = if rest.contains('?') { '&' } else { '?' };
    format!(
        "adit mesh directory postgres 'postgres://{}@{rest}{join}passfile={}'",
        chosen.role,
        file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_password_files_line_are_quoted() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
        let target = Target::of_operator("host=h user=u dbname=a:b\\\\c", &Environment::default());
        let config = DirectoryConfig {
            database: String::new(),
            role: "r".into(),
            password: Zeroizing::new("p".into()),
        };
        assert_eq!(*passfile_line(&target.unwrap(), &config), "*:*:a\\:b\\\\c:r:p\n");
    }

    #[test]
    fn the_hint_has_the_role_and_the_file() {
        let database = "postgres://db:5432/mesh?sslmode=require".into();
        let chosen = DirectoryChosen { database, role: "r".into(), notes: Vec::new() };
        let hint = use_hint(&chosen, Path::new("/root/web1.pass"));
        assert!(
            hint.ends_with("'postgres://r@db:5432/mesh?sslmode=require&passfile=/root/web1.pass'")
        );
    }
}
