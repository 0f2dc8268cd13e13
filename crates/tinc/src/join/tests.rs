use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::Random;
use proptest::prelude::*;

use super::*;
use crate::config::ConfigError;
use crate::invitation::{Accepted, Cookie, FileError, MAX_FILE, Offer, Url};
use crate::keys::PrivateKey;
use crate::meta::{Id, Identity};
use crate::name::NodeName;
use crate::sptps::{self, CipherChoice, INVITATION_LABEL, Params, Received, Role, Stream};
use crate::testing::{alice, bob};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
const WEEK: Duration = Duration::from_secs(604_800);

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

/// The inviter's key for invitations.
fn invitation_key() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_seed(&[3; 32]))
}

fn cookie(seed: u8) -> Cookie {
    Cookie::from_bytes(&[seed; 18]).unwrap()
}

fn url(seed: u8) -> Url {
    Url::new("host", 655, &invitation_key().public(), cookie(seed)).unwrap()
}

fn file() -> String {
    let host_file = format!("Ed25519PublicKey = {}\nSubnet = 10.2.0.0/16\n", bob().public());
    let offer = Offer {
        name: &name("alice"),
        net_name: Some("office"),
        inviter: &name("bob"),
        mode: None,
        broadcast: None,
        host_file: &host_file,
        port: 655,
    };
    offer.to_file()
}

/// The folder of invitations at bob, where a file can be claimed once.
struct Folder(BTreeMap<String, Claim>);

impl Folder {
    fn with(claim: Claim) -> Self {
        let name = cookie(1).file_name(&invitation_key().public());
        Self(BTreeMap::from([(name, claim)]))
    }

    fn found(content: impl Into<String>) -> Self {
        Self::with(Claim::Found { content: content.into(), age: WEEK })
    }
}

/// Both sides, connected.
struct Pair {
    joiner: Joiner,
    inviter: Option<Inviter>,
    to_inviter: Vec<u8>,
    to_joiner: Vec<u8>,
    random: Random,
}

/// What came of an exchange.
#[derive(Debug, PartialEq)]
struct Outcome {
    accepted: Option<Accepted>,
    /// The host files that bob wrote.
    written: Vec<(NodeName, String)>,
    joiner: Result<(), JoinError>,
    inviter: Result<(), InviterError>,
}

impl Pair {
    fn new(url: Url) -> Self {
        let (mut random, mut to_inviter) = (Random::new([1; 32]), Vec::new());
        let joiner = Joiner::start(url, NOW, &mut random, &mut to_inviter);
        Self { joiner, inviter: None, to_inviter, to_joiner: Vec::new(), random }
    }

    /// Starts bob's side with the joiner's line.
    fn greet(&mut self) {
        let end = self.to_inviter.iter().position(|byte| *byte == b'\n').unwrap();
        let id = Id::parse(&self.to_inviter[..end]).unwrap();
        assert_eq!(id.minor, 1);
        let Identity::Joining(key) = id.identity else { panic!("{id:?}") };
        self.to_inviter.drain(..=end);
        let bob = name("bob");
        self.inviter = Some(Inviter::start(
            &bob,
            invitation_key(),
            key,
            &mut self.random,
            &mut self.to_joiner,
        ));
    }

    /// Runs the exchange, with this many bytes at a time. The host files of `known` exist.
    fn run(&mut self, folder: &mut Folder, known: &[&str], portion: usize) -> Outcome {
        let mut outcome =
            Outcome { accepted: None, written: vec![], joiner: Ok(()), inviter: Ok(()) };
        self.greet();
        loop {
            let sent = std::mem::take(&mut self.to_joiner);
            for portion in sent.chunks(portion) {
                if let Err(error) = self.at_joiner(portion, &mut outcome) {
                    outcome.joiner = Err(error);
                    return outcome;
                }
            }
            let sent = std::mem::take(&mut self.to_inviter);
            for portion in sent.chunks(portion) {
                let result = self.at_inviter(portion, folder, known, &mut outcome);
                if let Err(error) = result {
                    // What bob sent before arrives; then the connection is closed.
                    let sent = std::mem::take(&mut self.to_joiner);
                    self.at_joiner(&sent, &mut outcome).unwrap();
                    outcome.joiner = Err(self.joiner.closed());
                    outcome.inviter = error;
                    return outcome;
                }
            }
            if self.to_joiner.is_empty() {
                return outcome;
            }
        }
    }

