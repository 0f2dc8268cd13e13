//! The state of a meter: when to read each figure, and the cost computed from the figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Result};

use super::proc::{Machine, Process, Scheduled, Ticks};
use super::{Edge, RoleUsage, Usage};
use crate::record::{ProcessSample, Sample};
use crate::testbed::{Counters, Drops};

/// The number of processes whose small files are read in one tick; the others are read in the next ticks.
const PROCESSES: usize = 16;
/// The number of processes whose memory is read in one tick.
const MEMORIES: usize = 4;
/// The number of hosts whose counters are read in one tick.
const HOSTS: usize = 8;
/// If reading the memory takes longer than this, it disturbs the trial, so it happens only in every [`SELDOM`]th tick.
const DEAR: Duration = Duration::from_millis(2);
/// See [`DEAR`].
const SELDOM: usize = 10;

/// All processes and counters under observation.
#[derive(Debug)]
pub(super) struct Watch {
    started: Instant,
    roles: Vec<Role>,
    counters: Option<Arc<Counters>>,
    /// The last reading of each host.
    drops: Vec<Drops>,
    /// The drops before the start.
    dropped_before: Drops,
    ticks: usize,
    /// The duration of the last reading of memory.
    memory_took: Duration,
    samples: Vec<Sample>,
    begin: Snapshot,
    end: Option<Snapshot>,
}

#[derive(Debug)]
struct Role {
    name: String,
    processes: Vec<Process>,
}

/// All totals at one instant.
#[derive(Debug, Clone)]
struct Snapshot {
    at: Instant,
    machine: Machine,
    drops: Drops,
    roles: Vec<Totals>,
}

/// The totals of one role.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    cpu: f64,
    ticks: Ticks,
    scheduled: Scheduled,
    ended: usize,
}

impl Watch {
    pub(super) fn new(
        processes: &[(&str, Vec<u32>)],
        counters: Option<Arc<Counters>>,
    ) -> Result<Self> {
        let role = |(name, pids): &(&str, Vec<u32>)| -> Result<Role> {
            let processes = pids.iter().map(|pid| Process::new(*pid)).collect::<Result<_>>();
            Ok(Role { name: (*name).to_owned(), processes: processes.context(name)? })
        };
        let roles: Vec<Role> = processes.iter().map(role).collect::<Result<_>>()?;
        let started = Instant::now();
        let begin = Snapshot {
            at: started,
            machine: Machine::look()?,
            drops: Drops::default(),
            roles: roles.iter().map(Role::totals).collect(),
        };
        let mut watch = Self {
            started,
            roles,
            drops: vec![Drops::default(); counters.as_ref().map_or(0, |all| all.len())],
            counters,
            dropped_before: Drops::default(),
            ticks: 0,
            memory_took: Duration::ZERO,
            samples: Vec::new(),
            begin,
            end: None,
        };
        watch.look_at_hosts(usize::MAX)?;
        watch.dropped_before = watch.dropped();
        watch.begin.drops = watch.dropped_before;
        Ok(watch)
    }

    /// Reads the clocks, the exact part of an edge.
    pub(super) fn clocks(&mut self, edge: Edge) -> Result<()> {
        let at = Instant::now();
        self.look_at_clocks();
        let roles = self.roles.iter().map(Role::totals).collect();
        let snapshot = Snapshot { at, machine: Machine::look()?, drops: self.dropped(), roles };
        match edge {
            Edge::Begin => self.begin = snapshot,
            Edge::End => self.end = Some(snapshot),
        }
        Ok(())
    }

    /// Reads the rest of an edge, everything but the clocks, a moment later.
    pub(super) fn details(&mut self, edge: Edge) -> Result<()> {
        self.look_at_processes(usize::MAX);
        self.look_at_hosts(usize::MAX)?;
        let (drops, roles) = (self.dropped(), self.roles.iter().map(Role::totals));
        let snapshot = match edge {
            Edge::Begin => Some(&mut self.begin),
            Edge::End => self.end.as_mut(),
        };
        let Some(snapshot) = snapshot else { return Ok(()) };
        snapshot.drops = drops;
        for (known, now) in snapshot.roles.iter_mut().zip(roles) {
            *known = Totals { cpu: known.cpu, ..now };
        }
        Ok(())
    }

