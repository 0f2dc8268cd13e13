//! The clients of a server that wait for the verdict of a management client (`management-client-auth`).

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

/// The maximum number of clients that wait for a verdict. Further ones are refused.
pub(super) const MAX_WAITING: usize = 4096;

/// The variables that pass each level of `env-filter` above 0, as the beginnings of their names.
const FILTERED: [&str; 17] = [
    "username=",
    "password=",
    "X509_0_CN=",
    "tls_serial_",
    "untrusted_ip=",
    "ifconfig_local=",
    "ifconfig_netmask=",
    "daemon_start_time=",
    "daemon_pid=",
    "dev=",
    "ifconfig_pool_remote_ip=",
    "ifconfig_pool_netmask=",
    "time_duration=",
    "bytes_sent=",
    "bytes_received=",
    "session_id=",
    "session_state=",
];

/// The verdict of a management client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientVerdict {
    /// `client-auth` with its lines, or `client-auth-nt`.
    Accept(Vec<String>),
    /// `client-deny`: the reason for the log, and the reason for the client.
    Deny { log: String, peer: Option<String> },
}

/// Extends the time of a client. Returns false if the client is gone.
pub(crate) type Extend = Box<dyn Fn(Duration, Option<String>) -> bool + Send>;

/// The number of a session (CID) and of a key of it (KID).
pub(crate) type ClientKey = (u64, u64);

struct Waiting {
    verdict: oneshot::Sender<ClientVerdict>,
    extend: Extend,
}

/// The clients that wait, and the last verdict about each session.
#[derive(Default)]
pub(super) struct Clients {
    waiting: BTreeMap<ClientKey, Waiting>,
    /// By session: the number of the key, and whether it was accepted. The sessions bound it, because
    /// [`Self::forget`] removes those that have ended.
    decided: BTreeMap<u64, (u64, bool)>,
}

impl Clients {
    /// Adds a client; `None` if too many wait.
    pub(super) fn wait(
        &mut self,
        key: ClientKey,
        extend: Extend,
    ) -> Option<oneshot::Receiver<ClientVerdict>> {
        if self.waiting.len() >= MAX_WAITING {
            // Some may have given up.
            self.waiting.retain(|_, waiting| !waiting.verdict.is_closed());
        }
        if self.waiting.len() >= MAX_WAITING {
            return None;
        }
        let (verdict, receiver) = oneshot::channel();
        self.waiting.insert(key, Waiting { verdict, extend });
        Some(receiver)
    }

    /// Delivers a verdict. Returns false if the client does not wait, unless the verdict is the one that it has had.
    pub(super) fn decide(&mut self, (session, key): ClientKey, verdict: ClientVerdict) -> bool {
        let decision = (key, matches!(verdict, ClientVerdict::Accept(_)));
        let Some(waiting) = self.waiting.remove(&(session, key)) else {
            return self.decided.get(&session) == Some(&decision);
        };
        let delivered = waiting.verdict.send(verdict).is_ok();
        if delivered {
            self.decided.insert(session, decision);
        }
        delivered
    }

    /// Removes the requests of a session that has ended.
    pub(super) fn forget(&mut self, session: u64) {
        let requests = (session, 0)..=(session, u64::MAX);
        let ended: Vec<ClientKey> = self.waiting.range(requests).map(|(key, _)| *key).collect();
        ended.iter().for_each(|key| drop(self.waiting.remove(key)));
        self.decided.remove(&session);
    }

    /// Extends a client's time. Returns false if the client does not wait.
    pub(super) fn extend(&self, key: ClientKey, time: Duration, info: Option<String>) -> bool {
        let waiting = self.waiting.get(&key).filter(|waiting| !waiting.verdict.is_closed());
        waiting.is_some_and(|waiting| (waiting.extend)(time, info))
    }
}

