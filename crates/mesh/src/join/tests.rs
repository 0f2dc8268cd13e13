use adit_engine::UnixTime;

use super::*;
use crate::roster::testing::{NOW, Signer, admit, genesis, name, node_key, write};
use crate::roster::{
    Action, Change, Changes, Genesis, InsertError, Inviter, NodeInfo, ObjectError, Revocation,
    Right, Roster,
};
use crate::session::KeyHash;
use crate::token::{Invitation, InvitationError, Invitations, JoinSecret, Terms, Token};
use crate::wire::DecodeError;

/// The token names the key of the inviter's node; another key signs.
const NODE: KeyHash = [8; 32];
const JOINER: KeyHash = [9; 32];

struct Host {
    signer: Signer,
    changes: Changes,
    invitations: Invitations,
    counters: JoinCounters,
    now: UnixTime,
    /// The changes that were stored.
    stored: Vec<Change>,
    can_store: bool,
}

impl Host {
    /// Returns an inviter with an invitation for one node.
    fn new(terms: Terms) -> Self {
        let signer = Signer::new(1);
        let changes = Changes::new(genesis(std::slice::from_ref(&signer), 1)).unwrap();
        let mut invitations = Invitations::new(*changes.mesh());
        let secret_hash = secret().hash(changes.mesh());
        invitations.add(Invitation { secret_hash, uses: 1, until: NOW, terms }, NOW).unwrap();
        Self {
            signer,
            changes,
            invitations,
            counters: JoinCounters::default(),
            now: NOW,
            stored: Vec::new(),
            can_store: true,
        }
    }

    fn token(&self) -> Token {
        let addresses = vec!["203.0.113.7:1194".parse().unwrap()];
        Token::new(*self.changes.mesh(), NODE, secret(), addresses).unwrap()
    }

    fn uses(&self) -> u32 {
        self.invitations.iter().map(|it| it.uses).sum()
    }

    fn receive(&mut self, responder: &mut Responder, record: &[u8]) -> Result<(), JoinRefusal> {
        let mut roster = Roster::evaluate(&self.changes);
        let mut admission = Admission {
            key: &self.signer.key,
            changes: &mut self.changes,
            roster: &mut roster,
            invitations: &mut self.invitations,
            counters: &mut self.counters,
            inviter: Some(name("hub")),
            now: self.now,
        };
        let result = responder.receive(record, &mut admission, |change| {
            if self.can_store {
                self.stored.push(change.clone());
            }
            self.can_store
        });
        let evaluated = Roster::evaluate(&self.changes);
        assert!(roster.members().eq(evaluated.members()), "the roster is that of the changes");
        result
    }

    /// Returns the result of a request, and the records of the answer.
    fn ask(&mut self, key: KeyHash, wished: &str) -> (Result<(), JoinRefusal>, Vec<Vec<u8>>) {
        let mut responder = Responder::new(key);
        let result = self.receive(&mut responder, &request(wished));
        let mut records = Vec::new();
        assert!(responder.send(&self.changes, |record| {
            records.push(record.to_vec());
            true
        }));
        (result, records)
    }

    /// Checks that a request is refused for this reason, and that nothing else happens.
    fn refuses(&mut self, key: KeyHash, reason: &JoinRefusal, on_the_wire: Refused) {
        let before = (self.uses(), self.changes.len(), self.counters.refused);
        let (result, records) = self.ask(key, "laptop");
        assert_eq!(result.as_ref(), Err(reason));
        assert_eq!(records, [Record::Refused(on_the_wire).encode().to_vec()]);
        let after = (before.0, before.1, before.2 + 1);
        assert_eq!((self.uses(), self.changes.len(), self.counters.refused), after);
        assert!(self.stored.is_empty());
    }
}

