//! Errors of connection attempts, and their remedies.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::time::Duration;

use rustls::CertificateError;
use tokio_postgres::error::SqlState;

use super::target::{Host, Target};
use adit_runtime::fault::Fault;

/// The failure of a connection attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFault {
    /// The error and its remedy, without secrets.
    pub fault: Fault,
    /// Whether the failure may pass without an operator: the database is starting, full, or unreachable.
    pub passing: bool,
    /// Whether the server requires a password and none is configured.
    pub asks_password: bool,
    /// Whether the server rejects the role or its password.
    pub refuses_role: bool,
    /// Whether the server has no free connection, for this role or in total.
    pub is_full: bool,
    /// Whether another host of the same database would report the same error.
    pub(super) final_: bool,
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

/// Combines the faults of all hosts into one.
pub(super) fn all_hosts(mut faults: Vec<ConnectFault>) -> ConnectFault {
    let Some(last) = faults.pop() else {
        return ConnectFault::permanent(Fault::operator("the database's URL names no host"));
    };
    if faults.is_empty() || last.final_ {
        return last;
    }
    faults.push(last);
    let passing = faults.iter().any(|fault| fault.passing);
    let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
    let text = format!("none of {} hosts is usable. {}", all.len(), all.join(". "));
    ConnectFault { passing, ..ConnectFault::temporary(text) }
}

impl ConnectFault {
    /// Creates a fault that lasts until an operator acts.
    pub(super) fn permanent(fault: Fault) -> Self {
        Self {
            fault,
            passing: false,
            asks_password: false,
            refuses_role: false,
            is_full: false,
            final_: true,
        }
    }

    fn misconfigured(text: String) -> Self {
        Self::permanent(Fault::operator(text))
    }

    fn temporary(text: String) -> Self {
        Self { passing: true, final_: false, ..Self::permanent(Fault::environment(text)) }
    }

    /// Returns the failure for a host that accepted the connection and then sent nothing.
    pub(super) fn timed_out(host: &Host, limit: Duration) -> Self {
        Self::temporary(format!(
            "the database at {host} has not answered within {} s",
            limit.as_secs()
        ))
    }

    /// Converts the library's error.
    pub(super) fn new(target: &Target, host: &Host, error: &tokio_postgres::Error) -> Self {
        if let Some(error) = error.as_db_error() {
            return Self::refused(target, host, error);
        }
        let mut source = error.source();
        while let Some(inner) = source {
            if let Some(tls) = inner.downcast_ref::<rustls::Error>() {
                return Self::tls(host, tls);
            }
            if let Some(io) = inner.downcast_ref::<io::Error>() {
                if let Some(tls) = io.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
                    return Self::tls(host, tls);
                }
                return Self::io(host, io);
            }
            source = inner.source();
        }
        Self::client(target, host, error)
    }

    /// Converts an error of the client library itself. These errors have texts but no kinds.
    fn client(target: &Target, host: &Host, error: &tokio_postgres::Error) -> Self {
        let said = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        if said.contains("password missing") {
            let text = format!(
                "the database at {host} requires the password of {:?}, and there is none; put it into ~/.pgpass, a \
                 service file, or PGPASSWORD",
                target.user
            );
            return Self { asks_password: true, ..Self::misconfigured(text) };
        }
        if said.contains("channel binding") {
            return Self::misconfigured(format!(
                "the database at {host} does not prove that it is the end of the TLS connection: it requests no SCRAM \
                 password, or an attacker is in between; check its certificate instead (sslmode=verify-full with \
                 sslrootcert=FILE), or give up the proof (channel_binding=prefer)"
            ));
        }
        if said.contains("does not support TLS") {
            return Self::misconfigured(format!(
                "the database at {host} does not support TLS; enable it there (ssl = on in postgresql.conf), or use none: \
                 sslmode=disable"
            ));
        }
        Self::temporary(format!("the database at {host}: {error}: {said}"))
    }

    fn refused(target: &Target, host: &Host, error: &tokio_postgres::error::DbError) -> Self {
        let (user, database) = (&target.user, &target.database);
        let said = error.message();
        match *error.code() {
            SqlState::INVALID_PASSWORD => {
                let text = format!(
                    "the database at {host} does not accept this password for {user:?} (or it has expired)"
                );
                Self { refuses_role: true, ..Self::misconfigured(text) }
            }
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION
                if said.contains("not permitted to log in") =>
            {
                let text = format!(
                    "the role {user:?} may not log in to the database at {host}: an invitation that was used, or a node that \
                     was removed"
                );
                Self { refuses_role: true, ..Self::misconfigured(text) }
            }
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION => Self::misconfigured(format!(
                "the database at {host} refuses this connection: {said}. Its pg_hba.conf needs a line such as: \
                 hostssl {database} all THIS-ADDRESS/32 scram-sha-256"
            )),
            SqlState::INVALID_CATALOG_NAME => Self::misconfigured(format!(
                "{host} has no database {database:?}; create it there: createdb {database}"
            )),
            SqlState::INSUFFICIENT_PRIVILEGE => Self::misconfigured(format!(
                "{user:?} may not connect to {database:?} at {host}: {said}"
            )),
            SqlState::CANNOT_CONNECT_NOW => {
                Self::temporary(format!("the database at {host} is starting or stopping: {said}"))
            }
            SqlState::TOO_MANY_CONNECTIONS => {
                let text = format!(
                    "the database at {host} has no free connection for {user:?}: {said}; each node needs three (max_connections)"
                );
                Self { is_full: true, ..Self::temporary(text) }
            }
            _ => {
                Self::temporary(format!("the database at {host}: {said} ({})", error.code().code()))
            }
        }
    }

    fn tls(host: &Host, error: &rustls::Error) -> Self {
        let name = &host.name;
        let rustls::Error::InvalidCertificate(why) = error else {
            return Self::temporary(format!("TLS with the database at {host}: {error}"));
        };
        Self::misconfigured(match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!(
                    "the certificate of the database at {host} is not for {name}: {why}. Use the certificate's name, or \
                     check only the chain: sslmode=verify-ca"
                )
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "the certificate of the database at {host} is from an authority that is not known here; give it: \
                 sslrootcert=FILE"
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!(
                    "the certificate of the database at {host} has expired: {why}; renew it there"
                )
            }
            _ => format!("the certificate of the database at {host} is not valid: {why}"),
        })
    }

    /// Converts an error of the connection itself.
    pub(super) fn io(host: &Host, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied
                if error.to_string().contains("does not allow writes") =>
            {
                Self::temporary(format!(
                    "the database at {host} is a standby and accepts no writes"
                ))
            }
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Self::temporary(format!(
                "no database listens at {host}: {error}; is it running, and is the port correct?"
            )),
            // The server's answer was invalid. This differs from no answer.
            io::ErrorKind::InvalidData => {
                Self::temporary(format!("the database at {host}: {error}"))
            }
            _ => Self::temporary(format!("the database at {host} cannot be reached: {error}")),
        }
    }
}
