//! What a trial of each kind does.

pub mod connections;
pub mod control;
pub mod overload;
pub mod processes;
