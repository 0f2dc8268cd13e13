//! `client-config-dir`: per-client files by the server's operator, read when the client connects.

use std::future::ready;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_engine::auth::{ClientParams, Rejection};
use adit_openvpn::config::{ClientFile, ClientRules, client_file_name};
use adit_runtime::helper::files;

use super::file_thread::FileThread;
use super::programs::merged;
use super::{Check, ClientFacts, ParamsFuture};

/// One byte more than a client's file may have, so that a larger file is refused when it is parsed.
const FILE_LIMIT: u64 = (64 << 10) + 1;

/// The file for clients without a file of their own.
const DEFAULT: &str = "DEFAULT";

/// The directory, with the thread that reads from it.
pub(crate) struct ClientConfigDir {
    source: Source,
    thread: FileThread,
}

#[derive(Clone, Debug)]
struct Source {
    folder: PathBuf,
    exclusive: bool,
    rules: ClientRules,
}

impl ClientConfigDir {
    pub(super) fn new(
        folder: PathBuf,
        exclusive: bool,
        rules: ClientRules,
        thread: FileThread,
    ) -> Self {
        Self { source: Source { folder, exclusive, rules }, thread }
    }
}

impl Check for ClientConfigDir {
    fn reads_certificates(&self) -> bool {
        false
    }

    fn parameters(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        let (source, name) = (self.source.clone(), facts.identity.common_name.clone());
        let renegotiation = facts.identity.renegotiation;
        let read = self.thread.run(move || {
            if renegotiation {
                // The session keeps its parameters; only a client that may not have a session any more loses it.
                return source.demand_file(&name).map(|()| ClientParams::default());
            }
            source.parameters(&name)
        });
        Box::pin(async move {
            let read = read.await.unwrap_or_else(Err);
            let own =
                read.map_err(|reason| Rejection::from(format!("client-config-dir: {reason}")))?;
            let disabled = params.disabled || own.disabled;
            Ok(ClientParams { disabled, ..merged(params, own) })
        })
    }

    /// Refuses a client whose file says `disable`. As in openvpn, such a client has an address by now, and the programs
    /// take note of its end.
    fn connect(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        let name = &facts.identity.common_name;
        let decided = if params.disabled {
            Err(format!("client-config-dir: the file of '{name}' says disable").into())
        } else {
            Ok(params)
        };
        Box::pin(ready(decided))
    }
}

impl Source {
    fn parameters(&self, name: &str) -> Result<ClientParams, String> {
        match self.find(name)? {
            Some(file) => Ok(ClientParams { disabled: file.disabled, ..file.grant }),
            None => Ok(ClientParams::default()),
        }
    }

    /// Refuses a client without a file of its own if every client needs one.
    fn demand_file(&self, name: &str) -> Result<(), String> {
        let own = own_file(name)?;
        if !self.exclusive || (own != DEFAULT && contents(&self.folder.join(own))?.is_some()) {
            return Ok(());
        }
        Err(self.no_file(name, own))
    }

    fn no_file(&self, name: &str, own: &str) -> String {
        let path = self.folder.join(own);
        format!("ccd-exclusive: there is no file for '{name}': make {}", path.display())
    }

