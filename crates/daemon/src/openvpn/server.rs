//! The server role.

use std::fs;
use std::io::{Seek, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_openvpn::config::{Options, PoolPersist, ServerOptions, Source, Wrap};
use adit_openvpn::server::{ServerConfig, ServerEvent};
use adit_openvpn::tls::ServerTls;
use ipnet::IpNet;

use super::client::open_status;
use super::status::{ClientRow, Status, StatusFile};
use super::{Next, lines, mapping, material, process::Ground};
use crate::ask::CertificateOnly;
use crate::clock::unix_time;
use crate::control::CertificateReport;
use crate::fault::Fault;
use crate::say;
use crate::server::{
    self, Ended, Handle, Hooks, Listener, Reaction, Relay, Service, Sessions, Signal, SocketTuning,
};
use crate::workers;

/// Everything read and asked for before the process leaves its terminal.
pub(super) struct Prepared {
    engine: ServerConfig,
    listeners: Vec<Listener>,
    tls: material::TlsMaterial,
    status: Option<(StatusFile, Duration)>,
    lease_file: Option<LeaseFile>,
}

pub(super) fn prepare(options: &Options, role: &ServerOptions) -> Result<Prepared, Fault> {
    let mut tls = material::TlsMaterial::read(&options.tls)?;
    if let Err(fault) = tls.validity(unix_time().0) {
        tracing::warn!("WARNING: {fault}");
    }
    if let Some(folder) = &role.client_config_dir {
        refuse_client_files(folder)?;
    }
    let wrap = material::wrap(options)?;
    let leases = role.pool_persist.as_ref().map(|persist| read_leases(&persist.path));
    let leases = leases.transpose()?.unwrap_or_default();
    let engine = mapping::server_config(options, role, wrap, tls.server()?, leases);
    let listeners = mapping::listeners(options)?;
    let lease_file = role.pool_persist.as_ref().and_then(LeaseFile::open);
    Ok(Prepared { engine, listeners, tls, status: open_status(options), lease_file })
}

/// Files for single clients may grant or forbid: starting without reading them could let in whom they
/// keep out.
fn refuse_client_files(folder: &Path) -> Result<(), Fault> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    let hidden = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with('.');
    let mut names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    match names.find(|name| !hidden(name)) {
        Some(name) => Err(Fault::operator(format!(
            "client-config-dir is not supported yet, and there is a file for a client: '{}'. Move it \
             away, or go on with openvpn for now",
            folder.join(name).display()
        ))),
        None => Ok(()),
    }
}

pub(super) async fn run(
    prepared: Prepared,
    options: &Options,
    role: &ServerOptions,
    ground: &mut Ground,
) -> Result<Next, Fault> {
    let Prepared { engine, listeners, tls, status, lease_file } = prepared;
    let (host, notes) = mapping::server_plan(options, role)?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let max_clients = engine.max_clients;
    let service = Service::start(server::Options {
        engine,
        listeners,
        host,
        authorizer: Arc::new(CertificateOnly),
        relay: if role.client_to_client { Relay::Direct } else { Relay::Kernel },
        control: None,
        socket: SocketTuning {
            mark: options.socket.mark,
            receive_buffer: options.socket.receive_buffer.map(|size| size as usize),
            send_buffer: options.socket.send_buffer.map(|size| size as usize),
        },
        workers: workers::of_server(None, None)?,
    })
    .await?;
    // Addresses and routes of a server's device go with the device.
    ground.drop_privileges(options, &[])?;
    say!(3, "MULTI: multi_init called, max-clients={max_clients}");
    let mut owner = Owner {
        ground,
        status,
        until_status: Duration::ZERO,
        rows: Vec::new(),
        crl: CrlFile::watch(options.tls.crl.as_ref()),
        tls,
        status_version: options.status.as_ref().map_or(1, |status| status.version),
        style: lines::Style {
            usage_checked: options.tls.peer_usage.is_some(),
            tls_auth: matches!(options.wrap, Wrap::TlsAuth { .. }),
        },
        leases: lease_file,
        last_leases: Vec::new(),
        hangup: false,
    };
    let ended = service.serve(&mut owner).await?;
    let hangup = owner.hangup;
    owner.write_status();
    if let Some(file) = &mut owner.leases {
        file.write(lease_text(std::mem::take(&mut owner.last_leases)));
    }
    Ok(match ended {
        Ended::Signal(_) if hangup => {
            say!(1, "SIGHUP[hard,] received, process restarting");
            Next::Restart
        }
        Ended::Signal(Signal::Interrupt) => {
            say!(1, "SIGINT[hard,] received, process exiting");
            Next::Exit(ExitCode::SUCCESS)
        }
        Ended::Signal(_) | Ended::Asked(_) => {
            say!(1, "SIGTERM[hard,] received, process exiting");
            Next::Exit(ExitCode::SUCCESS)
        }
    })
}

