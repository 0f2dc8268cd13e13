//! What a person reads of a run: pure functions of `trials.jsonl` and `manifest.json`.

pub mod manifest;

pub use manifest::Manifest;
