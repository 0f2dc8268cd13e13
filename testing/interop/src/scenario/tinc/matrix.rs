//! Combinations of roles, modes, paths, address families, discovery, rekeys, restarts and loss, covered pairwise: adit on one side, tinc on
//! the other. Each pair exchanges packets, finds the path that it should, and finds it again after a restart.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::super::{Scenario, Test};
use super::SOON;
use super::bed::{Bed, Kind, Mode, NetSpec, NodeSpec, apart, inner};
use crate::case::TestEnv;
use crate::failure::{Result, ensure};
use crate::pairwise::{Choice, covering_array};
use crate::peer::Program;
use crate::traffic::{echo_all, ping, tcp};
use crate::wait::ScaledInstant;

/// The path between adit and its peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Path {
    /// They are neighbours, and datagrams pass.
    Direct,
    /// They reach each other through a tinc 1.1 only.
    ThroughTinc,
    /// They reach each other through another adit only.
    ThroughAdit,
    /// They are neighbours, and the peer has `TCPOnly`.
    TcpOnly,
    /// They are neighbours, and datagrams do not pass.
    NoUdp,
    /// They are on one local network behind a NAT, and connect to a third node.
    Lan,
    /// The peer is a tinc 1.0, behind a tinc 1.1.
    Legacy,
}

/// What happens to one of both.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Restart {
    None,
    Adit,
    Peer,
}

/// One combination.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Combination {
    /// Whether adit connects to the other side; otherwise the other side connects to adit.
    adit_dials: bool,
    /// Whether the side that connects has joined by an invitation of the node that it connects to.
    joins: bool,
    mode: Mode,
    path: Path,
    outer_v6: bool,
    inner_v6: bool,
    local_discovery: bool,
    /// Whether keys are renewed every [`KEY_EXPIRE`] seconds.
    rekey: bool,
    restart: Restart,
    /// Whether the network loses [`LOSS`] percent of all packets.
    lossy: bool,
}

const MODES: [Mode; 3] = [Mode::Router, Mode::Switch, Mode::Hub];
const PATHS: [Path; 7] = [
    Path::Direct,
    Path::ThroughTinc,
    Path::ThroughAdit,
    Path::TcpOnly,
    Path::NoUdp,
    Path::Lan,
    Path::Legacy,
];
const RESTARTS: [Restart; 3] = [Restart::None, Restart::Adit, Restart::Peer];

/// The number of values of each dimension, in the order of [`Combination`].
const SIZES: [usize; 10] = [2, MODES.len(), PATHS.len(), 2, 2, 2, 2, RESTARTS.len(), 2, 2];

/// The life of keys, in seconds.
const KEY_EXPIRE: u32 = 2;

/// The number of rekeys to wait for.
const REKEYS: usize = 2;

/// The number of packets that may be lost by rekeys through another node. tinc discards those that overtake the end of a rekey, which travels
/// over TCP, and two nodes of tinc do not wait for it.
const LOST_BEHIND_RELAY: u64 = 4;

/// The share of lost packets, in percent.
const LOSS: u32 = 2;

/// The nodes: adit, the peer, and the node between them.
const ADIT: usize = 0;
const PEER: usize = 1;
const RELAY: usize = 2;

impl Combination {
    fn of(choice: [usize; 10]) -> Self {
        let [dials, mode, path, outer, inner, discovery, rekey, restart, lossy, joins] = choice;
        Self {
            adit_dials: dials == 0,
            joins: joins == 1,
            mode: MODES[mode],
            path: PATHS[path],
            outer_v6: outer == 1,
            inner_v6: inner == 1,
            local_discovery: discovery == 0,
            rekey: rekey == 1,
            restart: RESTARTS[restart],
            lossy: lossy == 1,
        }
    }

    /// Returns whether the combination makes sense: the NAT is one for IPv4, neighbours by TCP alone have no session whose keys could be
    /// renewed, and tinc 1.0 knows no invitations.
    fn exists(&self) -> bool {
        let is_nat_of_v6 = self.path == Path::Lan && self.outer_v6;
        let has_no_keys = self.path == Path::TcpOnly && self.rekey;
        let cannot_join = self.path == Path::Legacy && !self.adit_dials && self.joins;
        !is_nat_of_v6 && !has_no_keys && !cannot_join
    }

