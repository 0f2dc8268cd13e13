//! The requests of a running daemon that need the privileges of its start: taking invitations, creating the host files of new nodes, storing
//! keys that came over the net, and starting the command of `Proxy = exec`. The helper process carries them out or, without one, the daemon
//! itself.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use adit_runtime::helper::{self, Problem, RequestCheck};
use adit_tinc::config::{Entries, HostConfig};
use adit_tinc::invitation::MAX_FILE;
use adit_tinc::join::{Claim, invited_node};
use adit_tinc::keys::PublicKey;
use adit_tinc::name::{MAX_CONFIGURED_NAME, NodeName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::duty::TincDuty;
use crate::conf_file::read_text;
use crate::invite::is_invitation;
use crate::net::Net;

/// The number of nodes whose invitation was taken and that were not admitted yet. The first ones by name are forgotten.
const MAX_INVITED: usize = 1024;

/// The number of keys that are stored while a daemon runs.
const MAX_STORED: usize = 4096;

/// The number of commands of `Proxy = exec` that run at a time.
const MAX_COMMANDS: usize = 64;

/// The number of bytes in which the name of an invited node is found.
const HEAD: usize = 4096;

/// A request that only this daemon has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum TincRequest {
    /// Take the invitation's file of this name, so that no one can use it again, and open it.
    Claim(String),
    /// Create the host file of a node whose invitation was taken.
    Admit {
        /// The new node.
        node: String,
        /// Its public key.
        key: String,
    },
    /// Append the public key of a node, which came over the net, to its host file, unless that has one. The file may be new.
    Store {
        /// The node.
        node: String,
        /// Its public key.
        key: String,
    },
    /// Start the command of `Proxy = exec`. The answer is a descriptor of its input and output.
    Connect {
        /// The node to connect to.
        node: String,
        /// The node's address.
        address: SocketAddr,
    },
}

impl TincRequest {
    /// Checks the words of a request, which become parts of paths and of an environment.
    fn check(&self) -> Result<(), String> {
        let is_node = |node: &str| node.len() <= MAX_CONFIGURED_NAME && crate::is_node_name(node);
        match self {
            Self::Claim(file) if !is_invitation(file) => {
                Err("claim: an invitation's file has another name".to_owned())
            }
            Self::Admit { node, .. } | Self::Store { node, .. } | Self::Connect { node, .. }
                if !is_node(node) =>
            {
                Err("the node's name is invalid".to_owned())
            }
            Self::Admit { key, .. } | Self::Store { key, .. }
                if key.parse::<PublicKey>().is_err() =>
            {
                Err("the public key is invalid".to_owned())
            }
            Self::Claim(_) | Self::Admit { .. } | Self::Store { .. } | Self::Connect { .. } => {
                Ok(())
            }
        }
    }
}

/// The helper's check of requests.
#[derive(Debug)]
pub(super) struct TincRequestCheck;

impl RequestCheck for TincRequestCheck {
    fn check(&self, request: &Value) -> Result<(), String> {
        let request = serde_json::from_value::<TincRequest>(request.clone());
        request.map_err(|error| error.to_string())?.check()
    }
}

/// Carries out requests, in the helper or in the daemon itself.
#[derive(Debug, Default)]
pub(super) struct RequestHandler {
    /// The nodes whose invitation was taken.
    invited: BTreeSet<NodeName>,
    /// The number of keys that were stored.
    stored: usize,
    /// The number of commands that run.
    commands: Arc<AtomicUsize>,
}

impl RequestHandler {
    /// Carries out a request. Returns a descriptor if it has one.
    pub(super) fn carry_out(
        &mut self,
        duty: &TincDuty,
        request: &TincRequest,
    ) -> Result<Option<OwnedFd>, Problem> {
        request.check().map_err(Problem::Refused)?;
        let net = duty.net();
        let system = |error: io::Error| Problem::of(&error);
        match request {
            TincRequest::Claim(file) => self.claim(&net, file).map(Some).map_err(system),
            TincRequest::Admit { node, key } => {
                let node: NodeName = node.parse().map_err(|_| refused("the node's name"))?;
                // A compromised daemon could otherwise let any node into the net.
                if !self.invited.remove(&node) {
                    return Err(refused("admit: the node was not invited"));
                }
                create_host(&net, &node, key).map_err(system)?;
                Ok(None)
            }
            TincRequest::Store { node, key } => {
                let node: NodeName = node.parse().map_err(|_| refused("the node's name"))?;
                if node.as_str() == duty.name || self.stored >= MAX_STORED {
                    return Err(refused("store: this node's own key, or too many"));
                }
                store_key(&net, &node, key).map_err(system)?;
                self.stored = self.stored.saturating_add(1);
                Ok(None)
            }
            TincRequest::Connect { node, address } => match &duty.proxy_command {
                None => Err(refused("connect: the configuration has no command")),
                Some(command) => {
                    self.start(duty, command, node, *address).map(Some).map_err(system)
                }
            },
        }
    }

