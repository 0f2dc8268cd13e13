//! Whether memory grows with what was carried.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use adit_interop::failure::Result;
use adit_interop::process::Daemon;
use adit_interop::world::{self, Entered};

use crate::pair::Bed;
use crate::statistics::table;

/// How much to carry.
///
/// Example: adit-lab growth --gigabytes 10 --gigabytes 100
#[derive(clap::Args)]
pub struct Arguments {
    /// When to look at the memory, in gigabytes carried since the start; repeatable, ascending.
    #[arg(long = "gigabytes", default_values_t = [10, 100])]
    marks: Vec<u32>,
}

/// Carries one TCP stream, by turns in both directions, and prints the memory at each mark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let world = match world::enter()? {
        Entered::Ended(code) => return Ok(code),
        Entered::Inside(world) => world,
    };
    let bed = Bed::new(world)?;
    let tunnel = bed.adit_tunnel("growth")?;
    let mut iperf = tunnel.pair.server.command("iperf3");
    iperf.args(["--server", "--forceflush"]);
    let mut iperf = Daemon::spawn("iperf3 server", iperf)?;
    iperf.wait_for("Server listening", Duration::from_secs(5))?;
    let to: IpAddr = tunnel.server_inner.v4;
    let mut carried = 0;
    let mut reverse = false;
    let mut rows = Vec::new();
    for &mark in &arguments.marks {
        while carried < mark {
            let (to, bytes) = (to.to_string(), format!("{STEP_GB}000M"));
            let mut step = vec!["--client", &to, "--bytes", &bytes];
            if reverse {
                step.push("--reverse");
            }
            tunnel.pair.client.run("iperf3", &step)?;
            carried += STEP_GB;
            reverse = !reverse;
        }
        let (server, client) = (tunnel.server.rss_kib()?, tunnel.client.rss_kib()?);
        rows.push(vec![carried.to_string(), server.to_string(), client.to_string()]);
    }
    println!("adit/adit, one TCP stream by turns in both directions\n");
    println!("{}", table(&["GB carried", "server RSS KiB", "client RSS KiB"], &rows));
    println!("$ {}", std::env::args().collect::<Vec<_>>().join(" "));
    Ok(ExitCode::SUCCESS)
}

/// Gigabytes carried in one direction before it turns.
const STEP_GB: u32 = 5;
