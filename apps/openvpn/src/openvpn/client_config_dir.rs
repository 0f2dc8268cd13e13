//! `client-config-dir`: per-client files by the server's operator, read when the client connects.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};

use adit_engine::{Identity, auth};
use adit_openvpn::config::{ClientFile, ClientRules, client_file_name};
use tokio::sync::oneshot;

use adit_runtime::authorize::{Authorizer, PendingSender, ResponseFuture};
use adit_runtime::helper::files;

/// The maximum number of clients that wait for their files: as many as may wait for any response.
const WAITING: usize = adit_runtime::driver::QUESTION_LIMIT;

/// One byte more than a client's file may have, so that a larger file is refused when it is parsed.
const FILE_LIMIT: u64 = (64 << 10) + 1;

/// The file for clients without a file of their own.
const DEFAULT: &str = "DEFAULT";

/// The directory, with the thread that reads from it.
///
/// Files are read by a dedicated thread, so a file system that hangs delays only the clients whose files are on it. The
/// first client starts the thread, after the process has dropped its privileges.
pub(super) struct ClientConfigDir {
    source: Source,
    thread: Mutex<Option<SyncSender<AuthJob>>>,
}

#[derive(Clone, Debug)]
struct Source {
    folder: PathBuf,
    exclusive: bool,
    rules: ClientRules,
}

struct AuthJob {
    name: String,
    reply: oneshot::Sender<auth::Response>,
}

impl ClientConfigDir {
    pub(super) fn new(folder: PathBuf, exclusive: bool, rules: ClientRules) -> Self {
        Self { source: Source { folder, exclusive, rules }, thread: Mutex::new(None) }
    }

    fn submit(&self, job: AuthJob) -> Result<(), String> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*thread {
            Some(sender) => sender.clone(),
            None => {
                let (sender, jobs) = sync_channel(WAITING);
                let source = self.source.clone();
                let started = std::thread::Builder::new()
                    .name("client-files".into())
                    .spawn(move || serve(&source, &jobs));
                started.map_err(|e| format!("client-config-dir: cannot start a thread: {e}"))?;
                thread.insert(sender).clone()
            }
        };
        sender.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => {
                "client-config-dir: too many clients wait for their files".into()
            }
            TrySendError::Disconnected(_) => "client-config-dir: its reader has ended".into(),
        })
    }
}

fn serve(source: &Source, jobs: &Receiver<AuthJob>) {
    while let Ok(AuthJob { name, reply }) = jobs.recv() {
        // The session that sent the request may have ended.
        let _ = reply.send(source.authorize_name(&name));
    }
}

impl Authorizer for ClientConfigDir {
    fn authorize(&self, identity: Box<Identity>, _pending: PendingSender) -> ResponseFuture {
        let (reply, answer) = oneshot::channel();
        let submitted = self.submit(AuthJob { name: identity.common_name, reply });
        Box::pin(async move {
            match submitted {
                Ok(()) => answer.await.unwrap_or_else(|_| {
                    auth::Response::Reject("client-config-dir: its reader ended".into())
                }),
                Err(reason) => auth::Response::Reject(reason.into()),
            }
        })
    }
}

impl Source {
    fn authorize_name(&self, name: &str) -> auth::Response {
        match self.find(name) {
            Ok(Some(file)) if file.disabled => auth::Response::Reject(
                format!("client-config-dir: the file of '{name}' says disable").into(),
            ),
            Ok(Some(file)) => auth::Response::Accept(file.grant),
            Ok(None) => auth::Response::Accept(auth::ClientParams::default()),
            Err(reason) => auth::Response::Reject(format!("client-config-dir: {reason}").into()),
        }
    }

    /// Finds the client's own file, or the default file for clients without one.
    fn find(&self, name: &str) -> Result<Option<ClientFile>, String> {
        let Some(own) = client_file_name(name) else {
            // A file meant to keep the client out could not be found.
            return Err(format!(
                "no file can be named as the client '{name}': issue its certificate with letters, \
                 digits and -_.@ as common name"
            ));
        };
        // A client with the default file's name has no file of its own, and the default file does not admit it.
        if own != DEFAULT
            && let Some(file) = self.read(own)?
        {
            return Ok(Some(file));
        }
        if self.exclusive {
            return Err(format!(
                "ccd-exclusive: there is no file for '{name}': make {}",
                self.folder.join(own).display()
            ));
        }
        self.read(DEFAULT)
    }

    fn read(&self, file: &str) -> Result<Option<ClientFile>, String> {
        let path = self.folder.join(file);
        let Some(bytes) = contents(&path)? else { return Ok(None) };
        let shown = path.display().to_string();
        let parsed = ClientFile::parse(&shown, &bytes, &self.rules);
        parsed.map(Some).map_err(|error| error.to_string().replace("\n ", ";"))
    }
}

