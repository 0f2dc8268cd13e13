//! `adit bridge`.

use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_bridge::{
    BridgeOptions, LinkState, NeighbourArg, PortAddress, PortSpec, RouteArg, RoutedOptions,
};
use adit_runtime::fault::Fault;
use clap::{ArgGroup, Args, ValueEnum, ValueHint};

use crate::args::ServeMetrics;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("passes").required(true).args(["rules", "relay", "settings"]))]
pub(crate) struct Bridge {
    /// One port: an existing interface, or tap:NAME for a new TAP device
    #[arg(value_name = "PORT", required_unless_present = "settings")]
    pub a: Option<PortSpec>,

    /// The other port
    #[arg(value_name = "PORT", required_unless_present = "settings")]
    pub b: Option<PortSpec>,

    /// Read all settings from this file; see adit-bridge.toml(5)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = [
        "a", "b", "routed", "address", "route", "neighbour", "workers", "mtu", "share_with_host", "link_state", "name",
        "user", "metrics",
    ])]
    pub settings: Option<PathBuf>,

    /// Disable the ports in the settings while the bridge does not run, so that the host sees neither network, and exit
    #[arg(long, requires = "settings")]
    pub down: bool,

    /// Forward the frames that the rules in this file accept (see docs/filter.md). SIGHUP reads it again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub rules: Option<PathBuf>,

    /// Forward all frames, without rules
    #[arg(long)]
    pub relay: bool,

    /// Forward packets instead of frames from one network to the other, like a router
    #[arg(long, requires = "address")]
    pub routed: bool,

    /// The router's own address on a port with its network, such as eth1=10.0.1.1/24 (repeatable)
    #[arg(long, value_name = "PORT=ADDRESS", requires = "routed")]
    pub address: Vec<PortAddress>,

    /// A route to a network behind another router, such as '10.9.0.0/16 via 10.0.2.254' or 'default via fd00::1'
    /// (repeatable)
    #[arg(long, value_name = "NETWORK via NEIGHBOUR", requires = "routed")]
    pub route: Vec<RouteArg>,

    /// A neighbour with a fixed MAC address, which is never resolved and cannot be spoofed, such as
    /// 10.0.1.5=02:00:00:00:00:05 (repeatable)
    #[arg(long, value_name = "ADDRESS=MAC", requires = "routed")]
    pub neighbour: Vec<NeighbourArg>,

    /// The number of threads that move frames [default: the number of cores, but one on 2 cores and at most 16]
    #[arg(long, value_name = "N")]
    pub workers: Option<u16>,

    /// The MTU of new TAP devices [default: that of the other port, or 1500 for two TAPs]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(68..=65521))]
    pub mtu: Option<u32>,

    /// Let the host's own stack receive and answer the ports' frames
    #[arg(long)]
    pub share_with_host: bool,

    /// carry: disable one port while the other has no link, so that both ends notice at once
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        default_value = "ignore",
        conflicts_with = "routed"
    )]
    pub link_state: Link,

    /// The bridge's name in `adit status` and of its control socket [default: the ports' names, A-B]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Keep the control socket below this directory instead of in /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,

    /// The user to run as once the ports are open [default: `adit`, or `nobody` if it does not exist]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    #[command(flatten)]
    pub serve: ServeMetrics,

    /// Print more log lines (repeatable)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The reaction of a port when the other one loses its link.
#[derive(Copy, Clone, Debug, ValueEnum)]
pub enum Link {
    Ignore,
    Carry,
}

impl From<Link> for LinkState {
    fn from(link: Link) -> Self {
        match link {
            Link::Ignore => Self::Ignore,
            Link::Carry => Self::Carry,
        }
    }
}

pub(crate) fn run(options: Bridge) -> Result<ExitCode, Fault> {
    let down = options.down;
    let options = chosen(options)?;
    Ok(if down { adit_app_bridge::switch_off(&options) } else { adit_app_bridge::run(&options) })
}

fn chosen(options: Bridge) -> Result<BridgeOptions, Fault> {
    let Bridge { a, b, settings, dir, verbose, .. } = options;
    if let Some(file) = settings {
        return Ok(BridgeOptions { dir, verbose, ..BridgeOptions::read(&file)? });
    }
    let (Some(a), Some(b)) = (a, b) else { return Err(Fault::operator("name two ports")) };
    let Bridge { rules, routed, address, route, neighbour, workers, .. } = options;
    let Bridge { mtu, share_with_host, link_state, name, user, serve, .. } = options;
    let routed = routed.then_some(RoutedOptions {
        addresses: address,
        routes: route,
        neighbours: neighbour,
    });
    let ports = [a, b];
    Ok(BridgeOptions {
        ports,
        rules,
        routed,
        workers,
        mtu,
        share_with_host,
        link_state: link_state.into(),
        name,
        dir,
        user,
        metrics: serve.metrics,
        verbose,
    })
}
