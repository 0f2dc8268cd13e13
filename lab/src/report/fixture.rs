//! A made-up run with every kind of scenario, determined by the seed. It exists only for tests and for previewing the
//! page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::manifest::{Machine, Manifest, PlanEntry, Revision, SubjectEntry};
use crate::record::TRIALS;
use crate::record::{
    Flow, Latency, Measurement, Outcome, Point, ProcessSample, Record, Sample, TrialKey,
};

/// A folder like that of a real run.
pub(super) struct Fixture {
    pub manifest: Manifest,
    pub records: Vec<Record>,
    state: u64,
}

/// A subject's throughput on the offload link in Mb/s, its CPU seconds per Gb, and its memory in KiB.
const SUBJECTS: &[(&str, f64, f64, u64)] = &[
    ("bare", 20_900.0, 0.01, 0),
    ("copy", 10_700.0, 0.05, 2300),
    ("adit", 8900.0, 0.075, 2450),
    ("openvpn", 690.0, 1.02, 8200),
    ("openvpn-tcp", 362.0, 1.6, 8300),
    ("tinc", 780.0, 0.9, 5100),
    ("wireguard-go", 3400.0, 0.35, 290_000),
];

impl Fixture {
    /// Creates a run with everything that a report can show.
    pub(super) fn full(seed: u64) -> Self {
        let mut fixture = Self { manifest: manifest(), records: Vec::new(), state: seed };
        for round in 1..=5 {
            fixture.a_a(round);
            fixture.single_stream(round);
            fixture.many(round);
            fixture.udp(round);
            fixture.latency(round);
            fixture.loss(round);
            fixture.growth(round);
            fixture.storms(round);
            fixture.in_memory(round);
        }
        fixture.instructions();
        fixture.faults();
        fixture.manifest.trials_planned = fixture.records.len();
        fixture
    }

    /// Returns a run whose figures can be checked by hand.
    pub(super) fn small() -> Self {
        let mut fixture = Self { manifest: manifest(), records: Vec::new(), state: 1 };
        fixture
            .manifest
            .subjects
            .retain(|name, _| ["bare", "adit", "openvpn", "adit@v0.0.9"].contains(&name.as_str()));
        let link = [("link", "wire")];
        let rows: [(&str, [f64; 3], f64); 3] = [
            ("openvpn", [700.0, 720.0, 690.0], 1.0),
            ("adit", [2100.0, 2160.0, 2070.0], 0.1),
            ("bare", [5250.0, 5400.0, 5175.0], 0.0),
        ];
        for (subject, rounds, cpu) in rows {
            for (round, mbps) in (1..).zip(rounds) {
                let mut m = Measurement::default();
                m.set("sum_mbps", mbps);
                m.set("largest_frame", 1514.0);
                if cpu > 0.0 {
                    m.set("mb_per_cpu_s", 500.0 / cpu);
                    m.set("server_pss_mib", 2.0 + 6.0 * cpu);
                }
                for (client, bytes) in [(0, 100), (1, 300)] {
                    let name = format!("up {client}");
                    m.flows.push(Flow { name, bytes, start: 0.0, coverage: 1.0 });
                }
                fixture.push("single-stream", "throughput", &link, subject, round, m);
            }
        }
        for side in ["a", "b"] {
            for round in 1..=3 {
                let mut m = Measurement::default();
                m.set("sum_mbps", 1000.0 + 10.0 * f64::from(round));
                fixture.push(
                    "single-stream",
                    "throughput",
                    &link,
                    &format!("adit#{side}"),
                    round,
                    m,
                );
            }
        }
        fixture.manifest.trials_planned = fixture.records.len();
        fixture
    }

    /// Writes the folder as a real run would.
    pub(super) fn write(&self, dir: &Path) {
        self.manifest.write(dir).unwrap();
        let mut lines = String::new();
        for record in &self.records {
            writeln!(lines, "{}", serde_json::to_string(record).unwrap()).unwrap();
        }
        std::fs::write(dir.join(TRIALS), lines).unwrap();
    }

