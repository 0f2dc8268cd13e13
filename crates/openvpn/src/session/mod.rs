//! The parts that client and server sessions have in common.

pub mod budget;
mod common;
mod control_channel;
mod data_channel;
mod exit;
mod idle;
mod key_negotiation;
mod packet_sizes;
mod path_mtu;
mod rekey_schedule;
mod settings;

pub(crate) use budget::Budget;
pub use common::OCC_MAGIC;
pub(crate) use common::{
    RESEND_WRAPPED_KEY, WallClock, framing_action, inner_mtu, is_exit_notice, options_string,
};
pub(crate) use control_channel::{ControlChannel, SavedControlChannel};
pub(crate) use data_channel::{
    Agreement, DataChannel, NoticeOutcome, PeerTerms, SavedDataChannel, all_routes,
};
pub(crate) use exit::ExitNotices;
pub(crate) use idle::{Idle, session_end, silence_end};
pub(crate) use key_negotiation::Event;
use packet_sizes::PacketSizes;
pub use packet_sizes::PathReport;
use rekey_schedule::RekeySchedule;
pub use settings::{Fragment, Frequency, Limits, Mssfix, Renegotiation, Settings};
