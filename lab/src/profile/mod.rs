//! Samples a program with perf, and draws a flame graph and a call graph; with a second recording, also the difference.
//!
//! perf follows this process and every process that it starts, and so needs no knowledge of the trial. Only the stacks
//! of the measured program are kept from its recording.
//!
//! The sampling event is the clock interrupt (`cpu-clock`), which needs no hardware counters. Stacks are unwound from
//! copies of their top 16 KiB with the unwind tables that every release build has, so the sampled program is the
//! measured one. Its line tables distinguish inlined functions.

mod calls;
mod owner;
mod script;
mod trial;

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Failure, Result, ensure};
use inferno::collapse::{Collapse, perf};
use inferno::{differential as difference, flamegraph};
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use calls::Calls;

pub use owner::Owner;
pub use trial::{Arguments, run};

/// The number of samples per second and CPU, chosen not to be a multiple of common timer frequencies. Each sample takes
/// about 16 KiB in the recording.
const FREQUENCY: &str = "499";
/// The size at which perf stops on its own. The samples recorded until then are drawn.
const LARGEST: &str = "2G";
/// The time limit for perf to attach, and to finish writing.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The folded stacks in a folder of [`graphs`]: lines of `outer;inner samples`.
pub const FOLDED: &str = "stacks.folded";
/// The flame graph in a folder of [`graphs`].
pub const FLAME: &str = "flame.svg";
/// The call graph in a folder of [`graphs`], as a table.
pub const CALLS: &str = "calls.md";
/// The call graph in a folder of [`graphs`], for Graphviz.
pub const DOT: &str = "calls.dot";

/// A running recording.
#[derive(Debug)]
pub struct Recording {
    perf: Child,
}

impl Recording {
    /// Starts to sample this process, and every thread and process that it starts from now on, into the file `out`.
    ///
    /// # Errors
    /// perf is not installed or not permitted to sample.
    pub fn start(out: &Path) -> Result<Self> {
        let log = out.with_extension("log");
        let control = Control::new(out)?;
        let mut command = Command::new("perf");
        command.args(["record", "--quiet", "--event=cpu-clock", "--freq", FREQUENCY]);
        command.args(["--call-graph", "dwarf,16384", "--no-buildid-cache", "--max-size", LARGEST]);
        command.args(["--pid", &std::process::id().to_string()]).arg("--output").arg(out);
        command.args(["--delay", "-1", "--control", &control.argument()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log).context(log.display())?);
        let perf = command.spawn().map_err(|error| missing(&error))?;
        let mut recording = Self { perf };
        recording.wait_until_it_samples(control, &log)?;
        Ok(recording)
    }