    /// Returns a number from 0 to 1 (Marsaglia's xorshift64).
    fn random(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        f64::from(u32::try_from(self.state >> 32).unwrap()) / f64::from(u32::MAX)
    }

    /// Returns a random factor around 1, with the spread `share`.
    fn noise(&mut self, share: f64) -> f64 {
        let sum: f64 = (0..4).map(|_| self.random()).sum();
        1.0 + share * (sum - 2.0)
    }

    fn push(
        &mut self,
        scenario: &str,
        kind: &str,
        point: &[(&str, &str)],
        subject: &str,
        round: u32,
        m: Measurement,
    ) {
        let point = point.iter().map(|(a, v)| ((*a).to_owned(), (*v).to_owned())).collect();
        let key = TrialKey {
            scenario: scenario.into(),
            point: Point(point),
            subject: subject.into(),
            round,
        };
        self.records.push(Record {
            key,
            kind: kind.into(),
            a_a: subject.contains('#'),
            started_ms: self.manifest.started_ms,
            seconds: 7.5,
            outcome: Outcome::Measured(m),
        });
    }

    fn a_a(&mut self, round: u32) {
        for subject in ["adit#a", "adit#b"] {
            let mut m = Measurement::default();
            m.set("sum_mbps", 8900.0 * self.noise(0.012));
            m.set("mb_per_cpu_s", 6700.0 * self.noise(0.01));
            self.push("a-a", "throughput", &[("link", "offload")], subject, round, m);
        }
    }

    fn bulk(&mut self, mbps: f64, cpu: f64, kib: u64, clients: u32) -> Measurement {
        let mut m = Measurement::default();
        let sum = mbps * self.noise(0.015);
        m.set("up_mbps", sum * 0.49);
        m.set("down_mbps", sum * 0.51);
        m.set("sum_mbps", sum);
        if cpu > 0.02 {
            m.set("mb_per_cpu_s", 500.0 / cpu * self.noise(0.01));
            m.set("server_cpu_s_per_gb", cpu * self.noise(0.01));
            m.set("client_cpu_s_per_gb", cpu * 1.04 * self.noise(0.01));
            m.set("server_pss_mib", kib as f64 / 1024.0);
            m.set("client_pss_mib", kib as f64 / 1024.0 * 0.9);
        }
        m.set("skew_percent", 0.11 * self.noise(0.3));
        m.set("coverage_percent", 99.8);
        m.set("largest_frame", 65_226.0);
        let mut shares = Vec::new();
        for direction in ["up", "down"] {
            for client in 0..clients {
                let bytes = (sum * 312_500.0 / f64::from(clients) * self.noise(0.1)) as u64;
                shares.push(bytes as f64);
                let name = format!("{direction} {client}");
                m.flows.push(Flow { name, bytes, start: 0.001, coverage: 0.998 });
            }
        }
        m.set("jain", crate::stats::jain(&shares));
        if kib > 0 {
            m.samples = self.samples(cpu, kib);
        }
        m
    }

    fn samples(&mut self, cpu: f64, kib: u64) -> Vec<Sample> {
        let busy = (0.25 + cpu * 0.7).min(0.97);
        let mut totals = [0.0, 0.0];
        let mut samples = Vec::new();
        for i in 0..60_u32 {
            let ramp = f64::from(i.min(8)) / 8.0;
            let mut processes = BTreeMap::new();
            for (role, total) in ["server", "client"].iter().zip(&mut totals) {
                *total += 0.1 * busy * ramp * self.noise(0.06);
                let own = ProcessSample {
                    user: *total * 0.6,
                    system: *total * 0.4,
                    wait: *total * 0.05,
                    switches: u64::from(i) * 900,
                    pss_kib: kib + u64::from(i.min(20)) * kib / 300,
                    fds: 11,
                };
                processes.insert((*role).to_owned(), own);
            }
            let at = 0.4 + f64::from(i) / 10.0;
            let socket_drops = u64::from(i / 20) * 3;
            samples.push(Sample { at, processes, socket_drops, tun_drops: 0 });
        }
        samples
    }