    /// Takes one sample, every 100 ms.
    pub(super) fn tick(&mut self) -> Result<()> {
        let at = self.started.elapsed().as_secs_f64();
        self.look_at_clocks();
        self.look_at_processes(PROCESSES);
        self.look_at_hosts(HOSTS)?;
        if self.memory_took < DEAR || self.ticks.is_multiple_of(SELDOM) {
            self.look_at_memories(MEMORIES);
        }
        self.ticks += 1;
        self.keep(at);
        Ok(())
    }

    /// Takes the last sample, of everything.
    pub(super) fn finish(&mut self) -> Result<()> {
        let at = self.started.elapsed().as_secs_f64();
        if self.end.is_none() {
            self.clocks(Edge::End)?;
            self.details(Edge::End)?;
        }
        self.look_at_clocks();
        self.look_at_processes(usize::MAX);
        self.look_at_hosts(usize::MAX)?;
        self.look_at_memories(usize::MAX);
        self.keep(at);
        Ok(())
    }

    /// Returns the cost of the window.
    pub(super) fn usage(&mut self) -> Result<Usage> {
        let end = self.end.as_ref().context("the window has no end")?;
        let begin = &self.begin;
        let mut roles = BTreeMap::new();
        for ((role, from), to) in self.roles.iter().zip(&begin.roles).zip(&end.roles) {
            let mut usage = role.cost(*from, *to);
            usage.pss_kib = role.processes.iter().map(|process| process.pss_kib).sum();
            usage.anon_kib = role.processes.iter().map(|process| process.anon_kib).sum();
            usage.fds = role.processes.iter().map(|process| process.fds).sum();
            roles.insert(role.name.clone(), usage);
        }
        Ok(Usage {
            seconds: end.at.saturating_duration_since(begin.at).as_secs_f64(),
            roles,
            steal: end.machine.steal_since(begin.machine),
            drops: end.drops.since(begin.drops),
            samples: std::mem::take(&mut self.samples),
        })
    }

    fn keep(&mut self, at: f64) {
        let drops = self.dropped().since(self.dropped_before);
        let processes = self.roles.iter().map(|role| (role.name.clone(), role.sample())).collect();
        let (socket_drops, tun_drops) = (drops.sockets, drops.tun);
        self.samples.push(Sample { at, processes, socket_drops, tun_drops });
    }

    fn look_at_clocks(&mut self) {
        self.roles.iter_mut().flat_map(|role| &mut role.processes).for_each(Process::look_at_clock);
    }

    fn look_at_processes(&mut self, most: usize) {
        self.turn(most).into_iter().for_each(Process::look);
    }

    fn look_at_memories(&mut self, most: usize) {
        let began = Instant::now();
        let looked = self.turn(most);
        let count = looked.len();
        looked.into_iter().for_each(Process::look_at_memory);
        if count > 0 {
            self.memory_took = began.elapsed();
        }
    }

    /// Returns the processes to read in this tick: at most `most`, and different ones each time.
    fn turn(&mut self, most: usize) -> Vec<&mut Process> {
        let all: Vec<&mut Process> =
            self.roles.iter_mut().flat_map(|role| &mut role.processes).collect();
        let chosen = turn(self.ticks, most, all.len());
        all.into_iter()
            .enumerate()
            .filter(|(n, _)| chosen(*n))
            .map(|(_, process)| process)
            .collect()
    }

    /// Reads the counters of some hosts. The first one, the server's host, is always among them.
    fn look_at_hosts(&mut self, most: usize) -> Result<()> {
        let Some(counters) = &self.counters else { return Ok(()) };
        let chosen = turn(self.ticks, most, self.drops.len());
        for (host, drops) in self.drops.iter_mut().enumerate() {
            if host == 0 || chosen(host) {
                *drops = counters.read(host)?;
            }
        }
        Ok(())
    }

