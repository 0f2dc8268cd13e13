//! Finds adit processes in /proc, including those with other directories or users, and those without a control socket
//! or an answer.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The maximum number of processes to examine, so that a full process table does not delay a command.
const MAX_PROCESSES: usize = 65_536;

/// A process that carries traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) user: String,
    /// `server`, `client`, `bridge`, `postgres`, `tinc`, or `openvpn` if the role depends on the configuration.
    pub(super) role: &'static str,
    /// The command line, shortened.
    pub(super) command: String,
    /// The unix sockets on which the process listens.
    pub(super) sockets: Vec<PathBuf>,
}

/// Returns all other adit processes in this network namespace.
pub(super) fn all() -> Vec<Process> {
    let mut found = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().take(MAX_PROCESSES);
    for entry in entries {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid.filter(|pid| *pid != std::process::id()) else { continue };
        if let Some(process) = look_at(pid, &entry.path()) {
            found.insert(pid, process);
        }
    }
    leaders(found)
}

/// Of each group of related processes (a helper and the process that it serves), returns the one that can be queried.
fn leaders(mut found: BTreeMap<u32, Process>) -> Vec<Process> {
    let pids: HashSet<u32> = found.keys().copied().collect();
    let with_socket = found.values().filter(|process| !process.sockets.is_empty());
    let served: HashSet<u32> = with_socket.map(|process| process.parent).collect();
    found.retain(|pid, process| {
        // A process without a socket counts only if it is neither the parent of one with a socket nor a child of another adit.
        !process.sockets.is_empty() || !(served.contains(pid) || pids.contains(&process.parent))
    });
    found.into_values().collect()
}

fn look_at(pid: u32, folder: &Path) -> Option<Process> {
    let words = words(&fs::read(folder.join("cmdline")).ok()?);
    let role = role(&words, || fs::read_link(folder.join("exe")).ok())?;
    let namespace = |path: &Path| fs::read_link(path).ok();
    let (ours, theirs) =
        (namespace(Path::new("/proc/self/ns/net")), namespace(&folder.join("ns/net")));
    if theirs.is_some() && theirs != ours {
        return None;
    }
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    let state = rest.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let parent = rest.next()?.parse().ok()?;
    let uid = fs::metadata(folder).ok()?.uid();
    Some(Process {
        pid,
        parent,
        user: user_name(status_uid(folder).unwrap_or(uid)),
        role,
        command: shortened(&words),
        sockets: sockets(folder),
    })
}

fn words(bytes: &[u8]) -> Vec<OsString> {
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Returns the role of a long-running command line. Returns `None` for another program or a short-lived command.
fn role(words: &[OsString], exe: impl Fn() -> Option<PathBuf>) -> Option<&'static str> {
    let program = Path::new(words.first()?).file_name()?.to_string_lossy().into_owned();
    let word = |at: usize| words.get(at).map(|word| word.to_string_lossy().into_owned());
    if let Some(role) = [("openvpn", "openvpn"), ("tincd", "tinc")]
        .iter()
        .find_map(|(name, role)| (program == *name).then_some(*role))
    {
        let ours = exe()?.file_name()?.to_string_lossy().starts_with("adit");
        return ours.then_some(role);
    }
    if program != "adit" {
        return None;
    }
    let second = word(2).unwrap_or_default();
    match word(1)?.as_str() {
        "server" if matches!(second.as_str(), "up" | "run") => Some("server"),
        "connect" if !words.iter().any(|word| word == "--check") => Some("client"),
        "bridge" => Some("bridge"),
        "openvpn" => Some("openvpn"),
        "postgres" if second == "up" => Some("postgres"),
        _ => None,
    }
}

/// The maximum length of a command line in the output.
const COMMAND_LIMIT: usize = 60;

fn shortened(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    let line = adit_runtime::log::clean(&words.join(" "));
    if line.chars().count() > COMMAND_LIMIT {
        format!("{}...", line.chars().take(COMMAND_LIMIT).collect::<String>())
    } else {
        line
    }
}

