//! Several workers in memory, on threads that are repeatedly released at the same moment. These properties must hold for every interleaving
//! of their steps.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use adit_crypto::Cipher;
use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{DropReason, Relay};
use adit_engine::command::KeySlot;
use adit_engine::{Link, PeerId};
use adit_openvpn::data_format::{Command, DataKey, Notice, PeerSpec, Protection};
use adit_openvpn_data::LoopbackPlane;

use crate::common::{End, SERVER, key, layout, link, packet, spec, world};

/// The rounds of a race. On two cores the critical interleaving occurs about once in a thousand rounds.
const ROUNDS: usize = 10_000;
/// The maximum duration of a race, on a machine that is busy with other things.
const ENOUGH: Duration = Duration::from_secs(2);
const CLIENT: u8 = 2;
const PEER: PeerId = PeerId(CLIENT as u32);

/// The task of one of the two threads of a race, and the number of packets that it accepted.
#[derive(Default)]
struct Lane {
    given: Mutex<Option<(Link, Vec<u8>)>>,
    /// The delay, in iterations of a loop.
    delay: AtomicUsize,
    passed: AtomicUsize,
}

/// The number of the current round, and how many threads have finished their part of it.
#[derive(Default)]
struct Rounds {
    current: AtomicUsize,
    done: AtomicUsize,
}

/// Lets the threads end, even if a check has failed.
struct Referee<'r>(&'r Rounds);

const OVER: usize = usize::MAX;

impl Drop for Referee<'_> {
    fn drop(&mut self) {
        self.0.current.store(OVER, Ordering::Release);
    }
}

fn wait_until(done: impl Fn() -> bool) {
    for turn in 0u32.. {
        if done() {
            return;
        }
        // If there are fewer cores than threads, the other thread must get a turn.
        if turn < 20_000 {
            std::hint::spin_loop();
        } else {
            thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Lets two threads each open a datagram at nearly the same moment, round by round, until the limit of rounds or time
/// is reached. `look` receives the number of packets that each thread let through. Returns the number of rounds.
fn race(
    server: &LoopbackPlane,
    mut prepare: impl FnMut(usize) -> [(Link, Vec<u8>); 2],
    mut look: impl FnMut(usize, [usize; 2]),
) -> usize {
    // Each race needs the cores to itself.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let end = Instant::now() + ENOUGH;
    let (here, there, state) = (Lane::default(), Lane::default(), Rounds::default());
    let (mut worker, mut beside) = (server.another_worker(), server.another_worker());
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1.. {
                wait_until(|| state.current.load(Ordering::Acquire) >= turn);
                if state.current.load(Ordering::Acquire) == OVER {
                    return;
                }
                there.open(&mut beside);
                state.done.store(turn, Ordering::Release);
            }
        });
        let referee = Referee(&state);
        for round in 0..ROUNDS {
            if Instant::now() > end {
                return round;
            }
            for (lane, given) in [&here, &there].into_iter().zip(prepare(round)) {
                *lane.given.lock().unwrap() = Some(given);
            }
            // One thread is a little late, alternately, by up to more than opening a packet takes.
            let (late, other) = if round / 97 % 2 == 0 { (&here, &there) } else { (&there, &here) };
            late.delay.store(round % 97 * 8, Ordering::Relaxed);
            other.delay.store(0, Ordering::Relaxed);
            referee.0.current.store(round + 1, Ordering::Release);
            here.open(&mut worker);
            wait_until(|| state.done.load(Ordering::Acquire) == round + 1);
            look(round, [&here, &there].map(|lane| lane.passed.load(Ordering::Acquire)));
        }
        ROUNDS
    })
}

