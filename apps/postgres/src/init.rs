//! `adit postgres init`: creates tables, roles and the first node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_engine::Random;
use adit_postgres::key::settings::NetworkSettings;
use adit_postgres::key::{NetworkKey, NetworkRecord};
use adit_postgres::sql;
use adit_postgres_client::{Environment, Target};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tokio_postgres::{Client, Transaction};

use super::admin::{self, block_on, node_name, open_own, random, statement_fault};
use super::change::{self, SettingsChange};
use super::invite::{self, Invitation};
use super::node::directory;
use super::paths::Paths;
use super::register::{Candidate, commit, forget};
use super::settings::Settings;
use adit_runtime::fault::Fault;

/// The oldest version of the server with all necessary features.
const OLDEST: i32 = 150_000;

/// The options on the command line. Missing values are chosen.
#[derive(Clone, Debug, Default)]
pub struct InitOptions {
    /// `--network`.
    pub network4: Option<Ipv4Net>,
    /// `--network6`.
    pub network6: Option<Ipv6Net>,
    /// `--name` of the first node, or `None` for the host name.
    pub name: Option<String>,
    /// `--network-name`, or `None` for the valid part of the database's name.
    pub network_name: Option<String>,
    /// The network's settings that differ from the defaults.
    pub settings: SettingsChange,
    /// `--auditor`: the file to create.
    pub auditor: Option<PathBuf>,
    /// `--tablespace` for the leaves.
    pub tablespace: Option<String>,
    /// `--route`: networks behind the first node.
    pub routes: Vec<IpNet>,
    /// The validity of the first invitation; one day by default.
    pub valid: Option<Duration>,
    /// Whether the first invitation needs no running node.
    pub offline: bool,
}

/// The outcome of `init`.
#[derive(Debug)]
pub enum InitOutcome {
    /// `--dry-run`: the statements that would be executed.
    Would(String),
    /// A new network.
    New {
        /// The paths of the first node's files.
        paths: Box<Paths>,
        /// The settings of the node.
        settings: Box<Settings>,
        /// The invitation for the next node.
        invitation: Invitation,
        /// The steps that were done, in words.
        done: Vec<String>,
        /// Notes for the operator.
        notes: Vec<String>,
    },
    /// The network exists and this host is a node of it, so nothing was done.
    There {
        /// The paths of the node's files.
        paths: Box<Paths>,
        /// The settings of the node.
        settings: Box<Settings>,
        /// Notes for the operator.
        notes: Vec<String>,
    },
}

/// Creates a network in the database `url`, with this host as its first node.
///
/// # Errors
/// Fails if the database cannot be reached, is too old, or already has a network, or the role may not create roles and
/// a schema.
pub fn init(
    dir: Option<&Path>,
    url: &str,
    options: &InitOptions,
    dry_run: bool,
) -> Result<InitOutcome, Fault> {
    let target = Target::of_operator(url, &Environment::of_process())?;
    let name = node_name(options.name.as_deref())?;
    let plain = (plain_record(options)?, options.settings.apply(&change::defaults())?);
    block_on(run(dir, &target, &name, plain, options, dry_run))
}

/// Returns the network's row without its tag, from the options.
fn plain_record(options: &InitOptions) -> Result<NetworkRecord, Fault> {
    if options.network4.is_none() && options.network6.is_none() {
        return Err(Fault::operator(
            "choose a network for the nodes' addresses: --network 10.9.0.0/24 (or --network6 fd09::/64, or both)",
        ));
    }
    if options.network4.is_some_and(|net| !(8..=30).contains(&net.prefix_len())) {
        return Err(Fault::operator("--network: the prefix length must be between 8 and 30"));
    }
    if options.network6.is_some_and(|net| !(16..=126).contains(&net.prefix_len())) {
        return Err(Fault::operator("--network6: the prefix length must be between 16 and 126"));
    }
    Ok(NetworkRecord {
        version: sql::VERSION,
        tag: String::new(),
        network4: options.network4.map(|net| net.trunc()),
        network6: options.network6.map(|net| net.trunc()),
        leaf_space: options.tablespace.clone(),
    })
}