    fn at_joiner(&mut self, mut input: &[u8], outcome: &mut Outcome) -> Result<(), JoinError> {
        let Self { joiner, to_inviter, random, .. } = self;
        while let Some(event) = joiner.receive(NOW, &mut input, random, to_inviter)? {
            match event {
                JoinerEvent::Offered(accepted) => {
                    outcome.accepted = Some(*accepted);
                    joiner.accept(NOW, &alice().public(), to_inviter)?;
                }
                JoinerEvent::Done => assert_eq!(joiner.phase(), Phase::Key),
            }
        }
        Ok(())
    }

    /// Acts for bob. Closing the connection for a reason of the caller's is `Err(Ok(()))`.
    fn at_inviter(
        &mut self,
        mut input: &[u8],
        folder: &mut Folder,
        known: &[&str],
        outcome: &mut Outcome,
    ) -> Result<(), Result<(), InviterError>> {
        let Self { inviter, to_joiner, random, .. } = self;
        let inviter = inviter.as_mut().unwrap();
        while let Some(event) = inviter.receive(&mut input, random, to_joiner).map_err(Err)? {
            match event {
                InviterEvent::Claimed(file) => {
                    let claim = folder.0.remove(&file).unwrap_or(Claim::Missing);
                    let name = inviter.offer(claim, WEEK, to_joiner).map_err(Err)?;
                    assert_eq!(name.as_str(), "alice");
                }
                InviterEvent::Accepted { name, host_file } => {
                    if known.contains(&name.as_str()) {
                        return Err(Ok(()));
                    }
                    outcome.written.push((name, host_file));
                    inviter.finish(to_joiner).map_err(Err)?;
                }
            }
        }
        Ok(())
    }
}

fn exchange(folder: &mut Folder, known: &[&str], portion: usize) -> Outcome {
    Pair::new(url(1)).run(folder, known, portion)
}

/// Specification 14.4.
#[test]
fn a_new_node_gets_the_file_and_the_inviter_its_key() {
    for portion in [1, 7, 100, 10_000] {
        let outcome = exchange(&mut Folder::found(file()), &["carol"], portion);
        assert_eq!((&outcome.joiner, &outcome.inviter), (&Ok(()), &Ok(())));
        assert_eq!(outcome.accepted, Some(Accepted::read(&file()).unwrap()));
        let host_file = format!("Ed25519PublicKey = {}\n", alice().public());
        assert_eq!(outcome.written, [(name("alice"), host_file)]);
    }
}

/// A file of more than one record.
#[test]
fn a_long_invitation_arrives() {
    let long = format!("{}# {}\n", file(), "x".repeat(100_000));
    let outcome = exchange(&mut Folder::found(long), &[], 10_000);
    assert_eq!((outcome.joiner, outcome.inviter), (Ok(()), Ok(())));
}

/// Specification 14.4: one use alone. Each failure has its own error on both sides.
#[test]
fn an_invitation_is_refused_with_the_reason() {
    let mut folder = Folder::found(file());
    assert_eq!(exchange(&mut folder, &[], 100).inviter, Ok(()));
    let failed = |mut folder: Folder, known: &[&str]| {
        let outcome = exchange(&mut folder, known, 100);
        assert_eq!(outcome.written, []);
        (outcome.joiner, outcome.inviter)
    };
    let refused = Err(JoinError::Refused);
    assert_eq!(failed(folder, &[]), (refused.clone(), Err(InviterError::Unknown)), "used");
    let age = WEEK + Duration::from_secs(1);
    let expired = Folder::with(Claim::Found { content: file(), age });
    assert_eq!(failed(expired, &[]), (refused.clone(), Err(InviterError::Expired)));
    let unreadable = Folder::with(Claim::Unreadable);
    assert_eq!(failed(unreadable, &[]), (refused.clone(), Err(InviterError::Unreadable)));
    let damaged = |error| (refused.clone(), Err(InviterError::File(error)));
    let no_name = Folder::found("ConnectTo = bob\n");
    assert_eq!(failed(no_name, &[]), damaged(FileError::NoName));
    let long = Folder::found(format!("{}{}", file(), "#\n".repeat(MAX_FILE / 2)));
    assert_eq!(failed(long, &[]), damaged(FileError::TooLong));
    let known = failed(Folder::found(file()), &["alice"]);
    assert_eq!(known, (Err(JoinError::KeyNotStored), Ok(())));
    // Another cookie, and another key.
    let outcome = Pair::new(url(2)).run(&mut Folder::found(file()), &[], 100);
    assert_eq!((outcome.joiner, outcome.inviter), (refused, Err(InviterError::Unknown)));
    let other = Url::new("host", 655, &bob().public(), cookie(1)).unwrap();
    let outcome = Pair::new(other).run(&mut Folder::found(file()), &[], 100);
    assert_eq!(outcome.joiner, Err(JoinError::WrongKey));
    // A file that its reader cannot use.
    let mut bad = Folder::found("Name = alice\nName = ../x\n");
    let outcome = exchange(&mut bad, &[], 100);
    assert!(matches!(outcome.joiner, Err(JoinError::File(FileError::Name(_)))), "{outcome:?}");
}

