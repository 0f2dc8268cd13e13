//! The management client as a check of a server's clients (`management-client-auth`).

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use adit_engine::auth::{ClientParams, Rejection};
use adit_engine::command::Counters;
use adit_openvpn::config::{ClientFile, ClientRules};
use ipnet::IpNet;

use super::super::authorization::{
    Address, AddressChange, ChangeKind, Check, ClientFacts, DoneFuture, ParamsFuture, Pending,
    Verdict, VerdictFuture, merged,
};
use super::super::environment::Environment;
use super::clients::ClientVerdict;
use super::{Handle, lock};

/// Asks the management client about each client, and reports its session.
#[derive(Clone)]
pub(crate) struct ManagementCheck(Arc<Inner>);

struct Inner {
    handle: Handle,
    /// The rules for the lines of `client-auth`.
    rules: ClientRules,
    known: Mutex<Table>,
}

/// The clients that the management client knows, by session. The engine bounds them: each has a session or an attempt to
/// connect.
#[derive(Debug, Default)]
struct Table {
    clients: BTreeMap<u64, Known>,
    /// The number of those that have their session.
    established: usize,
}

#[derive(Debug, Default)]
struct Known {
    /// The number of the last request for a verdict (KID).
    request: u64,
    /// The lines of `client-auth`, between the verdict and the connection.
    lines: Vec<String>,
    /// Whether it has its session.
    established: bool,
}

impl Table {
    /// Returns the number of the next request for a verdict. As in openvpn, it is 1 for a new client, and at least 3 in a
    /// renegotiation.
    fn request(&mut self, session: u64, renegotiation: bool) -> u64 {
        let least = if renegotiation { 3 } else { 1 };
        let known = self.clients.entry(session).or_default();
        known.request = known.request.saturating_add(1).max(least);
        known.request
    }

    fn establish(&mut self, session: u64) {
        let known = self.clients.entry(session).or_default();
        if !std::mem::replace(&mut known.established, true) {
            self.established = self.established.saturating_add(1);
        }
    }

    /// Removes a client. Returns whether it was known.
    fn remove(&mut self, session: u64) -> bool {
        let Some(known) = self.clients.remove(&session) else { return false };
        if known.established {
            self.established = self.established.saturating_sub(1);
        }
        true
    }
}

impl ManagementCheck {
    pub(crate) fn new(handle: Handle, rules: ClientRules) -> Self {
        Self(Arc::new(Inner { handle, rules, known: Mutex::default() }))
    }
}

impl Inner {
    fn known(&self) -> MutexGuard<'_, Table> {
        lock(&self.known)
    }

    /// Sends a notification with variables.
    fn tell(&self, head: &str, environment: &Environment) {
        self.handle.tell("CLIENT", head, &environment.newest_first());
    }

    /// Adds the number of sessions to the variables.
    fn count(&self, environment: &mut Environment) {
        environment.set("n_clients", self.known().established);
    }

    /// Forgets a client. Returns whether the management client knew it.
    fn forget(&self, session: u64) -> bool {
        self.handle.forget_client(session);
        self.known().remove(session)
    }

    /// Asks for a verdict. The management client may never answer; the chain limits the time.
    fn ask(self: &Arc<Self>, facts: &Arc<ClientFacts>, pending: &Pending) -> VerdictFuture {
        let identity = &facts.identity;
        let (session, renegotiation) = (identity.session, identity.renegotiation);
        let request = self.known().request(session, renegotiation);
        let mut environment = facts.environment.clone();
        environment.set_international("password", identity.password.as_deref().map_or("", |p| p));
        self.count(&mut environment);
        let head = if renegotiation { "REAUTH" } else { "CONNECT" };
        let pending = pending.clone();
        let extend = Box::new(move |time, info| pending.extend(time, info));
        let key = (session, request);
        let verdict = self.handle.ask_about(head, key, &environment.newest_first(), extend);
        let this = Arc::clone(self);
        Box::pin(async move {
            let Some(verdict) = verdict else {
                return Verdict::Reject("too many clients wait for the management client".into());
            };
            match verdict.await {
                Ok(ClientVerdict::Accept(lines)) => {
                    // In a renegotiation, the session keeps its parameters.
                    if !renegotiation && let Some(known) = this.known().clients.get_mut(&session) {
                        known.lines = lines;
                    }
                    Verdict::Accept
                }
                Ok(ClientVerdict::Deny { log, peer }) => Verdict::Reject(Rejection { log, peer }),
                Err(_) => Verdict::Reject("the question to the management client was lost".into()),
            }
        })
    }
}

