//! The command line of `tincd`.
//!
//! It is read as by getopt_long(3): short options may be joined, a value may follow its option directly, long options may be shortened, and
//! the value of `-d` and `--logfile` is optional.

use std::ffi::OsString;
use std::path::PathBuf;

use adit_runtime::fault::Fault;
use adit_runtime::metrics::Config as MetricsConfig;
use adit_tinc::config::ConfigOption;

use crate::net::NetOptions;

/// The options of `tincd`.
#[derive(Clone, Debug, Default)]
pub struct DaemonOptions {
    /// `-n`, `-c` and `--pidfile`.
    pub net: NetOptions,
    /// `-D`: stay in the foreground.
    pub no_detach: bool,
    /// `-d`: the debug level.
    pub debug: u8,
    /// `-o`: variables that replace those in files.
    pub options: Vec<ConfigOption>,
    /// `-L`: keep all memory resident.
    pub lock_memory: bool,
    /// `--logfile`: a file for the log; an empty one means /var/log/tinc.NET.log.
    pub log_file: Option<PathBuf>,
    /// `-s`: log to the system's log.
    pub syslog: bool,
    /// `-R`: change the root directory to that of the configuration.
    pub chroot: bool,
    /// `-U`: the user to run as.
    pub user: Option<String>,
    /// `--metrics`: where metrics are served.
    pub metrics: Option<MetricsConfig>,
}

/// The action that a command line requests.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Run a daemon.
    Run(Box<DaemonOptions>),
    /// Print the help.
    Help,
    /// Print the version.
    Version,
}

/// Whether an option has a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Value {
    None,
    Optional,
    Required,
}

/// An option.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Name {
    Config,
    Net,
    NoDetach,
    Debug,
    Option,
    MemoryLock,
    LogFile,
    Syslog,
    PidFile,
    BypassSecurity,
    Chroot,
    User,
    Help,
    Version,
    Kill,
    GenerateKeys,
    Metrics,
}

const OPTIONS: &[(Name, &str, Option<char>, Value)] = &[
    (Name::Config, "config", Some('c'), Value::Required),
    (Name::Net, "net", Some('n'), Value::Required),
    (Name::NoDetach, "no-detach", Some('D'), Value::None),
    (Name::Debug, "debug", Some('d'), Value::Optional),
    (Name::Option, "option", Some('o'), Value::Required),
    (Name::MemoryLock, "mlock", Some('L'), Value::None),
    (Name::LogFile, "logfile", None, Value::Optional),
    (Name::Syslog, "syslog", Some('s'), Value::None),
    (Name::PidFile, "pidfile", None, Value::Required),
    (Name::BypassSecurity, "bypass-security", None, Value::None),
    (Name::Chroot, "chroot", Some('R'), Value::None),
    (Name::User, "user", Some('U'), Value::Required),
    (Name::Help, "help", None, Value::None),
    (Name::Version, "version", None, Value::None),
    // tinc 1.0 has these.
    (Name::Kill, "kill", Some('k'), Value::Optional),
    (Name::GenerateKeys, "generate-keys", Some('K'), Value::Optional),
    // adit's own.
    (Name::Metrics, "metrics", None, Value::Required),
];

/// The help of `tincd`.
pub const HELP: &str = "Usage: tincd [option]...

  -c, --config=DIR              Read configuration options from DIR.
  -D, --no-detach               Don't fork and detach.
  -d, --debug[=LEVEL]           Increase debug level or set it to LEVEL.
  -n, --net=NETNAME             Connect to net NETNAME.
  -L, --mlock                   Lock tinc into main memory.
      --logfile[=FILENAME]      Write log entries to a logfile.
      --pidfile=FILENAME        Write PID and control socket cookie to FILENAME.
  -o, --option=[HOST.]KEY=VALUE Set global/host configuration value.
  -U, --user=USER               Run as this user instead of the user adit.
      --metrics=ADDRESS         Serve metrics for Prometheus at unix:PATH or a
                                port of this machine such as 127.0.0.1:9190.
      --help                    Display this help and exit.
      --version                 Output version information and exit.

Example:
  tincd -n vpn -D -d 2
";

/// Reads the words after the program's name.
///
/// # Errors
/// Fails if an option is unknown, wrong or not supported.
pub fn parse(words: &[OsString]) -> Result<Wanted, Fault> {
    let mut options = DaemonOptions::default();
    let words = words.iter().map(|word| word.to_string_lossy().into_owned());
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if let Some(long) = word.strip_prefix("--") {
            let (name, joined) = match long.split_once('=') {
                None => (long, None),
                Some((name, value)) => (name, Some(value.to_owned())),
            };
            let (name, takes) = long_option(name)?;
            let value = match takes {
                Value::None if joined.is_some() => {
                    return Err(Fault::operator(format!("--{long}: the option has no value")));
                }
                Value::Required if joined.is_none() => words.next(),
                Value::Optional if joined.is_none() => words.next_if(|word| !word.starts_with('-')),
                _ => joined,
            };
            if let Some(wanted) = apply(name, takes, value, &word, &mut options)? {
                return Ok(wanted);
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            let mut letters = letters.chars();
            while let Some(letter) = letters.next() {
                let (name, takes) = short_option(letter)?;
                let joined: String = match takes {
                    Value::None => String::new(),
                    _ => letters.by_ref().collect(),
                };
                let joined = Some(joined).filter(|value| !value.is_empty());
                let value = match takes {
                    Value::None => None,
                    Value::Optional => {
                        joined.or_else(|| words.next_if(|word| !word.starts_with('-')))
                    }
                    Value::Required => joined.or_else(|| words.next()),
                };
                if let Some(wanted) = apply(name, takes, value, &word, &mut options)? {
                    return Ok(wanted);
                }
            }
        } else {
            return Err(Fault::operator(format!("{word}: tincd takes options only")));
        }
    }
    Ok(Wanted::Run(Box::new(options)))
}

