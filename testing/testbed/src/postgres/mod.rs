//! Throw-away PostgreSQL clusters, which can be started, killed, paused and filled up.
//!
//! A cluster is one folder and listens on a socket in it, where every user who may enter the folder is trusted. In a
//! namespace it also listens on TCP, where it asks for passwords (SCRAM) and offers TLS if it has a certificate. It
//! uses neither names nor ports of the host, so that any number can run in parallel, and next to the host's own
//! clusters. Its processes end with the [`Cluster`], and with this process however that ends.

mod certificate;
mod processes;
mod programs;
pub mod proxy;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User, chown};

use crate::failure::{Context, Failure, Result, ensure};
use crate::file;
use crate::net::Namespace;
use crate::process::{Daemon, output, run_with_input};
use crate::sandbox::text;
use crate::wait::ScaledInstant;

pub use certificate::{Certificate, Certificates};
pub use programs::{ROOT, programs};

/// The port, on TCP and in the socket's name: a cluster shares its namespace with no other cluster.
pub const PORT: u16 = 5432;
/// The superuser, on the socket without a password.
pub const SUPERUSER: &str = "postgres";

/// The longest path of a socket, including its terminator.
const SOCKET_PATH: usize = 108;
/// The time limit for a start and an orderly stop, while other clusters do the same.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs a command in a root, with this machine's devices, processes and temporary folders.
const ENTER: &str = "root=$1; shift; for at in dev proc tmp run; do mkdir -p \"$root/$at\" && \
    mount --rbind \"/$at\" \"$root/$at\" || exit 1; done; exec chroot \"$root\" \"$@\"";

/// Settings of every cluster. With the first three, a killed cluster leaves nothing behind in the system.
const SETTINGS: &[(&str, &str)] = &[
    ("dynamic_shared_memory_type", "mmap"),
    ("shared_memory_type", "mmap"),
    ("external_pid_file", ""),
    ("max_connections", "100"),
    ("log_min_messages", "warning"),
    ("log_line_prefix", "%m [%p] %q%u@%d "),
    ("max_wal_size", "256MB"),
    ("min_wal_size", "32MB"),
];

/// The settings that do not affect the server's speed.
const ASIDE: &[&str] = &["external_pid_file", "log_min_messages", "log_line_prefix"];

/// The options of a cluster.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// The namespace in which it listens on TCP, on all addresses. Without one it has only its socket.
    pub namespace: Option<&'a Namespace>,
    /// Settings in the syntax of `postgresql.conf`, after those that every cluster has.
    pub settings: &'a [(&'a str, &'a str)],
    /// TLS with this certificate.
    pub certificate: Option<&'a Certificate>,
    /// Accept passwords over TLS only: `hostssl` instead of `host`.
    pub only_tls: bool,
    /// Leave memory, the size of the log and its segments at PostgreSQL's defaults, for measurements.
    pub measured: bool,
}

/// Returns the reason why no cluster can be created here; tests report it and continue.
pub fn missing() -> Option<String> {
    match programs() {
        Err(failure) => Some(failure.0),
        Ok(_) if !Uid::effective().is_root() => Some(crate::skip::NEEDS_ROOT.to_owned()),
        Ok(_) => None,
    }
}

/// Creates a temporary folder that the server's user may traverse, in memory if the system has a file system for that.
///
/// # Errors
/// It could not be created.
pub fn scratch() -> Result<tempfile::TempDir> {
    let shared = Path::new("/dev/shm");
    let place = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::Builder::new().prefix("adit-pg-").tempdir_in(place)?;
    file::set_mode(folder.path(), 0o711)?;
    Ok(folder)
}

/// Copies a folder with owners and rights.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.args(["--archive", "--reflink=auto", "--no-target-directory"]).arg(from).arg(to);
    output(command).map(drop)
}

