//! The node that this machine is, for commands: its files, read once, and what it may believe of the network.

use adit_postgres::key::settings::History;
use adit_postgres::key::{KeyRing, NetworkRecord, NodePublic};
use tokio_postgres::GenericClient;

use super::admin::{self, statement_fault};
use super::database::Target;
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
    /// This machine is in no network, or a file is wrong.
    pub(super) fn load(paths: &Paths) -> Result<Self, Fault> {
        Self::with(Settings::load(paths)?, paths)
    }

    /// # Errors
    /// As [`Self::load`].
    pub(super) fn with(settings: Settings, paths: &Paths) -> Result<Self, Fault> {
        let secrets = Secrets::load(paths)?;
        let public = secrets.keys.public(settings.node);
        let public = public.map_err(|error| Fault::ours(format!("own keys: {error}")))?;
        let pins = Pins::load(&paths.pins_file())?;
        Ok(Self { paths: paths.clone(), settings, secrets, public, pins })
    }

    /// Returns the address of its database.
    pub(super) fn target(&self) -> Result<Target, Fault> {
        Target::of_node(&self.settings, &self.secrets)
    }

    /// Returns its ring with the keys that were made since it was written down; why it lacks the newest one, if it
    /// does. Nothing is written: that is the running node's.
    ///
    /// # Errors
    /// The database cannot be asked.
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

    /// Returns its ring with the network's newest key.
    ///
    /// # Errors
    /// The database cannot be asked, or shows a key that is not taken.
    pub(super) async fn ring(
        &self,
        client: &impl GenericClient,
        network: &str,
    ) -> Result<KeyRing, Fault> {
        let (ring, followed) = self.follow(client, network).await?;
        followed.map_err(Fault::peer)?;
        Ok(ring)
    }

    /// Returns the network's row, which the newest key vouches for, and the keys.
    ///
    /// # Errors
    /// As [`Self::ring`]; there is no network, or its row is not trusted.
    pub(super) async fn network(
        &self,
        client: &impl GenericClient,
    ) -> Result<(NetworkRecord, KeyRing), Fault> {
        let (record, mac) = admin::network(client).await?;
        let ring = self.ring(client, &record.tag).await?;
        record.verify(ring.newest(), &mac).map_err(|error| {
            Fault::peer(format!("the network's row in the database is not believed: {error}"))
        })?;
        Ok((record, ring))
    }

    /// Returns the network's settings, which this node has signed: it is the owner.
    ///
    /// # Errors
    /// The database cannot be asked, or shows other settings than those.
    pub(super) async fn signed_settings(
        &self,
        client: &impl GenericClient,
        network: &str,
    ) -> Result<History, Fault> {
        let rows =
            directory::settings_rows(client).await.map_err(|error| statement_fault(&error))?;
        let history = directory::history(network, Some(&self.public), &rows, self.pins.settings());
        history.map_err(|reason| Fault::peer(format!("network settings: not believed: {reason}")))
    }
}