/// Up to so many sessions the rows for the last status file are a second old, beyond as old as it.
const ROWS_EVERY_TICK: usize = 100;

/// How old they are where there is no status file.
const NO_STATUS: Duration = Duration::from_secs(10);

struct Owner<'a> {
    ground: &'a Ground,
    status: Option<(StatusFile, Duration)>,
    until_status: Duration,
    rows: Vec<ClientRow>,
    crl: Option<CrlFile>,
    tls: material::TlsMaterial,
    status_version: u8,
    style: lines::Style,
    leases: Option<LeaseFile>,
    last_leases: Vec<(String, Vec<IpNet>)>,
    hangup: bool,
}

impl Hooks for Owner<'_> {
    fn event(&mut self, _event: &ServerEvent) {}

    fn narrate(&mut self, event: &ServerEvent, sessions: &Sessions) {
        lines::server_event(event, sessions, self.style);
    }

    fn serving(&mut self, _device: Option<&str>, listening: &[SocketAddr]) {
        listening.iter().for_each(|bound| lines::listening(*bound));
        self.ground.ready();
    }

    fn reload(&mut self, _handle: &Handle) -> Result<Option<ServerTls>, Fault> {
        self.tls.server().map(Some)
    }

    fn signal(&mut self, signal: Signal, sessions: &Sessions) -> Reaction {
        match signal {
            Signal::Terminate | Signal::Interrupt => Reaction::Stop,
            Signal::Hangup | Signal::User1 if self.ground.has_dropped() => {
                tracing::warn!(
                    "the rights to open device and port again were given up ('user'): only \
                     certificates are read again; restart the service for the rest"
                );
                Reaction::Reload
            }
            Signal::Hangup | Signal::User1 => {
                self.hangup = true;
                Reaction::Stop
            }
            Signal::User2 => {
                self.rows = sessions.iter().map(row).collect();
                let status = Status::Server(self.rows.clone());
                status
                    .text(self.status_version, unix_time().0)
                    .lines()
                    .for_each(|line| say!(1, "{line}"));
                Reaction::Ignore
            }
        }
    }

    fn tick(&mut self, sessions: &Sessions) -> Option<ServerTls> {
        self.until_status = self.until_status.saturating_sub(Duration::from_secs(1));
        let due = self.until_status.is_zero();
        // A thousand rows a second that nobody reads would be seen in `top`.
        if due || sessions.len() <= ROWS_EVERY_TICK {
            self.rows = sessions.iter().map(row).collect();
        }
        if due {
            self.until_status = self.status.as_ref().map_or(NO_STATUS, |(_, every)| *every);
            self.write_status();
        }
        self.reread_crl()
    }

    fn leases(&mut self, leases: Vec<(String, Vec<IpNet>)>) {
        if let Some(file) = &mut self.leases {
            self.last_leases.clone_from(&leases);
            file.offer(leases);
        }
    }

    fn wants_leases(&self) -> bool {
        self.leases.is_some()
    }

    fn certificate(&self) -> Option<CertificateReport> {
        self.tls.nearest_expiry(unix_time().0)
    }
}

impl Owner<'_> {
    fn write_status(&mut self) {
        let status = Status::Server(self.rows.clone());
        if let Some((file, _)) = &mut self.status
            && let Err(e) = file.write(&status, unix_time().0)
        {
            tracing::warn!("status: {e}");
        }
    }

    fn reread_crl(&mut self) -> Option<ServerTls> {
        let crl = self.crl.as_mut()?;
        if !crl.changed() {
            return None;
        }
        let source = Source::File(crl.path.clone());
        // A list that cannot be used leaves the former in force until it can; the former still
        // refuses whom it refused.
        let tls = material::read("crl-verify", &source).and_then(|pem| {
            self.tls.set_crl(pem);
            self.tls.server()
        });
        match tls {
            Ok(tls) => {
                say!(2, "CRL: loaded '{}' again", crl.path.display());
                Some(tls)
            }
            Err(fault) => {
                tracing::error!("CRL: the former list stays in force: {fault}");
                None
            }
        }
    }
}

fn row(session: &server::Session) -> ClientRow {
    let info = &session.info;
    ClientRow {
        name: info.identity.common_name.clone(),
        real: lines::real(info.link.remote()),
        ipv4: info.ipv4.map(|ip| ip.to_string()).unwrap_or_default(),
        ipv6: info.ipv6.map(|ip| ip.to_string()).unwrap_or_default(),
        received: session.counters.rx_bytes,
        sent: session.counters.tx_bytes,
        since: info.since.0,
        heard: session.heard,
        username: info.username.clone(),
        client_id: session.number,
        peer_id: info.peer.0,
        cipher: info.cipher.name().to_owned(),
    }
}

/// A revocation list in a file that may change.
struct CrlFile {
    path: PathBuf,
    seen: Option<(i64, i64, u64, u64)>,
}

