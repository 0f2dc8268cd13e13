//! Tests of what happens to clients that are admitted: addresses, stations, and the ends of sessions.

use super::*;

#[tokio::test]
async fn stations_are_learnt_move_and_are_forgotten() {
    let calls = Calls::default();
    let learn: Answer = Arc::new(move |facts| {
        let refused = facts.identity.session == 3;
        (Gate::opened(), if refused { no("not here") } else { Verdict::Accept })
    });
    let chain = with_settings(vec![Fake { learn, ..Fake::new("a", &calls) }], |settings| {
        (settings.learns, settings.stations) = (false, true);
    });
    for session in [1, 2, 3] {
        chain.connect(connecting(session)).await;
        chain.established(session);
    }
    calls.take();
    let station = |session, n| Station { session, mac: [2, 0, 0, 0, 0, n], vlan: None };
    assert!(is_accepted(&chain.learn(station(1, 1)).await));
    assert!(is_accepted(&chain.learn(station(1, 2)).await));
    assert!(is_accepted(&chain.learn(station(2, 2)).await));
    assert_eq!(refusal(chain.learn(station(3, 1)).await).log, "not here");
    assert_eq!(refusal(chain.learn(station(9, 1)).await).log, "the session has ended");
    let learnt = [
        "a: add 02:00:00:00:00:01@0",
        "a: add 02:00:00:00:00:02@0",
        "a: update 02:00:00:00:00:02@0",
        "a: update 02:00:00:00:00:01@0",
    ];
    assert_eq!(calls.take(), learnt);
    // The first client still has the station that the third was refused, and not the one that moved.
    chain.ended(1, Counters::default());
    settle().await;
    assert_eq!(calls.take(), ["a: delete 02:00:00:00:00:01@0", "a: client1 left, 0 bytes"]);
    chain.station_forgotten(station(2, 2));
    settle().await;
    assert_eq!(calls.take(), ["a: delete 02:00:00:00:00:02@0"]);
    chain.station_forgotten(station(2, 2));
    chain.close().await;
    let mut last = calls.take();
    last.sort();
    assert_eq!(last, ["a: client2 left, 0 bytes", "a: client3 left, 0 bytes"]);
    assert!(chain.0.sessions().is_empty());
}

/// A check that records the ends of attempts and the beginnings of sessions.
struct Ends(Calls);

impl Check for Ends {
    fn established(&self, facts: &Arc<ClientFacts>) {
        self.0.add(format!("established {}", facts.identity.session));
    }

    fn abandoned(&self, session: u64) {
        self.0.add(format!("abandoned {session}"));
    }

    fn disconnected(&self, facts: &Arc<ClientFacts>, _: Counters, _: Duration) -> DoneFuture {
        self.0.add(format!("disconnected {}", facts.identity.session));
        Box::pin(std::future::ready(()))
    }
}

/// Each attempt ends once: as a session that has been accepted, or as an attempt that was not.
#[tokio::test]
async fn an_attempt_ends_as_a_session_or_is_abandoned() {
    let calls = Calls::default();
    let ends: Arc<dyn Check> = Arc::new(Ends(calls.clone()));
    let refusing = |gate: &Gate| -> Arc<dyn Check> {
        let connect = after(gate, no("no"));
        Arc::new(Fake { connect, ..Fake::new("a", &Calls::default()) })
    };
    // Refused before it was asked with which parameters it connects.
    let chain = Chain::new(settings(vec![Arc::clone(&ends)]));
    chain.ending(1);
    assert_eq!(calls.take(), ["abandoned 1"]);
    // A session.
    chain.connect(connecting(2)).await;
    chain.established(2);
    chain.ending(2);
    chain.ended(2, Counters::default());
    chain.established(2);
    // One that was accepted, but gave up before it had its session.
    chain.connect(connecting(3)).await;
    chain.ending(3);
    chain.close().await;
    assert_eq!(calls.take(), ["established 2", "disconnected 2", "disconnected 3"]);
    // Refused by client-connect.
    let gate = Gate::opened();
    let chain = Chain::new(settings(vec![refusing(&gate), Arc::clone(&ends)]));
    chain.connect(connecting(4)).await;
    chain.ending(4);
    chain.close().await;
    // It goes while client-connect runs, which then refuses it.
    let gate = Gate::closed();
    let chain = Chain::new(settings(vec![refusing(&gate), ends]));
    let asked = tokio::spawn(chain.connect(connecting(5)));
    settle().await;
    chain.ending(5);
    gate.open();
    asked.await.unwrap();
    chain.close().await;
    assert_eq!(calls.take(), ["disconnected 4", "disconnected 5"]);
}

/// A check that records a client's address and version as variables have them.
struct Seen(Calls);

impl Seen {
    fn add(&self, when: &str, facts: &ClientFacts) {
        let value = |name| variable(facts, name).unwrap_or_default();
        self.0.add(format!("{when} {} {}", value("ifconfig_pool_remote_ip"), value("IV_VER")));
    }
}