    /// Renames an invitation's file, which only one of several can, opens it and removes it.
    fn claim(&mut self, net: &Net, file: &str) -> io::Result<OwnedFd> {
        let path = net.invitations().join(file);
        let used = path.with_extension("used");
        fs::rename(&path, &used)?;
        let opened = File::open(&used);
        fs::remove_file(&used)?;
        let opened = opened?;
        let mut head = [0; HEAD];
        let len = opened.read_at(&mut head, 0)?;
        let head = String::from_utf8_lossy(head.get(..len).unwrap_or_default());
        if let Ok(node) = invited_node(&head) {
            self.invited.insert(node);
            if self.invited.len() > MAX_INVITED {
                self.invited.pop_first();
            }
        }
        Ok(opened.into())
    }

    /// Starts the command of `Proxy = exec`. It ends by itself when its input does.
    fn start(
        &self,
        duty: &TincDuty,
        command: &str,
        node: &str,
        address: SocketAddr,
    ) -> io::Result<OwnedFd> {
        if self.commands.load(Relaxed) >= MAX_COMMANDS {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error()));
        }
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let output = theirs.try_clone()?;
        let mut child = tokio::process::Command::new("/bin/sh")
            .args(["-c", command])
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("NETNAME", duty.net_name.as_deref().unwrap_or_default())
            .env("NAME", &duty.name)
            .env("NODE", node)
            .env("REMOTEADDRESS", address.ip().to_string())
            .env("REMOTEPORT", address.port().to_string())
            .current_dir(&duty.config)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(output)))
            .process_group(0)
            .spawn()?;
        self.commands.fetch_add(1, Relaxed);
        let commands = Arc::clone(&self.commands);
        tokio::spawn(async move {
            let _ = child.wait().await;
            commands.fetch_sub(1, Relaxed);
        });
        Ok(ours.into())
    }
}

fn refused(why: &str) -> Problem {
    Problem::Refused(why.to_owned())
}

/// Creates a host file that does not exist.
fn create_host(net: &Net, node: &NodeName, key: &str) -> io::Result<()> {
    let path = net.host_file(node);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path)?;
    let written = file
        .write_all(format!("Ed25519PublicKey = {key}\n").as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(&path);
    }
    written
}

/// Appends a key to the host file of a node that has none, as tinc does.
fn store_key(net: &Net, node: &NodeName, key: &str) -> io::Result<()> {
    let path = net.host_file(node);
    let text = match read_text(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return create_host(net, node, key);
        }
        read => read?,
    };
    let (host, _) = HostConfig::read_other(Entries::default(), "", &text, |_| {});
    // A key from the net must not replace one that its owner has passed on.
    if host.public_key.is_some() || host.public_key_file.is_some() || host.unusable_key {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::EXIST.raw_os_error()));
    }
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut file = OpenOptions::new().append(true).open(&path)?;
    file.write_all(format!("{newline}Ed25519PublicKey = {key}\n").as_bytes())?;
    file.sync_all()
}

/// The daemon's side of the requests.
#[derive(Debug)]
pub(super) struct Privileged {
    duty: TincDuty,
    handler: RequestHandler,
}

impl Privileged {
    pub(super) fn new(duty: TincDuty) -> Self {
        Self { duty, handler: RequestHandler::default() }
    }

    pub(super) fn duty(&self) -> &TincDuty {
        &self.duty
    }

    fn call(&mut self, request: &TincRequest) -> io::Result<Option<OwnedFd>> {
        match helper::current() {
            None => Ok(self.handler.carry_out(&self.duty, request)?),
            Some(helper) => {
                let request = helper::Request::own(request)
                    .map_err(|fault| io::Error::other(fault.to_string()))?;
                let (_, descriptors) = helper.call(request, &[])?;
                Ok(descriptors.into_iter().next())
            }
        }
    }

    /// Takes an invitation, so that it cannot be used again.
    pub(super) fn claim(&mut self, file: &str) -> Claim {
        match self.call(&TincRequest::Claim(file.to_owned())) {
            Ok(Some(opened)) => read_invitation(File::from(opened)).unwrap_or(Claim::Unreadable),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Claim::Missing,
            Ok(None) => Claim::Unreadable,
            Err(error) => {
                tracing::warn!("invitation {file}: {error}");
                Claim::Unreadable
            }
        }
    }

    /// Creates the host file of a new node.
    pub(super) fn admit(&mut self, node: &NodeName, key: &PublicKey) -> io::Result<()> {
        let request = TincRequest::Admit { node: node.to_string(), key: key.to_string() };
        self.call(&request).map(drop)
    }