    /// Finds the client's own file, or the default file for clients without one.
    fn find(&self, name: &str) -> Result<Option<ClientFile>, String> {
        let own = own_file(name)?;
        // A client with the default file's name has no file of its own, and the default file does not admit it.
        if own != DEFAULT
            && let Some(file) = self.read(own)?
        {
            return Ok(Some(file));
        }
        if self.exclusive {
            return Err(self.no_file(name, own));
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

/// Returns the name of a client's own file.
fn own_file(name: &str) -> Result<&str, String> {
    // A file meant to keep the client out could not be found.
    client_file_name(name).ok_or_else(|| {
        format!(
            "no file can be named as the client '{name}': issue its certificate with letters, digits and \
             -_.@ as common name"
        )
    })
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

    use adit_engine::Identity;

    use super::*;
    use crate::openvpn::authorization::tests::facts_of;

    fn source(exclusive: bool) -> (tempfile::TempDir, Source) {
        let folder = tempfile::tempdir().unwrap();
        let rules = ClientRules::default();
        let source = Source { folder: folder.path().to_owned(), exclusive, rules };
        (folder, source)
    }

    fn refusal(source: &Source, name: &str) -> String {
        source.parameters(name).unwrap_err()
    }

    #[test]
    fn a_client_gets_its_own_file_or_the_default_or_nothing() {
        let (folder, source) = source(false);
        assert_eq!(source.parameters("alice").unwrap().push, Vec::<String>::new());
        fs::write(folder.path().join("DEFAULT"), "push \"route 10.1.0.0\"").unwrap();
        assert_eq!(source.parameters("alice").unwrap().push, ["route 10.1.0.0"]);
        fs::write(folder.path().join("alice"), "ifconfig-push 10.8.0.9 255.255.255.0").unwrap();
        let own = source.parameters("alice").unwrap();
        assert!(own.push.is_empty() && own.ifconfig4.is_some());
        assert_eq!(source.parameters("bob").unwrap().push, ["route 10.1.0.0"]);
        // The next connection uses the file's new content.
        fs::write(folder.path().join("alice"), "disable").unwrap();
        assert!(source.parameters("alice").unwrap().disabled);
    }

    #[test]
    fn exclusive_means_a_file_of_its_own() {
        let (folder, source) = source(true);
        fs::write(folder.path().join("DEFAULT"), "").unwrap();
        assert!(refusal(&source, "alice").contains("ccd-exclusive"));
        assert!(refusal(&source, "DEFAULT").contains("ccd-exclusive"), "it is everybody's");
        fs::write(folder.path().join("alice"), "").unwrap();
        assert!(source.parameters("alice").unwrap().push.is_empty());
    }

    /// A renegotiation does not read the file, which may be half written, but needs it.
    #[test]
    fn a_renegotiation_needs_the_file_only() {
        let (folder, source) = source(true);
        assert!(source.demand_file("alice").unwrap_err().contains("ccd-exclusive"));
        fs::write(folder.path().join("alice"), "push \"route").unwrap();
        assert_eq!(source.demand_file("alice"), Ok(()));
        assert!(source.demand_file("DEFAULT").is_err());
        let lax = Source { exclusive: false, ..source };
        assert_eq!(lax.demand_file("bob"), Ok(()));
    }

    #[test]
    fn what_cannot_be_read_or_understood_keeps_the_client_out() {
        let (folder, source) = source(false);
        fs::write(folder.path().join("alice"), "\nup /bin/sh\n").unwrap();
        let reason = refusal(&source, "alice");
        assert!(reason.contains("alice:2: up: "), "{reason}");
        assert_eq!(reason.lines().count(), 1, "one line of the log: {reason}");
        fs::create_dir(folder.path().join("bob")).unwrap();
        assert!(refusal(&source, "bob").contains("no plain file"));
        fs::write(folder.path().join("carol"), vec![b'#'; 70_000]).unwrap();
        assert!(refusal(&source, "carol").contains("too large"));
    }

    #[test]
    fn names_that_lead_out_of_the_directory_are_refused() {
        let (folder, mut source) = source(false);
        fs::write(folder.path().join("secret"), "push \"route 10.1.0.0\"").unwrap();
        source.folder = folder.path().join("ccd");
        fs::create_dir(&source.folder).unwrap();
        for name in ["../secret", "..", ".", "/etc/passwd", "a/../../secret", "x\0y", ""] {
            assert!(refusal(&source, name).contains("no file can be named"), "{name:?}");
        }
    }

    #[tokio::test]
    async fn files_are_read_by_a_thread() {
        let (folder, Source { folder: path, exclusive, rules }) = source(false);
        fs::write(folder.path().join("alice"), "disable").unwrap();
        let files = ClientConfigDir::new(path, exclusive, rules, FileThread::default());
        let who = Identity { common_name: "alice".into(), ..Identity::default() };
        let facts = facts_of(who);
        let disabled = files.parameters(&facts, ClientParams::default()).await.unwrap();
        // It is refused once it has its addresses, and no other check is asked.
        let refused = files.connect(&facts, disabled).await.unwrap_err();
        assert_eq!(refused.log, "client-config-dir: the file of 'alice' says disable");
        assert!(files.connect(&facts, ClientParams::default()).await.is_ok());
    }
}