#[test]
fn a_closed_connection_has_a_meaning_in_each_phase() {
    let mut pair = Pair::new(url(1));
    assert_eq!(
        (pair.joiner.phase(), pair.joiner.closed()),
        (Phase::Greeting, JoinError::NotGreeted)
    );
    assert_eq!(pair.joiner.timed_out(), JoinError::Timeout);
    pair.greet();
    let sent = std::mem::take(&mut pair.to_joiner);
    let mut outcome = Outcome { accepted: None, written: vec![], joiner: Ok(()), inviter: Ok(()) };
    pair.at_joiner(&sent, &mut outcome).unwrap();
    assert_eq!(pair.joiner.inviter(), Some(&name("bob")));
    assert_eq!((pair.joiner.phase(), pair.joiner.closed()), (Phase::Session, JoinError::NoSession));
    // All but the last record of the file.
    let long = format!("{}# {}\n", file(), "x".repeat(3000));
    let mut folder = Folder::found(long);
    let sent = std::mem::take(&mut pair.to_inviter);
    pair.at_inviter(&sent, &mut folder, &[], &mut outcome).unwrap();
    let sent = std::mem::take(&mut pair.to_joiner);
    pair.at_joiner(&sent, &mut outcome).unwrap();
    assert_eq!(pair.joiner.closed(), JoinError::Refused);
    assert_eq!(pair.joiner.timed_out(), JoinError::Refused, "the connection may stay open");
    let sent = std::mem::take(&mut pair.to_inviter);
    pair.at_inviter(&sent, &mut folder, &[], &mut outcome).unwrap();
    let sent = std::mem::take(&mut pair.to_joiner);
    pair.at_joiner(&sent[..sent.len() - 1], &mut outcome).unwrap();
    assert_eq!((pair.joiner.phase(), pair.joiner.closed()), (Phase::File, JoinError::Truncated));
    assert_eq!(outcome.accepted, None);
    pair.at_joiner(&sent[sent.len() - 1..], &mut outcome).unwrap();
    assert_eq!((pair.joiner.phase(), pair.joiner.closed()), (Phase::Key, JoinError::KeyNotStored));
    assert_eq!(pair.joiner.timed_out(), JoinError::KeyNotStored);
}

