//! This host's node as the commands use it, with its files and the trusted data of the network. The files are read once.

use adit_postgres::key::settings::History;
use adit_postgres::key::{KeyRing, NetworkRecord, NodePublic};
use adit_postgres_client::Target;
use tokio_postgres::GenericClient;

use super::admin::{self, statement_fault};
use super::keys::{self, KeyFollower};
use super::node::directory::{self, Pins};
use super::paths::Paths;
use super::settings::{Secrets, Settings};
use adit_runtime::clock::{now, unix_time};
use adit_runtime::fault::Fault;

pub(super) struct Member {
    pub(super) paths: Paths,
    pub(super) settings: Settings,
    pub(super) secrets: Secrets,
    /// This node's public keys.
    pub(super) public: NodePublic,
    pub(super) pins: Pins,
}

impl Member {
    /// # Errors
    /// Fails if this host is in no network, or a file is wrong.
    pub(super) fn load(paths: &Paths) -> Result<Self, Fault> {
        Self::with(Settings::load(paths)?, paths)
    }

    /// # Errors
    /// See [`Self::load`].
    pub(super) fn with(settings: Settings, paths: &Paths) -> Result<Self, Fault> {
        let secrets = Secrets::load(paths)?;
        let public = secrets.keys.public(settings.node);
        let public = public.map_err(|error| Fault::ours(format!("own keys: {error}")))?;
        let pins = Pins::load(&paths.pins_file())?;
        Ok(Self { paths: paths.clone(), settings, secrets, public, pins })
    }

    /// Returns the address of the node's database.
    pub(super) fn target(&self) -> Result<Target, Fault> {
        self.settings.target(&self.secrets)
    }

    /// Returns the node's ring with the keys that were created since it was saved, and the reason if it lacks the
    /// newest one. Does not save the ring, which only the running node does.
    ///
    /// # Errors
    /// Fails if the database cannot be queried.
    pub(super) async fn follow(
        &self,
        client: &impl GenericClient,
        network: &str,
    ) -> Result<(KeyRing, Result<(), String>), Fault> {
        let mut ring = self.secrets.ring.clone();
        let reader = self.secrets.keys.reader(self.settings.node);
        let found = keys::newer(client, ring.generation(), reader.id()).await;
        let found = found.map_err(|error| statement_fault(&error))?;
        let follower = KeyFollower { reader, network, now: now(), unix: unix_time() };
        let trust = |owner: &NodePublic| keys::trusted(&self.public, &self.pins, owner);
        let followed = follower.follow(&found, &mut ring, &trust);
        Ok((ring, followed))
    }

    /// Returns the node's ring with the network's newest key.
    ///
    /// # Errors
    /// Fails if the database cannot be queried, or contains a key that is not accepted.
    pub(super) async fn ring(
        &self,
        client: &impl GenericClient,
        network: &str,
    ) -> Result<KeyRing, Fault> {
        let (ring, followed) = self.follow(client, network).await?;
        followed.map_err(Fault::peer)?;
        Ok(ring)
    }

    /// Returns the keys, and the network's row, which the newest key authenticates.
    ///
    /// # Errors
    /// See [`Self::ring`]. Also fails if there is no network, or its row is not trusted.
    pub(super) async fn network(
        &self,
        client: &impl GenericClient,
    ) -> Result<(NetworkRecord, KeyRing), Fault> {
        let (record, mac) = admin::network(client).await?;
        let ring = self.ring(client, &record.tag).await?;
        record.verify(ring.newest(), &mac).map_err(|error| {
            Fault::peer(format!("the network's row in the database is not trusted: {error}"))
        })?;
        Ok((record, ring))
    }

    /// Returns the network's settings. This node has signed them as the owner.
    ///
    /// # Errors
    /// Fails if the database cannot be queried, or contains other settings.
    pub(super) async fn signed_settings(
        &self,
        client: &impl GenericClient,
        network: &str,
    ) -> Result<History, Fault> {
        let rows =
            directory::settings_rows(client).await.map_err(|error| statement_fault(&error))?;
        let history = directory::history(network, Some(&self.public), &rows, self.pins.settings());
        history.map_err(|reason| Fault::peer(format!("network settings: not trusted: {reason}")))
    }
}