    fn name(&self) -> String {
        let word = |on: bool, word: &'static str| if on { word } else { "" };
        let family = |v6: bool| if v6 { 6 } else { 4 };
        let words = [
            match (self.adit_dials, self.joins) {
                (true, false) => "adit-dials",
                (true, true) => "adit-joins",
                (false, false) => "tinc-dials",
                (false, true) => "tinc-joins",
            },
            self.mode.word(),
            match self.path {
                Path::Direct => "direct",
                Path::ThroughTinc => "through-tinc",
                Path::ThroughAdit => "through-adit",
                Path::TcpOnly => "tcp-only",
                Path::NoUdp => "no-udp",
                Path::Lan => "lan",
                Path::Legacy => "tinc-1.0",
            },
            &format!("ip{}-in-ip{}", family(self.inner_v6), family(self.outer_v6)),
            word(self.local_discovery, "discovery"),
            word(self.rekey, "rekey"),
            match self.restart {
                Restart::None => "",
                Restart::Adit => "adit-restarts",
                Restart::Peer => "tinc-restarts",
            },
            word(self.lossy, "loss"),
        ];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        format!("tinc/matrix/{}", words.join("/"))
    }

    /// Returns the net of this combination.
    fn spec(&self) -> NetSpec {
        let has_relay = !matches!(self.path, Path::Direct | Path::TcpOnly | Path::NoUdp);
        // With a relay, one side connects to it, and it to the other one. A node behind a NAT can only connect itself.
        let behind = self.path == Path::Lan;
        let (mut of_adit, mut of_peer, mut of_relay) = (Vec::new(), Vec::new(), Vec::new());
        match (has_relay, self.adit_dials) {
            (false, true) => of_adit.push(PEER),
            (false, false) => of_peer.push(ADIT),
            (true, _) if behind => {
                of_adit.push(RELAY);
                of_peer.push(RELAY);
            }
            (true, true) => {
                of_adit.push(RELAY);
                of_relay.push(PEER);
            }
            (true, false) => {
                of_peer.push(RELAY);
                of_relay.push(ADIT);
            }
        }
        let peer_kind = if self.path == Path::Legacy { Kind::V1_0 } else { Kind::V1_1 };
        // Of two nodes that ask each other for a session at once, the one with the greater name keeps its request.
        let name = if self.adit_dials { "zoe" } else { "alice" };
        let mut peer = NodeSpec::new("bob", peer_kind, &of_peer);
        if self.path == Path::TcpOnly {
            peer.host.push_str("TCPOnly = yes\n");
        }
        let mut nodes = vec![NodeSpec::new(name, Kind::Adit, &of_adit), peer];
        if has_relay {
            let kind = if self.path == Path::ThroughAdit { Kind::Adit } else { Kind::V1_1 };
            nodes.push(NodeSpec::new("relay", kind, &of_relay));
        }
        if self.joins {
            let joining = if self.adit_dials { ADIT } else { PEER };
            let node = nodes.get_mut(joining);
            node.into_iter().for_each(|node| node.invited_by = node.connect_to.first().copied());
        }
        let mut spec = NetSpec::new(nodes);
        spec.mode = self.mode;
        spec.outer_v6 = self.outer_v6;
        spec.only_neighbours = has_relay;
        if behind {
            spec.behind_nat = vec![ADIT, PEER];
        }
        let discovery = if self.local_discovery { "yes" } else { "no" };
        spec.conf = format!("LocalDiscovery = {discovery}\n");
        if self.rekey {
            spec.conf.push_str(&format!("KeyExpire = {KEY_EXPIRE}\n"));
        }
        spec
    }

    /// Returns what the router drops.
    fn rules(&self) -> Vec<String> {
        let mut rules = Vec::new();
        match self.path {
            Path::ThroughTinc | Path::ThroughAdit | Path::Legacy => rules.extend(apart(ADIT, PEER)),
            Path::NoUdp => rules.push("meta l4proto udp drop".to_owned()),
            Path::Direct | Path::TcpOnly | Path::Lan => {}
        }
        if self.lossy {
            rules.push(format!("numgen random mod 100 < {LOSS} drop"));
        }
        rules
    }

