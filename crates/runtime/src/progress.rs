//! A line on a terminal that shows that a command is at work.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::log::WIDTH;

/// The time after which the line appears, and between its changes. Most work has ended by then.
const EVERY: Duration = Duration::from_secs(1);

/// Shows on stderr what a command does and for how long, if that is a terminal. Dropping it erases the line.
///
/// Questions and output belong either before or after it, or into [`Progress::aside`].
#[derive(Debug)]
pub struct Progress {
    /// `None` if nothing is shown.
    line: Option<(Arc<Line>, JoinHandle<()>)>,
}

#[derive(Debug)]
struct Line {
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Debug)]
struct State {
    text: String,
    is_shown: bool,
    is_over: bool,
}

impl Progress {
    /// Begins to show what the command does, such as "connecting".
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        if io::stderr().is_terminal() {
            Self::every(EVERY, text.into())
        } else {
            Self { line: None }
        }
    }

    fn every(every: Duration, text: String) -> Self {
        let state = Mutex::new(State { text, is_shown: false, is_over: false });
        let line = Arc::new(Line { state, over: Condvar::new() });
        let theirs = Arc::clone(&line);
        // Without a thread there is no line, and the work goes on.
        let thread = thread::Builder::new().spawn(move || theirs.run(every)).ok();
        Self { line: thread.map(|thread| (line, thread)) }
    }

    /// Changes the text.
    pub fn set(&self, text: impl FnOnce() -> String) {
        if let Some((line, _)) = &self.line {
            line.state().text = text();
        }
    }

    /// Runs a function that prints, without the line.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        let Some((line, _)) = &self.line else { return print() };
        let mut state = line.state();
        state.erase();
        print()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((line, thread)) = self.line.take() {
            let mut state = line.state();
            state.is_over = true;
            state.erase();
            drop(state);
            line.over.notify_all();
            let _ = thread.join();
        }
    }
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, every: Duration) {
        let began = Instant::now();
        let mut state = self.state();
        while !state.is_over {
            let waited = self.over.wait_timeout(state, every);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() && !state.is_over {
                state.draw(began.elapsed());
            }
        }
    }
}

impl State {
    fn draw(&mut self, since: Duration) {
        let time = format!(" ({} s)", since.as_secs());
        let room = WIDTH.saturating_sub(time.len().saturating_add("... ".len()));
        let text: String = self.text.chars().take(room).collect();
        write(&format!("\r\x1b[K... {text}{time}"));
        self.is_shown = true;
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            write("\r\x1b[K");
        }
    }
}

/// A display that fails is no reason to stop.
fn write(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