impl Check for Seen {
    fn password(&self, facts: &Arc<ClientFacts>, _: &Pending) -> VerdictFuture {
        self.add("password", facts);
        Box::pin(std::future::ready(Verdict::Accept))
    }

    fn established(&self, facts: &Arc<ClientFacts>) {
        self.add("session", facts);
    }

    fn disconnected(&self, facts: &Arc<ClientFacts>, _: Counters, _: Duration) -> DoneFuture {
        self.add("end", facts);
        Box::pin(std::future::ready(()))
    }
}

/// A session has the variables of the address that was chosen for it and of its last renegotiation, which has those of
/// the session.
#[tokio::test]
async fn the_variables_of_a_session_go_on() {
    let calls = Calls::default();
    let chain = Chain::new(settings(vec![Arc::new(Seen(calls.clone()))]));
    let version = |version: &str| vec![("IV_VER".to_owned(), version.to_owned())];
    let mut first = connecting(1);
    first.identity.peer_info = version("2.6");
    let chosen = (Ipv4Addr::new(10, 9, 0, 9), Ipv4Addr::new(255, 255, 255, 0));
    first.params.ifconfig4 = Some(chosen);
    chain.connect(first).await;
    chain.established(1);
    let renegotiation = Identity { renegotiation: true, peer_info: version("2.7"), ..identity(1) };
    assert!(is_accepted(&authorize(&chain, renegotiation).await));
    chain.ending(1);
    chain.ended(1, Counters::default());
    chain.close().await;
    let expected = ["session 10.9.0.9 2.6", "password 10.9.0.9 2.7", "end 10.9.0.9 2.7"];
    assert_eq!(calls.take(), expected);
}

/// The end of a name's former session precedes the beginning of the next one, even if its counters come late.
#[tokio::test]
async fn the_former_session_of_a_name_ends_before_the_next_begins() {
    let (calls, gate) = (Calls::default(), Gate::closed());
    let chain = chain(vec![Fake { last: gate.clone(), ..Fake::new("a", &calls) }]);
    chain.connect(named(1)).await;
    chain.established(1);
    chain.ending(1);
    calls.take();
    let next = tokio::spawn(chain.connect(named(2)));
    settle().await;
    assert_eq!(calls.take(), Vec::<String>::new(), "its counters are to come");
    chain.ended(1, Counters::default());
    settle().await;
    assert!(!next.is_finished(), "its last hook runs");
    gate.open();
    next.await.unwrap();
    let order = calls.take();
    let at = |text: &str| order.iter().position(|call| call.contains(text)).expect(text);
    assert!(at("alice left") < at("connect alice"), "{order:?}");
}

#[tokio::test]
async fn sessions_of_a_name_do_not_wait_for_each_other_with_duplicate_cn() {
    let (calls, gate) = (Calls::default(), Gate::closed());
    let slow = Fake { connect: after(&gate, Verdict::Accept), ..Fake::new("a", &calls) };
    let chain = with_settings(vec![slow], |settings| settings.duplicate_cn = true);
    let asked = [1, 2, 3].map(|session| tokio::spawn(chain.connect(named(session))));
    settle().await;
    assert_eq!(calls.take(), ["a: connect alice"; 3]);
    gate.open();
    for task in asked {
        assert!(is_accepted(&task.await.unwrap()));
    }
}

#[tokio::test]
async fn a_rejected_network_is_left_out_and_a_rejected_address_refuses() {
    let calls = Calls::default();
    let count = Arc::new(AtomicUsize::new(0));
    // The client's own address is the first, and its networks follow, the last one first.
    let reject = |place: usize| -> Answer {
        let count = Arc::clone(&count);
        count.store(0, Relaxed);
        Arc::new(move |_| {
            let now = count.fetch_add(1, Relaxed);
            (Gate::opened(), if now == place { no("taken") } else { Verdict::Accept })
        })
    };
    let with_networks = || {
        let mut connecting = connecting(1);
        connecting.params.iroutes =
            ["10.1.0.0/16", "10.2.0.0/16"].map(|net| net.parse().unwrap()).into();
        connecting
    };
    let second = chain(vec![Fake { learn: reject(1), ..Fake::new("a", &calls) }]);
    let Response::Accept(params) = second.connect(with_networks()).await else { panic!() };
    assert_eq!(params.iroutes, ["10.1.0.0/16".parse().unwrap()]);
    let first = chain(vec![Fake { learn: reject(0), ..Fake::new("a", &calls) }]);
    assert_eq!(refusal(first.connect(with_networks()).await).log, "taken");
    first.close().await;
    assert!(calls.take().iter().any(|call| call.contains("client1 left")));
}