async fn run(
    dir: Option<&Path>,
    target: &Target,
    name: &str,
    (plain, settings): (NetworkRecord, NetworkSettings),
    options: &InitOptions,
    dry_run: bool,
) -> Result<InitOutcome, Fault> {
    let mut client = open_own(target, "init").await?;
    let server = Server::query_server(&client).await?;
    if admin::version(&client).await?.is_some() {
        return already_initialised(dir, target, &client, options).await;
    }
    server.check(target)?;
    let tag = choose_tag(&client, target, options).await?;
    let network = NetworkRecord { tag, ..plain };
    if dry_run {
        return Ok(InitOutcome::Would(statements(&network, &settings, &server)?));
    }
    let paths = Paths::new(dir, &network.tag)?;
    Candidate::refuse_existing(&paths)?;
    let mut random = random()?;
    let key = NetworkKey::generate(&mut random);
    let mut first = settings;
    if let Some(file) = &options.auditor {
        first.auditor_key = Some(change::new_auditor(file, &key, &mut random)?);
    }
    let (network, first) = (&network, &first);
    let maker = NewNetwork { paths: &paths, target, network, first, key: &key, server: &server };
    match maker.make(&mut client, name, options, &mut random).await {
        Ok((settings, invitation)) => {
            let mut notes = target.warnings().to_vec();
            notes.extend(open_to_all(&client, target).await?);
            notes.extend(invitation.notes.iter().cloned());
            let done = done(network, first, target, &settings, options.auditor.as_deref());
            let (paths, settings) = (Box::new(paths), Box::new(settings));
            Ok(InitOutcome::New { paths, settings, invitation, done, notes })
        }
        Err(fault) => {
            if let Some(file) = &options.auditor {
                let _ = std::fs::remove_file(file);
            }
            Err(fault)
        }
    }
}

/// Returns a note if other programs' roles may connect.
async fn open_to_all(client: &Client, target: &Target) -> Result<Option<String>, Fault> {
    let open = "SELECT has_database_privilege('public', current_database(), 'CONNECT')";
    let row = client.query_one(open, &[]).await.and_then(|row| row.try_get(0));
    let open: bool = row.map_err(|error| statement_fault(&error))?;
    let database = target.database();
    Ok(open.then(|| {
        format!(
            "every role of the server may connect to the database {database:?}, send false wake-ups there and use up connections; \
             where no other program needs that, as its owner: REVOKE CONNECT ON DATABASE \"{database}\" FROM PUBLIC"
        )
    }))
}

/// Handles an existing network. If this host is its first node, there is nothing to do. Otherwise the network belongs to another host.
async fn already_initialised(
    dir: Option<&Path>,
    target: &Target,
    client: &Client,
    options: &InitOptions,
) -> Result<InitOutcome, Fault> {
    let tag: String = client
        .query_one("SELECT tag FROM adit.network", &[])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(|error| statement_fault(&error))?;
    let paths = Paths::new(dir, &tag)?;
    let own = paths.settings_file().exists().then(|| Settings::load(&paths)).transpose()?;
    let Some(settings) = own else {
        return Err(Fault::operator(format!(
            "the database {:?} already has a network, {tag}, that this machine is not in; on one of its nodes: adit \
             postgres invite; then run here what that prints. Another network needs its own database",
            target.database()
        )));
    };
    let (network, _) = admin::network(client).await?;
    let rows = directory::settings_rows(client).await.map_err(|error| statement_fault(&error))?;
    let newest = rows.last().and_then(directory::settings_record);
    let newest = newest.ok_or_else(|| Fault::peer("the network's settings are not valid"))?;
    refuse_difference(&network, &newest.settings, options)?;
    let notes = target.warnings().to_vec();
    Ok(InitOutcome::There { paths: Box::new(paths), settings: Box::new(settings), notes })
}

/// Refuses an option that would have no effect.
fn refuse_difference(
    network: &NetworkRecord,
    settings: &NetworkSettings,
    options: &InitOptions,
) -> Result<(), Fault> {
    if let Some(option) = options.settings.first_difference(settings) {
        return Err(Fault::operator(format!(
            "{option} differs from the settings of the network {}; change them with: adit postgres set {option} ...",
            network.tag
        )));
    }
    if options.auditor.is_some() {
        return Err(Fault::operator(format!(
            "--auditor: the network {} already exists; add an auditor with: adit postgres auditor add NEWKEYFILE",
            network.tag
        )));
    }
    let differs = [
        ("--network", options.network4.is_some_and(|net| Some(net.trunc()) != network.network4)),
        ("--network6", options.network6.is_some_and(|net| Some(net.trunc()) != network.network6)),
        ("--tablespace", options.tablespace.is_some() && options.tablespace != network.leaf_space),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        None => Ok(()),
        Some((option, _)) => Err(Fault::operator(format!(
            "{option} differs from the network {}, and cannot be changed; another network needs its own database",
            network.tag
        ))),
    }
}

