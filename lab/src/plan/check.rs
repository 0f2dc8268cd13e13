//! Checks a plan file and turns it into a plan that can be run.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;

use super::axis::{Axis, ScenarioFile, Settings, Values};
use super::file::{AAFile, File};
use super::{AA, Kind, Plan, Scenario};
use crate::record::Point;

/// A mistake in a file.
pub(super) struct Mistake {
    /// Byte offset.
    pub(super) at: usize,
    pub(super) what: String,
}

fn mistake<T>(span: &Range<usize>, what: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { at: span.start, what: what.into() })
}

/// Returns the line of a byte offset, counted from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

pub(super) fn plan(file: File, text: &str) -> Result<Plan, Mistake> {
    let File { name, about, rounds, seed, a_a, scenarios } = file;
    between(&rounds, 1, 1000, "rounds")?;
    let rounds = rounds.into_inner();
    if !name.get_ref().chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return mistake(&name.span(), "a plan's name has only letters, digits and hyphens");
    }
    let mut all: Vec<Scenario> = Vec::new();
    for scenario in &scenarios {
        let checked = self::scenario(scenario, rounds)?;
        if all.iter().any(|other| other.name == checked.name) {
            let what = format!("a second scenario {:?}: give it a name of its own", checked.name);
            return mistake(&scenario.span(), what);
        }
        all.push(checked);
    }
    let a_a = a_a.map(|a_a| self::a_a(a_a.into_inner(), &all)).transpose()?;
    let name = name.into_inner();
    Ok(Plan { name, about, text: text.to_owned(), seed, rounds, a_a, scenarios: all })
}

fn a_a(file: AAFile, scenarios: &[Scenario]) -> Result<AA, Mistake> {
    let Some(scenario) = scenarios.iter().find(|s| s.name == *file.scenario.get_ref()) else {
        return mistake(&file.scenario.span(), "no scenario of this plan has that name");
    };
    if !scenario.subjects.contains(file.subject.get_ref()) {
        return mistake(&file.subject.span(), "the scenario does not have this subject");
    }
    Ok(AA { scenario: file.scenario.into_inner(), subject: file.subject.into_inner() })
}

fn scenario(file: &Spanned<ScenarioFile>, rounds: u32) -> Result<Scenario, Mistake> {
    let raw = file.get_ref();
    let kind = *raw.kind.get_ref();
    let description = kind.description();
    for (axis, span, empty) in raw.given() {
        if !description.axes.contains(&axis) {
            let has: Vec<&str> = description.axes.iter().map(|axis| axis.name()).collect();
            let has = if has.is_empty() { "no axis".to_owned() } else { has.join(", ") };
            return mistake(&span, format!("{kind} has no {}; it has {has}", axis.name()));
        }
        if empty {
            return mistake(&span, format!("{} needs at least one value", axis.name()));
        }
    }
    let subjects = match (&raw.subjects, kind.has_subjects()) {
        (Some(subjects), true) if !subjects.get_ref().is_empty() => subjects.get_ref().clone(),
        (Some(subjects), true) => return mistake(&subjects.span(), "name at least one subject"),
        (None, true) => return mistake(&file.span(), format!("{kind} needs subjects")),
        (Some(subjects), false) => {
            return mistake(&subjects.span(), format!("{kind} measures adit alone: no subjects"));
        }
        (None, false) => Vec::new(),
    };
    if kind == Kind::Instructions {
        pieces(file)?;
    }
    if let (Some(given), Some(other)) = (
        &raw.subjects,
        subjects.iter().find(|subject| subject.database().is_some() != kind.through_a_database()),
    ) {
        let what = if kind.through_a_database() { "needs a" } else { "has no" };
        return mistake(
            &given.span(),
            format!("{kind} {what} tunnel through a database: not {other}"),
        );
    }
    if let (Kind::Relay, Some(given), Some(other)) =
        (kind, &raw.subjects, subjects.iter().find(|subject| !subject.is_mesh()))
    {
        return mistake(
            &given.span(),
            format!("{kind} is for meshes, such as adit-mesh and nebula: not {other}"),
        );
    }
    let name = raw.name.as_ref().map_or(description.name, |name| name.get_ref().as_str());
    let rounds = match &raw.rounds {
        None => rounds,
        Some(own) => {
            between(own, 1, 1000, "rounds")?;
            *own.get_ref()
        }
    };
    Ok(Scenario { name: name.to_owned(), kind, rounds, subjects, points: points(raw)? })
}

fn pieces(file: &Spanned<ScenarioFile>) -> Result<(), Mistake> {
    let all = crate::bench::piece_names();
    let Some(given) = &file.get_ref().piece else {
        return mistake(
            &file.span(),
            format!("instructions needs piece: some of {}", all.join(", ")),
        );
    };
    match given.get_ref().iter().find(|name| !all.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => mistake(
            &given.span(),
            format!("no piece is called {name:?}; there are {}", all.join(", ")),
        ),
    }
}

