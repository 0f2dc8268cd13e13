//! Registers a node. Reserves it, creates keys, registers it, and writes the files, all before the transaction is committed. So there is
//! never a node without its keys. At worst, a killed command leaves files without a node.

use std::fs;

use adit_engine::Random;
use adit_postgres::NodeId;
use adit_postgres::key::{NetworkKey, NetworkRecord, NodeKeys, NodeRecord};
use adit_postgres_client::Target;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tokio_postgres::Transaction;

use super::admin::{cidrs, device, new_password, statement_fault, verifier};
use super::paths::Paths;
use super::settings::{Secrets, Settings};
use adit_runtime::fault::Fault;

/// A host that is becoming a node of a network.
pub(super) struct Candidate<'a> {
    pub(super) paths: &'a Paths,
    pub(super) target: &'a Target,
    pub(super) network: &'a NetworkRecord,
    pub(super) key: &'a NetworkKey,
    pub(super) name: &'a str,
    pub(super) routes: &'a [IpNet],
}

impl Candidate<'_> {
    /// Refuses to overwrite another node's files.
    pub(super) fn refuse_existing(paths: &Paths) -> Result<(), Fault> {
        for file in [paths.settings_file(), paths.secrets_file()] {
            if file.exists() {
                return Err(Fault::operator(format!(
                    "{} already exists: this machine is in a network of that name; choose another name for this one \
                     (--network-name NAME), or remove {}",
                    file.display(),
                    paths.config().display()
                )));
            }
        }
        Ok(())
    }

    /// Registers the node and writes its files. None of them may exist yet ([`Self::refuse_existing`]).
    pub(super) async fn register(
        &self,
        transaction: &Transaction<'_>,
        random: &mut Random,
    ) -> Result<(Settings, Secrets), Fault> {
        let row = transaction
            .query_one(
                "SELECT id, role::text, address4::text, address6::text FROM adit.reserve($1, $2::text[]::cidr[])",
                &[&self.name, &cidrs(self.routes)],
            )
            .await
            .map_err(|error| statement_fault(&error))?;
        let reserved = read_reserved(&row)
            .ok_or_else(|| Fault::peer("the database's reservation is not valid"))?;
        let (id, role, address4, address6) = reserved;
        self.check_addresses(address4, address6)?;
        self.check_generation(transaction).await?;
        let failed = |what: &dyn std::fmt::Display| Fault::ours(format!("making keys: {what}"));
        let keys = NodeKeys::generate(random).map_err(|error| failed(&error))?;
        let public = keys.public(id).map_err(|error| failed(&error))?;
        let subnets: Vec<IpNet> = self.routes.iter().map(IpNet::trunc).collect();
        let record = NodeRecord::new(&public, self.name, address4, address6, subnets.clone());
        let mac = record.mac(self.key).map_err(|error| failed(&error))?;
        let password = new_password(random);
        transaction
            .execute(
                "SELECT adit.register($1, $2, $3, $4, $5)",
                &[&id.0, &verifier(&password), &record.sign_key, &record.seal_key, &mac.as_slice()],
            )
            .await
            .map_err(|error| statement_fault(&error))?;
        let addresses = address4.map(IpNet::V4).into_iter().chain(address6.map(IpNet::V6));
        let settings = Settings {
            database: self.target.to_url(),
            role,
            node: id,
            name: self.name.to_owned(),
            addresses: addresses.collect(),
            subnets,
            device: device(self.paths.name()),
            packet_size: None,
            durability: None,
            metrics: None,
        };
        let secrets = Secrets { password, ring: self.key.clone().into(), keys };
        self.paths.create()?;
        secrets.store(self.paths)?;
        settings.store(self.paths)?;
        Ok((settings, secrets))
    }

    /// Checks that the key of the node's MAC is still the network's. No rekey begins after the reservation.
    async fn check_generation(&self, transaction: &Transaction<'_>) -> Result<(), Fault> {
        let generation = transaction.query_one("SELECT generation FROM adit.network", &[]).await;
        let generation: i32 =
            generation.and_then(|row| row.try_get(0)).map_err(|error| statement_fault(&error))?;
        if generation == self.key.generation().0 {
            return Ok(());
        }
        Err(Fault::operator(
            "the network has got a new key since this invitation was made: make another one with: adit postgres invite",
        ))
    }

    /// Checks that the network's own MAC allows the addresses that the node's MAC covers.
    fn check_addresses(&self, v4: Option<Ipv4Net>, v6: Option<Ipv6Net>) -> Result<(), Fault> {
        let fits4 = match (self.network.network4, v4) {
            (None, None) => true,
            (Some(net), Some(own)) => {
                net.prefix_len() == own.prefix_len() && net.contains(&own.addr())
            }
            _ => false,
        };
        let fits6 = match (self.network.network6, v6) {
            (None, None) => true,
            (Some(net), Some(own)) => {
                net.prefix_len() == own.prefix_len() && net.contains(&own.addr())
            }
            _ => false,
        };
        if fits4 && fits6 {
            return Ok(());
        }
        Err(Fault::peer(
            "the database has given this node addresses outside the network: do not trust it",
        ))
    }
}

fn read_reserved(
    row: &tokio_postgres::Row,
) -> Option<(NodeId, String, Option<Ipv4Net>, Option<Ipv6Net>)> {
    let v4: Option<&str> = row.try_get(2).ok()?;
    let v6: Option<&str> = row.try_get(3).ok()?;
    Some((
        NodeId(row.try_get(0).ok()?),
        row.try_get(1).ok()?,
        v4.map(str::parse).transpose().ok()?,
        v6.map(str::parse).transpose().ok()?,
    ))
}

/// Commits the registration. If the database refuses, removes the files.
pub(super) async fn commit(transaction: Transaction<'_>, paths: &Paths) -> Result<(), Fault> {
    match transaction.commit().await {
        Ok(()) => Ok(()),
        Err(error) if error.as_db_error().is_some() => {
            forget(paths);
            Err(statement_fault(&error))
        }
        Err(error) => Err(Fault::environment(format!(
            "the connection to the database ended at the last moment ({error}): it is not known whether this node is registered. \
             Try: {}. If it is not, remove {} and begin again",
            paths.command("up"),
            paths.config().display()
        ))),
    }
}

/// Removes the files of a node whose registration failed.
pub(super) fn forget(paths: &Paths) {
    for file in [paths.settings_file(), paths.secrets_file()] {
        let _ = fs::remove_file(file);
    }
    let _ = fs::remove_dir(paths.config());
}
