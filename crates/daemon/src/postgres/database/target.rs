//! Where the database is and who we are there.

use std::fmt;

use crate::fault::Fault;
use crate::managed::Outcome;
use crate::postgres::settings::{Secrets, Settings};

/// A database, resolved: hosts, names, password, how the line is protected.
#[derive(Clone)]
pub struct Target {
    pub(super) config: tokio_postgres::Config,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Target(..)")
    }
}

impl Target {
    /// The database of a node, under the node's role. The environment has no say.
    ///
    /// # Errors
    /// The URL is wrong.
    pub fn of_node(settings: &Settings, secrets: &Secrets) -> Outcome<Self> {
        let mut config: tokio_postgres::Config = settings
            .database
            .parse()
            .map_err(|error| Fault::operator(format!("database: {error}")))?;
        config.user(&settings.role).password(secrets.password.as_bytes());
        Ok(Self { config })
    }
}
