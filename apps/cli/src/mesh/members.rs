//! The members of the mesh: `invite`, `remove`, and the tokens of invitations.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use adit_app_server::clients::check_target;
use adit_runtime::control::{
    MeshApp, MeshDescription, MeshInvitation, MeshProfile, Request, Response,
};
use adit_runtime::fault::Fault;
use adit_runtime::log::WIDTH;
use clap::Args;
use ipnet::IpNet;
use zeroize::Zeroizing;

use super::show::addresses;
use super::{MeshSelector, admin, approval, unexpected};
use crate::args::Switch;
use crate::text::span;
use crate::{note, print, print_json};

/// The beginning of each token.
const TOKEN: &str = "adit-mesh1-";

/// The maximum length of input that is read as a token.
const MAX_TOKEN: u64 = 4096;

#[derive(Debug, Args)]
pub(crate) struct Invite {
    /// Name of the node that joins [default: its own choice], or of the OpenVPN app [default: phone, or the next free
    /// phone2, phone3]
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Let the node wait until it is approved: here at the prompt, or with `adit mesh approve`
    #[arg(long, conflicts_with = "openvpn")]
    approve: bool,

    /// Create a profile for an OpenVPN app, such as a phone's, instead of a token; this node becomes its gateway
    #[arg(long, conflicts_with_all = ["subnet", "relay", "gateway", "uses", "valid"])]
    openvpn: bool,

    /// Send all traffic of the OpenVPN app through this node, which must be a gateway to the internet
    #[arg(long, requires = "openvpn")]
    full_tunnel: bool,

    /// The file for the profile; - for stdout [default: NAME.ovpn on a terminal, else stdout]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, requires = "openvpn")]
    output: Option<PathBuf>,

    /// A group that the nodes are in; repeatable
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,

    /// A network behind the node that joins; repeatable
    #[arg(long, value_name = "CIDR")]
    subnet: Vec<IpNet>,

    /// Let the node relay for others; it needs a public address
    #[arg(long)]
    relay: bool,

    /// Let others send all their traffic through the node
    #[arg(long)]
    gateway: bool,

    /// The number of nodes that may join
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    uses: u32,

    /// How long the token is valid
    #[arg(long, value_name = "TIME", value_parser = crate::args::time, default_value = "1d")]
    valid: Duration,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

#[derive(Debug, Args)]
#[command(override_usage = "adit mesh set [OPTIONS] <NAME>", group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct Set {
    /// The node's name, or the beginning of its key's hash
    #[arg(value_name = "NAME")]
    node: String,

    /// The node's new name
    #[arg(long, value_name = "NAME", group = "change")]
    name: Option<String>,

    /// A group of the node; repeatable
    #[arg(long, value_name = "NAME", group = "change")]
    group: Vec<String>,

    /// Remove it from all groups
    #[arg(long, conflicts_with = "group", group = "change")]
    no_groups: bool,

    /// A network behind the node; repeatable
    #[arg(long, value_name = "CIDR", group = "change")]
    subnet: Vec<IpNet>,

    /// Remove all networks behind it
    #[arg(long, conflicts_with = "subnet", group = "change")]
    no_subnets: bool,

    /// Whether it relays for others
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true, group = "change")]
    relay: Option<Switch>,

    /// Whether others may send all their traffic through it
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true, group = "change")]
    gateway: Option<Switch>,

    /// Whether the node serves OpenVPN apps, which become its leaves
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true, group = "change")]
    openvpn_gateway: Option<Switch>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The node's name, or the beginning of its key's hash
    #[arg(value_name = "NAME")]
    name: String,

    /// Also remove the nodes that it invited
    #[arg(long)]
    with_invited: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