impl Lane {
    fn open(&self, worker: &mut LoopbackPlane) {
        let (from, mut datagram) = self.given.lock().unwrap().take().unwrap();
        for _ in 0..self.delay.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        let (len, mut passed) = (datagram.len(), 0);
        worker.open(&from, len, &mut datagram, |what| {
            passed += match what {
                LoopbackOutput::Tun(write) | LoopbackOutput::Tagged(_, write) => write.count(),
                LoopbackOutput::Peer(..) | LoopbackOutput::Sealed(..) => 1,
            };
        });
        self.passed.store(passed, Ordering::Release);
    }
}

/// Installs the client's next key at both ends: the client seals with it, the server still with the previous one.
fn next_key(server: &End, client: &End, round: usize) {
    let id = (round % 7) as u8 + 1;
    server.apply(Command::InstallKey(PEER, KeySlot::Secondary, key(CLIENT, id, true)));
    client.apply(Command::InstallKey(PeerId(0), KeySlot::Secondary, key(CLIENT, id, false)));
    client.apply(Command::SwapKeys(PeerId(0)));
}

fn moves(server: &mut End) -> Vec<Link> {
    let moves = server.notices().into_iter().filter_map(|notice| match notice {
        Notice::Floated(PEER, link) => Some(link),
        _ => None,
    });
    moves.collect()
}

/// A client has moved and has a new key. An attacker held back a packet under the previous key and now sends it from
/// another address; another worker opens it at the same moment. The peer's address must be where its newest key was
/// used, and the control plane's last notice must report that address.
#[test]
fn a_packet_held_back_never_wins_against_one_under_a_newer_key() {
    let (server, [mut client]) = world(Relay::Kernel, [CLIENT]);
    let server = std::cell::RefCell::new(server);
    let memory = server.borrow().memory.another_worker();
    let at = |round: usize, n: u16| link(CLIENT, 2000 + (round % 20_000) as u16 * 2 + n);
    let rounds = race(
        &memory,
        |round| {
            let held_back = client.seal_one(&packet(CLIENT, SERVER, 1));
            next_key(&server.borrow(), &client, round);
            let newest = client.seal_one(&packet(CLIENT, SERVER, 2));
            let mut given = [(at(round, 0), newest), (at(round, 1), held_back)];
            if round % 2 == 1 {
                given.swap(0, 1);
            }
            given
        },
        |round, passed| {
            let mut server = server.borrow_mut();
            assert_eq!(passed, [1, 1], "both are authentic");
            assert_eq!(memory.plane().link(PEER), Some(at(round, 0)), "round {round}");
            let moves = moves(&mut server);
            assert_eq!(moves.last(), Some(&at(round, 0)), "round {round}");
            server.apply(Command::SwapKeys(PEER));
        },
    );
    let refused = server.borrow().dropped(DropReason::WrongAddress);
    println!("{rounds} rounds; refused at the last moment: {refused}");
}

/// When two workers receive the same datagram from two addresses, it passes once and moves the peer at most once.
#[test]
fn a_datagram_that_comes_to_two_workers_passes_once() {
    let (server, [mut client]) = world(Relay::Kernel, [CLIENT]);
    let memory = server.memory.another_worker();
    let (mut first, server) = (0, std::cell::RefCell::new(server));
    let rounds = race(
        &memory,
        |round| {
            let datagram = client.seal_one(&packet(CLIENT, SERVER, 1));
            let n = 2 * (round % 2) as u16;
            [1, 2].map(|from| (link(CLIENT, 3000 + n + from), datagram.clone()))
        },
        |round, passed| {
            assert_eq!(passed[0] + passed[1], 1, "round {round}");
            first += passed[0];
            let port = 3000 + 2 * (round % 2) as u16 + if passed[0] == 1 { 1 } else { 2 };
            assert_eq!(memory.plane().link(PEER), Some(link(CLIENT, port)), "round {round}");
            assert_eq!(server.borrow_mut().notices().len(), if round == 0 { 2 } else { 1 });
        },
    );
    assert_eq!(memory.plane().counters(PEER).unwrap().rx_packets, rounds as u64);
    assert_eq!(server.borrow().dropped(DropReason::Replayed), rounds as u64);
    println!("the first worker was first in {first} of {rounds} rounds");
}