/// The properties of the server, and our privileges there.
struct Server {
    version: i32,
    superuser: bool,
    may_make_roles: bool,
    may_make_schema: bool,
    may_grant_connect: bool,
    /// Whether the database has no tables yet, so that no other program uses it.
    empty: bool,
}

impl Server {
    async fn query_server(client: &Client) -> Result<Self, Fault> {
        let row = client
            .query_one(
                "SELECT current_setting('server_version_num')::int, rolsuper, rolcreaterole, \
                 has_database_privilege(current_database(), 'CREATE'), \
                 has_database_privilege(current_database(), 'CONNECT WITH GRANT OPTION'), \
                 NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid >= 16384 \
                     AND c.relnamespace <> 'pg_catalog'::pg_catalog.regnamespace \
                     AND c.relnamespace <> 'pg_toast'::pg_catalog.regnamespace) \
                 FROM pg_catalog.pg_roles WHERE rolname = current_user",
                &[],
            )
            .await
            .map_err(|error| statement_fault(&error))?;
        let read = || -> Result<Self, tokio_postgres::Error> {
            Ok(Self {
                version: row.try_get(0)?,
                superuser: row.try_get(1)?,
                may_make_roles: row.try_get(2)?,
                may_make_schema: row.try_get(3)?,
                may_grant_connect: row.try_get(4)?,
                empty: row.try_get(5)?,
            })
        };
        read().map_err(|error| statement_fault(&error))
    }

    fn check(&self, target: &Target) -> Result<(), Fault> {
        let (user, database) = (target.user(), target.database());
        if self.version < OLDEST {
            return Err(Fault::operator(format!(
                "the database is PostgreSQL {}; adit needs 15 or later",
                self.version.div_euclid(10_000)
            )));
        }
        if !self.superuser && !self.may_make_roles {
            return Err(Fault::operator(format!(
                "{user:?} may not create roles, and each node needs one; as a superuser: ALTER ROLE \"{user}\" CREATEROLE"
            )));
        }
        if !self.may_make_schema {
            return Err(Fault::operator(format!(
                "{user:?} may not create a schema in {database:?}; as its owner: GRANT CREATE ON DATABASE \"{database}\" TO \"{user}\""
            )));
        }
        Ok(())
    }
}

/// Chooses the network's name: the requested one, or that of the database, with a number if roles with this name already exist.
async fn choose_tag(
    client: &Client,
    target: &Target,
    options: &InitOptions,
) -> Result<String, Fault> {
    let allowed = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let from_database = || {
        let lower = target.database().to_ascii_lowercase();
        let word: String = lower.chars().filter(allowed).take(12).collect();
        if word.is_empty() { "net".to_owned() } else { word }
    };
    let wanted = options.network_name.clone().unwrap_or_else(from_database);
    // The characters are checked before the name is used in SQL.
    Paths::new(None, &wanted)?;
    for number in 1..100 {
        let tag = if number == 1 { wanted.clone() } else { format!("{wanted}{number}") };
        let taken: bool = client
            .query_one(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)",
                &[&sql::owner(&tag)],
            )
            .await
            .and_then(|row| row.try_get(0))
            .map_err(|error| statement_fault(&error))?;
        if !taken {
            return Ok(tag);
        }
        if options.network_name.is_some() {
            return Err(Fault::operator(format!(
                "--network-name {wanted}: the server already has the role {}, from a network in another database or one \
                 whose schema was dropped; choose another name",
                sql::owner(&tag)
            )));
        }
    }
    Err(Fault::operator(
        "the server has too many networks of this name; choose another: --network-name NAME",
    ))
}

/// Returns all statements that would be executed, without secret values.
fn statements(
    network: &NetworkRecord,
    settings: &NetworkSettings,
    server: &Server,
) -> Result<String, Fault> {
    let tag = &network.tag;
    let bad = |error| Fault::ours(format!("{error}"));
    let roles = sql::roles(tag, !server.superuser).map_err(bad)?;
    let schema = sql::schema(tag).map_err(bad)?;
    Ok(format!(
        "BEGIN;\n{roles}{schema}\n-- then GRANT CONNECT ON DATABASE to the groups, and, where the database is empty, \
         REVOKE CONNECT ON DATABASE FROM PUBLIC,\n-- the network's row ({network:?}),\n-- SELECT adit.reserve(...), adit.register(...) for this \
         node, adit.change_settings(...) for {settings:?},\n-- adit.invite(...) for the next\nCOMMIT;\n"
    ))
}

