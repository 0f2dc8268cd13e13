//! What client and server sessions have in common.

mod settings;

pub use settings::{Mssfix, Renegotiation, Settings};
