//! `adit mesh`.

pub(crate) mod admin;
mod approval;
mod directory;
pub(crate) mod doctor;
mod import_tinc;
mod members;
mod ping;
pub(crate) mod policy;
pub(crate) mod show;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_mesh::Paths;
use adit_runtime::control::{self, Request, Response};
use adit_runtime::fault::Fault;
use clap::{Args, Subcommand, ValueHint};

pub(crate) use members::hide_token;

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Mesh {
    /// Run this machine's node; on the first machine, create the mesh
    #[command(after_help = "Examples:
  sudo adit mesh up
  sudo adit mesh up --mesh office --range 10.77.0.0/16

On a machine that is in no mesh, this creates the keys of a new one, and prints
a token for the next machine. It runs until it is stopped.")]
    Up(up::Up),

    /// Join a mesh with a token that `up` or `invite` printed on another machine, and run the node
    #[command(after_help = "Examples:
  sudo adit mesh join               asks for the token
  sudo adit mesh join - < token
  sudo adit mesh join --name web1 --no-up - < token")]
    Join(up::Join),

    /// Create a token for further machines, or a profile for an OpenVPN app
    #[command(after_help = "Examples:
  sudo adit mesh invite
  sudo adit mesh invite --group web --subnet 192.168.7.0/24 --valid 1h
  sudo adit mesh invite web1 --approve
  sudo adit mesh invite --relay     a machine with a public address that relays
  sudo adit mesh invite --openvpn phone     writes phone.ovpn, mode 0600

With --approve, the machine waits until you have compared the key that it shows
with the one that this command or `adit mesh approve` shows.")]
    Invite(members::Invite),

    /// Admit or refuse a node that waits for approval; without a name, list all that wait
    #[command(after_help = "Examples:
  sudo adit mesh approve
  sudo adit mesh approve laptop
  sudo adit mesh approve laptop --refuse

Only on the node that made the token, with `adit mesh invite --approve`. Compare
the key first: the machine that joins shows its own.")]
    Approve(approval::Approve),

    /// Make a mesh from the configuration directory of a tinc net, with a token for each other host
    #[command(after_help = "Examples:
  sudo adit mesh import-tinc /etc/tinc/office --dry-run
  sudo adit mesh import-tinc /etc/tinc/office --tokens tokens

This machine becomes the first member, and tinc's files stay as they are. The
mesh runs at the same time as tinc until you stop tinc on all machines.")]
    ImportTinc(import_tinc::ImportTinc),

    /// Show the other nodes: addresses, how each is reached, and its round trip
    #[command(after_help = "Example:
  sudo adit mesh peers --json")]
    Peers(show::Show),

    /// Explain how a node is reached: every address, the attempts, and the reason if it is relayed
    #[command(after_help = "Example:
  sudo adit mesh path laptop")]
    Path(show::Path),

    /// Measure the round trip to a node, and show the path that it takes
    #[command(after_help = "Examples:
  sudo adit mesh ping laptop
  sudo adit mesh ping laptop --count 1 --json

The exit code is 1 without an answer. A ping tests the path between the nodes,
not the policy.")]
    Ping(ping::Ping),

    /// Change a node's name, groups, networks or roles
    #[command(after_help = "Examples:
  sudo adit mesh set web1 --group web --group staging
  sudo adit mesh set hub --gateway on --subnet 192.168.7.0/24
  sudo adit mesh set hub --openvpn-gateway on
  sudo adit mesh set old --no-groups --relay off

Each option replaces all earlier values of its kind. Needs a machine with the
key of an admin.")]
    Set(members::Set),

    /// Remove a node from the mesh permanently, with immediate effect
    #[command(after_help = "Example:
  sudo adit mesh remove laptop

Needs a machine with the key of an admin, such as the first one.")]
    Remove(members::Remove),

    /// Decide which members may reach each other
    #[command(
        subcommand,
        after_help = "Examples:
  sudo adit mesh policy edit
  sudo adit mesh policy explain 'tcp web1 > db:5432'"
    )]
    Policy(policy::Policy),

    /// Manage the rights to change the mesh: admins, inviters, approvals, and the recovery phrase
    #[command(
        subcommand,
        after_help = "Examples:
  sudo adit mesh admin show
  sudo adit mesh admin grant desk --admin"
    )]
    Admin(admin::Admin),

    /// Keep the signed changes of the mesh in a database too, where all nodes read them
    #[command(
        subcommand,
        after_help = "Examples:
  sudo adit mesh directory postgres postgres://owner@db/mesh --init
  sudo adit mesh directory status"
    )]
    Directory(directory::Directory),

    /// Show this node: addresses, reachability, rights, warnings
    #[command(after_help = "Example:
  sudo adit mesh status --json

The exit code is 1 if the node is not running.")]
    Status(show::Show),
}

/// Selects the mesh.
#[derive(Clone, Debug, Args)]
pub(crate) struct MeshSelector {
    /// Name of the mesh on this machine, if it is in several
    #[arg(short, long, value_name = "NAME")]
    pub mesh: Option<String>,

    /// Keep everything below this folder instead of in /etc/adit, /var/lib/adit and /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

impl MeshSelector {
    /// Returns the paths of the node's files.
    fn paths(&self) -> Result<Paths, Fault> {
        Paths::find(self.dir.as_deref(), self.mesh.as_deref())
    }

    /// Sends a request to the running node.
    fn ask(&self, request: &Request) -> Result<Response, Fault> {
        let paths = self.paths()?;
        let socket = paths.control_socket();
        if !socket.exists() {
            return Err(Fault::environment(format!(
                "the node of the mesh {} is not running; start it with: sudo {}",
                paths.name(),
                paths.command("up")
            )));
        }
        match control::request(&socket, request)? {
            Response::Error { message } => Err(Fault::operator(message)),
            response => Ok(response),
        }
    }
}

pub(crate) fn run(verb: Mesh) -> Result<ExitCode, Fault> {
    match verb {
        Mesh::Up(options) => options.run(),
        Mesh::Join(options) => options.run(),
        Mesh::Invite(options) => members::invite(&options),
        Mesh::ImportTinc(options) => import_tinc::run(&options),
        Mesh::Peers(options) => show::peers(&options),
        Mesh::Path(options) => show::path(&options),
        Mesh::Approve(options) => approval::run(&options),
        Mesh::Ping(options) => ping::run(&options),
        Mesh::Set(options) => members::set(&options),
        Mesh::Remove(options) => members::remove(&options),
        Mesh::Policy(verb) => policy::run(&verb),
        Mesh::Admin(verb) => admin::run(verb),
        Mesh::Directory(verb) => directory::run(&verb),
        Mesh::Status(options) => show::status(&options),
    }
}

/// Returns the fault for an answer that does not match its request.
fn unexpected() -> Fault {
    Fault::ours("the node gave an answer of another kind; is it another version of adit?")
}
