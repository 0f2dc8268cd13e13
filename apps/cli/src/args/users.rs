//! `adit server user`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{ClientList, Location};
use crate::complete;

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum User {
    /// Add a user and ask for the password
    #[command(after_help = "Examples:
  sudo adit server user add alice --totp
  sudo adit server user add bob --group staff --client laptop
  pwgen -s 20 1 | sudo adit server user add backup --password-stdin

Users log in once server.toml says so: login = \"certificate+password\".")]
    Add(UserAdd),

    /// List the users
    #[command(after_help = "Example:
  sudo adit server user list")]
    List(ClientList),

    /// Show the details of one user
    #[command(after_help = "Example:
  sudo adit server user show alice")]
    Show(UserShow),

    /// Set a new password, and end the user's sessions
    #[command(after_help = "Examples:
  sudo adit server user passwd alice
  pwgen -s 20 1 | sudo adit server user passwd backup --password-stdin")]
    Passwd(UserPassword),

    /// Create a new secret for one-time codes, and end the user's sessions
    #[command(after_help = "Examples:
  sudo adit server user totp alice         shows a QR code for the user's app
  sudo adit server user totp alice --off   the user needs no code any more

The secret and the recovery codes are shown only once.")]
    Totp(UserTotp),

    /// Set the groups of a user for the filter's rules (@group:NAME), with immediate effect
    #[command(after_help = "Examples:
  sudo adit server user group alice staff ops
  sudo adit server user group alice   removes alice from all groups")]
    Group(UserGroup),

    /// Let a user log in only with the certificates of these clients, with immediate effect
    #[command(after_help = "Examples:
  sudo adit server user bind alice laptop phone
  sudo adit server user bind alice   with those of all clients")]
    Bind(UserBind),

    /// Write the profile of a user who logs in without a certificate
    #[command(after_help = "Example:
  sudo adit server user profile alice   writes alice.ovpn, mode 0600

Only for a server with login = \"password\" or \"password+code\".")]
    Profile(UserProfile),

    /// Refuse a user from now on, until enabled again, and end the user's sessions
    #[command(after_help = "Example:
  sudo adit server user disable alice")]
    Disable(UserName),

    /// Let a disabled user log in again
    #[command(after_help = "Example:
  sudo adit server user enable alice")]
    Enable(UserEnable),

    /// Remove a user, and end the user's sessions
    #[command(after_help = "Example:
  sudo adit server user delete alice")]
    Delete(UserName),
}

#[derive(Debug, Args)]
pub(crate) struct UserAdd {
    /// The name: letters, digits, dots, dashes, underscores and @
    pub name: String,

    /// Read the password from the first line of stdin instead of asking for it
    #[arg(long)]
    pub password_stdin: bool,

    /// Set no password, for a user who logs in in the browser
    #[arg(long, conflicts_with_all = ["password_stdin", "totp"])]
    pub no_password: bool,

    /// Also create a secret for one-time codes, and show it as a QR code
    #[arg(long)]
    pub totp: bool,

    /// A group for filter rules (@group:NAME) (repeatable)
    #[arg(long, value_name = "NAME", add = complete::group())]
    pub group: Vec<String>,

    /// A client whose certificate the user may log in with (repeatable) [default: all clients]
    #[arg(long, value_name = "NAME", add = complete::client())]
    pub client: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserShow {
    /// The name of the user
    #[arg(add = complete::user())]
    pub name: String,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserPassword {
    /// The name of the user
    #[arg(add = complete::user())]
    pub name: String,

    /// Read the password from the first line of stdin instead of asking for it
    #[arg(long)]
    pub password_stdin: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserTotp {
    /// The name of the user
    #[arg(add = complete::user())]
    pub name: String,

    /// Remove the secret and the recovery codes instead: the user needs no code any more
    #[arg(long)]
    pub off: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserGroup {
    /// The name of the user
    #[arg(add = complete::user())]
    pub name: String,

    /// The user's new groups; if none are given, the user is removed from all groups
    #[arg(value_name = "GROUP", add = complete::group())]
    pub groups: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserBind {
    /// The name of the user
    #[arg(add = complete::user())]
    pub name: String,

    /// The clients; if none are given, the user may log in with the certificates of all clients
    #[arg(value_name = "CLIENT", add = complete::client())]
    pub clients: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserProfile {
    /// The name of the user
    #[arg(add = complete::user())]
    pub name: String,

    /// The file for the profile; - for stdout [default: NAME.ovpn on a terminal, else stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserName {
    /// The name of the user
    #[arg(add = complete::user())]
    pub name: String,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct UserEnable {
    /// The name of the user
    #[arg(add = complete::disabled_user())]
    pub name: String,

    #[command(flatten)]
    pub location: Location,
}