impl Host {
    /// Approves a joiner, and stores the change if that is possible.
    fn approve(&mut self, key: KeyHash) -> Result<(), JoinRefusal> {
        let mut roster = Roster::evaluate(&self.changes);
        let mut admission = Admission {
            key: &self.signer.key,
            changes: &mut self.changes,
            roster: &mut roster,
            invitations: &mut self.invitations,
            counters: &mut self.counters,
            inviter: None,
            now: self.now,
        };
        admission.approve(&key, |change| {
            if self.can_store {
                self.stored.push(change.clone());
            }
            self.can_store
        })
    }

    /// Checks that the responder answers "wait", and that nothing else happens.
    fn waits(&mut self, key: KeyHash) {
        let before = (self.uses(), self.changes.len());
        let (result, records) = self.ask(key, "laptop");
        assert_eq!(result, Ok(()));
        let waiting = Record::Waiting { inviter: Some(name("hub")) };
        assert_eq!(records, [waiting.encode().to_vec()]);
        assert_eq!((self.uses(), self.changes.len()), before);
        assert!(self.stored.is_empty());
    }
}

fn approved() -> Terms {
    Terms { approve: true, ..Terms::default() }
}

fn secret() -> JoinSecret {
    JoinSecret::from_bytes([3; 16])
}

fn request(wished: &str) -> Vec<u8> {
    Record::Request { secret: secret(), name: name(wished) }.encode().to_vec()
}

fn joiner(token: &Token) -> Joiner {
    Joiner::begin(token, &NODE, JOINER, name("laptop")).unwrap().0
}

/// Returns the result of the first record with one.
fn join(token: &Token, records: &[Vec<u8>]) -> Result<Option<Joined>, JoinError> {
    let mut joiner = joiner(token);
    let mut results = records.iter().map(|record| joiner.receive(record, NOW));
    results.find(|result| !matches!(result, Ok(None))).unwrap_or(Ok(None))
}

fn roster_record(genesis: &Genesis, changes: usize) -> Vec<u8> {
    let genesis = genesis.encode().unwrap();
    Record::Roster { changes: changes as u32, genesis }.encode().to_vec()
}

fn changes_record(changes: &[&Change]) -> Vec<u8> {
    Record::Changes(changes.iter().map(|it| it.encode()).collect()).encode().to_vec()
}

#[test]
fn a_node_joins_on_the_terms_of_its_invitation() {
    let terms = Terms {
        name: None,
        approve: false,
        range: Some("100.87.3.0/24".parse().unwrap()),
        subnets: ["10.1.0.0/16".parse().unwrap()].into(),
        groups: [name("build")].into(),
        relay: true,
        gateway: true,
        not_after: Some(UnixTime(NOW.0 + 5)),
    };
    let mut host = Host::new(terms.clone());
    for number in 0..200 {
        write(&mut host.changes, &host.signer, admit(number));
    }
    let token = host.token();
    let (mut joiner, request) = Joiner::begin(&token, &NODE, JOINER, name("laptop")).unwrap();
    let mut responder = Responder::new(JOINER);
    host.receive(&mut responder, &request).unwrap();
    assert_eq!((host.uses(), host.stored.len()), (0, 1));

    // Each session takes one record at a time.
    let mut records = 0;
    let joined = loop {
        let mut sent = None;
        responder.send(&host.changes, |record| {
            sent.is_none() && {
                sent = Some(record.to_vec());
                true
            }
        });
        let record = sent.expect("a record is left");
        assert!(record.len() <= MAX_RECORD);
        records += 1;
        if let Some(joined) = joiner.receive(&record, NOW).unwrap() {
            break joined;
        }
    };
    assert!(responder.send(&host.changes, |_| panic!("nothing is left")));
    assert!(records > 2, "{records} records");
    assert_eq!(joined.changes.digest(), host.changes.digest());
    let member = joined.roster.member(&JOINER).unwrap();
    assert_eq!(member.name, Some(name("laptop")));
    assert!(terms.range.unwrap().contains(&member.ipv4.unwrap()));
    assert_eq!((&member.subnets, &member.groups), (&terms.subnets, &terms.groups));
    assert_eq!((member.relay, member.gateway), (true, true));
    assert_eq!(member.not_after, terms.not_after);
}