    fn single_stream(&mut self, round: u32) {
        for (link, share) in [("wire", 0.24), ("wire-gro", 0.6), ("offload", 1.0)] {
            for (subject, mbps, cpu, kib) in SUBJECTS {
                // A plain VPN gains nothing from offloads.
                let share = if *mbps > 2000.0 { share } else { 1.03 };
                let m = self.bulk(mbps * share, *cpu, *kib, 1);
                self.push("single-stream", "throughput", &[("link", link)], subject, round, m);
            }
        }
    }

    fn many(&mut self, round: u32) {
        for clients in [5, 20, 50, 100] {
            for (subject, mbps, cpu, kib) in &SUBJECTS[2..4] {
                let worse = 1.0 - f64::from(clients) * 0.0015;
                let m = self.bulk(mbps * worse, *cpu, kib + u64::from(clients) * 160, clients);
                let n = clients.to_string();
                self.push("mp", "throughput", &[("clients", &n)], subject, round, m);
            }
        }
    }

    fn udp(&mut self, round: u32) {
        for packet in ["64", "512", "1400", "imix"] {
            for (subject, mbps, ..) in [SUBJECTS[2], SUBJECTS[3]] {
                let mut m = Measurement::default();
                let rate = mbps * 45.0 * self.noise(0.02);
                m.set("rate_at_no_loss_pps", rate);
                m.set("rate_at_half_percent_pps", rate * 1.08);
                m.set("loss_percent", 0.31);
                let at = 0.08 + 60.0 / mbps;
                m.latencies.insert("half the highest rate".into(), self.times(at));
                self.push("udp", "udp", &[("packet", packet)], subject, round, m);
            }
        }
    }