pub(super) fn invite(options: &Invite) -> Result<ExitCode, Fault> {
    if options.openvpn {
        return invite_app(options);
    }
    let invitation = MeshInvitation {
        name: options.name.clone(),
        approve: options.approve,
        groups: options.group.clone(),
        subnets: options.subnet.clone(),
        relay: options.relay,
        gateway: options.gateway,
        uses: options.uses,
        valid_s: options.valid.as_secs(),
    };
    let Response::MeshToken(token) = options.here.ask(&Request::MeshInvite(invitation))? else {
        return Err(unexpected());
    };
    if options.json {
        print_json(&token)?;
    } else {
        print(&next_machine(&token.token, options.uses, options.valid));
        if options.approve && io::stdin().is_terminal() && io::stdout().is_terminal() {
            return approval::at_the_prompt(&options.here, &token, options.uses);
        }
        if options.approve {
            print("The machine then waits until you approve it: sudo adit mesh approve\n");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes an OpenVPN app a member, and delivers its profile.
fn invite_app(options: &Invite) -> Result<ExitCode, Fault> {
    let to_stdout = options.output.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let chosen = options.output.clone().filter(|_| !to_stdout);
    if let Some(path) = &chosen {
        check_target(path)?;
    }
    let app = MeshApp {
        name: options.name.clone(),
        groups: options.group.clone(),
        full_tunnel: options.full_tunnel,
    };
    let Response::MeshProfile(made) = options.here.ask(&Request::MeshInviteApp(app))? else {
        return Err(unexpected());
    };
    let text = Zeroizing::new(made.profile.clone());
    if options.json && chosen.is_none() {
        print_json(&made)?;
        return Ok(ExitCode::SUCCESS);
    }
    let named = || PathBuf::from(format!("{}.ovpn", made.name));
    let by_name = Some(named()).filter(|_| !to_stdout && io::stdout().is_terminal());
    let Some(path) = chosen.or(by_name) else {
        print(&text);
        note("the profile, with its private key, goes to stdout: keep it out of logs\n");
        return Ok(ExitCode::SUCCESS);
    };
    // The app is already a member, so a profile that cannot be saved is shown.
    let saved = check_target(&path).and_then(|()| {
        adit_pki::write_private(&path, text.as_bytes())
            .map_err(|error| Fault::environment(error.to_string()))
    });
    if let Err(fault) = saved {
        note(&format!(
            "adit: {fault}; {} is a member: remove it, or keep this profile\n",
            made.name
        ));
        print(&text);
        return Ok(ExitCode::FAILURE);
    }
    if options.json {
        let file = path.display().to_string();
        print_json(&MeshProfile { profile: file, ..*made })?;
    } else {
        print(&app_invited(&made, &path));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the lines about an app and its profile.
fn app_invited(made: &MeshProfile, path: &Path) -> String {
    let MeshProfile { name, gateway, remotes, .. } = made;
    format!(
        "{} is the profile of {name}: {}, a leaf of {gateway}.\n\
         It connects to {}.\n\
         It has the private key, which is kept nowhere else: hand it over safely, import it in an OpenVPN app, and delete the \
         file.\n",
        path.display(),
        addresses(&made.addresses),
        remotes.join(", "),
    )
}

/// Returns the lines that explain how the next machine joins.
pub(super) fn next_machine(token: &str, uses: u32, valid: Duration) -> String {
    let uses = match uses {
        1 => "once".to_owned(),
        uses => format!("{uses} times"),
    };
    format!(
        "On the next machine (the token works {uses}, within {}):\n  sudo adit mesh join\nand paste:\n{token}\n",
        span(valid.as_secs())
    )
}

pub(super) fn set(options: &Set) -> Result<ExitCode, Fault> {
    let description = MeshDescription {
        name: options.name.clone(),
        groups: all_of(&options.group, options.no_groups),
        subnets: all_of(&options.subnet, options.no_subnets),
        relay: options.relay.map(|switch| switch == Switch::On),
        gateway: options.gateway.map(|switch| switch == Switch::On),
        openvpn: options.openvpn_gateway.map(|switch| switch == Switch::On),
    };
    let request = Request::MeshSet { name: options.node.clone(), description };
    let Response::MeshSigned(signed) = options.here.ask(&request)? else {
        return Err(unexpected());
    };
    let done = format!(
        "{} is changed: connected nodes learn of it within seconds, the others when they connect\n",
        options.node
    );
    admin::tell(&signed, options.json, &done)
}

/// Returns the new list; `None` if neither items nor an empty list was given.
fn all_of<T: Clone>(given: &[T], none: bool) -> Option<Vec<T>> {
    (none || !given.is_empty()).then(|| given.to_vec())
}

pub(super) fn remove(options: &Remove) -> Result<ExitCode, Fault> {
    let name = options.name.clone();
    let request = Request::MeshRemove { name, with_invited: options.with_invited };
    let Response::MeshSigned(signed) = options.here.ask(&request)? else {
        return Err(unexpected());
    };
    let done = format!(
        "{} is removed: connected nodes learn of it within seconds, the others when they connect\n",
        options.name
    );
    admin::tell(&signed, options.json, &done)
}

/// Reads a token from stdin, after a prompt on a terminal.
pub(super) fn read_token() -> Result<Zeroizing<String>, Fault> {
    // Do not hide the input: the token works only once, and a user should see that it was pasted.
    read_secret("token", "The token from the other machine: ")
}

/// Reads a secret from stdin, after a prompt on a terminal.
pub(super) fn read_secret(what: &str, question: &str) -> Result<Zeroizing<String>, Fault> {
    if io::stdin().is_terminal() {
        note(question);
        let mut line = Zeroizing::new(String::with_capacity(WIDTH * 8));
        io::stdin()
            .read_line(&mut line)
            .map_err(|error| Fault::operator(format!("cannot read the {what}: {error}")))?;
        return Ok(Zeroizing::new(line.trim().to_owned()));
    }
    let mut text = Zeroizing::new(String::new());
    io::stdin()
        .lock()
        .take(MAX_TOKEN)
        .read_to_string(&mut text)
        .map_err(|error| Fault::operator(format!("cannot read the {what} from stdin: {error}")))?;
    Ok(Zeroizing::new(text.trim().to_owned()))
}

/// Starts this program again without the token in its arguments, which other users can see. Returns only if there is no token, or if the
/// restart fails.
pub(crate) fn hide_token(arguments: &[OsString]) {
    let is_token = |word: &&OsString| word.to_string_lossy().starts_with(TOKEN);
    let is_join = arguments.iter().any(|word| word == "join");
    let Some(token) = arguments.iter().find(is_token).filter(|_| is_join) else { return };
    let again = || -> io::Result<io::Error> {
        let (read, mut write) = io::pipe()?;
        write.write_all(token.as_encoded_bytes())?;
        drop(write);
        let rest = arguments.iter().skip(1);
        let rest =
            rest.map(|word| if is_token(&word) { OsString::from("-") } else { word.clone() });
        Ok(Command::new(std::env::current_exe()?).args(rest).stdin(read).exec())
    };
    note(
        "adit: note: the shell's history keeps this token; it is worthless once it has been used\n",
    );
    let error = again().unwrap_or_else(|error| error);
    note(&format!("adit: note: other users see the token in ps ({error}); give it on stdin: -\n"));
}