/// Reads a plain file; `None` if it does not exist.
fn contents(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let problem = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let file = match files::open_at_once(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(problem(e)),
    };
    if !file.metadata().map_err(problem)?.is_file() {
        return Err(format!("{} is no plain file", path.display()));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT).read_to_end(&mut bytes).map_err(problem)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn source(exclusive: bool) -> (tempfile::TempDir, Source) {
        let folder = tempfile::tempdir().unwrap();
        let rules = ClientRules::default();
        let source = Source { folder: folder.path().to_owned(), exclusive, rules };
        (folder, source)
    }

    fn refusal(reply: auth::Response) -> String {
        match reply {
            auth::Response::Reject(reason) => reason.log,
            other => panic!("{other:?}"),
        }
    }

    fn grant(reply: auth::Response) -> auth::ClientParams {
        match reply {
            auth::Response::Accept(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_client_gets_its_own_file_or_the_default_or_nothing() {
        let (folder, source) = source(false);
        assert_eq!(grant(source.authorize_name("alice")).push, Vec::<String>::new());
        fs::write(folder.path().join("DEFAULT"), "push \"route 10.1.0.0\"").unwrap();
        assert_eq!(grant(source.authorize_name("alice")).push, ["route 10.1.0.0"]);
        fs::write(folder.path().join("alice"), "ifconfig-push 10.8.0.9 255.255.255.0").unwrap();
        let own = grant(source.authorize_name("alice"));
        assert!(own.push.is_empty() && own.ifconfig4.is_some());
        assert_eq!(grant(source.authorize_name("bob")).push, ["route 10.1.0.0"]);
        // The next connection uses the file's new content.
        fs::write(folder.path().join("alice"), "disable").unwrap();
        assert!(refusal(source.authorize_name("alice")).contains("disable"));
    }

    #[test]
    fn exclusive_means_a_file_of_its_own() {
        let (folder, source) = source(true);
        fs::write(folder.path().join("DEFAULT"), "").unwrap();
        assert!(refusal(source.authorize_name("alice")).contains("ccd-exclusive"));
        assert!(
            refusal(source.authorize_name("DEFAULT")).contains("ccd-exclusive"),
            "it is everybody's"
        );
        fs::write(folder.path().join("alice"), "").unwrap();
        assert!(grant(source.authorize_name("alice")).push.is_empty());
    }

    #[test]
    fn what_cannot_be_read_or_understood_keeps_the_client_out() {
        let (folder, source) = source(false);
        fs::write(folder.path().join("alice"), "\nup /bin/sh\n").unwrap();
        let reason = refusal(source.authorize_name("alice"));
        assert!(reason.contains("alice:2: up: "), "{reason}");
        assert_eq!(reason.lines().count(), 1, "one line of the log: {reason}");
        fs::create_dir(folder.path().join("bob")).unwrap();
        assert!(refusal(source.authorize_name("bob")).contains("no plain file"));
        fs::write(folder.path().join("carol"), vec![b'#'; 70_000]).unwrap();
        assert!(refusal(source.authorize_name("carol")).contains("too large"));
    }

    #[test]
    fn names_that_lead_out_of_the_directory_are_refused() {
        let (folder, mut source) = source(false);
        fs::write(folder.path().join("secret"), "push \"route 10.1.0.0\"").unwrap();
        source.folder = folder.path().join("ccd");
        fs::create_dir(&source.folder).unwrap();
        for name in ["../secret", "..", ".", "/etc/passwd", "a/../../secret", "x\0y", ""] {
            assert!(
                refusal(source.authorize_name(name)).contains("no file can be named"),
                "{name:?}"
            );
        }
    }

    /// If a file system hangs, only clients whose files are on it wait; their number is limited.
    #[tokio::test]
    async fn who_must_wait_does_not_hold_up_the_caller() {
        let (_folder, source) = source(false);
        let files = ClientConfigDir { source, thread: Mutex::new(None) };
        let (sender, jobs) = sync_channel(2);
        *files.thread.lock().unwrap() = Some(sender);
        let who = || Box::new(Identity { common_name: "alice".into(), ..Identity::default() });
        let waiting: Vec<ResponseFuture> =
            (0..2).map(|_| files.authorize(who(), PendingSender::none())).collect();
        assert!(refusal(files.authorize(who(), PendingSender::none()).await).contains("too many"));
        drop((jobs, waiting));
        assert!(refusal(files.authorize(who(), PendingSender::none()).await).contains("has ended"));
    }

    #[tokio::test]
    async fn files_are_read_by_a_thread_that_starts_with_the_first_client() {
        let (folder, source) = source(false);
        fs::write(folder.path().join("alice"), "disable").unwrap();
        let files = ClientConfigDir { source, thread: Mutex::new(None) };
        let who = Box::new(Identity { common_name: "alice".into(), ..Identity::default() });
        assert!(refusal(files.authorize(who, PendingSender::none()).await).contains("disable"));
    }
}
