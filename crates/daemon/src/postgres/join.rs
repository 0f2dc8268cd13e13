//! `adit postgres join`: one command makes this machine a node.

use std::path::Path;

use adit_postgres::token::Token;
use ipnet::IpNet;

use super::admin::{self, block_on, node_name, random};
use super::database::{Environment, Target, open};
use super::places::Places;
use super::register::{Candidate, commit, forget};
use super::settings::Settings;
use crate::fault::Fault;
use crate::managed::Outcome;

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// `--name`; otherwise the machine's.
    pub name: Option<String>,
    /// `--network-name`; otherwise the network's own.
    pub network_name: Option<String>,
    /// `--route`: networks behind this node.
    pub routes: Vec<IpNet>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Where the files are.
    pub places: Places,
    /// What this node is.
    pub settings: Settings,
    /// What to know.
    pub notes: Vec<String>,
}

/// Joins the network that `invitation` (`postgres://...#adit1-...`) is for.
///
/// # Errors
/// The invitation is used, too old or damaged; the database cannot be reached or is not the one that the invitation is for; the
/// name or a network behind this node is taken.
pub fn join(dir: Option<&Path>, invitation: &str, options: &JoinOptions) -> Outcome<Joined> {
    let Some((url, token)) = invitation.trim().rsplit_once('#') else {
        return Err(Fault::operator(
            "that is no invitation: it ends in #adit1-...; put it between '...', because the shell takes # for a comment; \
             make another with: adit postgres invite",
        ));
    };
    let token: Token = token.parse().map_err(|error| Fault::operator(format!("{error}")))?;
    let target = Target::of_operator(url, &Environment::of_process())?
        .with_role(&token.role, &token.secret.password());
    let name = node_name(options.name.as_deref())?;
    block_on(run(dir, &target, &token, &name, options))
}

async fn run(
    dir: Option<&Path>,
    target: &Target,
    token: &Token,
    name: &str,
    options: &JoinOptions,
) -> Outcome<Joined> {
    let mut client = open(target, "join").await.map_err(|fault| match fault.refuses_role {
        true => Fault::operator(
            "the database does not know this invitation: it was used, is too old, or is for another database; make another \
             with: adit postgres invite",
        ),
        false => fault.into(),
    })?;
    admin::refuse_pooler(&client, target).await?;
    let transaction = client.transaction().await.map_err(|error| admin::said(&error))?;
    let (network, mac) = admin::network(&transaction).await?;
    network.verify(&token.network, &mac).map_err(|error| {
        Fault::peer(format!(
            "the network in this database is not the one that the invitation is for, or somebody has altered it: {error}"
        ))
    })?;
    let places = Places::new(dir, options.network_name.as_deref().unwrap_or(&network.tag))?;
    let candidate = Candidate {
        places: &places,
        target,
        network: &network,
        key: &token.network,
        name,
        routes: &options.routes,
    };
    Candidate::refuse_existing(&places)?;
    let settings = match candidate.register(&transaction, &mut random()?).await {
        Ok((settings, _)) => settings,
        Err(fault) => {
            forget(&places);
            return Err(fault);
        }
    };
    commit(transaction, &places).await?;
    Ok(Joined { settings, notes: target.warnings().to_vec(), places })
}
