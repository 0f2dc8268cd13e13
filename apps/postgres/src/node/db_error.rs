//! Errors of the database, with texts that change only if the cause does.

use tokio_postgres::error::SqlState;

/// A failure on an open connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DbError {
    /// The error as one sentence, without numbers that differ between attempts.
    pub(crate) message: String,
    /// Whether the table in the query no longer exists.
    pub(super) no_table: bool,
    /// The limit that was reached, if that is the reason.
    pub(super) bound: Option<StreamLimit>,
}

/// A limit that the schema sets for a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamLimit {
    /// The leaf cannot take more, so another one is needed.
    Leaf,
    /// The rate is too high, so try again later.
    Time,
}

impl DbError {
    pub(super) fn new(words: impl Into<String>) -> Self {
        Self { message: words.into(), no_table: false, bound: None }
    }

    /// Returns the error of a connection that has ended without a reason.
    pub(super) fn closed() -> Self {
        Self::new("the connection to the database was closed")
    }
}

impl From<tokio_postgres::Error> for DbError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            if error.is_closed() {
                return Self::closed();
            }
            // The source is more specific than "error communicating with the server".
            let source = std::error::Error::source(&error);
            return Self::new(
                source.map_or_else(|| error.to_string(), |source| source.to_string()),
            );
        };
        let message = match advice(db.code()) {
            Some(message) => format!("{message} ({})", db.code().code()),
            None => format!(
                "the database refuses: {} ({})",
                adit_runtime::log::clean(db.message()),
                db.code().code()
            ),
        };
        let bound = match *db.code() {
            SqlState::PROGRAM_LIMIT_EXCEEDED => Some(StreamLimit::Leaf),
            SqlState::CONFIGURATION_LIMIT_EXCEEDED => Some(StreamLimit::Time),
            _ => None,
        };
        Self { message, no_table: *db.code() == SqlState::UNDEFINED_TABLE, bound }
    }
}

/// Returns advice for errors that an operator can correct at once.
fn advice(code: &SqlState) -> Option<&'static str> {
    Some(match *code {
        SqlState::DISK_FULL => {
            "the database's disk is full: free space there; packets are dropped until then"
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => {
            "the database is read-only: a standby, or default_transaction_read_only is on"
        }
        SqlState::ADMIN_SHUTDOWN => {
            "the database ended the connection (shutdown, or pg_terminate_backend)"
        }
        SqlState::CRASH_SHUTDOWN => {
            "the database ended the connection after a crash of another backend"
        }
        SqlState::CANNOT_CONNECT_NOW => "the database is starting up or shutting down",
        SqlState::TOO_MANY_CONNECTIONS => {
            "the database has no free connection: raise max_connections"
        }
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "the database does not accept this node's password or role: was it removed, or the password changed?"
        }
        SqlState::QUERY_CANCELED => "a statement took longer than its limit, or was cancelled",
        SqlState::LOCK_NOT_AVAILABLE => "timed out waiting for a lock that another session holds",
        SqlState::OUT_OF_MEMORY => "the database is out of memory",
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "this node's role lacks a right: was it removed from the network?"
        }
        _ => return None,
    })
}