    fn dropped(&self) -> Drops {
        self.drops.iter().fold(Drops::default(), |sum, drops| sum.plus(*drops))
    }
}

/// Returns which of `count` items have their turn in this tick, at most `most` of them.
fn turn(tick: usize, most: usize, count: usize) -> impl Fn(usize) -> bool {
    let groups = count.div_ceil(most.max(1)).max(1);
    move |n| n % groups == tick % groups
}

impl Role {
    fn totals(&self) -> Totals {
        self.processes.iter().fold(Totals::default(), |sum, process| {
            let scheduled = process.scheduled();
            Totals {
                cpu: sum.cpu + process.cpu,
                ticks: Ticks {
                    user: sum.ticks.user + process.ticks.user,
                    system: sum.ticks.system + process.ticks.system,
                },
                scheduled: Scheduled {
                    wait: sum.scheduled.wait + scheduled.wait,
                    switches: sum.scheduled.switches + scheduled.switches,
                },
                ended: sum.ended + usize::from(process.ended),
            }
        })
    }

    fn sample(&self) -> ProcessSample {
        let totals = self.totals();
        let (user, system) = split(totals.cpu, totals.ticks);
        ProcessSample {
            user,
            system,
            wait: seconds(totals.scheduled.wait),
            switches: totals.scheduled.switches,
            pss_kib: self.processes.iter().map(|process| process.pss_kib).sum(),
            fds: self.processes.iter().map(|process| process.fds).sum(),
        }
    }

    /// Returns the cost from one instant to another.
    fn cost(&self, from: Totals, to: Totals) -> RoleUsage {
        let ticks = Ticks {
            user: to.ticks.user.saturating_sub(from.ticks.user),
            system: to.ticks.system.saturating_sub(from.ticks.system),
        };
        let (user, system) = split(to.cpu - from.cpu, ticks);
        let scheduled = (from.scheduled, to.scheduled);
        RoleUsage {
            user,
            system,
            wait: seconds(scheduled.1.wait.saturating_sub(scheduled.0.wait)),
            switches: scheduled.1.switches.saturating_sub(scheduled.0.switches),
            processes: self.processes.len(),
            ended: to.ended,
            ..RoleUsage::default()
        }
    }
}

/// Splits an exact CPU time between user mode and the kernel in the proportion of the ticks.
fn split(cpu: f64, ticks: Ticks) -> (f64, f64) {
    let all = ticks.user + ticks.system;
    let system = if all == 0 { 0.0 } else { cpu * ticks.system as f64 / all as f64 };
    (cpu - system, system)
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_a_turn_and_no_tick_has_too_many() {
        for (most, count) in [(4, 3), (4, 4), (4, 5), (16, 250), (usize::MAX, 250), (8, 1)] {
            let mut seen = vec![false; count];
            for tick in 0..count {
                let chosen = turn(tick, most, count);
                let now: Vec<usize> = (0..count).filter(|n| chosen(*n)).collect();
                assert!(now.len() <= most, "{most} of {count}: {now:?}");
                now.into_iter().for_each(|n| seen[n] = true);
            }
            assert!(seen.iter().all(|seen| *seen), "{most} of {count}");
        }
    }

    #[test]
    fn time_is_split_as_the_ticks_are() {
        assert_eq!(split(2.0, Ticks { user: 30, system: 10 }), (1.5, 0.5));
        assert_eq!(split(0.004, Ticks::default()), (0.004, 0.0));
    }

    #[test]
    fn a_cost_is_the_difference_of_two_looks() {
        let role = Role { name: "server".to_owned(), processes: Vec::new() };
        let totals = |cpu, user, system, wait, switches| Totals {
            cpu,
            ticks: Ticks { user, system },
            scheduled: Scheduled { wait, switches },
            ended: 0,
        };
        let from = totals(1.0, 50, 50, 1_000_000_000, 10);
        let usage = role.cost(from, totals(3.0, 100, 200, 1_500_000_000, 30));
        assert_eq!((usage.user, usage.system), (0.5, 1.5));
        assert_eq!((usage.wait, usage.switches, usage.ended), (0.5, 20, 0));
    }
}