    /// Returns how adit reaches its peer, in the words of `tinc info`: they describe the session between the two.
    fn way(&self) -> &'static str {
        match self.path {
            // There is no session with a node of tinc 1.0, nor with a neighbour by TCP alone, which tinc reports as reached via itself.
            Path::Legacy => "unknown",
            Path::TcpOnly => "indirectly via",
            Path::NoUdp => "directly with TCP",
            Path::Direct => "directly with UDP",
            // A hub sends all packets to its neighbours, and they pass them on.
            _ if self.mode == Mode::Hub => "unknown",
            Path::Lan if self.local_discovery => "directly with UDP",
            Path::ThroughTinc | Path::ThroughAdit | Path::Lan => "none, forwarded via relay",
        }
    }
}

/// Returns the combinations to test.
fn pairwise() -> Vec<Combination> {
    let of = |choice: &Choice| <[usize; 10]>::try_from(&choice[..]).ok().map(Combination::of);
    let exists = |choice: &Choice| of(choice).is_some_and(|combination| combination.exists());
    covering_array(&SIZES, exists).iter().filter_map(of).collect()
}

/// Returns the tests of all combinations.
pub(super) fn tests(adit: &Program) -> impl Iterator<Item = Test> {
    pairwise().into_iter().enumerate().map(move |(number, combination)| {
        let adit = adit.clone();
        let run = move |env: &TestEnv| {
            // The path of a socket is short.
            let folder = env.sandbox.folder(&format!("tinc{number}"))?;
            let scenario = Scenario { env, folder, server: &adit, client: &adit };
            run(&scenario, &combination)
        };
        Test { name: combination.name(), run: Box::new(run) }
    })
}

fn run(scenario: &Scenario<'_>, combination: &Combination) -> Result<String> {
    let Some(mut bed) = Bed::new(scenario, &combination.spec())? else {
        return Ok("skipped".to_owned());
    };
    bed.set_rules(&combination.rules())?;
    exchange(&mut bed, combination).map_err(|failure| bed.blame(&failure))
}

fn exchange(bed: &mut Bed, combination: &Combination) -> Result<String> {
    let v6 = combination.inner_v6;
    bed.start_all()?;
    bed.wait_for_ping(ADIT, PEER, v6)?;
    bed.wait_for_ping(PEER, ADIT, v6)?;
    bed.wait_for_path(ADIT, PEER, combination.way(), v6)?;
    if combination.path != Path::Legacy {
        bed.wait_for_path(PEER, ADIT, combination.way(), v6)?;
    }
    packets(bed, combination, 150_000)?;
    let mut told = vec![combination.way().to_owned()];
    if combination.rekey {
        told.push(rekeys(bed, combination)?);
    }
    let restarted = match combination.restart {
        Restart::None => None,
        Restart::Adit => Some(ADIT),
        Restart::Peer => Some(PEER),
    };
    if let Some(at) = restarted {
        bed.end(at, Signal::SIGKILL)?;
        bed.start(at)?;
        let began = ScaledInstant::now();
        bed.wait_for_ping(ADIT, PEER, v6)?;
        bed.wait_for_ping(PEER, ADIT, v6)?;
        told.push(format!("again after {} ms", began.elapsed().as_millis()));
        bed.wait_for_path(ADIT, PEER, combination.way(), v6)?;
        packets(bed, combination, 50_000)?;
    }
    bed.daemon(ADIT)?.stop()?;
    Ok(told.join(", "))
}

/// Sends packets of all sizes both ways, and transfers bytes.
fn packets(bed: &Bed, combination: &Combination, bytes: usize) -> Result<()> {
    let v6 = combination.inner_v6;
    for (from, to) in [(ADIT, PEER), (PEER, ADIT)] {
        for size in [56, 1400, 3000] {
            // Those that are lost are repeated.
            let got = ping(bed.space(from)?, inner(to, v6), size, 3)?;
            ensure(got == 3, || format!("{got} of 3 pings of {size} bytes from node {from}"))?;
        }
        tcp(bed.space(from)?, bed.space(to)?, inner(to, v6), bytes)?;
    }
    Ok(())
}