/// Specification 14.4: the joiner waits for some seconds for any byte, but its operator takes any time.
#[test]
fn the_deadline_moves_with_each_byte() {
    let mut pair = Pair::new(url(1));
    let at = |seconds| NOW + Duration::from_secs(seconds);
    assert_eq!(pair.joiner.deadline(), Some(at(5)));
    pair.greet();
    let sent = std::mem::take(&mut pair.to_joiner);
    let (mut random, mut out) = (Random::new([1; 32]), Vec::new());
    let mut receive = |joiner: &mut Joiner, at, mut input: &[u8]| {
        joiner.receive(at, &mut input, &mut random, &mut out).unwrap()
    };
    receive(&mut pair.joiner, at(3), &sent[..4]);
    assert_eq!(pair.joiner.deadline(), Some(at(8)));
    receive(&mut pair.joiner, at(4), &[]);
    assert_eq!(pair.joiner.deadline(), Some(at(8)), "nothing came");
    receive(&mut pair.joiner, at(5), &sent[4..]);
    pair.to_inviter.extend(out);
    let mut outcome = Outcome { accepted: None, written: vec![], joiner: Ok(()), inviter: Ok(()) };
    let mut folder = Folder::found(file());
    let mut out = Vec::new();
    for _ in 0..2 {
        let sent = std::mem::take(&mut pair.to_inviter);
        pair.at_inviter(&sent, &mut folder, &[], &mut outcome).unwrap();
        let sent = std::mem::take(&mut pair.to_joiner);
        let mut input = &sent[..];
        let (joiner, random) = (&mut pair.joiner, &mut pair.random);
        let event = joiner.receive(at(6), &mut input, random, &mut pair.to_inviter).unwrap();
        if let Some(JoinerEvent::Offered(_)) = event {
            assert_eq!(joiner.deadline(), None);
            joiner.accept(at(100), &alice().public(), &mut out).unwrap();
            assert_eq!(joiner.deadline(), Some(at(105)));
            return;
        }
    }
    panic!("no offer: {:?}", pair.joiner.phase());
}

#[test]
fn a_joiner_needs_a_node_with_a_key() {
    let greet = |text: &str| {
        let mut pair = Pair::new(url(1));
        let mut outcome =
            Outcome { accepted: None, written: vec![], joiner: Ok(()), inviter: Ok(()) };
        pair.at_joiner(text.as_bytes(), &mut outcome).unwrap_err()
    };
    for text in ["HTTP/1.1 400 Bad Request\n", "0 ^c 17.7\n", "0 bob 18.0\n", "0 b-b 17.7\n"] {
        assert_eq!(greet(text), JoinError::NotANode, "{text}");
    }
    let no_key = JoinError::Exchange(ExchangeError::NoKey);
    for line in ["", "4", "4 key", "5 xx", &format!("5 {}", invitation_key().public())] {
        assert_eq!(greet(&format!("0 bob 17.7\n{line}\n")), no_key, "{line}");
    }
    let line = format!("0 bob 17.7\n4 {}\n", bob().public());
    assert_eq!(greet(&line), JoinError::WrongKey);
    let long = greet(&"x".repeat(3000));
    assert!(matches!(long, JoinError::Exchange(ExchangeError::Id(_))), "{long:?}");
}

/// A joiner of a test, which sends what it wants.
fn rogue(
    records: &[(u8, &[u8])],
    folder: &mut Folder,
) -> (Outcome, Result<(), Result<(), InviterError>>) {
    let mut pair = Pair::new(url(1));
    let mut outcome = Outcome { accepted: None, written: vec![], joiner: Ok(()), inviter: Ok(()) };
    let (mut random, mut out) = (Random::new([2; 32]), Vec::new());
    let (bob, mut greeting) = (name("bob"), Vec::new());
    let inviter =
        Inviter::start(&bob, invitation_key(), alice().public(), &mut random, &mut greeting);
    pair.inviter = Some(inviter);
    let lines = greeting.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let start = lines.map(|(at, _)| at + 1).nth(1).unwrap();
    let params = Params {
        role: Role::Initiator,
        key: alice(),
        peer: invitation_key().public(),
        label: INVITATION_LABEL.to_vec(),
        cipher: CipherChoice::default(),
    };
    let mut session = Stream::start(params, &mut random, &mut out);
    session.receive(&mut &greeting[start..], &mut random, &mut out).unwrap();
    pair.at_inviter(&out, folder, &[], &mut outcome).unwrap();
    let sent = std::mem::take(&mut pair.to_joiner);
    let event = session.receive(&mut &sent[..], &mut random, &mut out).unwrap();
    assert_eq!(event, Some(Received::Event(sptps::Event::Established)));
    let mut result = Ok(());
    for (kind, data) in records {
        let mut out = Vec::new();
        session.send(*kind, data, &mut out).unwrap();
        result = pair.at_inviter(&out, folder, &[], &mut outcome);
        if result.is_err() {
            break;
        }
    }
    (outcome, result)
}

