//! Logging with one line per event, in which text from a peer is escaped.
//!
//! All lines go through `tracing`. The macro [`crate::say!`] gives an event the same level (`verb`) as in OpenVPN.
//! [`start`] installs the only subscriber, in OpenVPN's format for `adit openvpn` or in a plain one. A second [`start`]
//! (SIGHUP) changes it in place.

pub mod limiter;
mod observer;
mod sink;
mod text;
mod traffic;
mod wrap;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

pub use limiter::{Kind, LogDecision, LogLimiter, Source};
pub use observer::{observe, set_observed};
use sink::Sink;
pub use text::clean_lines;
pub use text::{LINE_LIMIT, bytes, clean, rate, stamp};
use text::{TimestampCache, push_clean};
pub use traffic::Traffic;
pub use wrap::{WIDTH, fault_line, wrapped};

/// Logs a line at one of OpenVPN's levels: 0 fatal, 1 start-up and warnings, 2 handshakes, 3 normal operation,
/// 4 and above for debugging.
#[macro_export]
macro_rules! say {
    ($verb:expr, $($message:tt)+) => {
        if $crate::log::wanted($verb as u64) {
            ::tracing::info!(verb = $verb as u64, $($message)+)
        }
    };
}

/// The format of the lines.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Style {
    /// The format of `openvpn`.
    OpenVpn {
        /// Whether lines have a time, that is, `suppress-timestamps` is not set.
        timestamps: bool,
        /// `machine-readable-output`: seconds since 1970 and flags instead of a date.
        machine_readable: bool,
    },
    /// A date and the message; warnings and errors have a prefix.
    Plain {
        /// Whether lines have a date, unless journald or another program adds it.
        timestamps: bool,
    },
}

/// The destination of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output, as in OpenVPN.
    Stdout,
    /// Standard output, and standard error for errors.
    Split,
    /// Standard error.
    Stderr,
    /// A file. It is truncated at startup.
    File(PathBuf),
    /// A file to which lines are appended.
    Append(PathBuf),
    /// The system log, under this name.
    Syslog(String),
}

/// The settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The format.
    pub style: Style,
    /// The maximum level of lines that are written.
    pub verb: u8,
    /// The maximum number of consecutive lines from one place in the code, or `None` for no limit.
    pub mute: Option<u32>,
    /// The destination.
    pub target: Target,
}

impl Settings {
    /// Returns settings for human-readable lines on standard error. Each `-v` raises the level.
    pub fn friendly(verbose: u8) -> Self {
        // journald adds timestamps itself; this variable indicates it (systemd.exec(5)).
        let timestamps = std::env::var_os("JOURNAL_STREAM").is_none();
        Self {
            style: Style::Plain { timestamps },
            verb: verbose.saturating_add(1),
            mute: None,
            target: Target::Stderr,
        }
    }
}

static LOG: OnceLock<Arc<Mutex<Writer>>> = OnceLock::new();

/// The maximum level of lines that are written or observed. [`crate::say!`] does not format lines above it.
static VERB: AtomicU8 = AtomicU8::new(u8::MAX);

/// Returns whether a line of this level may be written.
#[must_use]
pub fn wanted(verb: u64) -> bool {
    verb <= u64::from(VERB.load(Ordering::Relaxed))
}

/// The maximum number of bytes of lines that are gathered.
const GATHERED_LIMIT: usize = 16 * 1024;

/// The prefixes of the names of threads that move packets.
const WORKERS: [&str; 2] = ["plane-", "bridge-"];

/// Starts logging, or changes its settings.
///
/// # Errors
/// Fails if the target cannot be opened. The previous target stays in use.
pub fn start(settings: Settings) -> std::io::Result<()> {
    let sink = Sink::open(&settings.target)?;
    let verb = settings.verb;
    let writer = Writer::new(settings, sink);
    match LOG.get() {
        Some(shared) => {
            let mut former = lock(shared);
            former.flush();
            *former = writer;
        }
        None => {
            let shared = Arc::new(Mutex::new(writer));
            let layer = LogLayer(Arc::clone(&shared));
            if LOG.set(shared).is_ok() {
                log_panics();
                // This fails only if a test has its own subscriber, which gets the events instead.
                let _ = tracing::subscriber::set_global_default(Registry::default().with(layer));
            }
        }
    }
    set_wanted(verb);
    Ok(())
}