fn between<T: PartialOrd + Display + Copy>(
    value: &Spanned<T>,
    low: T,
    high: T,
    what: &str,
) -> Result<(), Mistake> {
    let given = *value.get_ref();
    if given < low || given > high {
        return mistake(&value.span(), format!("{what} is {given}; write {low} to {high}"));
    }
    Ok(())
}

/// Refuses values of an axis that are out of bounds.
pub(super) fn all_between<T: PartialOrd + Display>(
    values: &Values<T>,
    bounds: RangeInclusive<T>,
    axis: Axis,
) -> Result<(), Mistake> {
    let Some(values) = values else { return Ok(()) };
    match values.get_ref().iter().find(|value| !bounds.contains(value)) {
        None => Ok(()),
        Some(wrong) => {
            let (name, low, high) = (axis.name(), bounds.start(), bounds.end());
            mistake(&values.span(), format!("{name} has {wrong}; write {low} to {high}"))
        }
    }
}

/// Returns all combinations of the axes' values.
fn points(raw: &ScenarioFile) -> Result<Vec<(Point, Settings)>, Mistake> {
    let mut base = Settings::default();
    if let Some(seconds) = &raw.seconds {
        between(seconds, 0.1, 3600.0, "seconds")?;
        base.length = Duration::from_secs_f64(*seconds.get_ref());
    }
    if let Some(warmup) = &raw.warmup {
        between(warmup, 0.0, 60.0, "warmup")?;
        base.warmup = Duration::from_secs_f64(*warmup.get_ref());
    }
    raw.points(base)
}

