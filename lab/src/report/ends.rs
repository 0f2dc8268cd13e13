//! The figures of each end: the throughput of each client, and the cost of the server's processes.

use std::collections::BTreeMap;

use super::document::Text;
use super::number::{kib, number};
use crate::record::{Flow, Measurement};
use crate::stats::{jain, median};

/// The distribution of the throughput among the clients, in Mb/s.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub clients: usize,
    least: f64,
    mean: f64,
    most: f64,
    jain: f64,
}

/// The columns of [`Spread::cells`].
pub(super) const PER_CLIENT: [&str; 6] =
    ["direction", "clients", "min Mb/s", "avg Mb/s", "max Mb/s", "Jain's index"];

impl Spread {
    /// Returns the cells; with `counted`, the number of clients is included.
    pub(super) fn cells(self, direction: &str, counted: bool) -> Vec<Text> {
        let mut cells = vec![direction.to_owned()];
        cells.extend(counted.then(|| self.clients.to_string()));
        cells.extend([self.least, self.mean, self.most].map(|rate| number(rate, 0)));
        cells.push(number(self.jain, 3));
        cells.into_iter().map(Text::from).collect()
    }

    pub(super) fn median(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            median(&all.iter().map(figure).collect::<Vec<_>>()).unwrap_or_default()
        };
        Self {
            clients: all.iter().map(|spread| spread.clients).max().unwrap_or_default(),
            least: of(|s| s.least),
            mean: of(|s| s.mean),
            most: of(|s| s.most),
            jain: of(|s| s.jain),
        }
    }
}

/// Groups the spreads by direction. A flow's bytes are its share of the direction's throughput, so the window's length
/// cancels out.
pub(super) fn spreads(measurement: &Measurement) -> BTreeMap<String, Spread> {
    let mut by_direction: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for Flow { name, bytes, .. } in &measurement.flows {
        let (direction, client) = name.split_once(' ').unwrap_or(("all", name));
        let clients = by_direction.entry(direction).or_default();
        *clients.entry(client).or_default() += *bytes as f64;
    }
    let alone = by_direction.len() == 1;
    let mut spreads = BTreeMap::new();
    for (direction, clients) in by_direction {
        let own = measurement.values.get(&format!("{direction}_mbps"));
        let total = own.or_else(|| measurement.values.get("sum_mbps").filter(|_| alone));
        let bytes: f64 = clients.values().sum();
        let (Some(&total), true) = (total, bytes > 0.0) else { continue };
        let rates: Vec<f64> = clients.values().map(|own| own / bytes * total).collect();
        let spread = Spread {
            clients: rates.len(),
            least: rates.iter().copied().fold(f64::INFINITY, f64::min),
            mean: total / rates.len() as f64,
            most: rates.iter().copied().fold(0.0, f64::max),
            jain: jain(&rates),
        };
        spreads.insert(direction.to_owned(), spread);
    }
    spreads
}

/// The columns of [`RoleSamples::cells`].
pub(super) const SAMPLED: [&str; 8] = [
    "user %",
    "system %",
    "waiting %",
    "highest PSS",
    "switches/s",
    "open files",
    "socket drops",
    "TUN drops",
];

/// The samples of one role in one trial.
#[derive(Clone, Copy)]
pub(super) struct RoleSamples {
    user: f64,
    system: f64,
    waiting: f64,
    pss_kib: f64,
    switches: f64,
    fds: f64,
    socket_drops: f64,
    tun_drops: f64,
}