    /// Stores the key of a node, which came over the net.
    pub(super) fn store_key(&mut self, node: &NodeName, key: &PublicKey) -> io::Result<()> {
        let request = TincRequest::Store { node: node.to_string(), key: key.to_string() };
        self.call(&request).map(drop)
    }

    /// Starts the command of `Proxy = exec`. Returns its input and output.
    pub(super) fn connect(
        &mut self,
        node: &NodeName,
        address: SocketAddr,
    ) -> io::Result<tokio::net::UnixStream> {
        let request = TincRequest::Connect { node: node.to_string(), address };
        let opened = self.call(&request)?.ok_or(io::ErrorKind::InvalidData)?;
        tokio::net::UnixStream::from_std(UnixStream::from(opened))
    }
}

fn read_invitation(file: File) -> io::Result<Claim> {
    let written = file.metadata()?.modified()?;
    // A file from the future is a new one.
    let age = SystemTime::now().duration_since(written).unwrap_or_default();
    let mut content = String::new();
    // The inviter refuses a longer one.
    let most = u64::try_from(MAX_FILE).unwrap_or(u64::MAX).saturating_add(1);
    file.take(most).read_to_string(&mut content)?;
    Ok(Claim::Found { content, age })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use adit_tinc::keys::PrivateKey;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::testing::Folder;

    const FILE: &str = "abcdefghijklmnopqrstuv-_";

    fn key() -> PublicKey {
        PrivateKey::from_seed(&[7; 32]).public()
    }

    fn privileged(folder: &Folder, command: Option<&str>) -> Privileged {
        let duty = TincDuty {
            proxy_command: command.map(str::to_owned),
            ..super::super::duty::tests::duty(folder)
        };
        Privileged::new(duty)
    }

    fn invitation(folder: &Folder) {
        folder.write(&format!("invitations/{FILE}"), "Name = carol\nConnectTo = alice\n");
    }

    #[test]
    fn an_invitation_is_taken_once() {
        let folder = Folder::new();
        invitation(&folder);
        let mut privileged = privileged(&folder, None);
        let Claim::Found { content, age } = privileged.claim(FILE) else { panic!("not found") };
        assert_eq!(content, "Name = carol\nConnectTo = alice\n");
        assert!(age < Duration::from_secs(3600));
        assert_eq!(privileged.claim(FILE), Claim::Missing);
        let left = fs::read_dir(folder.net.invitations()).unwrap().count();
        assert_eq!(left, 0, "also the renamed file is gone");
    }

    #[test]
    fn an_invitation_that_is_no_text_is_unreadable() {
        let folder = Folder::new();
        invitation(&folder);
        let path = folder.net.invitations().join(FILE);
        fs::write(&path, b"Name = carol\n\xff").unwrap();
        assert_eq!(privileged(&folder, None).claim(FILE), Claim::Unreadable);
    }

    #[test]
    fn only_an_invited_node_is_admitted_once_and_over_no_file() {
        let folder = Folder::new();
        let mut privileged = privileged(&folder, None);
        let carol: NodeName = "carol".parse().unwrap();
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        assert_eq!(
            kind(privileged.admit(&carol, &key())),
            io::ErrorKind::PermissionDenied,
            "not invited"
        );
        invitation(&folder);
        privileged.claim(FILE);
        let bob = "bob".parse().unwrap();
        assert_eq!(
            kind(privileged.admit(&bob, &key())),
            io::ErrorKind::PermissionDenied,
            "another node was invited"
        );
        privileged.admit(&carol, &key()).unwrap();
        assert_eq!(folder.read("hosts/carol"), format!("Ed25519PublicKey = {}\n", key()));
        let mode = fs::metadata(folder.net.host_file(&carol)).unwrap().permissions().mode();
        assert_eq!(mode & 0o600, 0o600);
        fs::remove_file(folder.net.host_file(&carol)).unwrap();
        assert_eq!(
            kind(privileged.admit(&carol, &key())),
            io::ErrorKind::PermissionDenied,
            "a second time"
        );
        invitation(&folder);
        privileged.claim(FILE);
        folder.write("hosts/carol", "Port = 7\n");
        assert_eq!(kind(privileged.admit(&carol, &key())), io::ErrorKind::AlreadyExists);
        assert_eq!(folder.read("hosts/carol"), "Port = 7\n");
    }

    /// Specification 9.4: tinc creates the file as well.
    #[test]
    fn a_key_from_the_net_is_stored_unless_there_is_one() {
        let folder = Folder::new();
        let mut privileged = privileged(&folder, None);
        let mut store = |node: &str| privileged.store_key(&node.parse().unwrap(), &key());
        let line = format!("Ed25519PublicKey = {}\n", key());
        for (before, expected) in [
            (None, line.clone()),
            (Some(""), line.clone()),
            (Some("Port = 7\n"), format!("Port = 7\n{line}")),
            (Some("Port = 7"), format!("Port = 7\n{line}")),
        ] {
            let _ = fs::remove_file(folder.net.config.join("hosts/bob"));
            before.iter().for_each(|text| folder.write("hosts/bob", text));
            store("bob").unwrap();
            assert_eq!(folder.read("hosts/bob"), expected);
            let node = "bob".parse().unwrap();
            assert_eq!(crate::keys::read_public(&folder.net, &node).unwrap(), key());
        }
        for text in [
            line.as_str(),
            "Ed25519PublicKey = damaged\n",
            "Ed25519PublicKeyFile = bob.pub\n",
            "-----BEGIN ED25519 PUBLIC KEY-----\nx\n-----END ED25519 PUBLIC KEY-----\n",
        ] {
            folder.write("hosts/bob", text);
            assert_eq!(store("bob").unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{text}");
            assert_eq!(folder.read("hosts/bob"), text);
        }
        assert_eq!(store("alice").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(folder.read("hosts/alice"), "");
    }

    #[test]
    fn a_bounded_number_of_keys_is_stored() {
        let folder = Folder::new();
        let mut privileged = privileged(&folder, None);
        privileged.handler.stored = MAX_STORED - 1;
        privileged.store_key(&"bob".parse().unwrap(), &key()).unwrap();
        let refused = privileged.store_key(&"carol".parse().unwrap(), &key()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(!folder.net.config.join("hosts/carol").exists());
    }

    #[test]
    fn each_word_of_a_request_is_checked() {
        let check = |request: &TincRequest| {
            TincRequestCheck.check(&serde_json::to_value(request).unwrap()).map_err(|_| ())
        };
        let claim = |file: &str| check(&TincRequest::Claim(file.to_owned()));
        assert_eq!(claim(FILE), Ok(()));
        for file in ["ed25519_key.priv", "../../tinc.conf", "abcdefghijklmnopqrstuv/_", ""] {
            assert_eq!(claim(file), Err(()), "{file}");
        }
        let admit = |node: &str, key: &str| {
            check(&TincRequest::Admit { node: node.to_owned(), key: key.to_owned() })
        };
        let good = key().to_string();
        assert_eq!(admit("carol", &good), Ok(()));
        assert_eq!(admit("../carol", &good), Err(()));
        assert_eq!(admit(&"c".repeat(MAX_CONFIGURED_NAME + 1), &good), Err(()));
        assert_eq!(admit("carol", &format!("{good}\nSubnet = 0.0.0.0/0")), Err(()));
        let store = |node: &str, key: &str| {
            check(&TincRequest::Store { node: node.to_owned(), key: key.to_owned() })
        };
        assert_eq!(store("carol", &good), Ok(()));
        assert_eq!(store("../carol", &good), Err(()));
        assert_eq!(store("carol", &format!("{good}\nSubnet = 0.0.0.0/0")), Err(()));
        let address = "192.0.2.1:655".parse().unwrap();
        let connect = |node: &str| check(&TincRequest::Connect { node: node.to_owned(), address });
        assert_eq!((connect("bob"), connect("b b")), (Ok(()), Err(())));
        assert!(TincRequestCheck.check(&serde_json::json!({ "remove": "x" })).is_err());
    }

    #[tokio::test]
    async fn a_command_has_the_connection_and_its_environment() {
        let folder = Folder::new();
        let command = "read line; echo \"$line $NAME $NODE $REMOTEADDRESS $REMOTEPORT ${HOME:-none}\"; exec cat";
        let mut privileged = privileged(&folder, Some(command));
        let address = "[2001:db8::1]:655".parse().unwrap();
        let mut stream = privileged.connect(&"bob".parse().unwrap(), address).unwrap();
        stream.write_all(b"hello\nmore").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "hello alice bob 2001:db8::1 655 none\nmore");
    }

    #[tokio::test]
    async fn commands_are_bounded_and_only_the_configured_one_runs() {
        let folder = Folder::new();
        let bob = "bob".parse().unwrap();
        let address = "192.0.2.1:655".parse().unwrap();
        let mut without = privileged(&folder, None);
        let error = without.connect(&bob, address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let mut privileged = privileged(&folder, Some("exec cat"));
        let streams: Vec<_> =
            (0..MAX_COMMANDS).map(|_| privileged.connect(&bob, address).unwrap()).collect();
        assert!(privileged.connect(&bob, address).is_err());
        drop(streams);
        // The commands end with their input.
        while privileged.connect(&bob, address).is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
