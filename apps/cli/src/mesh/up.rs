//! `adit mesh up` and `adit mesh join`.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use adit_app_mesh::node::{self, UpOptions, UpReport};
use adit_app_mesh::{DEFAULT_NAME, Layer, NewMesh, NewNode, Paths, Waiting, found, join, phrases};
use adit_runtime::control::MeshInvitation;
use adit_runtime::fault::Fault;
use adit_runtime::progress::Progress;
use clap::Args;
use ipnet::Ipv4Net;
use zeroize::Zeroizing;

use super::members::{next_machine, read_token};
use super::show::{addresses, reachable};
use super::{MeshSelector, admin};
use crate::args::{ServeMetrics, Switch, network};
use crate::{note, print, print_json};

/// How long the first invitation is valid.
const VALID: Duration = Duration::from_secs(24 * 3600);

/// The options of a running node.
#[derive(Debug, Args)]
pub(super) struct Running {
    /// UDP port; 0 is any free one [default: 1194, or as in mesh.toml]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,

    /// Whether programs on this machine can find the nodes as NAME.MESH.internal; this changes the machine's DNS
    /// settings until the node ends
    #[arg(long, value_enum, value_name = "on|off", default_value_t = Switch::On, hide_possible_values = true)]
    dns: Switch,

    /// Reach the internet through this member, which must be a gateway [default: as in mesh.toml]
    #[arg(long, value_name = "NAME")]
    exit: Option<String>,

    /// Run as this user once everything is open [default: `adit`, or `nobody` if there is none]
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    #[command(flatten)]
    serve: ServeMetrics,

