//! The table of directives. One row defines all properties of a directive: its name, its arguments, the roles and
//! blocks that allow it, its parser or field, its effect, and its support level. The parser, the role checks, the help
//! and docs/openvpn.md all use the rows.
//!
//! To add a directive, add a row to the module of its subject, a field of the configuration that the row's parser sets,
//! and the code that uses the field.

mod client;
mod client_file;
mod commands;
mod hooks;
mod link;
mod management;
mod pkcs11;
mod plugins;
mod process;
mod server;
mod server_hooks;
mod session;
#[cfg(test)]
mod tests;
mod tls;
mod tunnel;
mod unsupported;

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ConfigError;
use super::client_file::RawClientFile;
use super::options::{Program, Source};
use super::raw_config::{RawConfig, Remote};
use super::reader::Directive;

/// A row of the table. It defines one directive.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) name: &'static str,
    /// The arguments, as an operator would write them.
    pub(super) args: &'static str,
    /// The allowed numbers of arguments.
    pub(super) arity: RangeInclusive<usize>,
    /// Whether lines between `<name>` and `</name>` may replace the arguments.
    pub(super) block: bool,
    pub(super) roles: Roles,
    pub(super) in_connection: InConnection,
    /// The parser for the directive in a per-client file.
    pub(super) in_client_file: Option<ClientFileParser>,
    pub(super) support: Support,
    /// Its effect, in one sentence; empty if it has none.
    pub(super) doc: &'static str,
}

/// The support level of a directive.
#[derive(Copy, Clone, Debug)]
pub(super) enum Support {
    /// In force.
    Used(Field),
    /// In force in a per-client file, and refused elsewhere.
    ClientFile,
    /// Accepted with a warning, which explains why the missing effect does no harm.
    NoEffect(&'static str),
    /// A command of its own, with its syntax and its effect. It is refused in a configuration.
    Alone(&'static str, &'static str),
    /// Refused, with the reason and the remedy.
    Refused(&'static str, &'static str),
}

/// The field that stores the arguments.
#[derive(Copy, Clone, Debug)]
pub(super) enum Field {
    /// Set by the directive's presence.
    Flag(fn(&mut RawConfig) -> &mut bool),
    /// Seconds.
    Seconds(fn(&mut RawConfig) -> &mut Duration),
    /// The argument as it is.
    Text(fn(&mut RawConfig) -> &mut Option<String>),
    /// A path, relative to the directory of `cd`.
    Path(fn(&mut RawConfig) -> &mut Option<PathBuf>),
    /// A file, or its content in a block.
    Source(fn(&mut RawConfig) -> &mut Option<Source>),
    /// A program with its arguments.
    Program(fn(&mut RawConfig) -> &mut Option<Program>),
    /// Set by a function that parses the arguments.
    Parsed(Parser),
}

type Parser = fn(&mut RawConfig, &Directive) -> Result<(), ConfigError>;
type ConnectionParser = fn(&mut Remote, Option<&Path>, &Directive) -> Result<(), ConfigError>;
type ClientFileParser = fn(&mut RawClientFile, &Directive) -> Result<(), ConfigError>;

/// The meaning of a directive in a `<connection>` block.
#[derive(Copy, Clone, Debug)]
pub(super) enum InConnection {
    /// The directive is refused in a block.
    Refused,
    /// The directive applies to the whole tunnel, so all blocks that contain it must agree.
    Shared,
    /// The directive applies only to this block.
    Own(ConnectionParser),
    /// The directive has the same effect as outside a block.
    Free,
}

/// The effect of a directive at one end of the tunnel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum DirectiveEffect {
    /// The directive is in force.
    Used,
    /// The directive has no effect, and a warning is given, as in openvpn.
    Ignored,
    /// The directive has no effect with a TUN device, and a warning is given.
    IgnoredWithTun,
    /// The directive is refused, as in openvpn.
    Refused,
}

/// The effect of a directive in each role.
#[derive(Copy, Clone, Debug)]
pub(super) struct Roles {
    pub(super) client: DirectiveEffect,
    pub(super) server: DirectiveEffect,
    pub(super) p2p: DirectiveEffect,
    /// Whether the directive needs TLS, which a tunnel with a static key does not use.
    pub(super) tls: bool,
}

impl Roles {
    /// Any end.
    const ANY: Self = Self {
        client: DirectiveEffect::Used,
        server: DirectiveEffect::Used,
        p2p: DirectiveEffect::Used,
        tls: false,
    };
    /// A server of many clients.
    const SERVER: Self =
        Self { client: DirectiveEffect::Refused, p2p: DirectiveEffect::Refused, ..Self::ANY };
    /// A server; ignored on clients.
    const SERVER_LAX: Self = Self { client: DirectiveEffect::Ignored, ..Self::SERVER };
    /// An end that receives pushed options.
    const CLIENT: Self =
        Self { server: DirectiveEffect::Refused, p2p: DirectiveEffect::Refused, ..Self::ANY };
    /// An end that receives pushed options; ignored on servers.
    const CLIENT_LAX: Self = Self { server: DirectiveEffect::Ignored, ..Self::CLIENT };
    /// The ends that dial.
    const DIALS: Self = Self { server: DirectiveEffect::Refused, ..Self::ANY };
    /// An end that dials; ignored on servers.
    const DIALS_LAX: Self = Self { server: DirectiveEffect::Ignored, ..Self::ANY };
    /// Either end of a point-to-point tunnel, and a server.
    const NOT_CLIENT: Self = Self { client: DirectiveEffect::Refused, ..Self::ANY };
    /// An end whose own addresses are configured.
    const OWN_ADDRESS: Self = Self { client: DirectiveEffect::IgnoredWithTun, ..Self::ANY };
}