#[test]
fn the_secret_goes_to_the_inviter_alone() {
    let token = Host::new(Terms::default()).token();
    let result = Joiner::begin(&token, &[7; 32], JOINER, name("laptop"));
    assert_eq!(result.map(drop), Err(JoinError::NotInviter));
}

#[test]
fn a_used_old_or_unknown_secret_gets_the_same_answer() {
    let mut used = Host::new(Terms::default());
    used.ask(node_key(1), "desktop").0.unwrap();
    used.stored.clear();
    used.refuses(JOINER, &InvitationError::Used.into(), Refused::Invitation);
    let mut old = Host::new(Terms::default());
    old.now = UnixTime(NOW.0 + 1);
    old.refuses(JOINER, &InvitationError::Expired.into(), Refused::Invitation);
    let mut unknown = Host::new(Terms::default());
    unknown.invitations = Invitations::new(*unknown.changes.mesh());
    unknown.refuses(JOINER, &InvitationError::Unknown.into(), Refused::Invitation);
}

#[test]
fn a_name_that_is_taken_is_refused() {
    let mut host = Host::new(Terms::default());
    let node = NodeInfo::named(name("laptop"));
    write(&mut host.changes, &host.signer, Action::Admit { key: node_key(1), node });
    host.refuses(JOINER, &JoinRefusal::Name(name("laptop")), Refused::Name);
}

#[test]
fn a_range_without_a_free_address_is_an_error() {
    let range = "100.87.3.0/30".parse().unwrap();
    let mut host = Host::new(Terms { range: Some(range), ..Terms::default() });
    for (number, address) in [(1, [100, 87, 3, 1]), (2, [100, 87, 3, 2])] {
        let node =
            NodeInfo { ipv4: Some(address.into()), ..NodeInfo::named(name(&format!("n{number}"))) };
        write(&mut host.changes, &host.signer, Action::Admit { key: node_key(number), node });
    }
    host.refuses(JOINER, &JoinRefusal::NoAddress, Refused::Failed);
}

#[test]
fn a_revoked_key_does_not_come_back() {
    let mut host = Host::new(Terms::default());
    let revocation = Revocation { key: JOINER, last: None, with_invited: false };
    write(&mut host.changes, &host.signer, Action::Revoke(revocation));
    host.refuses(JOINER, &JoinRefusal::NotAdmitted, Refused::Failed);
}

#[test]
fn an_inviter_cannot_go_beyond_its_rights() {
    let mut host = Host::new(Terms { relay: true, ..Terms::default() });
    let limits = Inviter {
        groups: [].into(),
        range: None,
        subnets: [].into(),
        relay: false,
        gateway: false,
        leaves: false,
        count: 1,
        until: None,
    };
    let inviter = Signer::new(2);
    let grant = Action::Grant { key: inviter.hash, right: Right::Inviter(limits) };
    write(&mut host.changes, &host.signer, grant);
    host.signer = inviter;
    host.refuses(JOINER, &JoinRefusal::NotAdmitted, Refused::Failed);
}

#[test]
fn a_key_without_a_right_admits_no_node() {
    let mut host = Host::new(Terms::default());
    host.signer = Signer::new(2);
    host.refuses(JOINER, &InsertError::Signer.into(), Refused::Failed);
}

#[test]
fn an_admission_that_is_not_stored_takes_no_use() {
    let mut host = Host::new(Terms::default());
    host.can_store = false;
    host.refuses(JOINER, &JoinRefusal::NotAppended, Refused::Failed);
    host.can_store = true;
    assert_eq!(host.ask(JOINER, "laptop").0, Ok(()));
}