/// Returns the effective user from `status`, because the directory of a process with protected memory belongs to root.
fn status_uid(folder: &Path) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

pub(super) fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    user.ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// The flags of a listening socket in /proc/net/unix (`__SO_ACCEPTCON`).
const LISTENS: &str = "00010000";

/// Returns the control sockets on which a process listens, or none if its descriptors are not visible.
fn sockets(folder: &Path) -> Vec<PathBuf> {
    let Ok(descriptors) = fs::read_dir(folder.join("fd")) else { return Vec::new() };
    let links = descriptors.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let inodes: HashSet<String> = links
        .filter_map(|link| {
            let text = link.to_str()?.strip_prefix("socket:[")?;
            Some(text.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string(folder.join("net/unix")).unwrap_or_default();
    let mut paths = listening(&table, &inodes);
    if let Ok(cwd) = fs::read_link(folder.join("cwd")) {
        paths
            .iter_mut()
            .filter(|path| path.is_relative())
            .for_each(|path| *path = cwd.join(&*path));
    }
    paths
}

/// Parses lines with the number, references, protocol, flags, type, state, inode and path.
fn listening(table: &str, inodes: &HashSet<String>) -> Vec<PathBuf> {
    let rows = table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (flags, inode) = (fields.nth(3)?, fields.nth(2)?);
        // The path may contain spaces, and the inode before it is padded.
        let (before, path) = line.split_once(&format!(" {inode} "))?;
        let wanted = flags == LISTENS && inodes.contains(inode) && before.contains(flags);
        wanted.then(|| PathBuf::from(path))
    });
    rows.filter(|path| path.extension().is_some_and(|extension| extension == "sock")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_of(line: &str) -> Option<&'static str> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        role(&words, || Some("/usr/bin/adit".into()))
    }

    #[test]
    fn knows_what_carries_traffic_from_what_only_asks() {
        for (line, role) in [
            ("/usr/bin/adit server run --dir x", Some("server")),
            ("adit server up", Some("server")),
            ("adit connect a.ovpn", Some("client")),
            ("adit connect --check a.ovpn", None),
            ("adit bridge a b --relay", Some("bridge")),
            ("adit openvpn --config x", Some("openvpn")),
            ("openvpn x.conf", Some("openvpn")),
            ("tincd -n vpn -D", Some("tinc")),
            ("adit tinc -n vpn log", None),
            ("adit postgres up", Some("postgres")),
            ("adit status", None),
            ("adit server client list", None),
            ("aditor server run", None),
            ("bash -c adit", None),
        ] {
            assert_eq!(role_of(line), role, "{line}");
        }
        for program in ["openvpn", "tincd"] {
            let words = [program.into(), "x".into()];
            assert_eq!(role(&words, || Some(format!("/usr/sbin/{program}").into())), None);
        }
    }

    #[test]
    fn reads_the_kernels_table_of_unix_sockets() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 27219 /run/adit/server.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 27220 /run/other.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 27219 /run/adit/server.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01   119 run of/mine.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 27221\n";
        let inodes = ["27219", "119"].map(str::to_owned).into_iter().collect();
        let paths = listening(table, &inodes);
        assert_eq!(paths, [Path::new("/run/adit/server.sock"), Path::new("run of/mine.sock")]);
    }

    #[test]
    fn a_helper_and_what_it_serves_are_one() {
        let process = |pid, parent, sockets: &[&str]| Process {
            pid,
            parent,
            user: "root".into(),
            role: "server",
            command: String::new(),
            sockets: sockets.iter().map(PathBuf::from).collect(),
        };
        let found = [
            process(10, 1, &["a.sock"]),
            process(11, 10, &[]),
            process(20, 1, &[]),
            process(21, 20, &["b.sock"]),
            process(30, 1, &[]),
            process(31, 30, &[]),
        ];
        let leaders = leaders(found.into_iter().map(|p| (p.pid, p)).collect());
        let pids: Vec<u32> = leaders.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [10, 21, 30]);
    }
}