    /// Waits until perf samples. A process started earlier would have no name in the recording.
    fn wait_until_it_samples(&mut self, mut control: Control, log: &Path) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        control.enable()?;
        while !control.is_answered()? {
            if let Some(status) = self.perf.try_wait()? {
                let said = fs::read_to_string(log).unwrap_or_default();
                return Err(Failure(format!("perf record: {status}: {}", said.trim())));
            }
            ensure(Instant::now() < end, || "perf record does not begin".into())?;
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends the sampling and waits until the recording is complete.
    ///
    /// # Errors
    /// perf failed.
    pub fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.perf.id()).context("perf's process id")?;
        kill(Pid::from_raw(pid), Signal::SIGINT).context("ending perf record")?;
        let end = Instant::now() + TIMEOUT;
        while self.perf.try_wait()?.is_none() {
            ensure(Instant::now() < end, || "perf record does not end".into())?;
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// The two pipes by which perf is started and acknowledges the start.
struct Control {
    names: [PathBuf; 2],
    pipes: [File; 2],
}

impl Control {
    fn new(recording: &Path) -> Result<Self> {
        let names = ["control", "answer"].map(|name| recording.with_extension(name));
        let open = |path: &Path| -> Result<File> {
            mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).context(path.display())?;
            // Opened for both reading and writing, because otherwise opening would wait for perf.
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
            options.open(path).context(path.display())
        };
        let pipes = [open(&names[0])?, open(&names[1])?];
        Ok(Self { names, pipes })
    }

    fn argument(&self) -> String {
        format!("fifo:{},{}", self.names[0].display(), self.names[1].display())
    }

    fn enable(&mut self) -> Result<()> {
        self.pipes[0].write_all(b"enable\n").context("telling perf to begin")
    }

    fn is_answered(&mut self) -> Result<bool> {
        match self.pipes[1].read(&mut [0; 16]) {
            Ok(length) => Ok(length > 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error).context("perf's answer"),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // This fails if perf has already stopped.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
    }
}

/// Writes [`FOLDED`], [`FLAME`], [`CALLS`] and [`DOT`] to the folder `out`, from the samples of `owner` in a file of a
/// [`Recording`]. Call it while the sampled programs are still at their paths.
///
/// # Errors
/// perf cannot read the file, or it contains no sample of the owner.
pub fn graphs(recording: &Path, owner: &Owner, out: &Path) -> Result<()> {
    // Leave out the stacks, which take long to unwind, because this only determines which process ran which program.
    let tasks = script(recording, &["--show-task-events", "--fields", "comm,pid,tid,time,event"])?;
    let pids = owner.pids(&tasks)?;
    let fields = "comm,pid,tid,time,event,ip,sym,dso";
    graphs_of_script(&script(recording, &["--pid", &pids, "--fields", fields])?, out)
}

fn script(recording: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("perf");
    command.arg("script").args(arguments).arg("--input").arg(recording);
    let output = command.output().map_err(|error| missing(&error))?;
    ensure(output.status.success(), || {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("perf script: {}: {}", output.status, said.trim())
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Draws the same graphs from the text that `perf script` wrote.
fn graphs_of_script(script: &str, out: &Path) -> Result<()> {
    let folded = fold(script)?;
    let calls = Calls::read(&folded)?;
    fs::create_dir_all(out).context(out.display())?;
    let put = |name: &str, text: &str| fs::write(out.join(name), text).context(name);
    put(FOLDED, &folded)?;
    put(CALLS, &calls.markdown())?;
    put(DOT, &calls.dot())?;
    let mut options = options("Where the time goes");
    draw(&mut options, &folded, &out.join(FLAME))
}

fn fold(script: &str) -> Result<String> {
    let mut options = perf::Options::default();
    options.annotate_kernel = true;
    options.nthreads = 1;
    let mut folded = Vec::new();
    let tidy = script::tidy(script);
    perf::Folder::from(options)
        .collapse(tidy.as_bytes(), &mut folded)
        .context("folding the stacks")?;
    let folded = String::from_utf8(folded).context("folding the stacks")?;
    ensure(!folded.is_empty(), || "not one sample: were the processes idle?".into())?;
    Ok(folded)
}

/// Draws into the file `out` which functions take more samples in `after` (red) and which take fewer (blue) than in
/// `before`. Both are folders of [`graphs`]; the widths are those of `after`, and `before` is scaled to the same number
/// of samples.
///
/// # Errors
/// A folder has no folded stacks.
pub fn differential(before: &Path, after: &Path, out: &Path) -> Result<()> {
    let options_of = difference::Options { normalize: true, strip_hex: true };
    let mut both = Vec::new();
    let (first, second) = (before.join(FOLDED), after.join(FOLDED));
    difference::from_files(options_of, &first, &second, &mut both).context(format!(
        "{} and {}",
        first.display(),
        second.display()
    ))?;
    let both = String::from_utf8(both).context("the difference")?;
    let mut options = options("The difference: red takes more than before, blue takes less");
    draw(&mut options, &both, out)
}

fn options(title: &str) -> flamegraph::Options<'static> {
    let mut options = flamegraph::Options::default();
    options.title = title.to_owned();
    options.subtitle = Some(
        "width: share of the samples; height: depth of calls; click to zoom, Ctrl-F to search"
            .into(),
    );
    options.count_name = "samples".to_owned();
    // The same recording gives the same picture.
    options.deterministic = true;
    options.min_width = 0.05;
    options
}

fn draw(options: &mut flamegraph::Options<'_>, folded: &str, out: &Path) -> Result<()> {
    let file = File::create(out).context(out.display())?;
    flamegraph::from_lines(options, folded.lines(), BufWriter::new(file))
        .context("drawing the flame graph")
}

fn missing(error: &std::io::Error) -> Failure {
    Failure(format!("perf: {error}; install it: apt-get install linux-perf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six samples of a server: three in sealing, two in opening, one in the kernel's copying.
    const SCRIPT: &str = include_str!("fixtures/perf-script.txt");

    #[test]
    fn the_sums_of_a_known_recording() {
        let folder = tempfile::tempdir().unwrap();
        graphs_of_script(SCRIPT, folder.path()).unwrap();
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let folded = text(FOLDED);
        let mut lines: Vec<&str> = folded.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "adit-worker;start_thread;plane::worker::run;recv_burst;__libc_recvmmsg;copy_to_user_[k] 1",
                "adit-worker;start_thread;plane::worker::run;recv_burst;open_run;aes_decrypt 2",
                "adit-worker;start_thread;plane::worker::run;tun_turn;egress;aes_encrypt 3",
            ]
        );
        assert!(text(CALLS).contains("6 samples"));
        assert!(text(DOT).contains("\"egress\" -> \"aes_encrypt\""));
        let flame = text(FLAME);
        assert!(flame.contains("aes_encrypt (3 samples, 50.00%)"), "{flame}");
        assert!(flame.contains("recv_burst (3 samples, 50.00%)"), "both ways down are one frame");
    }

    #[test]
    fn the_difference_names_what_grew_and_what_shrank() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("a"), folder.path().join("b"));
        let put = |folder: &Path, text: &str| {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(FOLDED), text).unwrap();
        };
        put(&before, "adit;seal 50\nadit;open 50\n");
        put(&after, "adit;seal 150\nadit;open 50\n");
        let out = folder.path().join("difference.svg");
        differential(&before, &after, &out).unwrap();
        let svg = fs::read_to_string(out).unwrap();
        // Half of 200 samples before, three quarters afterwards.
        assert!(svg.contains("seal (150 samples, 75.00%; +25.00%)"), "{svg}");
        assert!(svg.contains("open (50 samples, 25.00%; -25.00%)"), "{svg}");
    }

    #[test]
    fn a_recording_of_nothing_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let failure = graphs_of_script("", folder.path()).unwrap_err();
        assert!(failure.0.contains("not one sample"), "{failure}");
        assert!(differential(folder.path(), folder.path(), &folder.path().join("x")).is_err());
    }
}
