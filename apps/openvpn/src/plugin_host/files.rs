//! The files through which a plugin or its background process answers later.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use adit_linux::plugin::Kind;
use adit_runtime::random;

use super::protocol::{MAX_CONFIG, Outcome, Pending};

/// The maximum number of bytes that are read of a file with a reason or a request of the user's action.
const MAX_TEXT: usize = 4096;

/// The maximum length of a reason that the peer gets.
const MAX_REASON: usize = 512;

/// The longest time that a plugin may ask for, in seconds.
const MAX_TIMEOUT: u32 = 24 * 3600;

/// A new, empty file with an unpredictable name, which only its owner can use. It is removed when it is dropped.
#[derive(Debug)]
struct ScratchFile(PathBuf);

impl ScratchFile {
    fn create(folder: &Path, prefix: &str) -> io::Result<Self> {
        let random: [u8; 16] = random::bytes().map_err(|e| io::Error::other(e.to_string()))?;
        let name = format!("openvpn_{prefix}_{:032x}.tmp", u128::from_ne_bytes(random));
        let path = folder.join(name);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(|e| {
            let folder = folder.display();
            io::Error::new(e.kind(), format!("cannot create a file in '{folder}' (tmp-dir): {e}"))
        })?;
        Ok(Self(path))
    }

    /// Returns the content, up to `limit` bytes; empty if it cannot be read. A plugin may have replaced the file, but
    /// symbolic links are not followed, and a pipe does not block.
    fn content(&self, limit: usize) -> Vec<u8> {
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let mut bytes = Vec::new();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&self.0);
        if let Ok(file) = opened
            && is_regular(&file)
        {
            let limit = u64::try_from(limit).unwrap_or(u64::MAX);
            // What was read before an error is used; an incomplete answer counts as none.
            let _ = file.take(limit).read_to_end(&mut bytes);
        }
        bytes
    }

    fn first(&self) -> Option<u8> {
        self.content(1).first().copied()
    }

    fn variable(&self, name: &str) -> (String, String) {
        (name.to_owned(), self.name())
    }

    fn name(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        // The plugin may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.is_file())
}

/// The files of one call.
#[derive(Debug)]
pub(super) enum AnswerFiles {
    /// The call's answer comes without files.
    None,
    /// `auth-user-pass-verify`.
    Auth(AuthFiles),
    /// `client-connect`.
    Connect(ConnectFiles),
}

#[derive(Debug)]
pub(super) struct AuthFiles {
    control: ScratchFile,
    pending: ScratchFile,
    reason: ScratchFile,
}

#[derive(Debug)]
pub(super) struct ConnectFiles {
    config: ScratchFile,
    deferred: ScratchFile,
}

impl AnswerFiles {
    /// Creates the files that a kind of call needs.
    pub(super) fn create(kind: Kind, folder: &Path) -> io::Result<Self> {
        let create = |prefix| ScratchFile::create(folder, prefix);
        Ok(match kind {
            Kind::AuthUserPassVerify => Self::Auth(AuthFiles {
                control: create("acf")?,
                pending: create("apf")?,
                reason: create("afr")?,
            }),
            Kind::ClientConnect => {
                Self::Connect(ConnectFiles { config: create("cc")?, deferred: create("ccr")? })
            }
            _ => Self::None,
        })
    }

    /// Adds the names of the files to a call's arguments and environment.
    pub(super) fn announce(&self, args: &mut Vec<String>, env: &mut Vec<(String, String)>) {
        match self {
            Self::None => {}
            Self::Auth(files) => env.extend([
                files.control.variable("auth_control_file"),
                files.pending.variable("auth_pending_file"),
                files.reason.variable("auth_failed_reason_file"),
            ]),
            Self::Connect(files) => {
                args.push(files.config.name());
                env.extend([
                    files.config.variable("client_connect_config_file"),
                    files.deferred.variable("client_connect_deferred_file"),
                ]);
            }
        }
    }

    /// Returns whether a plugin that returned success has announced a later answer (`2` in
    /// `client_connect_deferred_file`).
    pub(super) fn is_deferred(&self) -> bool {
        matches!(self, Self::Connect(files) if files.deferred.first() == Some(b'2'))
    }

