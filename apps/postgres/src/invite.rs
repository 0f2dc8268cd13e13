//! `adit postgres invite`: creates an invitation for one more node.
//!
//! The printed URL contains a one-time secret. The joining node gets the network's key from a running node or, with an
//! offline invitation, from the database; see `adit_postgres::token::JoinKey`.

use std::fmt;
use std::time::Duration;

use adit_engine::{Random, UnixTime};
use adit_postgres::key::NetworkKey;
use adit_postgres::token::{JoinSecret, Token};
use adit_postgres_client::Target;
use tokio_postgres::GenericClient;
use zeroize::Zeroizing;

use super::admin::{block_on, open, random, statement_fault, verifier};
use super::member::Member;
use super::paths::Paths;
use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;

/// The default validity of an invitation.
pub const VALID: Duration = Duration::from_secs(24 * 3600);

/// An invitation. One node can join with it, once.
pub struct Invitation {
    /// The secret URL for the next node, with the database and the token.
    pub url: Zeroizing<String>,
    /// The validity of the invitation.
    pub valid: Duration,
    /// Whether no node needs to run when the invitation is used.
    pub offline: bool,
    /// Notes to read before the invitation is used elsewhere.
    pub notes: Vec<String>,
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invitation(.., {:?})", self.valid)
    }
}

/// The network of an invitation.
pub(super) struct Network<'a> {
    pub(super) key: &'a NetworkKey,
    pub(super) tag: &'a str,
}

/// Creates an invitation, as this host's node. An `offline` invitation needs no running node.
///
/// # Errors
/// Fails if this host is in no network, its node may not invite, or the database cannot be reached.
pub fn invite(paths: &Paths, valid: Duration, offline: bool) -> Result<Invitation, Fault> {
    let member = Member::load(paths)?;
    let target = member.target()?;
    block_on(async {
        let client = open(&target, "invite").await?;
        let (record, ring) = member.network(&client).await?;
        let network = Network { key: ring.newest(), tag: &record.tag };
        new(&client, &target, &network, (valid, offline), &mut random()?).await
    })
}

/// Creates an invitation, within the transaction of `client`, if any.
pub(super) async fn new(
    client: &impl GenericClient,
    target: &Target,
    network: &Network<'_>,
    (valid, offline): (Duration, bool),
    random: &mut Random,
) -> Result<Invitation, Fault> {
    let failed = |_| Fault::ours("cannot create keys: the cryptographic library failed");
    let secret = JoinSecret::generate(random);
    let key = secret.key().map_err(failed)?;
    let until = UnixTime(unix_time().0.saturating_add(valid.as_secs()));
    let for_nodes = key.for_nodes(network.key, network.tag, until, random).map_err(failed)?;
    let for_token = offline.then(|| key.offline(network.key, network.tag)).transpose();
    let for_token = for_token.map_err(failed)?;
    let seconds = f64::from(u32::try_from(valid.as_secs()).unwrap_or(u32::MAX));
    let row = client
        .query_one(
            "SELECT adit.invite($1, make_interval(secs => $2), $3, $4, $5)::text",
            &[
                &verifier(&secret.password()),
                &seconds,
                &for_nodes,
                &for_token,
                &network.key.generation().0,
            ],
        )
        .await
        .map_err(|error| statement_fault(&error))?;
    let role: String =
        row.try_get(0).map_err(|_| Fault::peer("the database has created no invitation"))?;
    let token = Token { role, secret };
    let mut notes = Vec::new();
    if target.is_local() {
        notes.push(
            "the database's address is this machine itself: on another machine, use the name that it reaches the database \
             by"
                .to_owned(),
        );
    }
    for file in target.files() {
        notes.push(format!("the next machine needs {} too, at the same path", file.display()));
    }
    let url = Zeroizing::new(format!("{}#{token}", target.to_url()));
    Ok(Invitation { url, valid, offline, notes })
}
