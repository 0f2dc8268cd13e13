//! What client and server sessions have in common.

pub mod budget;
mod common;
mod conversation;
mod exchange;
mod fault;
mod idle;
mod path_mtu;
mod schedule;
mod settings;
mod sizes;

pub(crate) use budget::Budget;
pub use common::OCC_MAGIC;
pub(crate) use common::{
    RESEND_WRAPPED_KEY, WallClock, exit_notice, fragment_size, inner_mtu, is_exit_notice,
    misframed, options_string,
};
pub(crate) use conversation::Conversation;
pub(crate) use exchange::Heard;
pub(crate) use fault::{Fault, failed_negotiation};
pub(crate) use idle::{Idle, session_end, silence_end};
pub(crate) use schedule::KeySchedule;
pub use settings::{Fragment, Limits, Mssfix, Renegotiation, Settings};
pub use sizes::PathReport;
pub(crate) use sizes::Sizes;