/// The parameters of a new network.
struct NewNetwork<'a> {
    paths: &'a Paths,
    target: &'a Target,
    network: &'a NetworkRecord,
    /// The network's first settings.
    first: &'a NetworkSettings,
    key: &'a NetworkKey,
    server: &'a Server,
}

impl NewNetwork<'_> {
    /// Creates everything in one transaction.
    async fn make(
        &self,
        client: &mut Client,
        name: &str,
        options: &InitOptions,
        random: &mut Random,
    ) -> Result<(Settings, Invitation), Fault> {
        let transaction = client.transaction().await.map_err(|error| statement_fault(&error))?;
        self.schema(&transaction).await?;
        let candidate = Candidate {
            paths: self.paths,
            target: self.target,
            network: self.network,
            key: self.key,
            name,
            routes: &options.routes,
        };
        let how = (options.valid.unwrap_or(invite::VALID), options.offline);
        let network = invite::Network { key: self.key, tag: &self.network.tag };
        let made = async {
            let (settings, secrets) = candidate.register(&transaction, random).await?;
            let first = self.first.sign(&self.network.tag, &secrets.keys);
            let first = first.map_err(|error| Fault::ours(format!("{error}")))?;
            change::store(&transaction, &first).await?;
            let invitation = invite::new(&transaction, self.target, &network, how, random).await?;
            Ok::<_, Fault>((settings, invitation))
        };
        let made = made.await.inspect_err(|_| forget(self.paths))?;
        commit(transaction, self.paths).await?;
        Ok(made)
    }

    async fn schema(&self, transaction: &Transaction<'_>) -> Result<(), Fault> {
        let network = self.network;
        let bad = |error| Fault::ours(format!("{error}"));
        let roles = sql::roles(&network.tag, !self.server.superuser).map_err(bad)?;
        transaction.batch_execute(&roles).await.map_err(|error| statement_fault(&error))?;
        if self.server.may_grant_connect {
            let groups = [
                sql::nodes(&network.tag),
                sql::invitation_role(&network.tag),
                sql::auditors(&network.tag),
            ];
            self.grant(
                transaction,
                "DATABASE",
                self.target.database(),
                "CONNECT",
                &groups.join(", "),
            )
            .await?;
            if self.server.empty {
                self.close(transaction).await?;
            }
        }
        if let Some(space) = &network.leaf_space {
            self.grant(transaction, "TABLESPACE", space, "CREATE", &sql::owner(&network.tag))
                .await?;
        }
        let schema = sql::schema(&network.tag).map_err(bad)?;
        transaction.batch_execute(&schema).await.map_err(|error| statement_fault(&error))?;
        let mac = network.mac(self.key).map_err(|error| Fault::ours(format!("{error}")))?;
        transaction
            .execute(
                "UPDATE adit.network SET network4 = $1::text::cidr, network6 = $2::text::cidr, leaf_space = $3::text::name, mac = $4",
                &[
                    &network.network4.map(|net| net.to_string()),
                    &network.network6.map(|net| net.to_string()),
                    &network.leaf_space,
                    &mac.as_slice(),
                ],
            )
            .await
            .map_err(|error| statement_fault(&error))?;
        transaction
            .batch_execute("RESET ROLE; RESET search_path")
            .await
            .map_err(|error| statement_fault(&error))
    }

    /// Revokes the access of other roles to the database. Only its owner can do this.
    async fn close(&self, transaction: &Transaction<'_>) -> Result<(), Fault> {
        let database = self.quoted(transaction, self.target.database()).await?;
        let revoke = format!("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC");
        transaction.batch_execute(&revoke).await.map_err(|error| statement_fault(&error))
    }

    async fn quoted(&self, transaction: &Transaction<'_>, name: &str) -> Result<String, Fault> {
        let row = transaction.query_one("SELECT pg_catalog.quote_ident($1)", &[&name]).await;
        row.and_then(|row| row.try_get(0)).map_err(|error| statement_fault(&error))
    }

    /// Grants the roles. The server itself quotes a name in a statement that takes no parameters.
    async fn grant(
        &self,
        transaction: &Transaction<'_>,
        kind: &str,
        name: &str,
        right: &str,
        to: &str,
    ) -> Result<(), Fault> {
        let quoted = self.quoted(transaction, name).await?;
        transaction
            .batch_execute(&format!("GRANT {right} ON {kind} {quoted} TO {to}"))
            .await
            .map_err(|error| statement_fault(&error))
    }
}

