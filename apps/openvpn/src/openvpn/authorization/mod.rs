//! Decides which clients a server accepts, and runs what its configuration wants to run for them.
//!
//! ```text
//!   VerifyKey ──► metadata of the tls-crypt-v2 key ──► TLS
//!   Authorize ──► certificates, root first ──► passwords or token ──► files of clients ──► addresses
//!   Connect ────► client-connect ──► learn-address add ──► session
//!   end ────────► client-disconnect ──► learn-address delete
//! ```
//!
//! Each step asks all [`Check`]s one after the other, and all that have an opinion must accept. The steps of one client
//! wait only for each other, and for earlier ones of the same name or address.

mod check;
mod client_config_dir;
mod configured;
mod crl_directory;
mod facts;
mod file_thread;
mod pending;
mod plugins;
mod programs;
mod server_check;
mod sessions;
mod turns;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_engine::Identity;
use adit_engine::auth::{ClientParams, Connecting, Rejection, Response, Station};
use adit_engine::command::Counters;
use adit_runtime::authorize::{Authorizer, PendingSender, ResponseFuture};
use adit_runtime::clock::unix_time;
use ipnet::{IpNet, Ipv6Net};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::environment::Environment;

pub(crate) use check::{
    Address, AddressChange, ChangeKind, Check, DoneFuture, ParamsFuture, Verdict, VerdictFuture,
};
pub(crate) use facts::{ClientFacts, FactSettings, printable_name};
pub(crate) use pending::Pending;
pub(crate) use plugins::PluginCheck;
pub(crate) use programs::{ClientPrograms, merged};
pub(crate) use server_check::ServerCheck;
use sessions::{Ending, Finished, SessionTable};
use turns::{Turn, Turns};

/// The default of [`ChainSettings::last`].
const LAST: Duration = Duration::from_secs(30);

/// The settings of a [`Chain`].
pub(crate) struct ChainSettings {
    /// The checks in the order in which they are asked.
    pub(crate) checks: Vec<Arc<dyn Check>>,
    /// The settings of the variables.
    pub(crate) facts: FactSettings,
    /// The time for a decision that nothing extends.
    pub(crate) patience: Duration,
    /// The longest extension of that time.
    pub(crate) longest: Duration,
    /// `duplicate-cn`: sessions of the same name do not replace each other.
    pub(crate) duplicate_cn: bool,
    /// The time for the last hooks when the server ends. A hook that takes longer is left behind.
    pub(crate) last: Duration,
    /// Whether the addresses of clients are reported to [`Check::learn`], as with a TUN device.
    pub(crate) learns: bool,
    /// Whether the stations behind clients are reported to [`Check::learn`], as with a TAP device.
    pub(crate) stations: bool,
}

/// The checks of a server's clients, as the engine's authorizer.
#[derive(Clone)]
pub(crate) struct Chain(Arc<Inner>);

struct Inner {
    settings: ChainSettings,
    /// The variables of the whole process.
    environment: Mutex<Environment>,
    sessions: Mutex<SessionTable<HookTurn>>,
    turns: Turns<Key>,
    /// The hooks that run after a session has ended.
    last: Mutex<JoinSet<()>>,
}

/// The subject of hooks whose order matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// The sessions of a name: the end of one precedes the next.
    Name(String),
    /// One session, where several may have the same name.
    Session(u64),
    /// An address: its former owner loses it before the next one gets it.
    Address(Address),
}

/// The order of a session's hooks.
type HookTurn = Turn<Key>;

impl Chain {
    pub(crate) fn new(settings: ChainSettings) -> Self {
        Self(Arc::new(Inner {
            settings,
            environment: Mutex::default(),
            sessions: Mutex::default(),
            turns: Turns::default(),
            last: Mutex::default(),
        }))
    }

    /// Sets the variables of the whole process, which are known once the device is open. Call it before the first client
    /// is served.
    pub(crate) fn set_environment(&self, environment: Environment) {
        *lock(&self.0.environment) = environment;
    }

