//! `adit postgres join`: makes this host a node.

use std::path::Path;
use std::time::Duration;

use adit_engine::Random;
use adit_postgres::key::{NetworkKey, SealSecret};
use adit_postgres::token::{Admission, Token};
use adit_postgres_client::pooler::{self, ProbeError};
use adit_postgres_client::{Environment, Target, open};
use ipnet::IpNet;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::admin::{self, block_on, node_name, random};
use super::paths::Paths;
use super::register::{Candidate, commit, forget};
use super::settings::Settings;
use adit_runtime::clock::now;
use adit_runtime::fault::Fault;
use adit_runtime::progress::Progress;

const ASK: &str = "SELECT adit.ask($1, $2)";

const ANSWERED: &str = "SELECT enc, sealed, offline FROM adit.answered()";

/// The time limit for a node's answer. The constants below are the interval between two queries, and the delay before the user is notified.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_PAUSE: Duration = Duration::from_millis(250);
const TELL_AFTER: Duration = Duration::from_secs(2);

/// How long to wait for sessions of the invitation's role to end.
const SESSIONS_LIMIT: Duration = Duration::from_secs(10);

/// The options on the command line.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// `--name`, or `None` for the host name.
    pub name: Option<String>,
    /// `--network-name`, or `None` for the network's own name.
    pub network_name: Option<String>,
    /// `--route`: networks behind this node.
    pub routes: Vec<IpNet>,
}

/// The outcome of `join`.
#[derive(Clone, Debug)]
pub struct JoinOutcome {
    /// The paths of the files.
    pub paths: Paths,
    /// The settings of the node.
    pub settings: Settings,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// Joins the network of `invitation` (`postgres://...#adit1-...`).
///
/// # Errors
/// Fails if the invitation is used, too old or damaged, the database cannot be reached or is not that of the
/// invitation, or the name or a network behind this node is already taken.
pub fn join(
    dir: Option<&Path>,
    invitation: &str,
    options: &JoinOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<JoinOutcome, Fault> {
    let Some((url, token)) = invitation.trim().rsplit_once('#') else {
        return Err(Fault::operator(
            "that is not an invitation, which ends in #adit1-...; run `adit postgres join -` and paste what init or \
             invite printed; create another with: adit postgres invite",
        ));
    };
    let token: Token = token.parse().map_err(|error| Fault::operator(format!("{error}")))?;
    let target = Target::of_operator(url, &Environment::of_process())?
        .with_role(&token.role, &token.secret.password());
    let name = node_name(options.name.as_deref())?;
    block_on(run(dir, &target, &token, &name, options, tell))
}

async fn run(
    dir: Option<&Path>,
    target: &Target,
    token: &Token,
    name: &str,
    options: &JoinOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<JoinOutcome, Fault> {
    let progress = Progress::new("joining");
    let tell = &mut |line: &str| progress.aside(|| tell(line));
    let mut client = connect_as_invited(target, tell).await?;
    let (network, _) = admin::network(&client).await?;
    let paths = Paths::new(dir, options.network_name.as_deref().unwrap_or(&network.tag))?;
    Candidate::refuse_existing(&paths)?;
    let mut random = random()?;
    let key = receive_network_key(&client, token, &network.tag, &mut random, tell).await?;
    let transaction = client.transaction().await.map_err(|error| admin::statement_fault(&error))?;
    // Read the row again, because the wait may have been long.
    let (network, mac) = admin::network(&transaction).await?;
    network.verify(&key, &mac).map_err(|error| {
        Fault::peer(format!(
            "the network in this database is not the one that the invitation is for, or it was altered: {error}"
        ))
    })?;
    let candidate = Candidate {
        paths: &paths,
        target,
        network: &network,
        key: &key,
        name,
        routes: &options.routes,
    };
    let settings = match candidate.register(&transaction, &mut random).await {
        Ok((settings, _)) => settings,
        Err(fault) => {
            forget(&paths);
            return Err(fault);
        }
    };
    commit(transaction, &paths).await?;
    Ok(JoinOutcome { settings, notes: target.warnings().to_vec(), paths })
}

/// Connects with the invitation's role. The role may have two sessions, and those of an earlier attempt may still exist
/// for a moment, because a server process ends some time after its client.
async fn connect_as_invited(target: &Target, tell: &mut dyn FnMut(&str)) -> Result<Client, Fault> {
    let began = now();
    let mut told = false;
    loop {
        let fault = match open(target, "join").await {
            Ok(client) => match pooler::shares_session(&client, target).await {
                Err(ProbeError::Connect(fault)) if fault.is_full => fault,
                shares => {
                    admin::refuse_pooler(shares)?;
                    return Ok(client);
                }
            },
            Err(fault) if fault.is_full => fault,
            Err(fault) if fault.refuses_role => {
                return Err(Fault::operator(
                    "the database does not know this invitation: it was used, is too old, or is for another database; \
                     create another with: adit postgres invite",
                ));
            }
            Err(fault) => return Err(fault.into()),
        };
        if now().since(began) > SESSIONS_LIMIT {
            return Err(fault.into());
        }
        if !told {
            tell(
                "the invitation's sessions are in use, perhaps by an earlier attempt; waiting until they have ended",
            );
            told = true;
        }
        sleep(ANSWER_PAUSE).await;
    }
}

/// Gets the network's key from an offline invitation itself, or else from a running node.
async fn receive_network_key(
    client: &Client,
    token: &Token,
    tag: &str,
    random: &mut Random,
    tell: &mut dyn FnMut(&str),
) -> Result<NetworkKey, Fault> {
    let failed = |_| Fault::ours("cannot create keys: the cryptographic library failed");
    let key = token.secret.key().map_err(failed)?;
    let altered = || Fault::peer("the invitation in the database was altered: do not trust it");
    // The key exists only during this command. Afterwards no wrap to it can be opened.
    let own = SealSecret::generate(random);
    let public = own.public().map_err(|error| Fault::ours(format!("making keys: {error}")))?;
    let proof = key.prove(tag, &token.role, &public).map_err(failed)?;
    let began = now();
    let mut asked = false;
    let mut told = false;
    loop {
        let row = client
            .query_one(ANSWERED, &[])
            .await
            .map_err(|error| admin::statement_fault(&error))?;
        let bytes = |at| {
            row.try_get::<_, Option<Vec<u8>>>(at).map_err(|error| admin::statement_fault(&error))
        };
        if let Some(sealed) = bytes(2)? {
            return key.open_offline(tag, &sealed).ok_or_else(altered);
        }
        if !asked {
            let values: [&(dyn ToSql + Sync); 2] = [&public.as_bytes(), &proof.as_slice()];
            client.query_one(ASK, &values).await.map_err(|error| admin::statement_fault(&error))?;
            asked = true;
        } else if let (Some(enc), Some(sealed)) = (bytes(0)?, bytes(1)?) {
            let answer = Admission { enc, sealed };
            return key.open_admission(tag, &token.role, &own, &answer).ok_or_else(altered);
        }
        let waited = now().since(began);
        if waited > ANSWER_LIMIT {
            return Err(Fault::environment(
                "no node of the network has answered: start one (adit postgres up) and run this command again; the \
                 invitation is still valid",
            ));
        }
        if waited > TELL_AFTER && !told {
            tell("waiting for a running node of the network to admit this one");
            told = true;
        }
        sleep(ANSWER_PAUSE).await;
    }
}
