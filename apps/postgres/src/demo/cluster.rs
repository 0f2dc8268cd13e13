//! A PostgreSQL cluster in a temporary directory, for the demo.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, chown};

use adit_runtime::demo::interrupt::Interrupt;
use adit_runtime::fault::Fault;

/// The directory in which Debian keeps the programs, by version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The oldest version of PostgreSQL that works.
const OLDEST: u32 = 15;
const SUPERUSER: &str = "postgres";
const START_PATIENCE: Duration = Duration::from_secs(30);
const END_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(30);

/// A running cluster. It ends when it is dropped. The caller owns its directory.
#[derive(Debug)]
pub(super) struct Cluster {
    folder: PathBuf,
    programs: PathBuf,
    user: User,
    server: Option<Child>,
}

impl Cluster {
    /// Creates and starts a cluster in `folder`. It listens only on a socket there.
    pub(super) fn start(folder: &Path, interrupt: &Interrupt) -> Result<Self, Fault> {
        let programs = programs()?;
        let user = [SUPERUSER, "nobody"].iter().find_map(|name| User::from_name(name).ok()?);
        let user = user.ok_or_else(|| {
            Fault::environment(
                "PostgreSQL refuses to run as root, and there is no user postgres here",
            )
        })?;
        let fault = |error: &dyn std::fmt::Display| {
            Fault::environment(format!("cannot prepare {}: {error}", folder.display()))
        };
        chown(folder, Some(user.uid), Some(user.gid)).map_err(|error| fault(&error))?;
        // Nodes drop root's access to other users' directories.
        fs::set_permissions(folder, PermissionsExt::from_mode(0o711))
            .map_err(|error| fault(&error))?;
        let mut cluster = Self { folder: folder.to_owned(), programs, user, server: None };
        let mut initdb = cluster.command("initdb");
        initdb.args(["--pgdata", "data", "--username", SUPERUSER, "--encoding", "UTF8"]);
        initdb.args(["--locale", "C", "--no-sync", "--no-instructions", "--auth", "trust"]);
        run_command(initdb)?;
        // The superuser is root on this host.
        let access = format!("local all {SUPERUSER} peer map=root\nlocal all all scram-sha-256\n");
        let files =
            [("pg_hba.conf", access), ("pg_ident.conf", format!("root root {SUPERUSER}\n"))];
        for (name, text) in files {
            fs::write(folder.join("data").join(name), text).map_err(|error| fault(&error))?;
        }
        cluster.serve(interrupt)?;
        Ok(cluster)
    }

    fn serve(&mut self, interrupt: &Interrupt) -> Result<(), Fault> {
        let log = fs::File::create(self.folder.join("server.log"));
        let log = log.map_err(|error| Fault::environment(format!("the server's log: {error}")))?;
        let mut command = self.command("postgres");
        command.args(["-D", "data", "-c", "listen_addresses="]);
        command.arg("-c").arg(format!("unix_socket_directories={}", self.folder.display()));
        // Use files instead of shared memory objects, so that nothing is left outside the directory.
        command.args(["-c", "dynamic_shared_memory_type=mmap", "-c", "max_wal_size=512MB"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let server = command.spawn();
        self.server =
            Some(server.map_err(|error| {
                Fault::environment(format!("cannot start PostgreSQL: {error}"))
            })?);
        let begun = Instant::now();
        while self.sql(SUPERUSER, "SELECT 1").is_err() {
            interrupt.check()?;
            let ended = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            if ended.is_some() || begun.elapsed() >= START_PATIENCE {
                let log = fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
                return Err(Fault::environment(format!(
                    "PostgreSQL does not start; its log:\n{log}"
                )));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Returns the server's version, such as `PostgreSQL 15.3` from `postgres (PostgreSQL) 15.3`.
    pub(super) fn version(&self) -> Result<String, Fault> {
        self.sql(SUPERUSER, "SELECT 'PostgreSQL ' || current_setting('server_version')")
            .map(|said| said.split(" (").next().unwrap_or_default().trim().to_owned())
    }

    /// Returns the unformatted output of `psql`.
    pub(super) fn sql(&self, database: &str, sql: &str) -> Result<String, Fault> {
        let mut command = self.psql(database, sql);
        command.args(["--no-align", "--tuples-only", "--quiet"]);
        run_command(command)
    }

    /// Returns the output of `psql` as a table.
    pub(super) fn table(&self, database: &str, sql: &str) -> Result<String, Fault> {
        let mut command = self.psql(database, sql);
        command.args(["--pset", "footer=off"]);
        run_command(command)
    }

    fn psql(&self, database: &str, sql: &str) -> Command {
        let mut command = Command::new(self.programs.join("psql"));
        command.env_clear().env("LC_ALL", "C").current_dir("/");
        command.args(["--no-psqlrc", "--username", SUPERUSER, "--set", "ON_ERROR_STOP=1"]);
        command.arg("--host").arg(&self.folder).args(["--dbname", database, "--command", sql]);
        command
    }

    /// Returns a command for one of the server's programs. It runs as the server's user and ends with this process.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        let (uid, gid) = (self.user.uid.to_string(), self.user.gid.to_string());
        command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups", "--pdeathsig", "QUIT"]);
        command.arg("--").arg(self.programs.join(program));
        command
            .env_clear()
            .env("LC_ALL", "C")
            .env("PATH", "/usr/bin:/bin")
            .current_dir(&self.folder);
        // Ctrl-C must only reach this process.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(server) = &mut self.server else { return };
        if let Ok(pid) = i32::try_from(server.id()) {
            // Stop at once, without flushing data that is deleted anyway.
            let _ = kill(Pid::from_raw(pid), Signal::SIGQUIT);
        }
        let begun = Instant::now();
        while begun.elapsed() < END_PATIENCE && matches!(server.try_wait(), Ok(None)) {
            thread::sleep(LOOK_EVERY);
        }
        let _ = server.kill();
        let _ = server.wait();
    }
}

/// Finds the directory with the programs of the newest version.
pub(super) fn programs() -> Result<PathBuf, Fault> {
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|version| *version >= OLDEST)
        .max();
    let debian = newest.map(|version| PathBuf::from(format!("{DEBIAN}/{version}/bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let complete = |folder: &PathBuf| {
        ["postgres", "initdb", "psql"].iter().all(|name| folder.join(name).exists())
    };
    debian.into_iter().chain(std::env::split_paths(&path)).find(complete).ok_or_else(|| {
        Fault::environment(format!(
            "the demo creates its own database, and found no PostgreSQL {OLDEST} or newer: apt install postgresql"
        ))
    })
}

/// Runs a program to completion, and returns its output.
fn run_command(mut command: Command) -> Result<String, Fault> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|error| Fault::environment(format!("{shown}: {error}")))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(Fault::environment(format!("{shown}: {}: {}", done.status, said.trim())))
}