impl CrlFile {
    fn watch(source: Option<&Source>) -> Option<Self> {
        match source {
            Some(Source::File(path)) => Some(Self { path: path.clone(), seen: Self::stamp(path) }),
            _ => None,
        }
    }

    /// Time, size and inode: a copy over it and a rename both change one of them.
    fn stamp(path: &Path) -> Option<(i64, i64, u64, u64)> {
        let data = fs::metadata(path).ok()?;
        Some((data.mtime(), data.mtime_nsec(), data.size(), data.ino()))
    }

    fn changed(&mut self) -> bool {
        let fresh = Self::stamp(&self.path);
        let changed = fresh != self.seen;
        self.seen = fresh;
        changed
    }
}

/// `ifconfig-pool-persist`, held open: after a change of user it could not be opened again.
struct LeaseFile {
    file: fs::File,
    every: Duration,
    left: Duration,
    written: String,
}

impl LeaseFile {
    /// Opens the file; `None` if it is only to be read, or cannot be written.
    fn open(persist: &PoolPersist) -> Option<Self> {
        let PoolPersist { path, every } = persist;
        if every.is_zero() {
            return None;
        }
        match fs::OpenOptions::new().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Some(Self { file, every: *every, left: *every, written: String::new() }),
            Err(e) => {
                let path = path.display();
                tracing::warn!("ifconfig-pool-persist: '{path}': {e}; addresses will not be kept");
                None
            }
        }
    }

    /// Writes the leases when it is time to and they have changed.
    fn offer(&mut self, leases: Vec<(String, Vec<IpNet>)>) {
        self.left = self.left.saturating_sub(Duration::from_secs(1));
        if self.left.is_zero() {
            self.left = self.every;
            self.write(lease_text(leases));
        }
    }

    fn write(&mut self, text: String) {
        if text == self.written {
            return;
        }
        let written = self
            .file
            .rewind()
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .and_then(|()| self.file.set_len(text.len() as u64));
        match written {
            Ok(()) => self.written = text,
            Err(e) => tracing::warn!("ifconfig-pool-persist: {e}"),
        }
    }
}

fn lease_text(mut leases: Vec<(String, Vec<IpNet>)>) -> String {
    leases.sort();
    let line = |(name, nets): &(String, Vec<IpNet>)| {
        let find = |v4: bool| {
            let net = nets.iter().find(|net| matches!(net, IpNet::V4(_)) == v4);
            net.map(|net| net.addr().to_string()).unwrap_or_default()
        };
        format!("{},{},{}\n", crate::log::clean(name).replace(',', "_"), find(true), find(false))
    };
    leases.iter().map(line).collect()
}

/// Reads `name,ipv4[,ipv6]` lines; a file that does not exist yet has none.
fn read_leases(path: &Path) -> Result<Vec<(String, IpNet)>, Fault> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            let message = format!("ifconfig-pool-persist: cannot read '{}': {e}", path.display());
            return Err(Fault::operator(message));
        }
    };
    Ok(parse_leases(&text))
}

fn parse_leases(text: &str) -> Vec<(String, IpNet)> {
    let mut leases = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
        let mut cells = line.split(',');
        let Some(name) = cells.next().filter(|name| !name.is_empty()) else { continue };
        for address in cells.take(2).filter_map(|cell| cell.trim().parse::<std::net::IpAddr>().ok())
        {
            leases.push((name.to_owned(), IpNet::from(address)));
        }
    }
    leases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_survive_being_written_and_read() {
        let v4: IpNet = "10.8.0.5/32".parse().unwrap();
        let v6: IpNet = "fd00::1000/128".parse().unwrap();
        let leases = vec![("b".to_owned(), vec![v4, v6]), ("a,x".to_owned(), vec![v4])];
        let text = lease_text(leases);
        assert_eq!(text, "a_x,10.8.0.5,\nb,10.8.0.5,fd00::1000\n");
        let read = parse_leases(&text);
        assert_eq!(read, [("a_x".into(), v4), ("b".into(), v4), ("b".into(), v6)]);
    }

    #[test]
    fn files_for_single_clients_are_not_passed_over_in_silence() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(refuse_client_files(dir.path()), Ok(()));
        assert_eq!(refuse_client_files(&dir.path().join("absent")), Ok(()));
        fs::write(dir.path().join("alice"), "disable").unwrap();
        let refused = refuse_client_files(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("/alice'"), "{refused}");
    }

    #[test]
    fn a_changed_list_is_noticed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crl.pem");
        fs::write(&path, "one").unwrap();
        let mut crl = CrlFile::watch(Some(&Source::File(path.clone()))).unwrap();
        assert!(!crl.changed());
        fs::write(&path, "another").unwrap();
        assert!(crl.changed());
        assert!(!crl.changed());
    }
}
