//! `adit postgres up`.

use std::process::ExitCode;

use adit_app_postgres::node::{self, UpOptions};
use adit_postgres::Durability;
use adit_runtime::fault::Fault;
use clap::Args;

use super::NodeSelector;
use crate::args::ServeMetrics;

/// The options of a node. Those that are not given are read from its node.toml.
#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    here: NodeSelector,

    /// The name of the TUN device
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,

    /// How durable a packet must be before its peer gets it: strict (committed and flushed), relaxed (committed,
    /// flushed a moment later) or volatile (in tables that a crash of the database empties)
    #[arg(long, value_name = "WORD")]
    durability: Option<Durability>,

    /// The maximum size of an IP packet in a row, and the MTU of the device: 1280 to 7900 bytes
    #[arg(long, value_name = "BYTES")]
    packet_size: Option<usize>,

    /// Do not add routes to the other nodes' networks
    #[arg(long)]
    no_routes: bool,

    /// The user to run as once all files are open [default: `adit`, or `nobody` if it does not exist]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    #[command(flatten)]
    serve: ServeMetrics,

    /// Print more log lines (repeatable)
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Up {
    pub(crate) fn run(self) -> Result<ExitCode, Fault> {
        let paths = self.here.paths()?;
        let options = UpOptions {
            device: self.dev,
            durability: self.durability,
            packet_size: self.packet_size,
            no_routes: self.no_routes,
            user: self.user,
            metrics: self.serve.metrics,
            verbose: self.verbose,
        };
        Ok(node::up(&paths, &options))
    }
}