    /// Records that a client has its session.
    pub(crate) fn established(&self, session: u64) {
        let inner = &self.0;
        let facts = inner.sessions().established(session);
        if let Some(facts) = facts {
            inner.settings.checks.iter().for_each(|check| check.established(&facts));
        }
    }

    /// Records that a session ends, or that a client gives up before it has one. The hooks of a session that existed
    /// wait for [`Self::ended`], which has its counters. Those of a later session of the same name wait for them.
    pub(crate) fn ending(&self, session: u64) {
        let inner = &self.0;
        let ending = inner.sessions().ending(session, |facts| inner.turn_of(&facts.identity));
        match ending {
            Ending::Abandoned => inner.abandoned(session),
            Ending::Later | Ending::Reported => {}
            Ending::Due(finished) => inner.finish(*finished, Counters::default()),
        }
    }

    /// Runs the last hooks of a session.
    pub(crate) fn ended(&self, session: u64, traffic: Counters) {
        let inner = &self.0;
        let finished = inner.sessions().remove(session, |facts| inner.turn_of(&facts.identity));
        if let Some(finished) = finished {
            inner.finish(finished, traffic);
        }
    }

    /// Returns whether the checks judge the stations behind clients.
    pub(crate) fn judges_stations(&self) -> bool {
        self.0.settings.stations
    }

    /// Records that a station behind a client was forgotten.
    pub(crate) fn station_forgotten(&self, station: Station) {
        let (inner, address) = (Arc::clone(&self.0), Address::Station(station.mac, station.vlan));
        let lost = inner.sessions().lose(address, station.session);
        if let Some(facts) = lost {
            let turn = inner.turns.take(Key::Address(address));
            lock(&self.0.last).spawn(async move { inner.forgotten(&facts, address, turn).await });
        }
    }

    /// Runs the last hooks of the remaining sessions, and waits for all hooks, because the process is about to end.
    pub(crate) async fn close(&self) {
        let inner = &self.0;
        let remaining = inner.sessions().drain(|facts| inner.turn_of(&facts.identity));
        for finished in remaining {
            inner.finish(finished, Counters::default());
        }
        let mut last = std::mem::take(&mut *lock(&inner.last));
        let all = async { while last.join_next().await.is_some() {} };
        let limit = inner.settings.last;
        if timeout(limit, all).await.is_err() {
            tracing::warn!(
                "{} programs for clients that have disconnected still run after {} s: not waiting for them",
                last.len(),
                limit.as_secs()
            );
            last.detach_all();
        }
    }
}

impl Authorizer for Chain {
    fn authorize(&self, identity: Box<Identity>, pending: PendingSender) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        let settings = &inner.settings;
        let pending = Pending::new(pending, settings.patience, settings.longest);
        Box::pin(async move {
            let facts = inner.verified(*identity);
            let _open = Open::new(&inner, &facts);
            tokio::select! {
                biased;
                answer = inner.authorize(&facts, &pending) => answer.into_response(),
                () = pending.expired() => {
                    Response::Reject("no check answered in time".into())
                }
            }
        })
    }

    fn connect(&self, connecting: Box<Connecting>) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        // Taken now, so that a later question does not overtake this one.
        let turn = inner.turn_of(&connecting.identity);
        inner.sessions().connecting(connecting.identity.session);
        Box::pin(async move { inner.connect(*connecting, turn).await.into_response() })
    }

    fn verify_key(&self, identity: Box<Identity>) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let facts = inner.verified(*identity);
            match timeout(inner.settings.patience, inner.key(&facts)).await {
                Ok(verdict) => verdict.map(|()| ClientParams::default()).into_response(),
                Err(_) => Response::Reject("tls-crypt-v2-verify did not answer in time".into()),
            }
        })
    }

    fn verify_server(&self, identity: Box<Identity>) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let facts = inner.verified(*identity);
            match timeout(inner.settings.patience, inner.certificates(&facts)).await {
                Ok(verdict) => verdict.map(|()| ClientParams::default()).into_response(),
                Err(_) => Response::Reject("tls-verify did not answer in time".into()),
            }
        })
    }

    fn learn(&self, station: Station) -> ResponseFuture {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            match timeout(inner.settings.patience, inner.learn_station(station)).await {
                Ok(Verdict::Reject(rejection)) => Response::Reject(rejection),
                Ok(_) => Response::Accept(ClientParams::default()),
                Err(_) => Response::Reject("learn-address did not finish in time".into()),
            }
        })
    }

    fn challenge_response(&self, session: u64, text: String) {
        let inner = Arc::clone(&self.0);
        let Some(facts) = inner.sessions().checking(session) else {
            tracing::debug!("ignored CR_RESPONSE: no check of this client is open");
            return;
        };
        // One at a time, so that a client cannot make many programs run at once.
        if !inner.sessions().begin_answer(session) {
            tracing::debug!("ignored CR_RESPONSE: the previous one is still being checked");
            return;
        }
        tokio::spawn(async move {
            for check in &inner.settings.checks {
                check.challenge_response(&facts, text.clone()).await;
            }
            inner.sessions().end_answer(session);
        });
    }
}

