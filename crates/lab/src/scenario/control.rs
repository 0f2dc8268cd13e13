//! Bulk traffic while the control channel is busy.

use std::time::Duration;

use adit_interop::failure::Result;

use crate::bed::Bed;
use crate::record::Measurement;
use crate::subject::{Kit, Subject};

/// One trial.
#[derive(Debug, Clone)]
pub struct ControlSpec {
    /// Control packets of the other client a second; 0: it is not there.
    pub rate: f64,
    /// How long the stream runs in each direction.
    pub length: Duration,
}

/// Figures: `sum_mbps`, `control_pps`; of adit the histograms `trains sent` and `trains received`.
///
/// # Errors
/// The subject has no server for OpenVPN's clients, or it did not come up.
pub fn control(
    _kit: &Kit,
    _bed: &Bed,
    subject: &Subject,
    _spec: &ControlSpec,
) -> Result<Measurement> {
    Err(format!("{subject}: not built yet").into())
}