fn long_option(name: &str) -> Result<(Name, Value), Fault> {
    let exact = OPTIONS.iter().find(|(_, long, ..)| *long == name);
    // An option that tinc does not have makes no abbreviation ambiguous.
    let mut starts = OPTIONS.iter().filter(|(known, long, ..)| {
        *known != Name::Metrics && !name.is_empty() && long.starts_with(name)
    });
    match (exact, starts.next(), starts.next()) {
        (Some(found), ..) | (None, Some(found), None) => Ok((found.0, found.3)),
        _ => Err(Fault::operator(format!("--{name}: no such option; tincd --help lists them"))),
    }
}

fn short_option(letter: char) -> Result<(Name, Value), Fault> {
    let found = OPTIONS.iter().find(|(_, _, short, _)| *short == Some(letter));
    found.map(|found| (found.0, found.3)).ok_or_else(|| {
        Fault::operator(format!("-{letter}: no such option; tincd --help lists them"))
    })
}

fn apply(
    name: Name,
    takes: Value,
    value: Option<String>,
    word: &str,
    options: &mut DaemonOptions,
) -> Result<Option<Wanted>, Fault> {
    if takes == Value::Required && value.is_none() {
        return Err(Fault::operator(format!("{word}: the option needs a value")));
    }
    let refused = |why: &str| Err(Fault::operator(format!("{word}: not supported: {why}")));
    let text = value.clone().unwrap_or_default();
    match name {
        Name::Config => options.net.config = Some(text.into()),
        Name::Net => options.net.name = Some(text),
        Name::PidFile => options.net.pid_file = Some(text.into()),
        Name::NoDetach => options.no_detach = true,
        Name::Debug => {
            options.debug = match value {
                None => options.debug.saturating_add(1),
                Some(level) => level.parse().map_err(|_| {
                    Fault::operator(format!("{word}: the debug level is a number from 0 to 5"))
                })?,
            }
        }
        Name::Option => {
            let option = text.parse::<ConfigOption>();
            options.options.push(option.map_err(|error| Fault::operator(error.to_string()))?);
        }
        Name::MemoryLock => options.lock_memory = true,
        Name::LogFile => options.log_file = Some(text.into()),
        Name::User => options.user = Some(text),
        Name::Help => return Ok(Some(Wanted::Help)),
        Name::Version => return Ok(Some(Wanted::Version)),
        Name::Syslog => options.syslog = true,
        Name::Chroot => options.chroot = true,
        Name::Metrics => {
            let metrics = text.parse();
            options.metrics =
                Some(metrics.map_err(|error| Fault::operator(format!("{word}: {error}")))?);
        }
        Name::BypassSecurity => {
            return refused("adit never accepts peers without a proof of who they are");
        }
        Name::Kill => return refused("use tinc stop, tinc reload or tinc retry"),
        Name::GenerateKeys => return refused("use tinc generate-ed25519-keys"),
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<DaemonOptions, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&words).map_err(|fault| fault.to_string())? {
            Wanted::Run(options) => Ok(*options),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn options_are_read_as_by_getopt() {
        let options =
            parsed("-n vpn -Dd5 -c/etc/x --pidfile=/p -oPort=7 -o bob.Port=8 -L").unwrap();
        assert_eq!(options.net.name.as_deref(), Some("vpn"));
        assert_eq!(options.net.config, Some("/etc/x".into()));
        assert_eq!(options.net.pid_file, Some("/p".into()));
        assert!(options.no_detach && options.lock_memory);
        assert_eq!((options.debug, options.options.len()), (5, 2));
        let options = parsed("--net vpn --deb -d --debug=3 -d -d 4 -d --logfile --user=x").unwrap();
        assert_eq!(options.debug, 5);
        assert_eq!(options.log_file, Some(PathBuf::new()));
        assert_eq!(options.user.as_deref(), Some("x"));
        let options = parsed("--m --metrics 127.0.0.1:9190").unwrap();
        assert!(options.lock_memory);
        assert_eq!(options.metrics, "127.0.0.1:9190".parse().ok());
    }

    #[test]
    fn wrong_options_are_named() {
        for (line, words) in [
            ("-n", "-n: the option needs a value"),
            ("--net", "--net: the option needs a value"),
            ("--n", "--n: no such option"),
            ("-x", "-x: no such option"),
            ("--mlock=1", "--mlock=1: the option has no value"),
            ("-dx", "-dx: the debug level is a number"),
            ("start", "start: tincd takes options only"),
            ("--bypass-security", "--bypass-security: not supported"),
            ("-k", "-k: not supported: use tinc stop"),
            ("-K", "-K: not supported: use tinc generate"),
            ("-o Port", "command line: Port"),
            ("--metrics=0.0.0.0:1", "--metrics=0.0.0.0:1: "),
            ("--metri x", "--metri: no such option"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.starts_with(words), "{line}: {error}");
        }
        assert_eq!(parsed("--help").unwrap_err(), "Help");
        assert_eq!(parsed("--version -x").unwrap_err(), "Version");
    }
}