#[test]
fn an_inviter_accepts_only_what_is_due() {
    let key = alice().public().to_string();
    let key = key.as_bytes();
    let cookie = &[1; 18][..];
    let unexpected = |kind, len| Err(Err(InviterError::Exchange(ExchangeError::Record(kind, len))));
    let run = |records: &[(u8, &[u8])]| {
        let (outcome, result) = rogue(records, &mut Folder::found(file()));
        (outcome.written.len(), result)
    };
    assert_eq!(run(&[(0, cookie), (1, key)]), (1, Ok(())));
    assert_eq!(run(&[(1, key)]), (0, unexpected(1, 43)), "before the cookie");
    assert_eq!(run(&[(2, &[][..])]), (0, unexpected(2, 0)));
    assert_eq!(run(&[(0, &[1; 17][..])]), (0, Err(Err(InviterError::NoCookie))));
    assert_eq!(run(&[(0, cookie), (0, cookie)]), (0, unexpected(0, 18)), "twice");
    assert_eq!(run(&[(0, cookie), (1, key), (1, key)]), (1, unexpected(1, 43)), "twice");
    let with_line = [key, b"\nSubnet = 0.0.0.0/0"].concat();
    for bad in [&with_line[..], &key[1..], b"\xff", b""] {
        let expected = (0, Err(Err(InviterError::NoPublicKey)));
        assert_eq!(run(&[(0, cookie), (1, bad)]), expected, "{bad:?}");
    }
    // The callers' mistakes.
    let (mut random, mut out) = (Random::new([2; 32]), Vec::new());
    let key = alice().public();
    let mut inviter = Inviter::start(&name("bob"), invitation_key(), key, &mut random, &mut out);
    assert_eq!(inviter.offer(Claim::Missing, WEEK, &mut out), Err(InviterError::NotDue));
    assert_eq!(inviter.finish(&mut out), Err(InviterError::NotDue));
    let mut joiner = Joiner::start(url(1), NOW, &mut random, &mut out);
    assert!(joiner.accept(NOW, &key, &mut out).is_err());
}

/// New keys cost time, and a stranger needs no cookie to ask for them.
#[test]
fn a_joining_node_does_not_renew_keys() {
    let (mut random, mut out, mut answers) = (Random::new([2; 32]), Vec::new(), Vec::new());
    let joining = alice().public();
    let mut inviter =
        Inviter::start(&name("bob"), invitation_key(), joining, &mut random, &mut answers);
    let lines = answers.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let start = lines.map(|(at, _)| at + 1).nth(1).unwrap();
    answers.drain(..start);
    let params = Params {
        role: Role::Initiator,
        key: alice(),
        peer: invitation_key().public(),
        label: INVITATION_LABEL.to_vec(),
        cipher: CipherChoice::default(),
    };
    let mut session = Stream::start(params, &mut random, &mut out);
    let mut began = false;
    for _ in 0..6 {
        session.receive(&mut &std::mem::take(&mut answers)[..], &mut random, &mut out).unwrap();
        if session.is_established() && !std::mem::replace(&mut began, true) {
            session.rekey(&mut random, &mut out).unwrap();
        }
        let input = std::mem::take(&mut out);
        let Err(error) = inviter.receive(&mut &input[..], &mut random, &mut answers) else {
            continue;
        };
        let expected = ExchangeError::Session(sptps::Error::UnexpectedHandshake);
        assert_eq!(error, InviterError::Exchange(expected));
        assert!(began);
        return;
    }
    panic!("the keys were renewed");
}

/// Specification 14.5 and 15.1.
#[test]
fn the_new_nodes_files_are_complete_and_within_their_directory() {
    let text = format!("{}Name = carol\nAddress = 192.0.2.3\n", file());
    let text = text.replacen("ConnectTo", "Subnet = 10.1.0.0/16\nPingTimeout = 7\nConnectTo", 1);
    let accepted = Accepted::read(&text).unwrap();
    let files = accepted.files(&alice()).unwrap();
    let content = |path: &str| {
        let found = files.iter().find(|file| file.path == path).unwrap();
        (found.content.as_str(), found.is_secret)
    };
    assert_eq!(content("tinc.conf"), ("Name = alice\nPingTimeout = 7\nConnectTo = bob\n", false));
    let own = format!("Ed25519PublicKey = {}\nSubnet = 10.1.0.0/16\n", alice().public());
    assert_eq!(content("hosts/alice"), (&own[..], false));
    let bob = format!("Ed25519PublicKey = {}\nSubnet = 10.2.0.0/16\nPort = 655\n", bob().public());
    assert_eq!(content("hosts/bob"), (&bob[..], false));
    assert_eq!(content("hosts/carol"), ("Address = 192.0.2.3\n", false));
    let (key, is_secret) = content("ed25519_key.priv");
    assert_eq!(PrivateKey::from_file(key).unwrap().public(), alice().public());
    assert!(is_secret && files.len() == 5);
    assert!(!format!("{files:?}").contains(key.lines().nth(1).unwrap()));
}