/// Returns the lines of a notification of a source (`CLIENT`) with its variables. Values cannot begin a line.
pub(super) fn notification(
    source: &str,
    head: &str,
    variables: &[(String, String)],
    level: u8,
) -> Vec<String> {
    let shown = variables.iter().map(|(name, value)| format!("{name}={value}"));
    let shown = shown.filter(|variable| passes(variable, level));
    let lines = shown.map(|variable| format!(">{source}:ENV,{variable}"));
    let first = std::iter::once(format!(">{source}:{head}"));
    first.chain(lines).chain([format!(">{source}:ENV,END")]).collect()
}

fn passes(variable: &str, level: u8) -> bool {
    level == 0
        || (level == 1 && variable.starts_with("X509_"))
        || FILTERED.iter().any(|start| variable.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> Extend {
        Box::new(|_, _| false)
    }

    #[test]
    fn a_verdict_reaches_the_key_that_waits_for_it() {
        let mut clients = Clients::default();
        let mut first = clients.wait((0, 0), never()).unwrap();
        let mut again = clients.wait((0, 1), never()).unwrap();
        let deny = ClientVerdict::Deny { log: "no".into(), peer: None };
        assert!(!clients.decide((1, 0), deny.clone()));
        assert!(clients.decide((0, 1), deny.clone()));
        assert_eq!(again.try_recv(), Ok(deny.clone()));
        // The same verdict once more is no error, but another one is.
        assert!(clients.decide((0, 1), deny));
        assert!(!clients.decide((0, 1), ClientVerdict::Accept(Vec::new())));
        assert!(first.try_recv().is_err());
        drop(first);
        assert!(!clients.decide((0, 0), ClientVerdict::Accept(Vec::new())), "it has given up");
        clients.forget(0);
        assert!(clients.waiting.is_empty() && clients.decided.is_empty());
    }

    #[test]
    fn the_number_of_waiting_clients_is_bounded() {
        let mut clients = Clients::default();
        let waiting: Vec<_> =
            (0..MAX_WAITING as u64).map(|n| clients.wait((n, 0), never()).unwrap()).collect();
        assert!(clients.wait((9999, 0), never()).is_none());
        drop(waiting);
        assert!(clients.wait((9999, 0), never()).is_some());
        assert_eq!(clients.waiting.len(), 1);
    }

    #[test]
    fn a_session_that_has_ended_waits_for_nothing() {
        let mut clients = Clients::default();
        let keys = [(0, 1), (1, 1), (1, 2), (2, 0)];
        let _waiting = keys.map(|key| clients.wait(key, never()).unwrap());
        clients.forget(1);
        assert_eq!(clients.waiting.keys().copied().collect::<Vec<_>>(), [(0, 1), (2, 0)]);
    }

    #[test]
    fn the_time_of_a_client_is_extended_while_it_waits() {
        let mut clients = Clients::default();
        let extended = Box::new(|time: Duration, info: Option<String>| {
            time == Duration::from_secs(7) && info.as_deref() == Some("CR_TEXT:R:PIN")
        });
        let waiting = clients.wait((3, 0), extended).unwrap();
        let info = Some("CR_TEXT:R:PIN".to_owned());
        assert!(clients.extend((3, 0), Duration::from_secs(7), info.clone()));
        drop(waiting);
        assert!(!clients.extend((3, 0), Duration::from_secs(7), info));
    }

    #[test]
    fn variables_pass_the_filter_by_level() {
        let variables =
            [("IV_VER", "2.6"), ("X509_1_CN", "ca"), ("username", "a"), ("dev", "tun0")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let names = |level| -> Vec<String> {
            let lines = notification("CLIENT", "CONNECT,0,1", &variables, level);
            assert_eq!(lines.first().unwrap(), ">CLIENT:CONNECT,0,1");
            assert_eq!(lines.last().unwrap(), ">CLIENT:ENV,END");
            let names = lines.iter().filter_map(|line| line.strip_prefix(">CLIENT:ENV,"));
            names.filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect()
        };
        assert_eq!(names(0), ["IV_VER", "X509_1_CN", "username", "dev"]);
        assert_eq!(names(1), ["X509_1_CN", "username", "dev"]);
        assert_eq!(names(2), ["username", "dev"]);
    }
}
