//! Why there is no connection, and what to do.

use std::fmt;

use crate::fault::Fault;

/// No connection came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFault {
    /// What is wrong and what to do, without secrets.
    pub fault: Fault,
    /// Whether trying again may help without anybody's doing: the database starts, or is full.
    pub passing: bool,
}

impl fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

impl std::error::Error for ConnectFault {}

impl From<ConnectFault> for Fault {
    fn from(fault: ConnectFault) -> Self {
        fault.fault
    }
}

impl ConnectFault {
    pub(super) fn new(error: &tokio_postgres::Error) -> Self {
        Self { fault: Fault::environment(error.to_string()), passing: true }
    }
}