    /// Returns the final outcome of a plugin that answered at once. The files may contain a refusal, a reason or a
    /// configuration.
    pub(super) fn complete(&self, outcome: Outcome) -> Outcome {
        match (self, outcome) {
            (Self::Auth(files), Outcome::Refused { log, .. }) => {
                Outcome::Refused { log, peer: files.reason() }
            }
            (Self::Connect(files), Outcome::Accepted { .. })
                if files.deferred.first() == Some(b'0') =>
            {
                Outcome::refused("client_connect_deferred_file contains 0")
            }
            (Self::Connect(files), Outcome::Accepted { config }) => files.accepted(config),
            (_, outcome) => outcome,
        }
    }

    /// Returns the outcome of a deferred call, if it is there.
    pub(super) fn answer(&self, config: &[String]) -> Option<Outcome> {
        match self {
            Self::None => None,
            Self::Auth(files) => match files.control.first()? {
                b'1' => Some(Outcome::accepted()),
                b'0' => {
                    let log = "auth_control_file contains 0".into();
                    Some(Outcome::Refused { log, peer: files.reason() })
                }
                _ => None,
            },
            Self::Connect(files) => match files.deferred.first()? {
                b'1' => Some(files.accepted(config.to_vec())),
                b'0' => Some(Outcome::refused("client_connect_deferred_file contains 0")),
                _ => None,
            },
        }
    }

    /// Returns the content of `auth_pending_file`, once it is complete.
    pub(super) fn pending(&self) -> Option<Result<Pending, String>> {
        match self {
            Self::Auth(files) => pending(&files.pending.content(MAX_TEXT)),
            Self::None | Self::Connect(_) => None,
        }
    }
}

impl AuthFiles {
    fn reason(&self) -> Option<String> {
        let bytes = self.reason.content(MAX_TEXT);
        let text = printable(String::from_utf8_lossy(&bytes).trim());
        let text: String = text.chars().take(MAX_REASON).collect();
        (!text.is_empty()).then_some(text)
    }
}

impl ConnectFiles {
    fn accepted(&self, mut config: Vec<String>) -> Outcome {
        let bytes = self.config.content(MAX_CONFIG.saturating_add(1));
        let size = config.iter().map(String::len).fold(bytes.len(), usize::saturating_add);
        if size > MAX_CONFIG {
            return Outcome::refused(format!(
                "the client's configuration has more than {MAX_CONFIG} bytes"
            ));
        }
        if !bytes.is_empty() {
            config.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        Outcome::Accepted { config }
    }
}

/// Parses the content of `auth_pending_file`: the seconds, the method and the text, one a line. `None` if lines are
/// missing, because the plugin is still writing.
pub(super) fn pending(bytes: &[u8]) -> Option<Result<Pending, String>> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let (Some(timeout), Some(method), Some(extra)) = (lines.next(), lines.next(), lines.next())
    else {
        return None;
    };
    // Without a line break after it, the last line may be incomplete.
    lines.next()?;
    let (timeout, method, extra) = (timeout.trim(), method.trim(), extra.trim());
    let seconds = timeout.parse().ok().filter(|seconds| (1..=MAX_TIMEOUT).contains(seconds));
    Some(match seconds {
        Some(_) if method.is_empty() || extra.is_empty() => {
            Err("auth_pending_file: the method or the text is empty".into())
        }
        Some(timeout) => {
            Ok(Pending { timeout, method: printable(method), extra: printable(extra) })
        }
        None => {
            Err(format!("auth_pending_file: {:?} is not a number of seconds", printable(timeout)))
        }
    })
}