/// Returns the node of adit and the node of tinc that have a session with each other. A hub has sessions with its neighbours only.
fn session(combination: &Combination) -> (usize, usize) {
    match combination.path {
        Path::ThroughAdit if combination.mode == Mode::Hub => (RELAY, PEER),
        Path::ThroughTinc | Path::Lan if combination.mode == Mode::Hub => (ADIT, RELAY),
        _ => (ADIT, PEER),
    }
}

/// Sends packets while keys are renewed. Neighbours lose none, and no session starts again.
fn rekeys(bed: &Bed, combination: &Combination) -> Result<String> {
    let (ours, theirs) = session(combination);
    let [own, other] = [ours, theirs].map(|at| bed.nodes.get(at).map_or("", |node| &node.name));
    // A node of tinc 1.0 has no session with adit. Between it and the other tinc, keys are changed and announced.
    let (watched, text, each) = match combination.path {
        Path::Legacy => (RELAY, "KEY_CHANGED".to_owned(), 1),
        // A KEX, a signature and an ACK.
        _ => (theirs, format!(": 16 {own} {other} "), 3),
    };
    let requests = [format!(": 15 {own} {other} 15"), format!(": 15 {other} {own} 15")];
    let requested = || requests.iter().map(|text| bed.count(theirs, text)).sum::<usize>();
    let (before, started) = (bed.count(watched, &text), requested());
    // tinc 1.1 and 1.0 lose packets of each other when they change keys, so only adit's own way to 1.1 is counted.
    let end = if combination.path == Path::Legacy { RELAY } else { PEER };
    let (mut passed, mut lost) = (0, 0);
    let began = ScaledInstant::now();
    while bed.count(watched, &text) < before + REKEYS * each {
        ensure(began.elapsed() < SOON, || {
            format!("no rekey: {text} in the log of node {watched}")
        })?;
        for (from, to) in [(ADIT, end), (end, ADIT)] {
            let (space, address) = (bed.space(from)?, inner(to, combination.inner_v6));
            if combination.lossy {
                // Those that are lost are repeated.
                passed += u64::from(ping(space, address, 56, 20)?);
                continue;
            }
            let echoes = echo_all(&[space], address, 25, Duration::from_millis(20))?;
            passed += echoes.times.len() as u64;
            lost += echoes.lost();
        }
    }
    bed.wait_for_ping(ADIT, PEER, combination.inner_v6)?;
    let is_relayed = bed.nodes.len() > RELAY && combination.path != Path::Legacy;
    let most = if is_relayed { LOST_BEHIND_RELAY } else { 0 };
    ensure(lost <= most, || format!("{lost} packets were lost during rekeys, and {passed} not"))?;
    let again = requested() - started;
    ensure(again == 0, || format!("{again} requests for a session during rekeys"))?;
    Ok(format!("{passed} packets during rekeys"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_small_and_every_path_has_every_role_and_mode() {
        let combinations = pairwise();
        assert!((21..=30).contains(&combinations.len()), "{}", combinations.len());
        assert!(combinations.iter().all(Combination::exists));
        let mut names: Vec<String> = combinations.iter().map(Combination::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), combinations.len());
        for path in PATHS {
            let with = |what: &dyn Fn(&Combination) -> bool| {
                combinations.iter().any(|it| it.path == path && what(it))
            };
            assert!(with(&|it| it.adit_dials) && with(&|it| !it.adit_dials), "{path:?}");
            assert!(with(&|it| it.joins), "{path:?}");
            assert!(MODES.iter().all(|mode| with(&|it| it.mode == *mode)), "{path:?}");
            assert!(RESTARTS.iter().all(|restart| with(&|it| it.restart == *restart)), "{path:?}");
            assert!(with(&|it| it.rekey) != (path == Path::TcpOnly), "{path:?}");
            assert!(with(&|it| it.lossy), "{path:?}");
        }
    }
}