    fn times(&mut self, median: f64) -> Latency {
        let shares = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1.0];
        let quantiles = shares.map(|share: f64| {
            let nines = -(1.0 - share).max(0.00005).log10();
            (share, median * 10_f64.powf((nines - 0.3) * 0.45) * self.noise(0.05))
        });
        let mut sorted = quantiles.map(|q| q.1);
        sorted.sort_by(f64::total_cmp);
        let quantiles = quantiles.iter().zip(sorted).map(|(q, ms)| (q.0, ms)).collect();
        Latency { count: 20_000, lost: 0, quantiles }
    }

    fn latency(&mut self, round: u32) {
        for (subject, mbps, ..) in SUBJECTS {
            let mut m = Measurement::default();
            for (name, base) in [("idle", 0.03), ("loaded", 0.2)] {
                let times = self.times(base + base * 900.0 / mbps);
                m.set(&format!("{name}_p50_ms"), times.at(0.5).unwrap());
                m.set(&format!("{name}_p99_ms"), times.at(0.99).unwrap());
                m.latencies.insert(name.into(), times);
            }
            self.push("latency", "latency", &[], subject, round, m);
        }
    }

    fn loss(&mut self, round: u32) {
        for pattern in ["random", "bursts"] {
            for (loss, share) in
                [("0", 1.0), ("0.1", 0.62), ("1", 0.17), ("5", 0.02), ("10", 0.004)]
            {
                for subject in ["bare", "adit", "openvpn"] {
                    let own = if subject == "openvpn" { 480.0 } else { 900.0 };
                    let mut m = Measurement::default();
                    m.set("sum_mbps", own * share * self.noise(0.12));
                    m.set("survived", 1.0);
                    m.set("p50_ms", 10.3 * self.noise(0.02));
                    m.set("relay_ceiling_mbps", 1240.0);
                    m.set("relay_jitter_ms", 0.04);
                    m.notes.push("the relay's own ceiling is 1,240 Mb/s".into());
                    self.push(
                        "loss",
                        "loss",
                        &[("loss", loss), ("pattern", pattern)],
                        subject,
                        round,
                        m,
                    );
                }
            }
        }
    }

    fn growth(&mut self, round: u32) {
        for clients in [1.0, 5.0, 20.0, 50.0, 100.0_f64] {
            for (subject, power, base) in [("adit", 0.9, 0.21), ("openvpn", 1.25, 0.2)] {
                let mut m = Measurement::default();
                m.set("server_cpu_percent", base * clients.powf(power) * self.noise(0.04));
                m.set("server_pss_mib", (2.4 + 0.16 * clients) * self.noise(0.002));
                self.push(
                    "growth",
                    "growth",
                    &[("clients", &clients.to_string())],
                    subject,
                    round,
                    m,
                );
            }
        }
    }

    fn storms(&mut self, round: u32) {
        for (subject, rate, cpu) in [("adit", 1450.0, 0.66), ("openvpn", 810.0, 1.22)] {
            for sessions in ["100", "300", "500"] {
                let mut m = Measurement::default();
                m.set("handshakes_per_s", rate * self.noise(0.03));
                m.set("cpu_ms_per_handshake", cpu * self.noise(0.02));
                m.set("p50_ms", 9.0 * self.noise(0.05));
                m.set("p99_ms", 31.0 * self.noise(0.05));
                m.set("kib_per_client", if subject == "adit" { 41.0 } else { 163.0 });
                m.set("refused", 0.0);
                self.push(
                    "connections",
                    "connections",
                    &[("sessions", sessions)],
                    subject,
                    round,
                    m,
                );
            }
            let mut m = Measurement::default();
            m.set("recovery_s", 800.0 / rate * self.noise(0.1));
            m.set("stuck", 0.0);
            m.set("misconfigured", 0.0);
            self.push("overload", "overload", &[], subject, round, m);
        }
        for rate in ["0", "10", "100"] {
            let mut m = Measurement::default();
            m.set("sum_mbps", 8800.0 * self.noise(0.02));
            m.set("control_pps", rate.parse().unwrap());
            for name in ["sent", "received"] {
                let counts = [(1, 300), (2, 120), (7, 80), (30, 400), (44, 5200), (45, 9000)];
                m.histograms.insert(name.into(), counts.into());
            }
            self.push("control", "control", &[("rate", rate)], "adit", round, m);
        }
        for gigabytes in ["1", "10", "100"] {
            let mut m = Measurement::default();
            m.set("server_pss_mib", 2.4 * self.noise(0.001));
            self.push("volume", "volume", &[("gigabytes", gigabytes)], "adit", round, m);
        }
    }

    fn in_memory(&mut self, round: u32) {
        for (cipher, speed) in [("AES-256-GCM", 1.0), ("CHACHA20-POLY1305", 0.35)] {
            for (size, mbps) in [("64", 1400.0), ("512", 8800.0), ("1400", 15_800.0)] {
                let mut m = Measurement::default();
                m.set("sum_mbps", mbps * speed * self.noise(0.01));
                self.push(
                    "in-memory",
                    "in-memory",
                    &[("cipher", cipher), ("size", size)],
                    "adit",
                    round,
                    m,
                );
            }
        }
        let mut m = Measurement::default();
        m.set("handshakes_per_s", 2100.0 * self.noise(0.01));
        self.push("handshakes", "handshakes", &[], "adit", round, m);
        let mut m = Measurement::default();
        m.values.insert("something_new".into(), 3.25);
        self.push("from-the-future", "novel", &[], "adit", round, m);
    }

    fn instructions(&mut self) {
        for (piece, count) in
            [("seal-1400", 3911.0), ("open-1400", 4102.0), ("split-64k", 18_233.0)]
        {
            let mut m = Measurement::default();
            m.set("instructions", count);
            self.push("instructions", "instructions", &[("piece", piece)], "adit", 1, m);
        }
    }

    /// Adds faults that occur in real runs.
    fn faults(&mut self) {
        for record in &mut self.records {
            let key = &record.key;
            let Outcome::Measured(m) = &mut record.outcome else { continue };
            let link = key.point.get("link");
            match (key.scenario.as_str(), key.subject.as_str(), link, key.round) {
                ("single-stream", "tinc", Some("wire"), 1..=3) => {
                    m.invalid.push("start skew 3.1 %".into());
                }
                ("single-stream", "adit", Some("offload"), 2) => m.steal = 0.021,
                _ => {}
            }
        }
        let link = || Point([("link".to_owned(), "offload".to_owned())].into());
        for (subject, outcome) in [
            ("adit-tcp", Outcome::Skipped("adit is not built".into())),
            ("openvpn-tcp", Outcome::Failed("iperf3: <b>connection</b> reset | after 2 s".into())),
        ] {
            let key = TrialKey {
                scenario: "single-stream".into(),
                point: link(),
                subject: subject.into(),
                round: 6,
            };
            let started_ms = self.manifest.started_ms;
            let kind = "throughput".into();
            self.records.push(Record { key, kind, a_a: false, started_ms, seconds: 0.1, outcome });
        }
    }
}