#[test]
fn files_that_no_node_could_start_with_are_refused() {
    let refused = |text: &str| Accepted::read(text).unwrap().files(&alice()).unwrap_err();
    let in_file = |error: FilesError| match error {
        FilesError::Config(ConfigError { file, line, .. }) => (file, line),
        other => panic!("{other:?}"),
    };
    assert_eq!(in_file(refused("Name = alice\nMode = x\n")), ("tinc.conf".to_owned(), 2));
    let subnet = refused("Name = alice\nSubnet = 10.1.2.3/8\n");
    assert_eq!(in_file(subnet), ("hosts/alice".to_owned(), 2));
    let other = refused("Name = alice\nName = bob\nPort = x\n");
    assert_eq!(in_file(other), ("hosts/bob".to_owned(), 1));
    let twice = refused("Name = alice\nName = bob\nName = carol\nName = bob\n");
    assert_eq!(twice, FilesError::Twice(name("bob")));
    let long = "b".repeat(129);
    assert_eq!(refused(&format!("Name = alice\nName = {long}\n")), FilesError::Name(129));
    assert_eq!(refused(&format!("Name = {long}\n")), FilesError::Name(129));
    assert!(Accepted::read(&format!("Name = {}\n", &long[1..])).unwrap().files(&alice()).is_ok());
}

/// Specification 14.5.
#[test]
fn the_interfaces_settings_are_typed() {
    let text = "Name = alice\nIfconfig = 10.1.0.1/16\nIfconfig = fd00::1/64\nIfconfig = dhcp\nIfconfig = dhcp6\n\
        Ifconfig = slaac\nIfconfig = $(reboot)\nIfconfig = 10.0.0.1/8#3\nIfconfig = 1:2:3:4:5:6\nRoute = 10.0.0.0/8\n\
        Route = fd00::/8 fd00::1\nRoute = 10.0.0.0/8 fd00::1\nRoute = 10.0.0.0/8 10.1.0.1 x\nRoute = default\u{1b}[2J\n";
    let plan = Accepted::read(text).unwrap().interface_plan();
    let ip = |text: &str| text.parse().unwrap();
    let expected = [
        Ifconfig::Address(ip("10.1.0.1"), 16),
        Ifconfig::Address(ip("fd00::1"), 64),
        Ifconfig::Dhcp,
        Ifconfig::Dhcp6,
        Ifconfig::Slaac,
    ];
    assert_eq!(plan.ifconfig, expected);
    let routes = [
        Route { network: (ip("10.0.0.0"), 8), gateway: None },
        Route { network: (ip("fd00::"), 8), gateway: Some(ip("fd00::1")) },
    ];
    assert_eq!(plan.routes, routes);
    assert_eq!(plan.ignored.len(), 6);
    assert_eq!(plan.ignored[0], "Ifconfig = $(reboot)");
    assert_eq!(plan.ignored[5], "Route = default[2J");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, greeted: bool, portion in 1..50_usize) {
        let mut pair = Pair::new(url(1));
        pair.greet();
        let mut outcome = Outcome { accepted: None, written: vec![], joiner: Ok(()), inviter: Ok(()) };
        if greeted {
            let sent = std::mem::take(&mut pair.to_joiner);
            pair.at_joiner(&sent, &mut outcome).unwrap();
        }
        let mut folder = Folder::found(file());
        for part in bytes.chunks(portion) {
            if pair.at_joiner(part, &mut outcome).is_err() {
                break;
            }
        }
        for part in bytes.chunks(portion) {
            if pair.at_inviter(part, &mut folder, &[], &mut outcome).is_err() {
                break;
            }
        }
        prop_assert!(outcome.accepted.is_none() && outcome.written.is_empty() && folder.0.len() == 1);
    }
}