/// Returns the steps that were done, in words.
fn done(
    network: &NetworkRecord,
    first: &NetworkSettings,
    target: &Target,
    settings: &Settings,
    auditor: Option<&Path>,
) -> Vec<String> {
    let tag = &network.tag;
    let nets = [network.network4.map(IpNet::V4), network.network6.map(IpNet::V6)];
    let nets: Vec<String> = nets.into_iter().flatten().map(|net| net.to_string()).collect();
    let addresses: Vec<String> = settings.addresses.iter().map(ToString::to_string).collect();
    let mut done = vec![
        format!("the network {tag} ({}) in the database {}", nets.join(", "), target.database()),
        format!("the schema adit, and the roles adit_{tag}_owner, _nodes, _guests and _auditors"),
        format!("this machine as its node {} with {}", settings.name, addresses.join(" and ")),
        change::in_words(first),
    ];
    if let Some(file) = auditor {
        done.push(format!(
            "an auditor's key in {}: its holder can read everything; move it off this machine",
            file.display()
        ));
    }
    done
}

#[cfg(test)]
mod tests {
    use adit_postgres::{Audit, Durability};

    use super::*;

    fn init_options() -> InitOptions {
        InitOptions { network4: Some("10.9.0.7/24".parse().unwrap()), ..InitOptions::default() }
    }

    fn settings(settings: SettingsChange) -> InitOptions {
        InitOptions { settings, ..init_options() }
    }

    #[test]
    fn what_is_left_open_is_chosen() {
        let (record, settings) = (plain_record(&init_options()).unwrap(), change::defaults());
        assert_eq!(record.network4.unwrap().to_string(), "10.9.0.0/24");
        assert_eq!((settings.packet_size, settings.retention_bytes), (7900, 1_000_000_000));
        assert_eq!((settings.audit, settings.durability), (Audit::Headers, Durability::Strict));
        assert!(refuse_difference(&record, &settings, &InitOptions::default()).is_ok());
        assert!(refuse_difference(&record, &settings, &init_options()).is_ok());
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_option() {
        let plain = SettingsChange::default;
        for (options, said) in [
            (InitOptions::default(), "--network"),
            (
                InitOptions { network4: Some("10.0.0.0/31".parse().unwrap()), ..init_options() },
                "--network:",
            ),
            (
                InitOptions { network6: Some("fd00::/127".parse().unwrap()), ..init_options() },
                "--network6:",
            ),
            (settings(SettingsChange { packet_size: Some(1279), ..plain() }), "--packet-size"),
            (settings(SettingsChange { retention_bytes: Some(1), ..plain() }), "--retention "),
            (
                settings(SettingsChange { retention_age: Some(Duration::from_secs(1)), ..plain() }),
                "--retention-age",
            ),
        ] {
            let fault = plain_record(&options)
                .and_then(|_| options.settings.apply(&change::defaults()).map(drop))
                .unwrap_err()
                .to_string();
            assert!(fault.contains(said), "{fault}");
        }
    }

    #[test]
    fn another_network_than_the_one_that_is_there_is_refused_by_its_option() {
        let record = plain_record(&init_options()).unwrap();
        let day = Duration::from_secs(86_400);
        let plain = SettingsChange::default;
        for (options, said) in [
            (
                InitOptions { network4: Some("10.8.0.0/24".parse().unwrap()), ..init_options() },
                "--network ",
            ),
            (
                InitOptions { network6: Some("fd00::/64".parse().unwrap()), ..init_options() },
                "--network6 ",
            ),
            (settings(SettingsChange { audit: Some(Audit::Full), ..plain() }), "--audit "),
            (
                settings(SettingsChange { durability: Some(Durability::Relaxed), ..plain() }),
                "--durability ",
            ),
            (
                settings(SettingsChange { retention_bytes: Some(5_000_000_000), ..plain() }),
                "--retention ",
            ),
            (settings(SettingsChange { retention_age: Some(day), ..plain() }), "--retention-age "),
            (settings(SettingsChange { packet_size: Some(1400), ..plain() }), "--packet-size "),
            (InitOptions { auditor: Some("k".into()), ..init_options() }, "--auditor: "),
            (InitOptions { tablespace: Some("t".into()), ..init_options() }, "--tablespace "),
        ] {
            let fault = refuse_difference(&record, &change::defaults(), &options);
            let fault = fault.unwrap_err().to_string();
            assert!(fault.starts_with(said), "{fault}");
        }
    }
}
