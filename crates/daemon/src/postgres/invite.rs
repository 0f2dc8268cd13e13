//! `adit postgres invite`: what lets one more node in.

use std::fmt;
use std::time::Duration;

use adit_engine::Random;
use adit_postgres::key::NetworkKey;
use adit_postgres::token::{JoinSecret, Token};
use tokio_postgres::GenericClient;
use zeroize::Zeroizing;

use super::admin::{block_on, open, random, said, verifier};
use super::database::Target;
use super::places::Places;
use super::settings::{Secrets, Settings};
use crate::fault::Fault;
use crate::managed::Outcome;

/// How long an invitation is valid where nothing is said.
pub const VALID: Duration = Duration::from_secs(24 * 3600);

/// One node may join with this, once.
pub struct Invitation {
    /// What the next node is told: the database and the token. Secret.
    pub url: Zeroizing<String>,
    /// For how long.
    pub valid: Duration,
    /// What to know before using it elsewhere.
    pub notes: Vec<String>,
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invitation(.., {:?})", self.valid)
    }
}

/// Makes an invitation, as the node that this machine is.
///
/// # Errors
/// This machine is in no network, its node may not invite, or the database cannot be reached.
pub fn invite(places: &Places, valid: Duration) -> Outcome<Invitation> {
    let settings = Settings::load(places)?;
    let secrets = Secrets::load(places)?;
    let target = Target::of_node(&settings, &secrets)?;
    block_on(async {
        let client = open(&target, "invite").await?;
        new(&client, &target, &secrets.network_key, valid, &mut random()?).await
    })
}

/// The invitation itself, within whatever transaction `client` is.
pub(super) async fn new(
    client: &impl GenericClient,
    target: &Target,
    network: &NetworkKey,
    valid: Duration,
    random: &mut Random,
) -> Outcome<Invitation> {
    let secret = JoinSecret::generate(random);
    let seconds = f64::from(u32::try_from(valid.as_secs()).unwrap_or(u32::MAX));
    let row = client
        .query_one(
            "SELECT adit.invite($1, make_interval(secs => $2))::text",
            &[&verifier(&secret.password()), &seconds],
        )
        .await
        .map_err(|error| said(&error))?;
    let role: String =
        row.try_get(0).map_err(|_| Fault::peer("the database has made no invitation"))?;
    let token = Token { role, secret, network: network.clone() };
    let mut notes = Vec::new();
    if target.is_local() {
        notes.push(
            "the database's address is this machine itself: on another machine write the name under which it reaches the \
             database instead"
                .to_owned(),
        );
    }
    for file in target.files() {
        notes.push(format!("the next machine needs {} too, at the same place", file.display()));
    }
    let url = Zeroizing::new(format!("{}#{token}", target.to_url()));
    Ok(Invitation { url, valid, notes })
}
