//! The messages between the runner and the other processes, with one JSON object per message.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Call, ExitStatus, MAX_FILES, Place, Program, Setup};

/// The maximum length of a message in bytes. Eight files of 64 KiB in base64 and a large environment fit.
pub(super) const MESSAGE_LIMIT: usize = 1 << 20;

/// The maximum length of the program's arguments and variables together, well below the kernel's limit.
pub(super) const WORDS_LIMIT: usize = 256 * 1024;

/// A message of the trusted side.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Order {
    /// Use these settings from now on. The first message comes with the descriptor of the channel for calls.
    Configure(Setup),
}

/// The answer to an [`Order`]: the programs that cannot be run, and why.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Configured {
    pub(super) problems: Vec<(Program, String)>,
}

/// A message of the network process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Request {
    /// Run a program.
    Run { id: u64, call: PlainCall },
    /// Report changes of this call's files.
    Watch(u64),
    /// Remove this call's files.
    Release(u64),
    /// Kill this call's program.
    Kill(u64),
    /// Become the configured user.
    DropPrivileges(u64),
}

/// A [`Call`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlainCall {
    pub(super) program: Program,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) files: Vec<PlainFile>,
    pub(super) timeout: Option<Duration>,
}

/// A file on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlainFile {
    /// The variable with the path.
    pub(super) variable: Option<String>,
    /// Whether the path is an argument.
    pub(super) argument: bool,
    /// Whether it is in the directory for exported certificates.
    pub(super) exported: bool,
    /// The initial content.
    pub(super) content: Base64,
}

/// A message of the runner to the network process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Event {
    /// A call has ended. Its files follow in the order of the call.
    Finished { id: u64, status: ExitStatus, files: Vec<FileContent> },
    /// A file has changed after the call.
    Changed { id: u64, index: usize, file: FileContent },
    /// The answer to [`Request::DropPrivileges`].
    Dropped { id: u64, outcome: Result<(), String> },
    /// A line for the log; `warning` selects its level.
    Line { warning: bool, text: String },
}

/// The content of a file, up to the maximum length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileContent {
    /// The path that the program got.
    pub(super) path: PathBuf,
    pub(super) bytes: Base64,
    /// Whether the file is longer.
    pub(super) truncated: bool,
}

/// Bytes that are base64 on the wire.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Base64(pub(super) Zeroizing<Vec<u8>>);

impl std::fmt::Debug for Base64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Base64 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0.as_slice()))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let bytes = STANDARD.decode(text.as_bytes()).map_err(serde::de::Error::custom)?;
        Ok(Self(Zeroizing::new(bytes)))
    }
}

impl From<Call> for PlainCall {
    fn from(call: Call) -> Self {
        let Call { program, args, env, files, timeout } = call;
        let files = files.into_iter().map(|file| PlainFile {
            variable: match file.place {
                Place::Argument => None,
                Place::Variable(name) | Place::ArgumentAndVariable(name) => Some(name.to_owned()),
            },
            argument: !matches!(file.place, Place::Variable(_)),
            exported: file.exported,
            content: Base64(file.content.unwrap_or_default()),
        });
        Self { program, args, env, files: files.collect(), timeout }
    }
}

impl PlainCall {
    /// Checks a call against the settings.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub(super) fn check(&self, setup: &Setup) -> Result<(), String> {
        if !setup.programs.contains(&self.program) {
            return Err("the configuration does not name it".into());
        }
        let mut words = self.args.iter().map(String::len).sum::<usize>();
        for (name, value) in &self.env {
            if !setup.variables.permit(name, value) {
                let name: String = name.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
                return Err(format!("it may not get the variable {name}"));
            }
            words = words.saturating_add(name.len()).saturating_add(value.len());
        }
        let variables = self.files.iter().filter_map(|file| file.variable.as_ref());
        for name in variables {
            if !setup.variables.permit(name, "") {
                return Err("it may not get the variable of a file".into());
            }
        }
        if words > WORDS_LIMIT {
            return Err(format!("its arguments and variables are longer than {WORDS_LIMIT} bytes"));
        }
        if self.files.len() > MAX_FILES {
            return Err(format!("more than {MAX_FILES} files"));
        }
        Ok(())
    }
}

/// Parses a request of the network process.
pub(super) fn parse(bytes: &[u8]) -> Result<Request, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("invalid request: {e}"))
}

pub(super) fn fuzz(bytes: &[u8]) {
    let Ok(request) = parse(bytes) else { return };
    let program = Program { path: "/bin/true".into(), args: vec!["x".into()] };
    let setup = Setup {
        programs: [program].into(),
        variables: super::Variables { prefixes: ["X".into()].into(), ..Default::default() },
        ..Setup::default()
    };
    if let Request::Run { call, .. } = &request
        && call.check(&setup).is_ok()
    {
        assert!(call.env.iter().all(|(name, _)| name.starts_with('X')));
    }
    let again = serde_json::to_vec(&request).unwrap_or_default();
    assert_eq!(parse(&again).as_ref(), Ok(&request));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        let program = Program { path: "/bin/true".into(), args: Vec::new() };
        let variables =
            super::super::Variables { names: ["dev".into()].into(), ..Default::default() };
        Setup { programs: [program].into(), variables, ..Setup::default() }
    }

    fn call() -> PlainCall {
        PlainCall {
            program: Program { path: "/bin/true".into(), args: Vec::new() },
            args: Vec::new(),
            env: vec![("dev".into(), "tun0".into())],
            files: Vec::new(),
            timeout: None,
        }
    }

    #[test]
    fn each_check_refuses_alone() {
        let setup = setup();
        assert_eq!(call().check(&setup), Ok(()));
        let mut other = call();
        other.program.path = "/bin/false".into();
        assert!(other.check(&setup).unwrap_err().contains("does not name it"));
        let mut other = call();
        other.program.args.push("more".into());
        assert!(other.check(&setup).unwrap_err().contains("does not name it"));
        let mut other = call();
        other.env.push(("LD_PRELOAD".into(), "/tmp/x".into()));
        assert!(other.check(&setup).unwrap_err().contains("LD_PRELOAD"));
        let mut other = call();
        other.args.push("x".repeat(WORDS_LIMIT + 1));
        assert!(other.check(&setup).unwrap_err().contains("longer"));
        let file = |variable: &str| PlainFile {
            variable: Some(variable.into()),
            argument: false,
            exported: false,
            content: Base64::default(),
        };
        let mut other = call();
        other.files.push(file("PATH"));
        assert!(other.check(&setup).unwrap_err().contains("variable of a file"));
        let mut other = call();
        other.files = vec![file("dev"); MAX_FILES + 1];
        assert!(other.check(&setup).unwrap_err().contains("files"));
    }

    #[test]
    fn contents_pass_as_they_are() {
        let bytes: Vec<u8> = (0..=255).collect();
        let file = PlainFile {
            variable: None,
            argument: true,
            exported: false,
            content: Base64(Zeroizing::new(bytes.clone())),
        };
        let text = serde_json::to_vec(&file).unwrap();
        let back: PlainFile = serde_json::from_slice(&text).unwrap();
        assert_eq!(*back.content.0, bytes);
        assert!(!format!("{back:?}").contains("255"), "a password is not for the log");
    }
}