/// When two clients move to one address at once, one gets it, and the other can still be found at its previous address.
#[test]
fn an_address_that_two_take_at_once_is_ones() {
    let (server, mut clients) = world(Relay::Kernel, [2, 3]);
    let memory = server.memory.another_worker();
    let rounds = race(
        &memory,
        |round| {
            let to = link(9, 1000 + (round % 50_000) as u16);
            [0, 1].map(|at: usize| {
                let n = [2, 3][at];
                (to, clients[at].seal_one(&packet(n, SERVER, 1)))
            })
        },
        |round, passed| {
            assert_eq!(passed, [1, 1]);
            let to = link(9, 1000 + (round % 50_000) as u16);
            let at = [2, 3].map(|n| memory.plane().link(PeerId(n)).unwrap());
            assert_eq!(at.iter().filter(|link| **link == to).count(), 1, "round {round}: {at:?}");
        },
    );
    assert_eq!(server.dropped(DropReason::WrongAddress), rounds as u64);
}

/// Every format with an AEAD, and the bytes of a datagram that determine its nonce under a key.
const SEALED: [(Protection, usize); 4] = [
    (Protection::Aead(Cipher::Aes256Gcm), 8),
    (Protection::Aead(Cipher::ChaCha20Poly1305), 8),
    (Protection::Epoch(Cipher::Aes256Gcm), 12),
    (Protection::Epoch(Cipher::ChaCha20Poly1305), 12),
];

/// While workers seal for one peer and the control plane changes its key, no packet id is used twice, none is lost, and
/// no packet is sealed under a key that the other end does not have.
#[test]
fn packet_ids_are_given_once_by_all_workers() {
    for (protection, nonce) in SEALED {
        seal_on_all_workers(protection, nonce);
    }
}

fn seal_on_all_workers(protection: Protection, nonce: usize) {
    let key = |id, at_server| Box::new(DataKey { protection, ..*key(CLIENT, id, at_server) });
    let (server, [client]) = world(Relay::Kernel, [CLIENT]);
    // The scheduler decides the order of threads, so a packet sealed by one may be delayed while others continue.
    let wide = PeerSpec { replay_window: 65536, ..spec(link(200, 1194)) };
    let mut client = End { memory: client.memory, ..client };
    client.apply(Command::AddPeer(PeerId(0), PeerSpec { layout: layout(PEER.0), ..wide }));
    client.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
    server.apply(Command::InstallKey(PEER, KeySlot::Primary, key(0, true)));
    let (threads, each) = (4, 3000);
    let sealed: Vec<Vec<Vec<u8>>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let mut worker = server.memory.another_worker();
                scope.spawn(move || {
                    let mut sealed = Vec::new();
                    for _ in 0..each {
                        let mut plain = packet(SERVER, CLIENT, 7);
                        worker.seal(&Default::default(), &mut plain, |train, _| {
                            sealed.push(train.to_vec());
                        });
                    }
                    sealed
                })
            })
            .collect();
        for id in 1..=7 {
            server.apply(Command::InstallKey(PEER, KeySlot::Secondary, key(id, true)));
            server.apply(Command::SwapKeys(PEER));
            thread::yield_now();
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut nonces = BTreeSet::new();
    for id in 0..=7u8 {
        client.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(id, false)));
        for datagram in sealed.iter().flatten().filter(|datagram| datagram[0] & 7 == id) {
            let named = &datagram[..nonce];
            assert!(nonces.insert(named.to_vec()), "{protection:?}: {named:?}");
            assert_eq!(client.open(link(200, 1194), datagram).len(), 1, "{protection:?}");
        }
    }
    assert_eq!(nonces.len(), threads * each, "{protection:?}");
    assert_eq!(server.memory.plane().counters(PEER).unwrap().tx_packets, (threads * each) as u64);
}
