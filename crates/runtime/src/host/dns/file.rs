//! Replaces /etc/resolv.conf atomically, and restores it from the file's own comments.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown, symlink};
use std::path::{Path, PathBuf};

use nix::libc;

use super::plan::DnsPlan;
use super::resolv_conf::{self, GeneratedFile, Original, Owner};
use crate::host::owner::began;

/// The maximum number of bytes that are read from a resolv.conf.
pub(super) const SIZE_LIMIT: u64 = 64 * 1024;

/// The maximum number of stacked tunnels whose processes were killed.
const LAYERS: usize = 8;

pub(super) fn path(root: &Path) -> PathBuf {
    root.join("etc/resolv.conf")
}

/// Reads the file, following a symbolic link.
pub(super) fn content(root: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path(root))?.take(SIZE_LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file's signature: the device, inode, size and time of the link and of its target.
pub(super) type Signature = [(u64, u64, u64, i64, i64); 2];

/// Returns the file's current signature.
pub(super) fn signature(root: &Path) -> Option<Signature> {
    let of =
        |data: fs::Metadata| (data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec());
    let path = path(root);
    let link = of(fs::symlink_metadata(&path).ok()?);
    Some([link, fs::metadata(&path).map_or(link, of)])
}

/// Returns the current state of the file.
pub(super) fn read_state(root: &Path) -> io::Result<Original> {
    let path = path(root);
    match fs::symlink_metadata(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Original::Absent),
        Err(e) => Err(e),
        Ok(data) if data.is_symlink() => {
            let target = fs::read_link(&path)?.into_os_string().into_string();
            let target = target.ok().filter(|target| !target.contains('\n'));
            target.map(Original::Link).ok_or_else(|| io::Error::other("a link with an odd target"))
        }
        Ok(data) if data.is_file() && data.size() <= SIZE_LIMIT => {
            content(root).map(Original::File)
        }
        Ok(_) => Err(io::Error::other("neither a file nor a link, or too large")),
    }
}

/// Returns the owner record for this process.
pub(super) fn owner(device: &str) -> Owner {
    let pid = std::process::id();
    Owner {
        device: device.to_owned(),
        pid,
        began: began(pid).unwrap_or(0),
        boot: boot(),
        namespace: pid_namespace(),
    }
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.chars().filter(char::is_ascii_hexdigit).take(12).collect()
}

fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// Returns whether the process may still exist. A process in another PID namespace cannot be seen.
pub(super) fn is_alive(owner: &Owner) -> bool {
    if owner.boot != boot() {
        return false;
    }
    owner.namespace != pid_namespace() || began(owner.pid) == Some(owner.began)
}

/// Writes the tunnel's servers into the file, over `original`. Returns what it now contains.
pub(super) fn install(
    root: &Path,
    plan: &DnsPlan,
    owner: &Owner,
    original: &Original,
) -> io::Result<Vec<u8>> {
    let bytes = resolv_conf::write(plan, owner, original);
    put(&path(root), &bytes)?;
    Ok(bytes)
}

/// Restores the original if `owner` wrote the current file. Returns whether it did.
pub(super) fn restore(root: &Path, owner: &Owner) -> io::Result<bool> {
    let Original::File(bytes) = read_state(root)? else { return Ok(false) };
    match resolv_conf::read(&bytes) {
        Some(ours) if ours.owner == *owner => put_back(root, &ours).map(|()| true),
        Some(_) | None => Ok(false),
    }
}

/// Returns whether a killed process left its file.
pub(super) fn is_left(root: &Path) -> bool {
    let Ok(Original::File(bytes)) = read_state(root) else { return false };
    resolv_conf::read(&bytes).is_some_and(|ours| !is_alive(&ours.owner))
}

/// Restores the files that killed processes replaced. Returns their number.
pub(super) fn repair(root: &Path) -> usize {
    for layer in 0..LAYERS {
        let Ok(Original::File(bytes)) = read_state(root) else { return layer };
        let Some(ours) = resolv_conf::read(&bytes).filter(|ours| !is_alive(&ours.owner)) else {
            return layer;
        };
        match put_back(root, &ours) {
            Ok(()) => tracing::warn!(
                "/etc/resolv.conf: restored: it had the name servers of a killed process's tunnel"
            ),
            Err(e) => {
                tracing::warn!("/etc/resolv.conf: not restored: {e}");
                return layer;
            }
        }
    }
    LAYERS
}

fn put_back(root: &Path, ours: &GeneratedFile) -> io::Result<()> {
    let path = path(root);
    match &ours.original {
        Original::Absent => fs::remove_file(path),
        Original::File(bytes) => put(&path, bytes),
        Original::Link(target) => {
            let fresh = beside(&path);
            let _ = fs::remove_file(&fresh);
            symlink(target, &fresh)?;
            fs::rename(&fresh, &path).inspect_err(|_| drop(fs::remove_file(&fresh)))
        }
    }
}

fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".resolv.conf.adit-{}", std::process::id()))
}

/// Replaces the file atomically. If it is a mount point (containers, `ip netns exec`), or its directory is read-only,
/// it is written in place with one call.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match replace(path, bytes) {
        Ok(()) => Ok(()),
        Err(e) => match e.raw_os_error() {
            Some(libc::EBUSY | libc::EXDEV | libc::EROFS | libc::EACCES | libc::EPERM)
                if fs::symlink_metadata(path).is_ok_and(|data| data.is_file()) =>
            {
                in_place(path, bytes).map_err(|_| e)
            }
            _ => Err(e),
        },
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = beside(path);
    let _ = fs::remove_file(&fresh);
    let former = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    let mode = former.as_ref().map_or(0o644, |data| data.mode() & 0o777);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        // Ignore the umask, because every user's programs read this file.
        fs::set_permissions(&fresh, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        if let Some(former) = &former {
            let _ = fchown(&file, Some(former.uid()), Some(former.gid()));
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&fresh)))
}

fn in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::plan::Transport;
    use super::*;

    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        root
    }

    fn plan() -> DnsPlan {
        DnsPlan {
            servers: vec!["10.8.0.1:53".parse().unwrap()],
            search: Vec::new(),
            domains: Vec::new(),
            dnssec: None,
            transport: Transport::Plain,
        }
    }

    #[test]
    fn files_links_and_nothing_are_restored() {
        let root = root();
        let conf = path(root.path());
        let own = owner("tun0");
        install(root.path(), &plan(), &own, &read_state(root.path()).unwrap()).unwrap();
        assert!(content(root.path()).unwrap().starts_with(b"# Written by adit"));
        assert!(restore(root.path(), &own).unwrap());
        assert!(!conf.exists());

        fs::write(&conf, "nameserver 192.0.2.1\n").unwrap();
        fs::set_permissions(&conf, fs::Permissions::from_mode(0o604)).unwrap();
        install(root.path(), &plan(), &own, &read_state(root.path()).unwrap()).unwrap();
        assert_eq!(resolv_conf::nameservers(&content(root.path()).unwrap()), ["10.8.0.1"]);
        assert!(restore(root.path(), &own).unwrap());
        assert_eq!(fs::read(&conf).unwrap(), b"nameserver 192.0.2.1\n");
        assert_eq!(fs::metadata(&conf).unwrap().mode() & 0o777, 0o604);
        assert!(!restore(root.path(), &own).unwrap());

        fs::remove_file(&conf).unwrap();
        fs::write(root.path().join("etc/real"), "nameserver 192.0.2.2\n").unwrap();
        symlink("real", &conf).unwrap();
        install(root.path(), &plan(), &own, &read_state(root.path()).unwrap()).unwrap();
        assert_eq!(fs::read(root.path().join("etc/real")).unwrap(), b"nameserver 192.0.2.2\n");
        assert!(restore(root.path(), &own).unwrap());
        assert_eq!(fs::read_link(&conf).unwrap(), Path::new("real"));
        assert_eq!(fs::read_dir(root.path().join("etc")).unwrap().count(), 2, "nothing is left");
    }

    #[test]
    fn what_killed_processes_left_is_repaired_and_the_living_are_left_alone() {
        let root = root();
        let conf = path(root.path());
        fs::write(&conf, "nameserver 192.0.2.1\n").unwrap();
        // Two stacked tunnels, whose processes are gone.
        for (pid, began) in [(u32::MAX, 1), (std::process::id(), 1)] {
            let dead = Owner { pid, began, ..owner("tun0") };
            install(root.path(), &plan(), &dead, &read_state(root.path()).unwrap()).unwrap();
        }
        assert!(is_left(root.path()));
        assert_eq!(repair(root.path()), 2);
        assert!(!is_left(root.path()));
        assert_eq!(fs::read(&conf).unwrap(), b"nameserver 192.0.2.1\n");

        let before_boot = Owner { boot: "0".into(), ..owner("tun0") };
        install(root.path(), &plan(), &before_boot, &read_state(root.path()).unwrap()).unwrap();
        assert_eq!(repair(root.path()), 1);
        install(root.path(), &plan(), &owner("tun0"), &read_state(root.path()).unwrap()).unwrap();
        assert!(!is_left(root.path()), "its process lives");
        assert_eq!(repair(root.path()), 0);
        let elsewhere = Owner { namespace: 1, pid: u32::MAX, ..owner("tun0") };
        install(root.path(), &plan(), &elsewhere, &read_state(root.path()).unwrap()).unwrap();
        assert_eq!(repair(root.path()), 0);
    }
}