/// Replaces control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Result<Pending, String>> {
        pending(text.as_bytes())
    }

    #[test]
    fn a_pending_file_has_three_lines() {
        let wanted = Pending {
            timeout: 300,
            method: "openurl".into(),
            extra: "OPEN_URL:https://example.org".into(),
        };
        assert_eq!(parsed("300\nopenurl\nOPEN_URL:https://example.org\n"), Some(Ok(wanted)));
        for half in ["", "300", "300\n", "300\nopenurl\n", "300\nopenurl\nOPEN_URL:http"] {
            assert_eq!(parsed(half), None, "{half:?}");
        }
        for wrong in
            ["0\na\nb\n", "-1\na\nb\n", "86401\na\nb\n", "x\na\nb\n", "5\n\nb\n", "5\na\n\n"]
        {
            assert!(matches!(parsed(wrong), Some(Err(_))), "{wrong:?}");
        }
        let Some(Ok(pending)) = parsed("5\ncr\0text\nE\x1b[0m\n") else { panic!("not parsed") };
        assert_eq!((pending.method.as_str(), pending.extra.as_str()), ("cr_text", "E_[0m"));
    }

    fn files(kind: Kind) -> (tempfile::TempDir, AnswerFiles, Vec<(String, String)>) {
        let dir = tempfile::tempdir().unwrap();
        let files = AnswerFiles::create(kind, dir.path()).unwrap();
        let (mut args, mut env) = (Vec::new(), Vec::new());
        files.announce(&mut args, &mut env);
        (dir, files, env)
    }

    fn write(env: &[(String, String)], name: &str, text: &str) {
        let (_, path) = env.iter().find(|(other, _)| other == name).expect("the variable");
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_password_check_answers_through_its_file() {
        let (dir, files, env) = files(Kind::AuthUserPassVerify);
        assert_eq!(files.answer(&[]), None);
        write(&env, "auth_control_file", "2");
        assert_eq!(files.answer(&[]), None);
        write(&env, "auth_failed_reason_file", "locked\r\nout\n");
        write(&env, "auth_control_file", "0");
        let Some(Outcome::Refused { peer, .. }) = files.answer(&[]) else { panic!("no refusal") };
        assert_eq!(peer.as_deref(), Some("locked__out"));
        write(&env, "auth_control_file", "1");
        assert_eq!(files.answer(&[]), Some(Outcome::accepted()));
        drop(files);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_connect_call_returns_its_configuration() {
        let (_dir, files, env) = files(Kind::ClientConnect);
        let accepted = |config: &[&str]| Outcome::Accepted {
            config: config.iter().map(|text| (*text).to_owned()).collect(),
        };
        assert_eq!(files.complete(accepted(&[])), accepted(&[]));
        write(&env, "client_connect_config_file", "push \"x\"\n");
        assert_eq!(files.complete(accepted(&["first"])), accepted(&["first", "push \"x\"\n"]));
        assert!(!files.is_deferred());
        write(&env, "client_connect_deferred_file", "2");
        assert!(files.is_deferred());
        assert_eq!(files.answer(&[]), None);
        write(&env, "client_connect_deferred_file", "1");
        assert_eq!(files.answer(&["first".into()]), Some(accepted(&["first", "push \"x\"\n"])));
        write(&env, "client_connect_deferred_file", "0");
        assert!(matches!(files.answer(&[]), Some(Outcome::Refused { .. })));
        assert!(matches!(files.complete(accepted(&[])), Outcome::Refused { .. }));
        write(&env, "client_connect_deferred_file", "1");
        write(&env, "client_connect_config_file", &"x".repeat(MAX_CONFIG + 1));
        assert!(matches!(files.answer(&[]), Some(Outcome::Refused { .. })));
    }

    #[test]
    fn a_file_that_was_replaced_by_a_link_or_a_pipe_is_no_answer() {
        let (dir, files, env) = files(Kind::AuthUserPassVerify);
        let control = PathBuf::from(&env.first().unwrap().1);
        let other = dir.path().join("other");
        fs::write(&other, "1").unwrap();
        fs::remove_file(&control).unwrap();
        std::os::unix::fs::symlink(&other, &control).unwrap();
        assert_eq!(files.answer(&[]), None);
        fs::remove_file(&control).unwrap();
        nix::unistd::mkfifo(&control, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(files.answer(&[]), None);
        fs::remove_file(&control).unwrap();
        assert_eq!(files.answer(&[]), None);
    }

    #[test]
    fn files_are_private_and_a_missing_directory_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, _files, env) = files(Kind::AuthUserPassVerify);
        for (_, path) in &env {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let error = AnswerFiles::create(Kind::AuthUserPassVerify, Path::new("/no/where"));
        assert!(error.unwrap_err().to_string().contains("'/no/where' (tmp-dir)"));
    }
}