/// A cluster in a separate folder. Dropping it ends its processes; removing the folder is the caller's task.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    network: Option<PathBuf>,
    programs: PathBuf,
    /// The location of the server, if it differs from that of the other programs: a root, and the folder inside it.
    root: Option<(PathBuf, PathBuf)>,
    user: User,
    running: Option<Running>,
}

/// The first process and the thread that started it. The kernel ends the process together with its parent thread, and a
/// test's threads do not live as long as its cluster.
#[derive(Debug)]
struct Running {
    daemon: Daemon,
    _keeper: std::sync::mpsc::Sender<()>,
}

impl Cluster {
    /// Creates a cluster in `folder`, which is new or empty, and starts it. Needs root, and switches to the server's
    /// user.
    ///
    /// # Errors
    /// PostgreSQL is not installed (see [`programs`]), the process does not run as root, the folder's path is too long
    /// for a socket, or the server fails.
    pub fn start(folder: &Path, options: &Options<'_>) -> Result<Self> {
        let mut cluster = Self::make(folder, options)?;
        cluster.resume_service()?;
        Ok(cluster)
    }

    /// Creates a cluster that is not running yet.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn make(folder: &Path, options: &Options<'_>) -> Result<Self> {
        let programs = programs()?;
        ensure(Uid::effective().is_root(), || {
            "a cluster is started under another user, which needs root".to_owned()
        })?;
        ensure(folder.as_os_str().len() + ".s.PGSQL.5432".len() + 2 < SOCKET_PATH, || {
            format!("{}: too long a path for a socket", folder.display())
        })?;
        let user = ["postgres", "nobody"].iter().find_map(|name| User::from_name(name).ok()?);
        let user = user.context("neither a user postgres nor a user nobody")?;
        fs::create_dir_all(folder).context(folder.display())?;
        chown(folder, Some(user.uid), Some(user.gid))?;
        // The socket trusts every user who can reach it.
        file::set_mode(folder, 0o700)?;
        let network = options.namespace.map(|space| Path::new("/run/netns").join(space.name()));
        let (root, running) = (programs::root()?, None);
        let cluster = Self { folder: folder.to_owned(), network, programs, root, user, running };
        cluster.initialise(options)?;
        Ok(cluster)
    }

    /// Creates a cluster in `folder` that replicates this one (a standby), and starts it: transactions committed here
    /// appear there a moment later, and it accepts no writes before [`Cluster::promote`].
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn standby(&self, folder: &Path, namespace: &Namespace) -> Result<Self> {
        let network = Some(Path::new("/run/netns").join(namespace.name()));
        let mut other = Self {
            folder: folder.to_owned(),
            network,
            programs: self.programs.clone(),
            root: self.root.clone(),
            user: self.user.clone(),
            running: None,
        };
        fs::create_dir_all(folder).context(folder.display())?;
        chown(folder, Some(self.user.uid), Some(self.user.gid))?;
        file::set_mode(folder, 0o700)?;
        let mut command = other.command("pg_basebackup");
        command.args(["--write-recovery-conf", "--checkpoint", "fast", "--no-sync", "--pgdata"]);
        command.arg(other.data()).arg("--host").arg(&self.folder);
        command.args(["--port", &PORT.to_string(), "--username", SUPERUSER]);
        output(command)?;
        other.configure(&[("unix_socket_directories", text(folder))])?;
        other.resume_service()?;
        Ok(other)
    }

    /// Makes a standby independent, so that it accepts writes.
    ///
    /// # Errors
    /// The cluster is not a standby.
    pub fn promote(&self) -> Result<()> {
        self.sql(SUPERUSER, "SELECT pg_promote()").map(drop)
    }

    /// Makes the cluster's files. A program in cargo's `target` folder copies those that an earlier cluster of the same version began with, which
    /// takes a fraction of the time of `initdb`.
    fn create_files(&self, measured: bool) -> Result<()> {
        let segments: &[&str] = if measured { &[] } else { &["--wal-segsize", "4"] };
        let mut version = self.command("initdb");
        version.arg("--version");
        let name = format!("{} {}", output(version)?.trim(), segments.join(" "));
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let program = std::env::current_exe()?;
        let target = program.ancestors().find(|folder| folder.ends_with("target"));
        let templates = target.map(|target| target.join("postgres"));
        let template = templates.as_ref().map(|templates| templates.join(name));
        if let Some(template) = template.as_ref().filter(|template| template.is_dir()) {
            return copy_tree(template, &self.data());
        }
        let mut command = self.command("initdb");
        command.arg("--pgdata").arg(self.data()).args(["--username", SUPERUSER]);
        command.args(["--no-sync", "--no-instructions", "--encoding", "UTF8", "--locale", "C"]);
        command.args(["--auth-local", "trust", "--auth-host", "scram-sha-256"]);
        command.args(segments);
        output(command)?;
        let Some((templates, template)) = templates.zip(template) else { return Ok(()) };
        // Complete when it gets its name. If two are made at once, one of them is dropped.
        fs::create_dir_all(&templates).context(templates.display())?;
        let unfinished = tempfile::tempdir_in(&templates)?;
        let files = unfinished.path().join("files");
        copy_tree(&self.data(), &files)?;
        let _ = fs::rename(&files, &template);
        Ok(())
    }

    fn initialise(&self, options: &Options<'_>) -> Result<()> {
        self.create_files(options.measured)?;
        let host = if options.only_tls { "hostssl" } else { "host" };
        let access = format!(
            "local all all trust\nlocal replication all trust\n{host} all all 0.0.0.0/0 scram-sha-256\n{host} all all ::/0 scram-sha-256\n"
        );
        fs::write(self.data().join("pg_hba.conf"), access)?;
        let listen = if self.network.is_some() { "*" } else { "" };
        let folder = text(&self.folder);
        let mut settings = vec![("unix_socket_directories", folder), ("listen_addresses", listen)];
        settings
            .extend(SETTINGS.iter().filter(|(name, _)| !options.measured || ASIDE.contains(name)));
        if let Some(certificate) = options.certificate {
            self.install(certificate)?;
            settings.push(("ssl", "on"));
        }
        settings.extend(options.settings);
        self.configure(&settings)
    }

    /// Installs a certificate and its key, owned by the server's user. A running server uses them after
    /// [`Cluster::reload`].
    ///
    /// # Errors
    /// A file could not be copied.
    pub fn install(&self, certificate: &Certificate) -> Result<()> {
        for (from, to) in [(&certificate.chain, "server.crt"), (&certificate.key, "server.key")] {
            let to = self.data().join(to);
            fs::copy(from, &to).context(from.display())?;
            file::set_mode(&to, 0o600)?;
            chown(&to, Some(self.user.uid), Some(self.user.gid))?;
        }
        Ok(())
    }

    /// Adds settings to `postgresql.conf`; the last line for a name takes effect. A running server uses them after
    /// [`Cluster::reload`], or at its next start.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn configure(&self, settings: &[(&str, &str)]) -> Result<()> {
        let lines: String = settings
            .iter()
            .map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''")))
            .collect();
        let path = self.data().join("postgresql.conf");
        let before = fs::read_to_string(&path)?;
        fs::write(&path, before + &lines).context(path.display())
    }

    /// Makes the server read its files again.
    ///
    /// # Errors
    /// It is not running.
    pub fn reload(&self) -> Result<()> {
        self.running()?.daemon.signal(Signal::SIGHUP)
    }

    /// Starts the server, or restarts it however it ended, and waits until it accepts connections.
    ///
    /// # Errors
    /// The server does not start; the error includes its log.
    pub fn resume_service(&mut self) -> Result<()> {
        ensure(self.running.is_none(), || "the cluster is already running".to_owned())?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        let (started, daemon) = std::sync::mpsc::channel();
        let (keeper, end) = std::sync::mpsc::channel::<()>();
        thread::spawn(move || {
            // If the receiver no longer exists, the message is dropped and the daemon with it.
            let _ = started.send(Daemon::spawn("postgres", command));
            let _ = end.recv();
        });
        let daemon = daemon.recv().context("the thread that starts the cluster is gone")??;
        let mut running = Running { daemon, _keeper: keeper };
        let begun = ScaledInstant::now();
        while self.sql(SUPERUSER, "SELECT 1").is_err() {
            if let Some(status) = running.daemon.ended()? {
                return Err(running.daemon.failure(&format!("ended with {status}")));
            }
            if begun.elapsed() >= TIMEOUT {
                return Err(running.daemon.failure("takes no connections"));
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.running = Some(running);
        Ok(())
    }

    /// Stops the server and waits for its end. Its clients lose their connections.
    ///
    /// # Errors
    /// It is not running, or does not end.
    pub fn stop_service(&mut self, how: StopMode) -> Result<()> {
        let mut running = self.running.take().context("the cluster does not run")?;
        let signal = match how {
            StopMode::Fast => Signal::SIGINT,
            StopMode::Immediate => Signal::SIGQUIT,
            StopMode::Killed => {
                processes::signal_tree(running.daemon.pid(), Signal::SIGKILL);
                Signal::SIGKILL
            }
        };
        running.daemon.signal(signal)?;
        running.daemon.wait_exit(TIMEOUT)?;
        // Its children notice that it has ended, and no other server may start in this folder before they have exited.
        processes::wait_without(&self.data(), TIMEOUT)
    }

    /// Pauses all its processes, as on a machine that hangs: connections remain open but are not answered.
    ///
    /// # Errors
    /// The server is not running.
    pub fn pause(&self) -> Result<()> {
        processes::signal_tree(self.running()?.daemon.pid(), Signal::SIGSTOP);
        Ok(())
    }

    /// Resumes the paused processes.
    ///
    /// # Errors
    /// It is not running.
    pub fn resume(&self) -> Result<()> {
        processes::signal_tree(self.running()?.daemon.pid(), Signal::SIGCONT);
        Ok(())
    }

    /// Returns the id of the first process.
    ///
    /// # Errors
    /// It is not running.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.running()?.daemon.pid())
    }

    /// Returns the ids of all its processes.
    ///
    /// # Errors
    /// It is not running.
    pub fn pids(&self) -> Result<Vec<u32>> {
        Ok(processes::tree(self.pid()?))
    }

    /// Returns the server's log since its last start.
    ///
    /// # Errors
    /// It is not running.
    pub fn log(&self) -> Result<String> {
        Ok(self.running()?.daemon.log())
    }

    fn running(&self) -> Result<&Running> {
        self.running.as_ref().context("the cluster does not run")
    }

    /// Returns the folder of the socket, as `host` of a connection: `psql -h FOLDER`.
    pub fn socket_folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Returns a URL for hosts that can reach the namespace at `address`.
    pub fn url(&self, address: IpAddr, role: &str, password: &str, database: &str) -> String {
        let host = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        format!("postgres://{role}:{password}@{host}:{PORT}/{database}")
    }

    /// Returns a URL with the socket, for users who may enter its folder.
    pub fn socket_url(&self, role: &str, database: &str) -> String {
        let host = text(&self.folder).replace('/', "%2F");
        format!("postgres://{role}@{host}:{PORT}/{database}")
    }

    /// Runs SQL as the superuser and returns the rows, one per line, with columns separated by `|`. The first error
    /// ends it.
    ///
    /// # Errors
    /// The error of the server or `psql`.
    pub fn sql(&self, database: &str, sql: &str) -> Result<String> {
        self.sql_as(SUPERUSER, database, sql)
    }

    /// Runs SQL like [`Cluster::sql`], but under another role.
    ///
    /// # Errors
    /// As [`Cluster::sql`].
    pub fn sql_as(&self, role: &str, database: &str, sql: &str) -> Result<String> {
        let mut command = self.psql(role, database);
        command.args(["--no-align", "--tuples-only", "--quiet"]);
        // Through standard input, because a statement may be longer than a command line.
        let said = run_with_input(command, sql)?;
        Ok(said.trim_end_matches('\n').to_owned())
    }

    /// Runs SQL and returns one number.
    ///
    /// # Errors
    /// As [`Cluster::sql`], or the value is not a number.
    pub fn number(&self, database: &str, sql: &str) -> Result<i64> {
        let said = self.sql(database, sql)?;
        said.trim().parse().map_err(|_| Failure(format!("{sql}: {said:?} is no number")))
    }

    /// Returns a `psql` command of a role on the socket, to which the caller adds arguments.
    pub fn psql(&self, role: &str, database: &str) -> Command {
        let mut command = Command::new(self.programs.join("psql"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
        command.args(["--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--set", "VERBOSITY=verbose"]);
        command.arg("--host").arg(&self.folder);
        command.args(["--port", &PORT.to_string(), "--username", role, "--dbname", database]);
        command
    }

    /// Creates a role that may log in with this password, with these further words of `CREATE ROLE`, and a database
    /// with the same name, which the role owns.
    ///
    /// # Errors
    /// The server refuses.
    pub fn create(&self, role: &str, password: &str, words: &str) -> Result<()> {
        self.sql(SUPERUSER, &format!("CREATE ROLE {role} LOGIN PASSWORD '{password}' {words}"))?;
        self.sql(SUPERUSER, &format!("CREATE DATABASE {role} OWNER {role}")).map(drop)
    }

    /// Creates a tablespace in memory that holds at most this many MiB, and returns its folder. It is a mount, and so
    /// works only in a sandbox.
    ///
    /// # Errors
    /// The mount or the server refuses.
    pub fn limited_tablespace(&self, name: &str, mib: u32) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::create_dir(&path).context(path.display())?;
        let options = format!("size={mib}m,mode=0700,uid={},gid={}", self.user.uid, self.user.gid);
        crate::process::run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", text(&path)])?;
        self.sql(SUPERUSER, &format!("CREATE TABLESPACE {name} LOCATION '{}'", path.display()))?;
        Ok(path)
    }

    /// Returns a command for one of PostgreSQL's programs, as the server's user in the server's namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(if self.network.is_some() { "nsenter" } else { "env" });
        // Not by `ip netns exec`, because the server would not see later mounts.
        if let Some(network) = &self.network {
            command.arg(format!("--net={}", network.display())).arg("--");
        }
        let (uid, gid) = (self.user.uid.to_string(), self.user.gid.to_string());
        // The few bytes of System V memory that lock the folder disappear with the last process.
        command.args(["unshare", "--ipc"]);
        match &self.root {
            None => command.arg("--"),
            // Later mounts must be visible in the root.
            Some((root, _)) => command
                .args(["--mount", "--propagation", "slave", "--", "sh", "-c", ENTER, "sh"])
                .arg(root),
        };
        command.args(["setpriv", "--reuid", &uid, "--regid", &gid]);
        command.args(["--clear-groups", "--pdeathsig", "KILL", "--"]);
        let folder = self.root.as_ref().map_or(&self.programs, |(_, folder)| folder);
        command.arg(folder.join(program));
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("LC_ALL", "C");
        command.current_dir(&self.folder);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            processes::signal_tree(running.daemon.pid(), Signal::SIGKILL);
        }
    }
}

/// The way in which a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// An orderly stop: open transactions are rolled back, and all data is written.
    Fast,
    /// An immediate stop: the next start recovers from the log.
    Immediate,
    /// All processes are killed by `kill -9`.
    Killed,
}

#[cfg(test)]
mod tests;
