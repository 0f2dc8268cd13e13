//! `adit postgres`.

mod up;

use std::path::PathBuf;

use adit_daemon::fault::Fault;
use adit_daemon::postgres::Places;
use clap::{Args, Subcommand, ValueHint};

use crate::Done;

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum Postgres {
    /// Be a node: carry packets between this machine and the others through the database
    ///
    /// Example: adit postgres up
    Up(up::Up),

    /// Show which network this machine is in, and where its files are
    #[command(hide = true)]
    Places(Here),
}

/// Which network's node.
#[derive(Debug, Args)]
pub struct Here {
    /// Name of the network on this machine, if it is in several
    #[arg(short, long, value_name = "NAME")]
    pub network_name: Option<String>,

    /// Keep everything beneath this folder instead of in /etc/adit, /var/lib/adit and /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

impl Here {
    /// The files of that node.
    pub fn places(&self) -> Result<Places, Fault> {
        Places::find(self.dir.as_deref(), self.network_name.as_deref())
    }
}

pub fn run(verb: Postgres) -> Done {
    match verb {
        Postgres::Up(options) => options.run(),
        Postgres::Places(here) => {
            let places = here.places()?;
            crate::print(&format!("{}\n{}\n", places.name, places.config.display()));
            Ok(std::process::ExitCode::SUCCESS)
        }
    }
}
