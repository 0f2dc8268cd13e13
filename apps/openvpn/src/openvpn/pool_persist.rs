//! `ifconfig-pool-persist`: stores the last address of each client in OpenVPN's format.
//!
//! Lines are `name,ipv4[,ipv6]`. With `topology net30`, the IPv4 address is the first of the client's four, while the
//! client's own is the third. OpenVPN writes it in this way, so files are interchangeable.

use std::fs;
use std::io::{Seek, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_openvpn::config::PoolPersist;
use ipnet::IpNet;

use adit_runtime::fault::Fault;
use adit_runtime::helper::files::{self, WriteMode};

type Leases = Vec<(String, Vec<IpNet>)>;

/// The lease file. It is written at intervals.
///
/// It is replaced as a whole, so that it is never half written. If the directory does not permit that, it is written in
/// place, through a descriptor opened earlier.
pub(super) struct PoolPersistFile {
    path: PathBuf,
    file: fs::File,
    net30: bool,
    every: Duration,
    left: Duration,
    written: String,
}

impl PoolPersistFile {
    /// Opens the file; `None` if it is read-only by configuration or cannot be written.
    pub(super) fn open(persist: &PoolPersist, net30: bool) -> Option<Self> {
        let PoolPersist { path, every } = persist;
        if every.is_zero() {
            return None;
        }
        match files::write(path, WriteMode::Keep) {
            Ok(file) => Some(Self {
                path: path.clone(),
                file,
                net30,
                every: *every,
                left: *every,
                written: String::new(),
            }),
            Err(e) => {
                let path = path.display();
                tracing::warn!("ifconfig-pool-persist: '{path}': {e}; addresses will not be kept");
                None
            }
        }
    }

    /// Writes the leases if they have changed and the interval has passed. Called every second.
    pub(super) fn offer(&mut self, leases: Leases) {
        self.left = self.left.saturating_sub(Duration::from_secs(1));
        if self.left.is_zero() {
            self.left = self.every;
            self.write(leases);
        }
    }

    /// Writes them now if they have changed.
    pub(super) fn write(&mut self, leases: Leases) {
        let text = text(leases, self.net30);
        if text == self.written {
            return;
        }
        match files::replace(&self.path, text.as_bytes()).or_else(|_| self.overwrite(&text)) {
            Ok(()) => self.written = text,
            Err(e) => tracing::warn!("ifconfig-pool-persist: '{}': {e}", self.path.display()),
        }
    }

    fn overwrite(&mut self, text: &str) -> std::io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)
    }
}

fn text(leases: Leases, net30: bool) -> String {
    let line = |(name, nets): (String, Vec<IpNet>)| {
        let find = |v4: bool| {
            let net = nets.iter().find(|net| matches!(net, IpNet::V4(_)) == v4);
            net.map(|net| first_of_four(net.addr(), net30).to_string()).unwrap_or_default()
        };
        format!(
            "{},{},{}\n",
            adit_runtime::log::clean(&name).replace(',', "_"),
            find(true),
            find(false)
        )
    };
    let mut lines: Vec<String> = leases.into_iter().map(line).collect();
    // Sort by the written text, because a name may change when it is made printable.
    lines.sort_unstable();
    lines.concat()
}

fn first_of_four(address: IpAddr, net30: bool) -> IpAddr {
    match address {
        IpAddr::V4(v4) if net30 => Ipv4Addr::from(u32::from(v4) & !3).into(),
        other => other,
    }
}

fn third_of_four(address: IpAddr, net30: bool) -> IpAddr {
    match address {
        IpAddr::V4(v4) if net30 => Ipv4Addr::from((u32::from(v4) & !3) | 2).into(),
        other => other,
    }
}

/// Reads the file; a file that does not exist yet contains no leases.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path, net30: bool) -> Result<Vec<(String, IpNet)>, Fault> {
    let text = match files::open(path).and_then(std::io::read_to_string) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            let message = format!("ifconfig-pool-persist: cannot read '{}': {e}", path.display());
            return Err(Fault::operator(message));
        }
    };
    Ok(parse(&text, net30))
}

fn parse(text: &str, net30: bool) -> Vec<(String, IpNet)> {
    let mut leases = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
        let mut cells = line.split(',');
        let Some(name) = cells.next().filter(|name| !name.is_empty()) else { continue };
        for address in cells.take(2).filter_map(|cell| cell.trim().parse::<IpAddr>().ok()) {
            leases.push((name.to_owned(), IpNet::from(third_of_four(address, net30))));
        }
    }
    leases
}

/// Fuzzes the parser of a lease file. The first byte selects `topology net30`.
pub(super) fn fuzz(bytes: &[u8]) {
    let Some((&net30, rest)) = bytes.split_first() else { return };
    let net30 = net30 & 1 == 1;
    let leases = parse(&String::from_utf8_lossy(rest), net30);
    let mut by_name: Leases = Vec::new();
    for (name, net) in leases {
        assert!(!name.is_empty() && net.prefix_len() == net.max_prefix_len());
        by_name.push((name, vec![net]));
    }
    // The written text reads back unchanged, except for names that no certificate has.
    let once = text(by_name, net30);
    let again = parse(&once, net30).into_iter().map(|(name, net)| (name, vec![net])).collect();
    assert_eq!(text(again, net30), once);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn leases_survive_being_written_and_read() {
        let v4: IpNet = "10.8.0.6/32".parse().unwrap();
        let v6: IpNet = "fd00::1000/128".parse().unwrap();
        let leases = vec![("b".to_owned(), vec![v4, v6]), ("a,x".to_owned(), vec![v4])];
        for (net30, written) in [
            (false, "a_x,10.8.0.6,\nb,10.8.0.6,fd00::1000\n"),
            // The line that openvpn 2.6 writes for a client with the address 10.8.0.6.
            (true, "a_x,10.8.0.4,\nb,10.8.0.4,fd00::1000\n"),
        ] {
            let text = text(leases.clone(), net30);
            assert_eq!(text, written);
            let read = parse(&text, net30);
            assert_eq!(read, [("a_x".into(), v4), ("b".into(), v4), ("b".into(), v6)]);
        }
    }

    fn lease(name: &str) -> Leases {
        vec![(name.to_owned(), vec!["10.8.0.5/32".parse().unwrap()])]
    }

    fn open(path: &Path) -> PoolPersistFile {
        let persist = PoolPersist { path: path.to_owned(), every: Duration::from_secs(2) };
        PoolPersistFile::open(&persist, false).unwrap()
    }

    #[test]
    fn the_file_is_replaced_whole_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipp.txt");
        fs::write(&path, "old,10.8.0.9,\n").unwrap();
        let before = fs::metadata(&path).unwrap();
        let mut file = open(&path);
        file.offer(lease("a"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old,10.8.0.9,\n", "not yet");
        file.offer(lease("a"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "a,10.8.0.5,\n");
        let after = fs::metadata(&path).unwrap();
        assert_ne!(after.ino(), before.ino(), "another file in its place");
        assert_eq!(after.mode(), before.mode());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn where_it_cannot_be_replaced_it_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipp.txt");
        let mut file = open(&path);
        // No file can be created under this name, as in a directory without permissions.
        fs::create_dir(dir.path().join("ipp.txt.new")).unwrap();
        file.write(lease("longer-name"));
        file.write(lease("b"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "b,10.8.0.5,\n");
    }
}
