//! What `dump` and `info` print, from the rows of a daemon.

mod graph;
mod info;
mod lists;

pub use graph::{Direction, graph};
pub use info::{About, info};
pub use lists::{connections, edges, nodes, subnets};