#[test]
fn a_member_gets_the_roster_again() {
    let mut host = Host::new(Terms::default());
    host.ask(JOINER, "laptop").0.unwrap();
    let (result, records) = host.ask(JOINER, "laptop");
    assert_eq!(result, Ok(()));
    assert_eq!(host.stored.len(), 1);
    assert!(join(&host.token(), &records).unwrap().is_some());
}

#[test]
fn a_former_member_does_not_get_the_roster() {
    let terms = Terms { not_after: Some(NOW), ..Terms::default() };
    let mut host = Host::new(terms);
    host.ask(JOINER, "laptop").0.unwrap();
    host.stored.clear();
    host.now = UnixTime(NOW.0 + 1);
    host.refuses(JOINER, &InvitationError::Expired.into(), Refused::Invitation);
}

#[test]
fn a_session_has_one_request() {
    let mut host = Host::new(Terms::default());
    let mut responder = Responder::new(JOINER);
    let refused = Record::Refused(Refused::Name).encode();
    let mut other = Responder::new(JOINER);
    assert_eq!(host.receive(&mut other, &refused), Err(JoinRefusal::OutOfTurn));
    let form = JoinRefusal::Form(DecodeError::Version(9).into());
    let mut malformed = Responder::new(JOINER);
    assert_eq!(host.receive(&mut malformed, &[9]), Err(form));
    assert!(malformed.send(&host.changes, |_| panic!("a stranger gets no answer")));
    host.receive(&mut responder, &request("laptop")).unwrap();
    let again = host.receive(&mut responder, &request("laptop"));
    assert_eq!(again, Err(JoinRefusal::OutOfTurn));
    assert_eq!(host.counters, JoinCounters { malformed: 3, refused: 0 });
}

#[test]
fn each_fault_of_an_answer_is_found() {
    let mut host = Host::new(Terms::default());
    let (_, good) = host.ask(JOINER, "laptop");
    write(&mut host.changes, &host.signer, admit(1));
    let token = host.token();
    let genesis = host.changes.genesis().clone();
    let all = host.changes.in_causal_order();
    let (first, second) = (all[0], all[1]);
    let of = |count, parts: &[&[&Change]]| {
        let mut records = vec![roster_record(&genesis, count)];
        records.extend(parts.iter().map(|part| changes_record(part)));
        join(&token, &records).map(|joined| joined.is_some())
    };
    assert!(join(&token, &good).unwrap().is_some());
    assert_eq!(of(2, &[&[first], &[second]]), Ok(true));
    assert_eq!(of(2, &[&[first]]), Ok(false), "incomplete");
    assert_eq!(of(1, &[&[first, second]]), Err(JoinError::TooMany));
    assert_eq!(of(2, &[&[second, first]]), Err(JoinError::Order));
    assert_eq!(of(2, &[&[first, first]]), Err(JoinError::Order));
    assert_eq!(of(1, &[]), Ok(false));

    let refused = Record::Refused(Refused::Name).encode().to_vec();
    let result = join(&token, &[refused]).map(drop);
    assert_eq!(result, Err(JoinError::Refused(Refused::Name)));
    let result = join(&token, &good[1..]).map(drop);
    assert_eq!(result, Err(JoinError::OutOfTurn), "changes first");
    let result = join(&token, &[request("laptop")]).map(drop);
    assert_eq!(result, Err(JoinError::OutOfTurn), "a request");
    let result = join(&token, &[good[0].clone(), good[0].clone()]).map(drop);
    assert_eq!(result, Err(JoinError::OutOfTurn), "two rosters");

    let other = Genesis { random: [6; 32], ..genesis.clone() };
    let result = join(&token, &[roster_record(&other, 1)]).map(drop);
    assert_eq!(result, Err(JoinError::Mesh));
    let mut forged = good[1].clone();
    *forged.last_mut().unwrap() ^= 1;
    let result = join(&token, &[good[0].clone(), forged]).map(drop);
    assert_eq!(result, Err(JoinError::Object(ObjectError::Signature)));
    let stranger = Signer::new(2);
    let body = Changes::new(genesis.clone()).unwrap().draft(stranger.hash, NOW, admit(1)).unwrap();
    let change = stranger.sign(token.mesh(), body);
    let result = join(&token, &[good[0].clone(), changes_record(&[&change])]).map(drop);
    assert_eq!(result, Err(JoinError::Change(InsertError::Signer)));
}

