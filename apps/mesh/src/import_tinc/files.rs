//! Reads the configuration directory of a tinc net.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use adit_runtime::fault::{Fault, file_fault};
use adit_tinc::config::scripts::{SCRIPTS, host_of};
use adit_tinc::config::{
    ConfigError, Entries, Entry, HostConfig, ServerConfig, Warning, WarningReason,
};
use adit_tinc::name::NodeName;

/// The maximum length of one file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The maximum number of host files.
const MAX_HOSTS: usize = 16_384;

/// The files of a net.
#[derive(Debug)]
pub(super) struct Files {
    /// This node's settings.
    pub(super) server: ServerConfig,
    /// This node.
    pub(super) own: Host,
    /// The other nodes, in the order of their names.
    pub(super) others: Vec<Host>,
    /// The scripts that exist.
    pub(super) scripts: Vec<PathBuf>,
}

/// A node, with the lines about it.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: NodeName,
    /// Its host file. Its own node may have none.
    pub(super) file: PathBuf,
    pub(super) lines: Vec<Entry>,
}

impl Host {
    /// Returns the lines with a variable.
    pub(super) fn values<'a>(&'a self, variable: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.lines.iter().filter(move |line| line.name.eq_ignore_ascii_case(variable))
    }
}

impl Files {
    /// Reads all files, and checks each line.
    ///
    /// # Errors
    /// A file cannot be read, or a line is wrong; the fault names both.
    pub(super) fn read(folder: &Path) -> Result<Self, Fault> {
        let mut entries = Entries::default();
        add(&mut entries, &folder.join("tinc.conf"))?;
        let conf_d = folder.join("conf.d");
        for name in names(&conf_d)?.iter().filter(|name| name.ends_with(".conf")) {
            add(&mut entries, &conf_d.join(name))?;
        }
        let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let own = entries.name(|name| std::env::var(name).ok(), &host_name).map_err(wrong)?;
        let hosts = folder.join("hosts");
        let file = hosts.join(own.as_str());
        if file.exists() {
            add(&mut entries, &file)?;
        }
        let (server, warnings) = ServerConfig::read(&entries).map_err(wrong)?;
        refuse_mistakes(&warnings)?;
        let names = names(&hosts)?;
        let others = names.iter().filter_map(|name| name.parse().ok()).filter(|name| *name != own);
        let others: Vec<NodeName> = others.collect();
        if others.len() > MAX_HOSTS {
            let many = format!("{}: more than {MAX_HOSTS} hosts", hosts.display());
            return Err(Fault::operator(many));
        }
        let others = others.into_iter().map(|name| read_host(&hosts, name));
        let of_hosts =
            names.iter().filter(|name| is_host_script(name)).map(|name| hosts.join(name));
        let scripts = SCRIPTS.iter().map(|name| folder.join(name)).filter(|path| path.exists());
        Ok(Self {
            server,
            own: Host { name: own, file, lines: entries.iter().cloned().collect() },
            others: others.collect::<Result<_, Fault>>()?,
            scripts: scripts.chain(of_hosts).collect(),
        })
    }
}

fn read_host(hosts: &Path, name: NodeName) -> Result<Host, Fault> {
    let file = hosts.join(name.as_str());
    let mut entries = Entries::default();
    let text = add(&mut entries, &file)?;
    HostConfig::read(Entries::default(), &file.to_string_lossy(), &text).map_err(wrong)?;
    Ok(Host { name, file, lines: entries.iter().cloned().collect() })
}

/// A daemon starts in spite of some mistakes, but what their lines mean for a mesh is for their author to say.
fn refuse_mistakes(warnings: &[Warning]) -> Result<(), Fault> {
    let is_mistake = |warning: &&Warning| {
        matches!(warning.reason, WarningReason::Invalid(_) | WarningReason::Limited { .. })
    };
    match warnings.iter().find(is_mistake) {
        Some(mistake) => Err(Fault::operator(mistake.to_string())),
        None => Ok(()),
    }
}

fn is_host_script(name: &str) -> bool {
    host_of(name).is_some_and(|host| host.parse::<NodeName>().is_ok())
}

/// Adds the lines of a file. Returns its text.
fn add(entries: &mut Entries, path: &Path) -> Result<String, Fault> {
    let text = text(path)?;
    entries.add_file(&path.to_string_lossy(), &text).map_err(wrong)?;
    Ok(text)
}

fn text(path: &Path) -> Result<String, Fault> {
    let read = |error: &io::Error| match error.kind() {
        io::ErrorKind::InvalidData => {
            Fault::operator(format!("{}: the file is not UTF-8", path.display()))
        }
        _ => file_fault("cannot read", path, error),
    };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| read(&error))?;
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| read(&error))?;
    if text.len() as u64 > MAX_FILE {
        let long = format!("{}: longer than {MAX_FILE} bytes", path.display());
        return Err(Fault::operator(long));
    }
    Ok(text)
}

/// Returns the names of the files in a folder, in order; none if it does not exist.
fn names(folder: &Path) -> Result<Vec<String>, Fault> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(|error| file_fault("cannot read", folder, &error))?,
    };
    let names = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

fn wrong(error: ConfigError) -> Fault {
    Fault::operator(error.to_string())
}
