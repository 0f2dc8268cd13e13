//! Plans as files: TOML, every mistake named with its line.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::axis::{Axis, Clientele, Hostile, Outer, Packet, Pattern, Storm, Workload};
use super::kind::Kind;
use crate::subject::Subject;
use crate::testbed::LinkMode;

/// A whole plan file, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) about: String,
    #[serde(default = "five")]
    pub(super) rounds: Spanned<u32>,
    pub(super) seed: Option<u64>,
    pub(super) a_a: Option<Spanned<AAFile>>,
    #[serde(rename = "scenario")]
    pub(super) scenarios: Vec<Spanned<ScenarioFile>>,
}

fn five() -> Spanned<u32> {
    Spanned::new(0..0, 5)
}

/// Which trial is run against itself first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AAFile {
    pub(super) scenario: Spanned<String>,
    pub(super) subject: Spanned<Subject>,
}

type Values<T> = Option<Spanned<Vec<T>>>;

/// One `[[scenario]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ScenarioFile {
    pub(super) name: Option<Spanned<String>>,
    pub(super) kind: Spanned<Kind>,
    pub(super) rounds: Option<Spanned<u32>>,
    pub(super) seconds: Option<Spanned<f64>>,
    pub(super) warmup: Option<Spanned<f64>>,
    pub(super) subjects: Values<Subject>,
    pub(super) link: Values<LinkMode>,
    pub(super) clients: Values<u16>,
    pub(super) streams: Values<u16>,
    pub(super) workload: Values<Workload>,
    pub(super) cipher: Values<String>,
    pub(super) outer: Values<Outer>,
    pub(super) packet: Values<Packet>,
    pub(super) pattern: Values<Pattern>,
    pub(super) loss: Values<f64>,
    pub(super) rate: Values<u32>,
    pub(super) hostile: Values<Hostile>,
    pub(super) sessions: Values<u16>,
    pub(super) hosts: Values<u16>,
    pub(super) clientele: Values<Clientele>,
    pub(super) storm: Values<Storm>,
    pub(super) total_mbps: Values<f64>,
    pub(super) gigabytes: Values<u32>,
    pub(super) idle: Values<u16>,
    pub(super) piece: Values<String>,
}

impl ScenarioFile {
    /// The line of each axis that is given, and whether it has any value.
    pub(super) fn given(&self) -> Vec<(Axis, Range<usize>, bool)> {
        fn one<T>(axis: Axis, values: &Values<T>) -> Option<(Axis, Range<usize>, bool)> {
            values.as_ref().map(|values| (axis, values.span(), values.get_ref().is_empty()))
        }
        [
            one(Axis::Link, &self.link),
            one(Axis::Clients, &self.clients),
            one(Axis::Streams, &self.streams),
            one(Axis::Workload, &self.workload),
            one(Axis::Cipher, &self.cipher),
            one(Axis::Outer, &self.outer),
            one(Axis::Packet, &self.packet),
            one(Axis::Pattern, &self.pattern),
            one(Axis::Loss, &self.loss),
            one(Axis::Rate, &self.rate),
            one(Axis::Hostile, &self.hostile),
            one(Axis::Sessions, &self.sessions),
            one(Axis::Hosts, &self.hosts),
            one(Axis::Clientele, &self.clientele),
            one(Axis::Storm, &self.storm),
            one(Axis::TotalMbps, &self.total_mbps),
            one(Axis::Gigabytes, &self.gigabytes),
            one(Axis::Idle, &self.idle),
            one(Axis::Piece, &self.piece),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