/// A decision of the chain.
type Decision = Result<ClientParams, Rejection>;

trait IntoResponse {
    fn into_response(self) -> Response;
}

impl IntoResponse for Decision {
    fn into_response(self) -> Response {
        match self {
            Ok(params) => Response::Accept(params),
            Err(rejection) => Response::Reject(rejection),
        }
    }
}

impl Inner {
    async fn authorize(&self, facts: &Arc<ClientFacts>, pending: &Pending) -> Decision {
        self.certificates(facts).await?;
        self.password(facts, pending).await?;
        if facts.identity.renegotiation {
            self.sessions().renegotiated(facts);
        }
        let mut params = ClientParams::default();
        // Asked in renegotiations as well, so that a client whose file was removed or disabled does not stay.
        for check in &self.settings.checks {
            params = check.parameters(facts, params).await?;
        }
        Ok(params)
    }

    /// Judges the metadata of a tls-crypt-v2 key.
    async fn key(&self, facts: &Arc<ClientFacts>) -> Result<(), Rejection> {
        for check in &self.settings.checks {
            accepted(check.verify_key(facts).await)?;
        }
        Ok(())
    }

    /// Judges the chain of certificates, beginning at the root.
    async fn certificates(&self, facts: &Arc<ClientFacts>) -> Result<(), Rejection> {
        let environment = self.environment_of(&facts.identity);
        for depth in (0..facts.identity.certificates.len()).rev() {
            let identity = facts.identity.clone();
            let facts = ClientFacts::at_depth(identity, depth, &environment, &self.settings.facts);
            let facts = Arc::new(facts);
            for check in &self.settings.checks {
                accepted(check.verify_certificate(&facts, depth).await)?;
            }
        }
        Ok(())
    }

    async fn password(&self, facts: &Arc<ClientFacts>, pending: &Pending) -> Result<(), Rejection> {
        if facts.identity.has_valid_token() {
            return Ok(());
        }
        for check in &self.settings.checks {
            accepted(check.password(facts, pending).await)?;
        }
        Ok(())
    }

    async fn connect(self: &Arc<Self>, connecting: Connecting, mut turn: HookTurn) -> Decision {
        turn.begin().await;
        let session = connecting.identity.session;
        let reserved = Reserved { ipv4: connecting.ipv4, ipv6: connecting.ipv6 };
        let params = connecting.params.clone();
        let settings = &self.settings;
        let environment = self.environment();
        let unix = unix_time().0;
        let facts = ClientFacts::connecting(connecting, &environment, &settings.facts, unix);
        let mut facts = Arc::new(facts);
        let asked = timeout(settings.patience, self.ask_to_connect(&facts, params));
        let decided = match asked.await {
            Ok(decided) => decided,
            Err(_) => Err("client-connect did not finish in time".into()),
        };
        let mut learned = Vec::new();
        let decided = match decided {
            Ok(mut params) => {
                facts = facts.with_chosen(&params, reserved, &settings.facts);
                let result = self.learn(&facts, reserved, &mut params, &mut learned).await;
                result.map(|()| params)
            }
            refused => refused,
        };
        let accepted = decided.is_ok();
        // As in openvpn, all checks take note of the end of a client that was refused or has gone meanwhile: also the
        // check that refused it, and those that were not asked.
        let finished = self.sessions().connected(session, &facts, learned, accepted, || turn);
        if let Some(finished) = finished {
            self.finish(finished, Counters::default());
        }
        decided
    }