/// Multiplies the points by the values of one axis. An axis that is not given keeps its default and is not part of the
/// point.
pub(super) fn spread<T: Clone + Display>(
    all: &mut Vec<(Point, Settings)>,
    axis: Axis,
    values: &Values<T>,
    set: fn(&mut Settings, T),
) {
    let Some(values) = values else { return };
    let before = std::mem::take(all);
    for (point, settings) in before {
        for value in values.get_ref() {
            let (mut point, mut settings) = (point.clone(), settings.clone());
            point.0.insert(axis.name().to_owned(), value.to_string());
            set(&mut settings, value.clone());
            all.push((point, settings));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Hostile, Kind, PRESETS, Plan};

    fn refused(text: &str) -> String {
        Plan::parse("x.toml", text).expect_err("a mistake").to_string()
    }

    const HEAD: &str = "name = \"x\"\n";

    #[test]
    fn the_presets_are_plans() {
        for (name, text) in PRESETS {
            let plan = Plan::parse(name, text).expect(name);
            assert_eq!(plan.name, name);
            // A run of half an hour has no A/A trial; nor has one that measures its noise without polling.
            let without = ["postgres-soak", "management", "scrape"];
            assert!(plan.a_a.is_some() || without.contains(&name), "{name}");
        }
    }

    #[test]
    fn only_scenarios_with_a_database_have_subjects_that_need_one() {
        let text = |kind: &str, subject: &str| {
            format!("{HEAD}[[scenario]]\nkind = \"{kind}\"\nsubjects = [\"{subject}\"]\n")
        };
        for kind in ["postgres", "soak"] {
            assert!(Plan::parse("x.toml", &text(kind, "adit-postgres-strict")).is_ok());
            let told = refused(&text(kind, "adit"));
            assert_eq!(
                told,
                format!("x.toml:4: {kind} needs a tunnel through a database: not adit")
            );
        }
        let told = refused(&text("throughput", "row-notify"));
        assert!(
            told.contains("throughput has no tunnel through a database: not row-notify"),
            "{told}"
        );
        let many = format!("{}idle = [11]\n", text("postgres", "adit-postgres-strict"));
        assert!(refused(&many).contains("idle has 11; write 0 to 10"));
    }

    #[test]
    fn only_meshes_relay() {
        let text = |subject: &str| {
            format!("{HEAD}[[scenario]]\nkind = \"relay\"\nsubjects = [\"{subject}\"]\n")
        };
        for mesh in ["adit-mesh", "nebula", "tinc", "tinc-1.1"] {
            assert!(Plan::parse("x.toml", &text(mesh)).is_ok(), "{mesh}");
        }
        let expected = "x.toml:4: relay is for meshes, such as adit-mesh and nebula: not adit";
        assert_eq!(refused(&text("adit")), expected);
    }

    #[test]
    fn points_are_all_combinations() {
        let text = format!(
            "{HEAD}[[scenario]]\nkind = \"throughput\"\nsubjects = [\"adit\"]\nlink = [\"offload\", \"wire\"]\n\
             clients = [5, 20]\n"
        );
        let plan = Plan::parse("x.toml", &text).unwrap();
        let names: Vec<String> =
            plan.scenarios[0].points.iter().map(|(point, _)| point.to_string()).collect();
        assert_eq!(
            names,
            [
                "clients=5 link=offload",
                "clients=20 link=offload",
                "clients=5 link=wire",
                "clients=20 link=wire"
            ]
        );
        assert_eq!(plan.scenarios[0].points[1].1.clients, 20);
        assert_eq!((plan.rounds, plan.seed), (5, None));
    }

    #[test]
    fn a_hostile_scenario_has_its_peers_and_a_rate() {
        let text = |lines: &str| {
            let kind = "kind = \"hostile\"\nsubjects = [\"adit\", \"openvpn\"]";
            format!("{HEAD}[[scenario]]\n{kind}\n{lines}\n")
        };
        let plan = text("hostile = [\"none\", \"client\", \"stranger\"]\nrate = [4000]");
        let plan = Plan::parse("x.toml", &plan).unwrap();
        let points = plan.scenarios[0].points.iter();
        let found: Vec<_> =
            points.map(|(point, s)| (point.to_string(), s.hostile, s.rate)).collect();
        let expected = [
            ("hostile=none rate=4000".to_owned(), Hostile::None, 4000),
            ("hostile=client rate=4000".to_owned(), Hostile::Client, 4000),
            ("hostile=stranger rate=4000".to_owned(), Hostile::Unauthenticated, 4000),
        ];
        assert_eq!(found, expected);
        assert!(
            refused(&text("hostile = [\"friend\"]"))
                .starts_with("x.toml:5: unknown variant `friend`")
        );
        assert_eq!(
            refused(&text("clients = [5]")),
            "x.toml:5: hostile has no clients; it has hostile, rate, link"
        );
        let other = text("hostile = [\"none\"]").replace("kind = \"hostile\"", "kind = \"udp\"");
        assert!(refused(&other).contains("udp has no hostile"));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let with = |lines: &str| refused(&format!("{HEAD}[[scenario]]\n{lines}\n"));
        assert_eq!(
            with("kind = \"throughput\"\nsubjects = [\"adit\"]\nloss = [1]"),
            "x.toml:5: throughput has no loss; it has link, clients, streams, workload, cipher, outer"
        );
        assert!(
            with("kind = \"loss\"\nsubjects = [\"adit\", \"opnvpn\"]")
                .starts_with("x.toml:4: no subject is called")
        );
        assert!(with("kind = \"speed\"").starts_with("x.toml:3: unknown variant `speed`"));
        assert_eq!(
            with("kind = \"growth\"\nsubjects = [\"adit\"]\nclients = [1, 300]"),
            "x.toml:5: clients has 300; write 1 to 250"
        );
        assert_eq!(with("kind = \"loss\""), "x.toml:2: loss needs subjects");
        assert!(
            with("kind = \"udp\"\nclimbers = 3").starts_with("x.toml:4: unknown field `climbers`")
        );
        assert!(
            refused("name = \"x\"\nrounds = \"five\"\nscenario = []")
                .starts_with("x.toml:2: invalid type")
        );
        assert_eq!(
            with("kind = \"in-memory\"\nsubjects = [\"adit\"]"),
            "x.toml:4: in-memory measures adit alone: no subjects"
        );
        assert_eq!(with("kind = \"loss\"\nsubjects = []"), "x.toml:4: name at least one subject");
        assert!(
            with("kind = \"udp\"\nsubjects = [\"adit\"]\npacket = [\"huge\"]")
                .starts_with("x.toml:5: \"huge\" is no size of packets")
        );
    }

    #[test]
    fn two_scenarios_may_not_share_a_name() {
        let one = "[[scenario]]\nkind = \"handshakes\"\n";
        let text = format!("{HEAD}{one}{one}");
        assert_eq!(
            refused(&text),
            "x.toml:4: a second scenario \"handshakes\": give it a name of its own"
        );
    }

    #[test]
    fn an_a_a_trial_must_exist() {
        let scenario = "[[scenario]]\nkind = \"latency\"\nsubjects = [\"bare\"]\n";
        let text = |a_a: &str| format!("{HEAD}a-a = {a_a}\n{scenario}");
        let missing = refused(&text("{ scenario = \"nothing\", subject = \"adit\" }"));
        assert_eq!(missing, "x.toml:2: no scenario of this plan has that name");
        let other = refused(&text("{ scenario = \"latency\", subject = \"adit\" }"));
        assert_eq!(other, "x.toml:2: the scenario does not have this subject");
    }

    #[test]
    fn every_kind_is_described() {
        for description in super::super::KINDS {
            assert_eq!(description.kind.description().name, description.name);
            let text = format!("\"{}\"", description.name);
            assert_eq!(serde_json::from_str::<Kind>(&text).unwrap(), description.kind);
        }
    }
}