#[test]
fn a_roster_without_the_joiner_is_refused() {
    let mut host = Host::new(Terms::default());
    let (_, records) = host.ask(node_key(1), "laptop");
    assert!(Roster::evaluate(&host.changes).member(&JOINER).is_none());
    assert_eq!(join(&host.token(), &records).map(drop), Err(JoinError::NotMember));

    let terms = Terms { not_after: Some(NOW), ..Terms::default() };
    let mut host = Host::new(terms);
    let (_, records) = host.ask(JOINER, "laptop");
    let mut joiner = joiner(&host.token());
    joiner.receive(&records[0], NOW).unwrap();
    let late = joiner.receive(&records[1], UnixTime(NOW.0 + 1));
    assert_eq!(late.map(drop), Err(JoinError::NotMember));
}

#[test]
fn records_are_read_as_they_were_written_and_from_nothing_else() {
    let records = [
        Record::Request { secret: secret(), name: name("laptop") },
        Record::Refused(Refused::Invitation),
        Record::Roster { changes: 3, genesis: vec![1, 2] },
        Record::Changes(vec![vec![1], vec![], vec![2; 300]]),
        Record::Waiting { inviter: None },
        Record::Waiting { inviter: Some(name("hub")) },
    ];
    for record in records {
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
    let form = |error: DecodeError| Err(error.into());
    let long = [&request("laptop")[..], &[0]].concat();
    assert_eq!(Record::decode(&long), form(DecodeError::TrailingBytes(1)));
    let capital = [&[1, 1][..], &[3; 16], &[1, b'A']].concat();
    assert_eq!(Record::decode(&capital), Err(ObjectError::Label));
    assert_eq!(Record::decode(&[1, 2, 6]), form(DecodeError::Kind(6)));
    assert_eq!(Record::decode(&[1, 2, 1, 0]), form(DecodeError::TrailingBytes(1)));
    assert_eq!(Record::decode(&[1, 3, 0, 0, 0, 0, 5]), Err(ObjectError::Range(0)));
    assert_eq!(Record::decode(&[1, 3, 0, 1, 0, 1, 5]), Err(ObjectError::Range(65_537)));
    assert_eq!(Record::decode(&[1, 4]), form(DecodeError::Truncated));
    assert_eq!(Record::decode(&[1, 4, 0, 2, 7]), form(DecodeError::Truncated));
    assert_eq!(Record::decode(&[1, 5, 0]), Err(ObjectError::Label));
    assert_eq!(Record::decode(&[1, 5, 1, b'a', 0]), form(DecodeError::TrailingBytes(1)));
    assert_eq!(Record::decode(&[1, 6]), form(DecodeError::Kind(6)));
    assert_eq!(Record::decode(&[2, 4]), form(DecodeError::Version(2)));
    let long = vec![1; MAX_RECORD + 1];
    assert_eq!(Record::decode(&long), form(DecodeError::TooLong(MAX_RECORD + 1)));
}

#[test]
fn the_token_gives_the_name() {
    let mut host = Host::new(Terms { name: Some(name("web1")), ..Terms::default() });
    host.ask(JOINER, "laptop").0.unwrap();
    let roster = Roster::evaluate(&host.changes);
    assert_eq!(roster.member(&JOINER).unwrap().name, Some(name("web1")));
    let mut host = Host::new(Terms { name: Some(name("web1")), ..Terms::default() });
    let node = NodeInfo::named(name("web1"));
    write(&mut host.changes, &host.signer, Action::Admit { key: node_key(1), node });
    host.refuses(JOINER, &JoinRefusal::Name(name("web1")), Refused::Name);
}

#[test]
fn a_joiner_that_needs_an_approval_is_a_member_only_after_it() {
    let mut host = Host::new(approved());
    host.waits(JOINER);
    host.waits(JOINER);
    let waiting: Vec<_> = host.invitations.pending().iter(NOW).cloned().collect();
    let [waiting] = &waiting[..] else { panic!("{waiting:?}") };
    assert_eq!((waiting.key, &waiting.name), (JOINER, &name("laptop")));
    host.approve(JOINER).unwrap();
    assert_eq!((host.uses(), host.stored.len()), (0, 1));
    assert_eq!(host.invitations.pending().iter(NOW).count(), 0);
    let (result, records) = host.ask(JOINER, "laptop");
    assert_eq!(result, Ok(()));
    assert!(join(&host.token(), &records).unwrap().is_some());
}

#[test]
fn a_thief_of_the_token_waits_as_well_and_one_approval_uses_it_up() {
    let thief = [66; 32];
    let mut host = Host::new(approved());
    host.waits(thief);
    host.waits(JOINER);
    host.approve(JOINER).unwrap();
    host.stored.clear();
    let used = JoinRefusal::Invitation(InvitationError::Used);
    assert_eq!(host.approve(thief), Err(used.clone()));
    host.refuses(thief, &used, Refused::Invitation);
}

#[test]
fn no_joiner_waits_or_is_approved_without_a_valid_secret() {
    let mut host = Host::new(approved());
    host.invitations = Invitations::new(*host.changes.mesh());
    host.refuses(JOINER, &InvitationError::Unknown.into(), Refused::Invitation);
    assert_eq!(host.invitations.pending().iter(NOW).count(), 0);
    assert_eq!(host.approve(JOINER), Err(JoinRefusal::NotWaiting));
}

#[test]
fn a_refused_joiner_and_those_beyond_the_bound_learn_it() {
    let mut host = Host::new(approved());
    host.waits(JOINER);
    assert!(host.invitations.pending_mut().refuse(&JOINER));
    host.refuses(JOINER, &JoinRefusal::Denied, Refused::Denied);
    assert_eq!(host.approve(JOINER), Err(JoinRefusal::NotWaiting));
    for n in 0..MAX_PER_INVITATION as u8 {
        host.waits([100 + n; 32]);
    }
    host.refuses([99; 32], &JoinRefusal::Crowded, Refused::Crowded);
}

#[test]
fn each_check_of_an_approval_refuses_alone() {
    let mut host = Host::new(approved());
    host.waits(JOINER);
    host.can_store = false;
    assert_eq!(host.approve(JOINER), Err(JoinRefusal::NotAppended));
    host.can_store = true;
    assert_eq!(host.uses(), 1, "nothing was used");
    host.now = UnixTime(NOW.0 + 1);
    assert_eq!(host.approve(JOINER), Err(InvitationError::Expired.into()));
    host.now = NOW;
    let node = NodeInfo::named(name("laptop"));
    write(&mut host.changes, &host.signer, Action::Admit { key: node_key(1), node });
    assert_eq!(host.approve(JOINER), Err(JoinRefusal::Name(name("laptop"))));
}

#[test]
fn a_joiner_that_must_wait_learns_where() {
    let token = Host::new(approved()).token();
    let mut joiner = joiner(&token);
    let waiting = Record::Waiting { inviter: Some(name("hub")) }.encode();
    assert!(joiner.receive(&waiting, NOW).unwrap().is_none());
    assert_eq!(joiner.waits(), Some(&Waits { inviter: Some(name("hub")) }));
    let result = joiner.receive(&waiting, NOW).map(drop);
    assert_eq!(result, Err(JoinError::OutOfTurn), "the exchange is over");
}
