//! `adit-lab` measures adit and comparable programs, repeatably.
//!
//! A [`record::Record`] is the result of one trial; [`metric`] defines its figures; [`subject`] contains the programs
//! that are measured.
#![forbid(unsafe_code)]

pub mod bench;
pub mod compare;
pub mod copy;
pub mod handshake_load;
pub mod hostile;
pub mod measure;
pub mod metric;
pub mod plan;
pub mod profile;
pub mod publish;
pub mod record;
pub mod relay;
pub mod report;
pub mod rows;
pub mod run;
pub mod scenario;
pub mod stats;
pub mod subject;
pub mod table;
pub mod testbed;
pub mod work;