impl Check for ManagementCheck {
    fn password(&self, facts: &Arc<ClientFacts>, pending: &Pending) -> VerdictFuture {
        self.0.ask(facts, pending)
    }

    fn connect(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        let mut known = self.0.known();
        let known = known.clients.get_mut(&facts.identity.session);
        let lines = known.map(|known| std::mem::take(&mut known.lines)).unwrap_or_default();
        Box::pin(ready(with_lines(&lines, &self.0.rules, params)))
    }

    fn learn(&self, facts: &Arc<ClientFacts>, change: AddressChange) -> VerdictFuture {
        if change.kind != ChangeKind::Delete {
            let session = facts.identity.session;
            let (text, primary) = (address(&change), u8::from(change.primary));
            self.0.handle.notify([format!(">CLIENT:ADDRESS,{session},{text},{primary}")]);
        }
        Box::pin(ready(Verdict::NotMine))
    }

    fn established(&self, facts: &Arc<ClientFacts>) {
        let session = facts.identity.session;
        self.0.known().establish(session);
        let mut environment = facts.environment.clone();
        self.0.count(&mut environment);
        self.0.tell(&format!("ESTABLISHED,{session}"), &environment);
    }

    fn abandoned(&self, session: u64) {
        if self.0.forget(session) {
            self.0.handle.tell("CLIENT", &format!("DISCONNECT,{session}"), &[]);
        }
    }

    fn disconnected(
        &self,
        facts: &Arc<ClientFacts>,
        traffic: Counters,
        duration: Duration,
    ) -> DoneFuture {
        let session = facts.identity.session;
        self.0.forget(session);
        let mut environment = facts.environment.clone();
        if let Some(remote) = facts.identity.remote {
            environment.trusted(remote);
        }
        environment.traffic(traffic, duration);
        self.0.tell(&format!("DISCONNECT,{session}"), &environment);
        Box::pin(ready(()))
    }

    fn challenge_response(&self, facts: &Arc<ClientFacts>, text: String) -> DoneFuture {
        let session = facts.identity.session;
        let request = self.0.known().clients.get(&session).map(|known| known.request);
        if let Some(request) = request {
            let mut environment = facts.environment.clone();
            if let Some(remote) = facts.identity.remote {
                environment.trusted(remote);
            }
            // As in openvpn, this is newer than the addresses here.
            environment.set_international("common_name", &facts.identity.common_name);
            self.0.count(&mut environment);
            self.0.tell(&format!("CR_RESPONSE,{session},{request},{text}"), &environment);
        }
        Box::pin(ready(()))
    }
}

/// Adds the options of `client-auth` to a client's parameters.
fn with_lines(
    lines: &[String],
    rules: &ClientRules,
    params: ClientParams,
) -> Result<ClientParams, Rejection> {
    let text = lines.join("\n");
    match ClientFile::parse("client-auth", text.as_bytes(), rules) {
        Ok(file) if file.disabled => Err("client-auth: its lines say disable".into()),
        Ok(file) => Ok(merged(params, file.grant)),
        Err(error) => Err(error.to_string().replace("\n ", ";").into()),
    }
}