const PLAN: &str = r#"[[scenario]]
name = "single-stream"
kind = "throughput"
[[scenario]]
name = "mp"
[[scenario]]
name = "udp"
[[scenario]]
kind = "latency"
[[scenario]]
name = "loss"
[[scenario]]
name = "growth"
"#;

/// Returns the manifest of a fictitious machine.
pub(super) fn manifest() -> Manifest {
    let entry = |version: &str| SubjectEntry {
        version: version.into(),
        configs: vec![(
            "server.conf".into(),
            "dev tun\nserver 10.8.0.0 255.255.255.0\ncipher AES-256-GCM\n".into(),
        )],
        skipped: None,
    };
    let mut subjects = BTreeMap::from([
        ("bare".to_owned(), SubjectEntry::default()),
        ("copy".to_owned(), entry("of this tree")),
        ("adit".to_owned(), entry("adit 0.1.0 (0123abc)")),
        ("openvpn".to_owned(), entry("OpenVPN 2.6.14")),
        ("openvpn-tcp".to_owned(), entry("OpenVPN 2.6.14")),
        ("tinc".to_owned(), entry("tinc 1.0.36")),
        ("wireguard-go".to_owned(), entry("wireguard-go 0.0.20250522")),
    ]);
    let missing = SubjectEntry {
        skipped: Some("not installed; run `make lab`".into()),
        ..SubjectEntry::default()
    };
    subjects.insert("adit@v0.0.9".into(), missing);
    Manifest {
        plan: PlanEntry { name: "standard".into(), text: PLAN.into(), ..PlanEntry::default() },
        seed: 7,
        rounds: 5,
        a_a_rounds: 5,
        trials_planned: 0,
        command: "adit-lab run standard --seed 7".into(),
        started_ms: 1_772_373_900_000,
        finished_ms: Some(1_772_375_001_000),
        source: Some(Revision {
            hash: "0123456789abcdef0123456789abcdef01234567".into(),
            dirty: false,
        }),
        machine: Machine {
            kernel: "6.18.5".into(),
            cpu: "AMD EPYC 9555".into(),
            cpu_flags: ["aes", "avx512f", "vaes"].map(str::to_owned).into(),
            cores: 2,
            memory_kib: 8_039_312,
        },
        tools: BTreeMap::from([("iperf3".into(), "iperf 3.18".into())]),
        subjects,
        links: BTreeMap::from([("wire".into(), "tcp-segmentation-offload: off".into())]),
    }
}