/// Makes [`crate::say!`] format the lines that are written at this level, and those that are only observed.
fn set_wanted(verb: u8) {
    VERB.store(verb.max(observer::observed()), Ordering::Relaxed);
}

/// Returns the maximum level of lines that are written, and the limit of [`Settings::mute`].
#[must_use]
pub fn verbosity() -> (u8, Option<u32>) {
    match LOG.get() {
        Some(shared) => {
            let writer = lock(shared);
            (writer.settings.verb, writer.settings.mute)
        }
        None => (VERB.load(Ordering::Relaxed), None),
    }
}

/// Changes the maximum level of lines that are written.
pub fn set_verb(verb: u8) {
    if let Some(shared) = LOG.get() {
        lock(shared).settings.verb = verb;
        set_wanted(verb);
    }
}

/// Changes [`Settings::mute`].
pub fn set_mute(mute: Option<u32>) {
    if let Some(shared) = LOG.get() {
        lock(shared).settings.mute = mute;
    }
}

/// Passes each line to `send` with its level instead of writing it, because another process writes the log.
pub fn forward(send: impl Fn(Level, u64, &str) + Send + Sync + 'static) {
    // This fails only if there is already a subscriber.
    let layer = Forwarded(Box::new(send));
    let _ = tracing::subscriber::set_global_default(Registry::default().with(layer));
}

type Forward = dyn Fn(Level, u64, &str) + Send + Sync;

struct Forwarded(Box<Forward>);

impl<S: Subscriber> Layer<S> for Forwarded {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        heard(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (level, verb, message) = read(event);
        (self.0)(level, verb, &message);
    }
}

/// Returns whether a record is logged. From libraries, only warnings and errors are.
fn heard(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("adit") || *metadata.level() <= Level::WARN
}

/// Returns the level, `verb` and text of an event.
fn read(event: &Event<'_>) -> (Level, u64, String) {
    let mut fields = text::Fields::default();
    event.record(&mut fields);
    let level = *event.metadata().level();
    let verb = fields.verb.unwrap_or(match level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => 3,
        Level::DEBUG => 5,
        Level::TRACE => 7,
    });
    (level, verb, fields.message())
}

/// Writes panics to the log, and aborts the process if a thread other than the control thread panicked. A data plane
/// without its worker would appear to run but carry no packets, while a service manager restarts a dead process.
fn log_panics() {
    let control = std::thread::current().id();
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!("a mistake in adit, please report it: {info}");
        former(info);
        let name = std::thread::current().name().map(str::to_owned).unwrap_or_default();
        if std::thread::current().id() != control
            && WORKERS.iter().any(|worker| name.starts_with(worker))
        {
            std::process::abort();
        }
    }));
}

/// Logs an error with several lines, such as one in a rule file with its carets. Each becomes a line of the log.
pub fn error(text: &str) {
    text.lines().for_each(|line| tracing::error!("{line}"));
}

/// Does the same as [`error`] for a warning.
pub fn warning(text: &str) {
    text.lines().for_each(|line| tracing::warn!("{line}"));
}