/// Formats an address or a network as openvpn does.
fn address(change: &AddressChange) -> String {
    match change.address {
        Address::Net(net) if change.primary => net.addr().to_string(),
        Address::Net(IpNet::V4(net)) => format!("{}/{}", net.network(), net.netmask()),
        Address::Net(IpNet::V6(net)) => net.trunc().to_string(),
        Address::Station(..) => change.text(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use adit_engine::Identity;
    use adit_engine::auth::Response;
    use adit_runtime::authorize::{Authorizer, PendingSender};
    use zeroize::Zeroizing;

    use super::super::super::authorization::{Chain, ChainSettings, FactSettings};
    use super::super::Management;
    use super::super::tests::{Talk, open_server, serve};
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn alice() -> Identity {
        Identity {
            common_name: "alice".into(),
            username: Some("alice".into()),
            password: Some(Zeroizing::new("open\nsesame".into())),
            session: 7,
            ..Identity::default()
        }
    }

    fn facts_of(identity: Identity) -> Arc<ClientFacts> {
        let mut environment = Environment::default();
        environment.set("common_name", &identity.common_name);
        Arc::new(ClientFacts { identity, environment })
    }

    fn pending() -> Pending {
        Pending::new(PendingSender::none(), LONG, LONG)
    }

    struct World {
        _folder: tempfile::TempDir,
        management: Management,
        path: PathBuf,
        check: ManagementCheck,
    }

    fn world() -> World {
        let folder = tempfile::tempdir().unwrap();
        let (management, path) = open_server(folder.path());
        let check = ManagementCheck::new(management.handle(), ClientRules::default());
        World { _folder: folder, management, path, check }
    }

    #[tokio::test]
    async fn a_client_waits_for_its_verdict_and_its_options() {
        let World { _folder, mut management, path, check } = world();
        let verdict = check.password(&facts_of(alice()), &pending());
        serve(&mut management, move || {
            let mut talk = Talk::new(&path);
            talk.line();
            // The request was made before this client came, as in openvpn.
            assert_eq!(talk.ask("client-auth 7 2\nEND"), "ERROR: client-auth command failed");
            let accepted = talk.ask("client-auth 7 1\npush \"route 10.1.0.0\"\nEND");
            assert_eq!(accepted, "SUCCESS: client-auth command succeeded");
            // As in openvpn, the same verdict may come again. It has no effect.
            assert_eq!(talk.ask("client-auth-nt 7 1"), "SUCCESS: client-auth command succeeded");
            assert_eq!(talk.ask("client-deny 7 1 x"), "ERROR: client-deny command failed");
        })
        .await;
        assert_eq!(verdict.await, Verdict::Accept);
        let connecting = || check.connect(&facts_of(alice()), ClientParams::default());
        assert_eq!(connecting().await.unwrap().push, ["route 10.1.0.0"]);
        assert!(connecting().await.unwrap().push.is_empty(), "they are used once");
    }

    #[tokio::test]
    async fn a_session_is_reported_from_its_request_to_its_end() {
        let World { _folder, mut management, path, check } = world();
        let (sender, greeted) = tokio::sync::oneshot::channel();
        let client = std::thread::spawn(move || {
            let mut talk = Talk::new(&path);
            talk.line();
            sender.send(()).unwrap();
            assert_eq!(
                talk.notification(),
                [
                    ">CLIENT:CONNECT,7,1",
                    ">CLIENT:ENV,n_clients=0",
                    ">CLIENT:ENV,password=open_sesame",
                    ">CLIENT:ENV,common_name=alice",
                    ">CLIENT:ENV,END"
                ]
            );
            talk.ask("client-auth-nt 7 1");
            let response = talk.notification();
            assert_eq!(response[0], ">CLIENT:CR_RESPONSE,7,1,MTIz_>FATAL:x");
            assert_eq!(talk.line(), ">CLIENT:ADDRESS,7,10.8.0.2,1");
            assert_eq!(talk.line(), ">CLIENT:ADDRESS,7,10.9.1.1/255.255.255.255,0");
            let established = talk.notification();
            assert_eq!(established[..2], [">CLIENT:ESTABLISHED,7", ">CLIENT:ENV,n_clients=1"]);
            assert_eq!(talk.notification()[0], ">CLIENT:REAUTH,7,3");
            talk.ask("client-deny 7 3 no \"come back\"");
            let end = talk.notification();
            assert_eq!(end[0], ">CLIENT:DISCONNECT,7");
            assert_eq!(end[1], ">CLIENT:ENV,time_duration=3600");
            assert!(end.contains(&">CLIENT:ENV,bytes_received=5".to_owned()), "{end:?}");
        });
        let program = async {
            greeted.await.unwrap();
            let facts = facts_of(alice());
            assert_eq!(check.password(&facts, &pending()).await, Verdict::Accept);
            check.challenge_response(&facts, "MTIz\n>FATAL:x".into()).await;
            for (address, primary) in [("10.8.0.2/32", true), ("10.9.1.1/32", false)] {
                let address = Address::Net(address.parse().unwrap());
                let change = AddressChange { kind: ChangeKind::Add, address, primary };
                assert_eq!(check.learn(&facts, change).await, Verdict::NotMine);
                let change = AddressChange { kind: ChangeKind::Delete, ..change };
                check.learn(&facts, change).await;
            }
            check.established(&facts);
            let again = facts_of(Identity { renegotiation: true, ..alice() });
            let denied = Rejection::with_text("no", "come back");
            assert_eq!(check.password(&again, &pending()).await, Verdict::Reject(denied));
            let traffic = Counters { rx_bytes: 5, ..Counters::default() };
            check.disconnected(&facts, traffic, LONG).await;
        };
        management.serve_while(program).await;
        management.finish().await;
        client.join().unwrap();
    }

    /// An attempt that ends is reported once, and a late verdict about it fails.
    #[tokio::test]
    async fn an_attempt_that_ends_is_reported_without_variables() {
        let World { _folder, mut management, path, check } = world();
        let verdict = check.password(&facts_of(alice()), &pending());
        check.abandoned(7);
        check.abandoned(7);
        assert!(matches!(verdict.await, Verdict::Reject(_)));
        assert!(check.0.known().clients.is_empty());
        let _open = check.password(&facts_of(alice()), &pending());
        serve(&mut management, move || {
            let mut talk = Talk::new(&path);
            talk.line();
            check.abandoned(7);
            check.abandoned(7);
            assert_eq!(talk.notification(), [">CLIENT:DISCONNECT,7", ">CLIENT:ENV,END"]);
            assert_eq!(talk.ask("client-auth-nt 7 1"), "ERROR: client-auth command failed");
        })
        .await;
    }

    /// A management client that leaves in the middle does not decide anything. The next one may.
    #[tokio::test]
    async fn the_next_management_client_may_answer() {
        let World { _folder, mut management, path, check } = world();
        let verdict = check.password(&facts_of(alice()), &pending());
        serve(&mut management, move || {
            drop(Talk::new(&path));
            let mut talk = Talk::new(&path);
            talk.line();
            talk.ask("client-auth-nt 7 1");
        })
        .await;
        assert_eq!(verdict.await, Verdict::Accept);
    }

    #[tokio::test]
    async fn a_client_whose_verdict_never_comes_is_refused() {
        let World { _folder, management, check, .. } = world();
        let patience = Duration::from_millis(20);
        let chain = Chain::new(ChainSettings {
            checks: vec![Arc::new(check)],
            facts: FactSettings::default(),
            patience,
            longest: patience,
            duplicate_cn: false,
            last: patience,
            learns: true,
            stations: false,
        });
        let answer = chain.authorize(Box::new(alice()), PendingSender::none()).await;
        assert!(matches!(answer, Response::Reject(_)), "{answer:?}");
        let late = ClientVerdict::Accept(Vec::new());
        assert!(!management.handle().session().decide((7, 1), late));
    }

    #[test]
    fn addresses_have_openvpns_form() {
        let text = |net: &str, primary| {
            address(&AddressChange {
                kind: ChangeKind::Add,
                address: Address::Net(net.parse().unwrap()),
                primary,
            })
        };
        assert_eq!(text("10.8.0.2/32", true), "10.8.0.2");
        assert_eq!(text("fd00::2/128", true), "fd00::2");
        assert_eq!(text("10.9.0.0/16", false), "10.9.0.0/255.255.0.0");
        assert_eq!(text("10.9.0.1/32", false), "10.9.0.1/255.255.255.255");
        assert_eq!(text("fd00:1::/64", false), "fd00:1::/64");
    }

    #[test]
    fn the_lines_of_a_verdict_are_options_of_the_client() {
        let rules = ClientRules::default();
        let with = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            with_lines(&lines, &rules, ClientParams::default())
        };
        assert!(with(&[]).unwrap().push.is_empty());
        assert_eq!(with(&["push \"route 10.0.0.0 255.0.0.0\""]).unwrap().push.len(), 1);
        assert!(with(&["disable"]).unwrap_err().log.contains("disable"));
        let wrong = with(&["push \"echo a\"", "up /bin/sh"]).unwrap_err();
        assert!(wrong.log.starts_with("client-auth:2: up"), "{}", wrong.log);
    }

    #[test]
    fn sessions_are_counted_once() {
        let mut table = Table::default();
        assert_eq!([table.request(7, false), table.request(7, true)], [1, 3]);
        assert_eq!([table.request(7, true), table.request(8, false)], [4, 1]);
        table.establish(7);
        table.establish(7);
        table.establish(9);
        assert_eq!(table.established, 2);
        assert!(table.remove(7) && !table.remove(7) && table.remove(8));
        assert_eq!((table.established, table.clients.len()), (1, 1));
    }
}
