//! Tests of the chain with checks that answer when a test lets them.

mod sessions;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use adit_engine::CertificateFacts;
use adit_engine::auth::{Station, TokenFacts, TokenState};
use tokio::sync::{Barrier, Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::*;
use crate::openvpn::environment::Environment;

/// A time that no test waits for.
const LONG: Duration = Duration::from_secs(3600);

/// The time of tests that wait for the end of a time.
const SHORT: Duration = Duration::from_millis(20);

pub(super) fn fact_settings() -> FactSettings {
    FactSettings { netmask: true, ..FactSettings::default() }
}

pub(super) fn facts_of(identity: Identity) -> Arc<ClientFacts> {
    Arc::new(ClientFacts::verified(identity, &Environment::default(), &fact_settings()))
}

/// Returns a variable of a client.
fn variable(facts: &ClientFacts, name: &str) -> Option<String> {
    let mut pairs = facts.environment.pairs().into_iter();
    pairs.find(|(known, _)| known == name).map(|(_, value)| value)
}

/// Lets all tasks run until they wait for something.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// The calls of all checks, in order.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn add(&self, call: String) {
        lock(&self.0).push(call);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// What a check waits for.
#[derive(Clone)]
struct Gate(Arc<Semaphore>);

impl Gate {
    fn opened() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    fn open(&self) {
        self.0.add_permits(1);
    }

    async fn pass(&self) {
        drop(self.0.acquire().await.unwrap());
    }
}

/// What a check answers to the questions of one kind, and when.
type Answer = Arc<dyn Fn(&ClientFacts) -> (Gate, Verdict) + Send + Sync>;

/// A check that records its calls, and answers as a test wants.
#[derive(Clone)]
struct Fake {
    name: &'static str,
    calls: Calls,
    password: Answer,
    certificate: Answer,
    connect: Answer,
    learn: Answer,
    /// What client-disconnect waits for.
    last: Gate,
    /// The durations of sessions.
    durations: Arc<Mutex<Vec<Duration>>>,
}

fn at_once(verdict: Verdict) -> Answer {
    after(&Gate::opened(), verdict)
}

fn after(gate: &Gate, verdict: Verdict) -> Answer {
    let gate = gate.clone();
    Arc::new(move |_| (gate.clone(), verdict.clone()))
}

fn no(text: &str) -> Verdict {
    Verdict::Reject(text.into())
}

impl Fake {
    fn new(name: &'static str, calls: &Calls) -> Self {
        let none = at_once(Verdict::NotMine);
        Self {
            name,
            calls: calls.clone(),
            password: none.clone(),
            certificate: none.clone(),
            connect: none.clone(),
            learn: none,
            last: Gate::opened(),
            durations: Arc::default(),
        }
    }

    fn ask(&self, answer: &Answer, what: String, facts: &ClientFacts) -> VerdictFuture {
        let (gate, verdict) = answer(facts);
        let (calls, name) = (self.calls.clone(), self.name);
        Box::pin(async move {
            calls.add(format!("{name}: {what}"));
            gate.pass().await;
            verdict
        })
    }
}

impl Check for Fake {
    fn verify_certificate(&self, facts: &Arc<ClientFacts>, depth: usize) -> VerdictFuture {
        self.ask(&self.certificate, format!("certificate {depth}"), facts)
    }

    fn password(&self, facts: &Arc<ClientFacts>, _: &Pending) -> VerdictFuture {
        self.ask(&self.password, "password".into(), facts)
    }

    fn connect(&self, facts: &Arc<ClientFacts>, mut params: ClientParams) -> ParamsFuture {
        let what = format!("connect {}", facts.identity.common_name);
        let verdict = self.ask(&self.connect, what, facts);
        let name = self.name;
        Box::pin(async move {
            accepted(verdict.await)?;
            params.push.push(format!("echo {name}"));
            Ok(params)
        })
    }

    fn learn(&self, facts: &Arc<ClientFacts>, change: AddressChange) -> VerdictFuture {
        self.ask(&self.learn, format!("{} {}", change.kind.name(), change.text()), facts)
    }

    fn disconnected(
        &self,
        facts: &Arc<ClientFacts>,
        traffic: Counters,
        duration: Duration,
    ) -> DoneFuture {
        assert_eq!(facts.identity.password, None, "the facts of a session have no password");
        lock(&self.durations).push(duration);
        let (calls, name, last) = (self.calls.clone(), self.name, self.last.clone());
        let who = facts.identity.common_name.clone();
        Box::pin(async move {
            last.pass().await;
            calls.add(format!("{name}: {who} left, {} bytes", traffic.rx_bytes));
        })
    }

    fn challenge_response(&self, facts: &Arc<ClientFacts>, text: String) -> DoneFuture {
        let (calls, who) = (self.calls.clone(), facts.identity.common_name.clone());
        Box::pin(async move { calls.add(format!("response of {who}: {text}")) })
    }
}

fn settings(checks: Vec<Arc<dyn Check>>) -> ChainSettings {
    ChainSettings {
        checks,
        facts: fact_settings(),
        patience: LONG,
        longest: LONG,
        duplicate_cn: false,
        last: LONG,
        learns: true,
        stations: false,
    }
}

fn chain(checks: Vec<Fake>) -> Chain {
    with_settings(checks, |_| {})
}

fn with_settings(checks: Vec<Fake>, change: impl FnOnce(&mut ChainSettings)) -> Chain {
    let checks = checks.into_iter().map(|check| Arc::new(check) as Arc<dyn Check>).collect();
    let mut settings = settings(checks);
    change(&mut settings);
    Chain::new(settings)
}

fn identity(session: u64) -> Identity {
    Identity {
        common_name: format!("client{session}"),
        username: Some("alice".into()),
        password: Some("secret".to_owned().into()),
        session,
        certificates: vec![CertificateFacts::default(); 2],
        ..Identity::default()
    }
}

/// Asks whether a client may have a session. The question is asked at once, and answered by the task.
fn ask(chain: &Chain, identity: Identity) -> JoinHandle<Response> {
    tokio::spawn(chain.authorize(Box::new(identity), PendingSender::none()))
}

async fn authorize(chain: &Chain, identity: Identity) -> Response {
    ask(chain, identity).await.unwrap()
}

fn connecting(session: u64) -> Box<Connecting> {
    let last = u8::try_from(session % 250).unwrap() + 2;
    Box::new(Connecting {
        identity: Identity { password: None, ..identity(session) },
        params: ClientParams::default(),
        ipv4: Some(Ipv4Addr::new(10, 8, 0, last)),
        ipv6: None,
        netmask_or_far_end: Some(Ipv4Addr::new(255, 255, 255, 0)),
    })
}

/// Returns a client with this session and a name that others have as well.
fn named(session: u64) -> Box<Connecting> {
    let mut connecting = connecting(session);
    connecting.identity.common_name = "alice".into();
    connecting
}

fn is_accepted(response: &Response) -> bool {
    matches!(response, Response::Accept(_))
}

fn refusal(response: Response) -> Rejection {
    match response {
        Response::Reject(rejection) => rejection,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn checks_are_asked_in_order_from_the_root_to_the_password() {
    let calls = Calls::default();
    let chain = chain(vec![Fake::new("plugin", &calls), Fake::new("script", &calls)]);
    assert!(is_accepted(&authorize(&chain, identity(1)).await));
    assert_eq!(
        calls.take(),
        [
            "plugin: certificate 1",
            "script: certificate 1",
            "plugin: certificate 0",
            "script: certificate 0",
            "plugin: password",
            "script: password",
        ]
    );
}

/// Each check alone keeps a client out, and none after it is asked.
#[tokio::test]
async fn all_checks_with_an_opinion_must_accept() {
    let calls = Calls::default();
    let (yes, refusing) = (at_once(Verdict::Accept), at_once(no("no")));
    let fake =
        |name| Fake { password: yes.clone(), certificate: yes.clone(), ..Fake::new(name, &calls) };
    assert!(is_accepted(&authorize(&chain(vec![fake("a"), fake("b")]), identity(1)).await));
    calls.take();
    for place in 0..3 {
        let mut checks = vec![fake("a"), fake("b"), fake("c")];
        checks[place].password = refusing.clone();
        let refused = refusal(authorize(&chain(checks.clone()), identity(1)).await);
        assert_eq!(refused.log, "no");
        let asked = calls.take().iter().filter(|call| call.ends_with("password")).count();
        assert_eq!(asked, place + 1);
        checks[place] = Fake { certificate: refusing.clone(), ..fake("x") };
        refusal(authorize(&chain(checks), identity(1)).await);
        let asked = calls.take();
        assert!(!asked.iter().any(|call| call.ends_with("password")), "{asked:?}");
    }
}

/// A client is accepted only when every deferred check has accepted it, whatever the order of their answers.
#[tokio::test]
async fn cve_2020_15078_cve_2022_0547_several_deferred_checks_must_all_accept() {
    for accepted in [true, false] {
        for first in [0, 1] {
            let (calls, gates) = (Calls::default(), [Gate::closed(), Gate::closed()]);
            let verdicts = [Verdict::Accept, if accepted { Verdict::Accept } else { no("no") }];
            let mut checks = [Fake::new("a", &calls), Fake::new("b", &calls)];
            for ((check, gate), verdict) in checks.iter_mut().zip(&gates).zip(verdicts) {
                check.password = after(gate, verdict);
            }
            let asked = ask(&chain(checks.into()), identity(1));
            settle().await;
            assert!(!asked.is_finished(), "no check has answered");
            gates[first].open();
            settle().await;
            assert!(!asked.is_finished(), "one of them has not answered");
            gates[1 - first].open();
            assert_eq!(is_accepted(&asked.await.unwrap()), accepted);
        }
    }
}

#[tokio::test]
async fn a_check_that_never_answers_refuses_at_the_end_of_its_time() {
    let calls = Calls::default();
    let silent = after(&Gate::closed(), Verdict::Accept);
    let check = Fake { password: silent.clone(), connect: silent, ..Fake::new("a", &calls) };
    let chain = with_settings(vec![check], |settings| settings.patience = SHORT);
    assert!(refusal(authorize(&chain, identity(1)).await).log.contains("in time"));
    assert!(refusal(chain.connect(connecting(1)).await).log.contains("in time"));
}

/// Of a hundred clients one waits for its check, and the others are served meanwhile. Answers do not mix.
#[tokio::test]
async fn a_slow_check_delays_only_its_own_client() {
    let (calls, slow) = (Calls::default(), Gate::closed());
    let gate = slow.clone();
    let password: Answer = Arc::new(move |facts| {
        let session = facts.identity.session;
        let gate = if session == 7 { gate.clone() } else { Gate::opened() };
        (gate, if session % 2 == 0 { no("even") } else { Verdict::Accept })
    });
    let chain = chain(vec![Fake { password, ..Fake::new("a", &calls) }]);
    let mut asked: Vec<_> = (0..100).map(|session| ask(&chain, identity(session))).collect();
    let waiting = asked.remove(7);
    for (at, task) in asked.into_iter().enumerate() {
        let session = if at < 7 { at } else { at + 1 };
        assert_eq!(is_accepted(&task.await.unwrap()), session % 2 == 1, "{session}");
    }
    assert!(!waiting.is_finished());
    slow.open();
    assert!(is_accepted(&waiting.await.unwrap()));
}

/// Each check ends only when those of all clients have begun, so they run at the same time.
#[tokio::test]
async fn slow_checks_of_many_clients_wait_together() {
    struct Together(Arc<Barrier>);
    impl Check for Together {
        fn password(&self, _: &Arc<ClientFacts>, _: &Pending) -> VerdictFuture {
            let barrier = Arc::clone(&self.0);
            Box::pin(async move {
                barrier.wait().await;
                Verdict::Accept
            })
        }
    }
    let chain = Chain::new(settings(vec![Arc::new(Together(Arc::new(Barrier::new(100))))]));
    let asked: Vec<_> = (0..100).map(|session| ask(&chain, identity(session))).collect();
    for task in asked {
        assert!(is_accepted(&task.await.unwrap()));
    }
}

/// A check whose channel gets two answers: the first one counts, and the second one belongs to the next question.
#[tokio::test]
async fn of_two_answers_the_first_counts() {
    struct Channel(Mutex<VecDeque<oneshot::Receiver<Verdict>>>);
    impl Check for Channel {
        fn password(&self, _: &Arc<ClientFacts>, _: &Pending) -> VerdictFuture {
            let answer = lock(&self.0).pop_front().unwrap();
            Box::pin(async move { answer.await.unwrap_or_else(|_| no("no answer")) })
        }
    }
    let (first, second) = (oneshot::channel(), oneshot::channel());
    let queue = Mutex::new([first.1, second.1].into());
    let chain = Chain::new(settings(vec![Arc::new(Channel(queue))]));
    let one = ask(&chain, identity(1));
    settle().await;
    first.0.send(no("no")).unwrap();
    second.0.send(Verdict::Accept).unwrap();
    assert_eq!(refusal(one.await.unwrap()).log, "no");
    assert!(is_accepted(&authorize(&chain, identity(2)).await));
}

#[tokio::test]
async fn a_valid_token_replaces_the_password_unless_the_checks_decide() {
    let calls = Calls::default();
    let mut check = Fake::new("a", &calls);
    check.password = at_once(no("wrong password"));
    let with = |state, external| Identity {
        token: Some(TokenFacts { session_id: "c2Vzc2lvbg==".into(), state, external }),
        ..identity(1)
    };
    let internal = chain(vec![check.clone()]);
    let valid = with(TokenState::Authenticated, false);
    assert!(is_accepted(&authorize(&internal, valid).await));
    for state in [TokenState::Initial, TokenState::Expired, TokenState::Invalid] {
        let refused = refusal(authorize(&internal, with(state, false)).await);
        assert_eq!(refused.log, "wrong password", "{state:?}");
    }
    // external-auth: the checks decide, and get the state.
    check.password = Arc::new(|facts| {
        let state = variable(facts, "session_state").unwrap_or_default();
        assert_eq!(variable(facts, "session_id").as_deref(), Some("c2Vzc2lvbg=="));
        (Gate::opened(), if state == "Authenticated" { Verdict::Accept } else { no(&state) })
    });
    let external = chain(vec![check]);
    let valid = with(TokenState::Authenticated, true);
    assert!(is_accepted(&authorize(&external, valid).await));
    let expired = with(TokenState::ExpiredEmptyUser, true);
    assert_eq!(refusal(authorize(&external, expired).await).log, "ExpiredEmptyUser");
}

#[tokio::test]
async fn parameters_and_the_end_pass_through_all_checks() {
    let calls = Calls::default();
    let first = Fake::new("a", &calls);
    let durations = Arc::clone(&first.durations);
    let chain = chain(vec![first, Fake::new("b", &calls)]);
    let Response::Accept(params) = chain.connect(connecting(1)).await else { panic!() };
    assert_eq!(params.push, ["echo a", "echo b"]);
    chain.established(1);
    tokio::time::sleep(SHORT).await;
    calls.take();
    chain.ending(1);
    settle().await;
    assert_eq!(calls.take(), Vec::<String>::new(), "its counters are to come");
    chain.ended(1, Counters { rx_bytes: 5, ..Counters::default() });
    chain.ended(1, Counters::default());
    chain.close().await;
    let last = [
        "a: delete 10.8.0.3",
        "b: delete 10.8.0.3",
        "a: client1 left, 5 bytes",
        "b: client1 left, 5 bytes",
    ];
    assert_eq!(calls.take(), last);
    assert!(lock(&durations).iter().all(|duration| *duration >= SHORT));
}

/// All checks take note of the end of a client that is refused, whichever refuses it.
#[tokio::test]
async fn a_refusal_is_an_end() {
    let calls = Calls::default();
    let refusing = Fake { connect: at_once(no("no")), ..Fake::new("b", &calls) };
    let second = chain(vec![Fake::new("a", &calls), refusing.clone()]);
    assert_eq!(refusal(second.connect(connecting(1)).await).log, "no");
    second.close().await;
    assert_eq!(calls.take()[2..], ["a: client1 left, 0 bytes", "b: client1 left, 0 bytes"]);
    let first = chain(vec![refusing, Fake::new("a", &calls)]);
    refusal(first.connect(connecting(1)).await);
    first.close().await;
    let left = ["b: client1 left, 0 bytes", "a: client1 left, 0 bytes"];
    assert_eq!(calls.take(), [&["b: connect client1"][..], &left].concat());
    assert!(first.0.sessions().is_empty());
}

/// A client that goes away while its client-connect runs, or before it has its session, has an end as well.
#[tokio::test]
async fn a_client_that_gives_up_leaves_nothing_behind() {
    let (calls, gate) = (Calls::default(), Gate::closed());
    let slow = Fake { connect: after(&gate, Verdict::Accept), ..Fake::new("a", &calls) };
    let chain = chain(vec![slow]);
    let asked = tokio::spawn(chain.connect(connecting(1)));
    settle().await;
    chain.ending(1);
    gate.open();
    asked.await.unwrap();
    chain.close().await;
    let seen = calls.take();
    assert_eq!(seen.last().unwrap(), "a: client1 left, 0 bytes");
    assert!(seen.contains(&"a: delete 10.8.0.3".to_owned()));
    chain.connect(connecting(2)).await;
    chain.ending(2);
    chain.close().await;
    assert!(calls.take().last().unwrap().starts_with("a: client2 left"));
    let sessions = chain.0.sessions();
    assert!(sessions.is_empty(), "{sessions:?}");
    assert_eq!(chain.0.turns.len(), 0);
}