    /// Print more log lines; repeatable
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Name of this node in a new mesh [default: the machine's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// IPv4 range of a new mesh, which has IPv6 addresses as well [default: 100.87.0.0/16, or a similar one that this
    /// machine has no route to]
    #[arg(long, value_name = "CIDR", value_parser = network::<Ipv4Net>)]
    range: Option<Ipv4Net>,

    /// In a new mesh, do not relay for others
    #[arg(long)]
    no_relay: bool,

    /// In a new mesh, be a gateway to the internet for others
    #[arg(long)]
    gateway: bool,

    /// In a new mesh, serve OpenVPN apps, such as those of phones, which become leaves of this node
    #[arg(long)]
    openvpn_gateway: bool,

    /// In a new mesh, carry Ethernet frames, with TAP devices, instead of IP packets
    #[arg(long)]
    tap: bool,

    #[command(flatten)]
    running: Running,

    #[command(flatten)]
    here: MeshSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Join {
    /// The token; - (also the default) reads it from stdin, or asks for it on a terminal
    #[arg(value_name = "TOKEN", default_value = "-")]
    token: String,

    /// Name of this node [default: the machine's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Only join; `adit mesh up` starts the node later
    #[arg(long)]
    no_up: bool,

    #[command(flatten)]
    running: Running,

    #[command(flatten)]
    here: MeshSelector,
}

impl Running {
    fn options(&self, invite: Option<MeshInvitation>) -> UpOptions {
        UpOptions {
            port: self.port,
            names: self.dns == Switch::On,
            exit: self.exit.clone(),
            user: self.user.clone(),
            metrics: self.serve.metrics.clone(),
            verbose: self.verbose,
            invite,
            has_tinc: cfg!(feature = "tinc"),
        }
    }
}

impl Up {
    pub(super) fn run(self) -> Result<ExitCode, Fault> {
        let (paths, is_new) = self.paths()?;
        if is_new {
            let choices = NewMesh {
                node: self.name.clone(),
                range: self.range,
                relay: !self.no_relay,
                gateway: self.gateway,
                openvpn: self.openvpn_gateway,
                layer: if self.tap { Layer::Ethernet } else { Layer::Ip },
                subnets: BTreeSet::new(),
            };
            found(&paths, &choices)?;
        } else if let Some(option) = self.of_a_new_mesh() {
            return Err(Fault::operator(format!(
                "this machine is already in the mesh {}, and {option} is for a new one",
                paths.name()
            )));
        }
        let invite = is_new.then(|| MeshInvitation {
            uses: 1,
            valid_s: VALID.as_secs(),
            ..MeshInvitation::default()
        });
        let json = self.running.json;
        // The phrase is shown once, and only if no other program keeps the output: a service's output ends up in the journal.
        let is_seen = json || io::stdout().is_terminal();
        let phrase = if is_new && is_seen { phrases(&paths)?.pop() } else { None };
        let mut tell = |report: &UpReport| tell(report, &paths, phrase.as_ref(), json);
        Ok(node::up(&paths, &self.running.options(invite), &mut tell))
    }

    /// Returns an option that has an effect only on a new mesh.
    fn of_a_new_mesh(&self) -> Option<&'static str> {
        let options = [
            ("--name", self.name.is_some()),
            ("--range", self.range.is_some()),
            ("--no-relay", self.no_relay),
            ("--gateway", self.gateway),
            ("--openvpn-gateway", self.openvpn_gateway),
            ("--tap", self.tap),
        ];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// Returns the paths of the mesh, and whether it is a new one.
    fn paths(&self) -> Result<(Paths, bool), Fault> {
        let dir = self.here.dir.as_deref();
        if let Some(name) = &self.here.mesh {
            let paths = Paths::new(dir, name)?;
            let is_new = !paths.exists();
            return Ok((paths, is_new));
        }
        if Paths::is_none(dir)? {
            return Ok((Paths::new(dir, DEFAULT_NAME)?, true));
        }
        Ok((self.here.paths()?, false))
    }
}

impl Join {
    pub(super) fn run(self) -> Result<ExitCode, Fault> {
        let token = match self.token.as_str() {
            "-" => read_token()?,
            _ => Zeroizing::new(self.token.clone()),
        };
        let choices = NewNode { node: self.name.clone(), mesh: self.here.mesh.clone() };
        let progress = Progress::new("joining");
        let joined = join(self.here.dir.as_deref(), &token, &choices, |waiting| {
            progress.set(|| "waiting for approval".into());
            progress.aside(|| note(&waiting_line(waiting)));
        })?;
        drop((token, progress));
        if self.running.json {
            print_json(&serde_json::json!({
                "mesh": joined.paths.name(),
                "node": joined.node,
                "addresses": joined.addresses,
                "others": joined.others,
                "seconds": joined.took.as_secs_f64(),
            }))?;
        } else {
            print(&format!(
                "{} joined {} in {:.1} s: {}\n",
                joined.node,
                joined.paths.name(),
                joined.took.as_secs_f64(),
                addresses(&joined.addresses)
            ));
        }
        if self.no_up {
            return Ok(ExitCode::SUCCESS);
        }
        Ok(node::up(&joined.paths, &self.running.options(None), &mut |_| {}))
    }
}

/// Returns the instructions for a user who waits for an approval.
fn waiting_line(waiting: &Waiting) -> String {
    let inviter = waiting.inviter.as_deref().unwrap_or("the inviter");
    format!(
        "waiting for approval at {inviter}; this machine's key is\n  {}\nOn {inviter}: sudo adit mesh approve\n",
        waiting.fingerprint
    )
}

/// Prints the information that a new user needs.
fn tell(report: &UpReport, paths: &Paths, phrase: Option<&Zeroizing<String>>, json: bool) {
    let node = &report.node;
    if json {
        // A closed stdout must not end a running node.
        let _ = print_json(&serde_json::json!({
            "node": node,
            "token": report.token,
            "phrase": phrase.map(|phrase| phrase.as_str()),
        }));
        return;
    }
    let id = node.id.get(..8).unwrap_or(&node.id);
    let mut text = format!("mesh       {} ({id}); this machine is {}\n", node.mesh, node.node);
    text.push_str(&format!("inside     {}\n", addresses(&node.addresses)));
    let reachable = reachable(node);
    if !reachable.is_empty() {
        let relays = if node.relay { "; relays for others" } else { "" };
        text.push_str(&format!("reachable  {}{relays}\n", reachable.join("\n           ")));
    }
    if let Some(token) = &report.token {
        text.push_str(&next_machine(token, 1, VALID));
        text.push_str(&match phrase {
            Some(phrase) => admin::on_paper(phrase),
            None => {
                let command = paths.command("admin phrase");
                format!("Write the key of the mesh down: sudo {command}\n")
            }
        });
    }
    print(&text);
}