/// A program of client-connect, or the client's file, may have chosen another address than the reserved one.
#[tokio::test]
async fn the_learned_address_is_the_one_that_the_client_gets() {
    let calls = Calls::default();
    let chain = chain(vec![Fake::new("a", &calls)]);
    let fixed = |session| {
        let mut connecting = connecting(session);
        let address = (Ipv4Addr::new(10, 9, 0, 9), Ipv4Addr::new(255, 255, 255, 0));
        connecting.params.ifconfig4 = Some(address);
        connecting.params.iroutes = vec!["10.1.0.0/16".parse().unwrap()];
        connecting
    };
    chain.connect(fixed(1)).await;
    let learned = |calls: &Calls| -> Vec<String> {
        calls.take().into_iter().filter(|call| call.contains("add")).collect()
    };
    assert_eq!(learned(&calls), ["a: add 10.9.0.9", "a: add 10.1.0.0/16"]);
    // A connection check has neither.
    let mut check = fixed(2);
    check.identity.check = true;
    chain.connect(check).await;
    assert_eq!(learned(&calls), ["a: add 10.8.0.4"]);
}

#[tokio::test]
async fn an_address_that_moves_is_an_update_and_is_deleted_once() {
    let calls = Calls::default();
    let chain = chain(vec![Fake::new("a", &calls)]);
    let with_network = |session| {
        let mut connecting = connecting(session);
        connecting.params.iroutes = vec!["10.1.0.0/16".parse().unwrap()];
        connecting
    };
    chain.connect(with_network(1)).await;
    chain.connect(with_network(2)).await;
    for session in [1, 2] {
        chain.established(session);
        chain.ended(session, Counters::default());
    }
    chain.close().await;
    let learned: Vec<String> =
        calls.take().into_iter().filter(|call| call.contains("10.1.0.0/16")).collect();
    assert_eq!(learned, ["a: add 10.1.0.0/16", "a: update 10.1.0.0/16", "a: delete 10.1.0.0/16"]);
}

#[tokio::test]
async fn responses_to_challenges_belong_to_an_open_authorization() {
    let (calls, gate) = (Calls::default(), Gate::closed());
    let check = Fake { password: after(&gate, Verdict::Accept), ..Fake::new("a", &calls) };
    let chain = chain(vec![check]);
    chain.challenge_response(1, "early".into());
    let asked = ask(&chain, identity(1));
    settle().await;
    calls.take();
    chain.challenge_response(1, "code".into());
    chain.challenge_response(1, "while the first one is checked".into());
    chain.challenge_response(2, "of another".into());
    settle().await;
    assert_eq!(calls.take(), ["response of client1: code"]);
    chain.challenge_response(1, "afterwards".into());
    settle().await;
    assert_eq!(calls.take(), ["response of client1: afterwards"]);
    gate.open();
    asked.await.unwrap();
    chain.challenge_response(1, "late".into());
    settle().await;
    assert_eq!(calls.take(), Vec::<String>::new());
}

/// The end of the server is the end of every session. A hook without end does not keep the process.
#[tokio::test]
async fn the_end_of_the_server_is_the_end_of_every_session() {
    let calls = Calls::default();
    let stuck = Fake { last: Gate::closed(), ..Fake::new("b", &calls) };
    let checks = vec![Fake::new("a", &calls), stuck];
    let chain = with_settings(checks, |settings| settings.last = SHORT);
    for session in 0..20 {
        chain.connect(connecting(session)).await;
        chain.established(session);
    }
    calls.take();
    chain.close().await;
    let left = calls.take().iter().filter(|call| call.starts_with("a: client")).count();
    assert_eq!(left, 20);
}

/// CVE-2024-5594: what a client chose cannot forge a line or another variable, and its password is in none.
#[tokio::test]
async fn cve_2024_5594_variables_of_clients_are_filtered() {
    let hostile = "a\nroot=1\0\u{7}b'\"`;é";
    let certificate = CertificateFacts {
        subject: format!("CN={hostile}"),
        attributes: vec![("CN".into(), hostile.into()), ("O\nX".into(), hostile.into())],
        ..CertificateFacts::default()
    };
    let facts = facts_of(Identity {
        common_name: hostile.into(),
        username: Some(hostile.into()),
        peer_info: vec![("IV_VER".into(), hostile.into()), ("PATH".into(), "/tmp".into())],
        certificates: vec![certificate],
        ..identity(1)
    });
    let pairs = facts.environment.pairs();
    for (name, value) in &pairs {
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{name:?}");
        assert!(!value.chars().any(char::is_control), "{name}={value:?}");
        assert!(!value.contains("secret"), "{name} has the password");
        assert_ne!(name, "PATH");
    }
    assert_eq!(variable(&facts, "username").as_deref(), Some("a_root=1__b'\"`;é"));
    assert_eq!(variable(&facts, "common_name").as_deref(), Some("a_root=1__b'\"`;é"));
}