    async fn ask_to_connect(&self, facts: &Arc<ClientFacts>, mut params: ClientParams) -> Decision {
        for check in &self.settings.checks {
            params = check.connect(facts, params).await?;
        }
        Ok(params)
    }

    /// Reports a client's addresses before it gets them. A network behind it that is rejected is left out; a client
    /// whose own address is rejected may not connect.
    async fn learn(
        &self,
        facts: &Arc<ClientFacts>,
        reserved: Reserved,
        params: &mut ClientParams,
        learned: &mut Vec<Address>,
    ) -> Result<(), Rejection> {
        if !self.settings.learns {
            return Ok(());
        }
        for net in reserved.or_fixed(params, facts.identity.check) {
            let address = Address::Net(net);
            match self.learn_one(facts, address, true).await {
                Verdict::Reject(rejection) => return Err(rejection),
                Verdict::Accept | Verdict::NotMine => learned.push(address),
            }
        }
        if facts.identity.check {
            // The networks stay with the client's session.
            return Ok(());
        }
        // In openvpn's order, which management clients see: IPv4 first, and the last one first.
        let mut networks = std::mem::take(&mut params.iroutes);
        networks.reverse();
        networks.sort_by_key(|network| matches!(network, IpNet::V6(_)));
        let mut kept = Vec::new();
        for network in networks {
            match self.learn_one(facts, Address::Net(network), false).await {
                Verdict::Reject(rejection) => {
                    tracing::warn!("{}: iroute {network} has no effect: {rejection}", name(facts));
                }
                Verdict::Accept | Verdict::NotMine => {
                    learned.push(Address::Net(network));
                    kept.push(network);
                }
            }
        }
        params.iroutes = kept;
        Ok(())
    }

    /// Reports a station behind a client before its frames are accepted.
    async fn learn_station(&self, station: Station) -> Verdict {
        let (session, address) = (station.session, Address::Station(station.mac, station.vlan));
        let Some(facts) = self.sessions().facts(session) else {
            return Verdict::Reject("the session has ended".into());
        };
        let verdict = self.learn_one(&facts, address, false).await;
        if let Verdict::Reject(rejection) = &verdict {
            tracing::warn!("{}: station {address} is refused: {rejection}", name(&facts));
            return verdict;
        }
        let added = self.sessions().add(address, session);
        if !added && self.sessions().forget(address, session) {
            let turn = self.turns.take(Key::Address(address));
            self.forgotten(&facts, address, turn).await;
        }
        verdict
    }

    /// Reports an address that a client has lost.
    async fn forgotten(&self, facts: &Arc<ClientFacts>, address: Address, mut turn: HookTurn) {
        turn.begin().await;
        let change = AddressChange { kind: ChangeKind::Delete, address, primary: false };
        for check in &self.settings.checks {
            check.learn(facts, change).await;
        }
    }

    async fn learn_one(
        &self,
        facts: &Arc<ClientFacts>,
        address: Address,
        primary: bool,
    ) -> Verdict {
        let mut turn = self.turns.take(Key::Address(address));
        turn.begin().await;
        let former = self.sessions().learn(address, facts.identity.session);
        let kind = if former.is_some() { ChangeKind::Update } else { ChangeKind::Add };
        for check in &self.settings.checks {
            let change = AddressChange { kind, address, primary };
            let verdict = check.learn(facts, change).await;
            if let Verdict::Reject(_) = verdict {
                self.sessions().unlearn(address, facts.identity.session, former);
                return verdict;
            }
        }
        Verdict::Accept
    }