impl Spec {
    const fn new(name: &'static str, support: Support) -> Self {
        Self {
            name,
            args: "",
            arity: 0..=0,
            block: false,
            roles: Roles::ANY,
            in_connection: InConnection::Refused,
            in_client_file: None,
            support,
            doc: "",
        }
    }

    const fn roles(mut self, roles: Roles) -> Self {
        self.roles = Roles { tls: self.roles.tls, ..roles };
        self
    }

    const fn tls(mut self) -> Self {
        self.roles.tls = true;
        self
    }

    const fn or_block(mut self) -> Self {
        self.block = true;
        self
    }

    const fn in_connection(mut self, meaning: InConnection) -> Self {
        self.in_connection = meaning;
        self
    }

    const fn in_client_file(mut self, parser: ClientFileParser) -> Self {
        self.in_client_file = Some(parser);
        self
    }

    const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Formats the directive's syntax as an operator would write it.
    pub(super) fn usage(&self) -> String {
        format!("{} {}", self.name, self.args).trim_end().to_owned()
    }
}

/// Defines a directive that a parser handles.
const fn used(
    name: &'static str,
    args: &'static str,
    arity: RangeInclusive<usize>,
    parser: Parser,
) -> Spec {
    Spec { args, arity, ..Spec::new(name, Support::Used(Field::Parsed(parser))) }
}

/// Defines a directive without arguments that sets a flag.
const fn flag(name: &'static str, field: fn(&mut RawConfig) -> &mut bool) -> Spec {
    Spec::new(name, Support::Used(Field::Flag(field)))
}

/// Defines a directive with one argument, which is stored according to the kind of its field.
const fn one(name: &'static str, args: &'static str, field: Field) -> Spec {
    Spec { args, arity: 1..=1, ..Spec::new(name, Support::Used(field)) }
}

/// Defines a directive that takes a file or a block.
const fn source(name: &'static str, field: fn(&mut RawConfig) -> &mut Option<Source>) -> Spec {
    one(name, "FILE", Field::Source(field)).or_block()
}

const fn no_effect(name: &'static str, why: &'static str) -> Spec {
    Spec::new(name, Support::NoEffect(why))
}

/// Defines a command of its own.
const fn alone(name: &'static str, command: &'static str, effect: &'static str) -> Spec {
    Spec::new(name, Support::Alone(command, effect))
}

const fn refused(name: &'static str, (why, instead): (&'static str, &'static str)) -> Spec {
    Spec::new(name, Support::Refused(why, instead))
}

impl Field {
    /// Stores the arguments of a directive whose shape has been checked.
    pub(super) fn take(
        self,
        raw: &mut RawConfig,
        spec: &Spec,
        d: &Directive,
    ) -> Result<(), ConfigError> {
        match self {
            Self::Flag(field) => *field(raw) = true,
            Self::Seconds(field) => *field(raw) = d.seconds(0)?,
            Self::Text(field) => *field(raw) = Some(d.arg(0).to_owned()),
            Self::Path(field) => *field(raw) = Some(d.path(0, raw.base.as_deref())),
            Self::Source(field) => {
                if let Some(source) = d.source(spec.name, raw.base.as_deref()) {
                    *field(raw) = Some(source);
                }
            }
            Self::Program(field) => hooks::set(raw, d, field)?,
            Self::Parsed(parser) => parser(raw, d)?,
        }
        Ok(())
    }
}

/// Returns all rows, grouped by subject.
pub(super) fn all() -> impl Iterator<Item = &'static Spec> {
    [
        client::TABLE,
        link::TABLE,
        tunnel::TABLE,
        session::TABLE,
        tls::TABLE,
        server::TABLE,
        server_hooks::TABLE,
        client_file::TABLE,
        hooks::TABLE,
        management::TABLE,
        pkcs11::TABLE,
        plugins::TABLE,
        process::TABLE,
        commands::TABLE,
        unsupported::TABLE,
    ]
    .into_iter()
    .flatten()
}

/// Returns the directives that are allowed in a per-client file.
pub(super) fn in_client_file() -> impl Iterator<Item = &'static Spec> {
    all().filter(|spec| spec.in_client_file.is_some())
}

/// Returns the row of a directive; `None` for an unknown name.
pub(super) fn find(name: &str) -> Option<&'static Spec> {
    all().find(|spec| spec.name == name)
}

/// Returns the known directive with the smallest edit distance to `name`, if one is close enough to suggest.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let most = name.len().div_ceil(4).min(3);
    all()
        .map(|spec| spec.name)
        // The difference in length is a lower bound of the distance. This check also limits the work for an absurdly
        // long name.
        .filter(|known| known.len().abs_diff(name.chars().count()) <= most)
        .map(|known| (strsim::levenshtein(name, known), known))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Returns the directives in force and the commands, for `--help`.
pub(super) fn help() -> String {
    let mut rows: Vec<_> = all().collect();
    rows.sort_by_key(|spec| spec.name);
    let mut text = String::new();
    for spec in rows {
        // Writing to a string cannot fail.
        let _ = match spec.support {
            Support::Used(_) => writeln!(text, "--{}\n    {}", spec.usage(), spec.doc),
            Support::Alone(command, effect) => writeln!(text, "Alone: {command}\n    {effect}"),
            _ => Ok(()),
        };
    }
    text
}
