//! A net in a temporary folder, and what a command prints there.

use adit_runtime::fault::Fault;
use tempfile::TempDir;

use crate::console::Console;
use crate::net::{Net, NetOptions};

/// The folder of the node `alice`, which knows `bob`.
pub(crate) struct Folder {
    _folder: TempDir,
    pub(crate) net: Net,
}

/// The outputs of a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Printed {
    pub(crate) out: String,
    pub(crate) notes: String,
    pub(crate) error: Option<String>,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = Self::empty();
        folder.write("tinc.conf", "Name = alice\n");
        folder.write("hosts/alice", "");
        folder.write("hosts/bob", "");
        folder
    }

    /// Creates a folder without a configuration.
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Some(folder.path().join("net"));
        let pid_file = Some(folder.path().join("pid"));
        let options = NetOptions { name: None, config, pid_file };
        Self { net: Net::new(&options, None).unwrap(), _folder: folder }
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.net.config.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.net.config.join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub(crate) fn run(
        &self,
        mut input: &[u8],
        force: bool,
        command: impl FnOnce(&Net, &mut Console<'_>) -> Result<(), Fault>,
    ) -> Printed {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut console = Console { input: &mut input, out: &mut out, notes: &mut notes, force };
        let error = command(&self.net, &mut console).err().map(|fault| fault.to_string());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Printed { out: text(out), notes: text(notes), error }
    }
}