    /// Runs the last hooks of a session, in a task of its own.
    fn finish(self: &Arc<Self>, finished: Finished<HookTurn>, traffic: Counters) {
        let inner = Arc::clone(self);
        let Finished { facts, since, addresses, mut turn, accepted } = finished;
        let duration = if accepted { since.elapsed() } else { Duration::ZERO };
        let forgotten: Vec<(Address, HookTurn)> = {
            let mut sessions = inner.sessions();
            let owned = |address: &Address| sessions.forget(*address, facts.identity.session);
            let lost: Vec<Address> = addresses.into_iter().filter(owned).collect();
            drop(sessions);
            lost.into_iter().map(|at| (at, inner.turns.take(Key::Address(at)))).collect()
        };
        let mut last = lock(&self.last);
        // The results of tasks that have ended, so that only running ones are kept.
        while last.try_join_next().is_some() {}
        last.spawn(async move {
            // The addresses first: their turns never wait for that of a name, so there is no cycle.
            for (address, turn) in forgotten {
                inner.forgotten(&facts, address, turn).await;
            }
            turn.begin().await;
            for check in &inner.settings.checks {
                check.disconnected(&facts, traffic, duration).await;
            }
        });
    }

    /// Reports the end of an attempt that was never accepted.
    fn abandoned(&self, session: u64) {
        self.settings.checks.iter().for_each(|check| check.abandoned(session));
    }

    fn verified(&self, identity: Identity) -> Arc<ClientFacts> {
        let environment = self.environment_of(&identity);
        Arc::new(ClientFacts::verified(identity, &environment, &self.settings.facts))
    }

    /// Returns the variables to which those of a client are added. As in openvpn, a renegotiation has those of its
    /// session.
    fn environment_of(&self, identity: &Identity) -> Environment {
        let session = identity.renegotiation.then(|| self.sessions().accepted(identity.session));
        match session.flatten() {
            Some(facts) => facts.environment.clone(),
            None => self.environment(),
        }
    }

    fn environment(&self) -> Environment {
        lock(&self.environment).clone()
    }

    fn turn_of(&self, identity: &Identity) -> HookTurn {
        let alone = self.settings.duplicate_cn || identity.check;
        self.turns.take(if alone {
            Key::Session(identity.session)
        } else {
            Key::Name(identity.common_name.clone())
        })
    }

    fn sessions(&self) -> MutexGuard<'_, SessionTable<HookTurn>> {
        lock(&self.sessions)
    }
}

/// An authorization in progress. Responses to challenges belong to it until it is dropped.
struct Open {
    inner: Arc<Inner>,
    facts: Arc<ClientFacts>,
}

impl Open {
    fn new(inner: &Arc<Inner>, facts: &Arc<ClientFacts>) -> Self {
        inner.sessions().open(facts);
        Self { inner: Arc::clone(inner), facts: Arc::clone(facts) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.inner.sessions().close(&self.facts);
    }
}

fn accepted(verdict: Verdict) -> Result<(), Rejection> {
    match verdict {
        Verdict::Accept | Verdict::NotMine => Ok(()),
        Verdict::Reject(rejection) => Err(rejection),
    }
}

/// The addresses reserved for a client.
#[derive(Copy, Clone, Debug)]
struct Reserved {
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Net>,
}

impl Reserved {
    /// Returns the addresses that the client will have: its fixed ones, which a program of client-connect may have
    /// chosen, or else those reserved for it. A connection check has no fixed ones.
    fn or_fixed(self, params: &ClientParams, check: bool) -> Vec<IpNet> {
        let fixed4 = params.ifconfig4.map(|(address, _)| address).or(params.ipv4);
        let fixed6 = params.ifconfig6.map(|(net, _)| net.addr()).or(params.ipv6);
        let v4 = fixed4.filter(|_| !check).or(self.ipv4).map(IpAddr::from);
        let v6 = fixed6.filter(|_| !check).or(self.ipv6.map(|net| net.addr())).map(IpAddr::from);
        v4.into_iter().chain(v6).map(IpNet::from).collect()
    }
}

/// Returns a client's name for log lines.
fn name(facts: &ClientFacts) -> &str {
    &facts.identity.common_name
}

/// Fuzzes the parsers of the files in which programs answer.
pub(super) fn fuzz_answers(bytes: &[u8]) {
    programs::fuzz_answers(bytes);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