impl RoleSamples {
    pub(super) fn of(measurement: &Measurement, role: &str) -> Option<Self> {
        let samples = &measurement.samples;
        let mut with = samples.iter().filter(|sample| sample.processes.contains_key(role));
        let (first, last) = (with.next()?, with.next_back()?);
        let (from, to) = (first.processes.get(role)?, last.processes.get(role)?);
        let seconds = last.at - first.at;
        let share = |from: f64, to: f64| 100.0 * (to - from).max(0.0) / seconds;
        let of_role = samples.iter().filter_map(|sample| sample.processes.get(role));
        (seconds > 0.0).then(|| Self {
            user: share(from.user, to.user),
            system: share(from.system, to.system),
            waiting: share(from.wait, to.wait),
            pss_kib: of_role.clone().map(|p| p.pss_kib).max().unwrap_or_default() as f64,
            switches: to.switches.saturating_sub(from.switches) as f64 / seconds,
            fds: of_role.map(|p| p.fds).max().unwrap_or_default() as f64,
            socket_drops: last.socket_drops.saturating_sub(first.socket_drops) as f64,
            tun_drops: last.tun_drops.saturating_sub(first.tun_drops) as f64,
        })
    }

    pub(super) fn median(all: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> f64| median(&all.iter().map(figure).collect::<Vec<_>>());
        Some(Self {
            user: of(|s| s.user)?,
            system: of(|s| s.system)?,
            waiting: of(|s| s.waiting)?,
            pss_kib: of(|s| s.pss_kib)?,
            switches: of(|s| s.switches)?,
            fds: of(|s| s.fds)?,
            socket_drops: of(|s| s.socket_drops)?,
            tun_drops: of(|s| s.tun_drops)?,
        })
    }

    pub(super) fn cells(self) -> Vec<Text> {
        let whole = |figure: f64| Text::from(number(figure.round(), 0));
        let tenth = |figure: f64| Text::from(format!("{figure:.1}"));
        vec![
            tenth(self.user),
            tenth(self.system),
            tenth(self.waiting),
            kib(self.pss_kib as u64).into(),
            whole(self.switches),
            whole(self.fds),
            whole(self.socket_drops),
            whole(self.tun_drops),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ProcessSample, Sample};

    #[test]
    fn two_streams_of_a_client_are_one_client_and_directions_have_their_own_total() {
        let mut m = Measurement::default();
        m.set("up_mbps", 400.0);
        m.set("down_mbps", 90.0);
        m.set("sum_mbps", 490.0);
        for (name, bytes) in
            [("up 0", 10), ("up 0", 20), ("up 1", 10), ("down 0", 5), ("down 1", 4)]
        {
            m.flows.push(Flow { name: name.into(), bytes, start: 0.0, coverage: 1.0 });
        }
        let all = spreads(&m);
        let up = all["up"];
        assert_eq!(
            (up.clients, up.least, up.mean, up.most, up.jain),
            // (300 + 100)² / (2 * (300² + 100²))
            (2, 100.0, 200.0, 300.0, 0.8)
        );
        let down = all["down"];
        assert_eq!((down.clients, down.least, down.mean, down.most), (2, 40.0, 45.0, 50.0));
    }

    #[test]
    fn samples_are_read_from_the_first_to_the_last_that_has_the_role() {
        let sample = |at: f64, user: f64, pss_kib: u64, drops: u64| Sample {
            at,
            processes: [(
                "server".to_owned(),
                ProcessSample {
                    user,
                    system: 2.0 * user,
                    wait: 0.0,
                    switches: 100,
                    pss_kib,
                    fds: 9,
                },
            )]
            .into(),
            socket_drops: drops,
            tun_drops: 0,
        };
        let none = Sample { at: 0.0, ..Sample::default() };
        let samples = vec![
            none,
            sample(1.0, 0.1, 2048, 5),
            sample(2.0, 0.3, 4096, 6),
            sample(3.0, 0.5, 3072, 9),
        ];
        let m = Measurement { samples, ..Measurement::default() };
        let cells: Vec<String> = RoleSamples::of(&m, "server")
            .unwrap()
            .cells()
            .into_iter()
            .map(|cell| cell.text)
            .collect();
        assert_eq!(cells, ["20.0", "40.0", "0.0", "4.0 MiB", "0", "9", "4", "0"]);
        assert!(RoleSamples::of(&m, "client").is_none());
    }
}