fn lock(shared: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The layer that formats events and writes them.
struct LogLayer(Arc<Mutex<Writer>>);

struct Writer {
    settings: Settings,
    sink: Sink,
    run: RepeatRun,
    /// Whether lines wait in `gathered` for the end of an event.
    gathering: bool,
    gathered: String,
    stamps: TimestampCache,
    /// Whether a person reads the lines on a terminal. A program that reads a file or pipe expects one line for each
    /// event.
    terminal: bool,
}

/// Collects the lines of one event until it is dropped, and writes them with one system call. Errors are
/// written at once.
#[must_use]
pub struct LineBatch(());

/// Starts gathering the lines of one event.
pub fn gather() -> LineBatch {
    if let Some(shared) = LOG.get() {
        lock(shared).gathering = true;
    }
    LineBatch(())
}

impl Drop for LineBatch {
    fn drop(&mut self) {
        if let Some(shared) = LOG.get() {
            let mut writer = lock(shared);
            writer.gathering = false;
            writer.flush();
        }
    }
}

/// A run of consecutive lines from one place in the code, for `mute`.
#[derive(Default)]
struct RepeatRun {
    place: Option<tracing::callsite::Identifier>,
    count: u32,
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        heard(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (level, verb, message) = read(event);
        let mut writer = lock(&self.0);
        if verb <= u64::from(writer.settings.verb) {
            writer.take(event.metadata().callsite(), level, verb, &message);
        } else if verb <= u64::from(observer::observed()) {
            observer::notify(level, verb, &message);
        }
    }
}

impl Writer {
    fn new(settings: Settings, sink: Sink) -> Self {
        let friendly = matches!(settings.style, Style::Plain { .. });
        let terminal = friendly && matches!(sink, Sink::Stderr) && std::io::stderr().is_terminal();
        Self {
            settings,
            sink,
            terminal,
            run: RepeatRun::default(),
            gathering: false,
            gathered: String::new(),
            stamps: TimestampCache::default(),
        }
    }

    fn flush(&mut self) {
        if !self.gathered.is_empty() {
            // Free the buffer, because an allocation that is kept from a session's start would fragment the heap after
            // the client is gone.
            self.sink.write(&std::mem::take(&mut self.gathered));
        }
    }

    fn take(
        &mut self,
        place: tracing::callsite::Identifier,
        level: Level,
        verb: u64,
        message: &str,
    ) {
        let former = self.run.count;
        if self.run.place.as_ref() == Some(&place) {
            self.run.count = former.saturating_add(1);
        } else {
            self.run = RepeatRun { place: Some(place), count: 1 };
            if let Some(mute) = self.settings.mute.filter(|&mute| mute > 0 && former > mute) {
                let suppressed = former - mute;
                self.write(
                    Level::INFO,
                    1,
                    &format!(
                        "{suppressed} variation(s) on previous {mute} message(s) suppressed by --mute"
                    ),
                );
            }
        }
        match self.settings.mute.filter(|&mute| mute > 0) {
            Some(mute) if self.run.count == mute.saturating_add(1) => {
                self.write(Level::INFO, 1, "NOTE: --mute triggered...");
            }
            Some(mute) if self.run.count > mute => {}
            _ => self.write(level, verb, message),
        }
    }

    fn write(&mut self, level: Level, verb: u64, message: &str) {
        observer::notify(level, verb, message);
        if let Sink::Syslog(syslog) = &mut self.sink {
            syslog.write(level, &clean(message));
            return;
        }
        let split = level == Level::ERROR && matches!(self.sink, Sink::Split);
        if split {
            // The lines before the error belong to the other stream.
            self.flush();
        }
        let now = crate::clock::unix_time().0;
        let line = &mut self.gathered;
        let begin = line.len();
        match self.settings.style {
            Style::OpenVpn { machine_readable: true, .. } => {
                line.push_str(&format!("{now}.000000 1 "));
            }
            Style::OpenVpn { timestamps: true, .. } | Style::Plain { timestamps: true } => {
                line.push_str(self.stamps.at(now));
                line.push(' ');
            }
            Style::OpenVpn { .. } | Style::Plain { .. } => {}
        }
        let text = line.len();
        if let Style::Plain { .. } = self.settings.style {
            line.push_str(match level {
                Level::ERROR => "error: ",
                Level::WARN => "warning: ",
                _ => "",
            });
        }
        push_clean(line, message);
        if self.terminal {
            let words = line.split_off(text);
            let head = line.split_off(begin);
            line.push_str(&wrap::log_line(&head, &words));
        } else {
            line.push('\n');
        }
        // A process that is about to abort must still log the reason and the lines before it.
        if split {
            self.sink.write_error(&std::mem::take(&mut self.gathered));
        } else if !self.gathering || level == Level::ERROR || self.gathered.len() >= GATHERED_LIMIT
        {
            self.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_with(settings: Settings, work: impl FnOnce()) -> String {
        let path = match &settings.target {
            Target::File(path) => path.clone(),
            other => panic!("the test reads a file, not {other:?}"),
        };
        let sink = Sink::open(&settings.target).unwrap();
        let writer = Writer::new(settings, sink);
        let layer = LogLayer(Arc::new(Mutex::new(writer)));
        tracing::subscriber::with_default(Registry::default().with(layer), work);
        std::fs::read_to_string(path).unwrap()
    }

    fn stock(dir: &std::path::Path, verb: u8, mute: Option<u32>) -> Settings {
        Settings {
            style: Style::OpenVpn { timestamps: false, machine_readable: false },
            verb,
            mute,
            target: Target::File(dir.join("log")),
        }
    }

    #[test]
    fn levels_above_verb_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let text = write_with(stock(dir.path(), 1, None), || {
            say!(1, "Initialization Sequence Completed");
            say!(3, "VERIFY OK");
            tracing::warn!("a warning");
        });
        assert_eq!(text, "Initialization Sequence Completed\na warning\n");
    }

    /// `machine-readable-output`: the time in seconds with six decimals, and the flags.
    #[test]
    fn lines_for_machines_begin_with_seconds_and_flags() {
        let dir = tempfile::tempdir().unwrap();
        let style = Style::OpenVpn { timestamps: true, machine_readable: true };
        let settings = Settings { style, ..stock(dir.path(), 1, None) };
        let before = crate::clock::unix_time().0;
        let text = write_with(settings, || say!(1, "Initialization Sequence Completed"));
        let (time, rest) = text.split_once('.').unwrap();
        let time: u64 = time.parse().unwrap();
        assert!((before..before + 3600).contains(&time), "{text}");
        assert_eq!(rest, "000000 1 Initialization Sequence Completed\n");
    }

    #[test]
    fn what_a_peer_sent_cannot_begin_a_line_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let text = write_with(stock(dir.path(), 3, None), || {
            say!(1, "name {}", "a\n2026-11-20 Initialization\u{1b}[2J\u{202e}");
        });
        assert_eq!(text, "name a\\x0a2026-11-20 Initialization\\x1b[2J\\u{202e}\n");
    }

    #[test]
    fn an_error_of_several_lines_is_several_lines_with_their_carets_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let text = write_with(stock(dir.path(), 3, None), || {
            error("fw.nft:1:5: no such word\n    tcp dprot 7\n        ^^^^^");
        });
        assert_eq!(text, "fw.nft:1:5: no such word\n    tcp dprot 7\n        ^^^^^\n");
    }

    #[test]
    fn gathered_lines_wait_for_the_end_of_the_event_and_for_an_error_not_even_that() {
        let dir = tempfile::tempdir().unwrap();
        let settings = stock(dir.path(), 3, None);
        let sink = Sink::open(&settings.target).unwrap();
        let mut writer = Writer::new(settings, sink);
        let text = || std::fs::read_to_string(dir.path().join("log")).unwrap();
        writer.gathering = true;
        writer.write(Level::INFO, 1, "one");
        assert_eq!(text(), "");
        writer.write(Level::ERROR, 1, "two");
        assert_eq!(text(), "one\ntwo\n");
        writer.write(Level::INFO, 1, "three");
        writer.flush();
        assert_eq!(text(), "one\ntwo\nthree\n");
        let long = "x".repeat(GATHERED_LIMIT / 8);
        (0..8).for_each(|_| writer.write(Level::INFO, 1, &long));
        assert!(text().len() > GATHERED_LIMIT, "not more than so much waits");
    }

    #[test]
    fn mute_stops_a_run_and_counts_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = write_with(stock(dir.path(), 3, Some(2)), || {
            for n in 0..5 {
                say!(1, "again {n}");
            }
            say!(1, "something else");
        });
        assert_eq!(
            text,
            "again 0\nagain 1\nNOTE: --mute triggered...\n\
             3 variation(s) on previous 2 message(s) suppressed by --mute\nsomething else\n"
        );
    }
}
