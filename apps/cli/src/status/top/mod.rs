//! `adit top`: a full-screen view on a terminal, and one page elsewhere.
//!
//! ```text
//!   thread: status of all processes ──► View::update ─┐
//!   keys                            ──► View::key    ─┼─► draw
//!   thread: signals                 ──► end           ┘
//! ```

mod draw;
mod page;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use adit_runtime::fault::Fault;
use nix::sys::signal::{SigSet, Signal};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::args::{SortKey, Top};
use crate::{paths, print};
#[cfg(feature = "tinc")]
pub(crate) use view::Row;
pub(crate) use view::Seen;
use view::{Step, View};

#[cfg(test)]
pub(super) use page::sorted;
pub(super) use page::top_page;

/// The screen waits this long for a key before it looks for a new status.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// The number of messages that can wait. The threads wait for room.
const MAX_MESSAGES: usize = 1;

/// A message of the threads to the screen.
enum Message {
    /// What is running, and the time since the last status.
    Status(Seen, Duration),
    Failed(Fault),
    /// A signal asks the program to end.
    End,
}

pub(crate) fn top(options: &Top) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let machine = adit_app_server::status(&paths)?;
    if !has_screen() {
        print(&top_page(&machine, &paths, options.sort));
        return Ok(ExitCode::SUCCESS);
    }
    let seen = Seen::from(&machine);
    let look = move || Ok(Seen::from(&adit_app_server::status(&paths)?));
    full_screen(seen, options.sort, Duration::from_secs(options.every), look)
}

/// Returns whether there is a terminal whose whole screen can be drawn. One of the type `dumb` cannot move its cursor.
pub(crate) fn has_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb
}

/// Shows rows on the whole terminal, which `look` looks up again and again.
pub(crate) fn full_screen(
    seen: Seen,
    sort: SortKey,
    every: Duration,
    look: impl FnMut() -> Result<Seen, Fault> + Send + 'static,
) -> Result<ExitCode, Fault> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut view = View::new(sort, !no_color);
    view.update(seen, Duration::ZERO);
    let (sender, messages) = mpsc::sync_channel(MAX_MESSAGES);
    end_on_signals(sender.clone())?;
    std::thread::spawn(move || watch(look, every, &sender));
    // This also restores the terminal before a panic is printed.
    let mut terminal = ratatui::try_init().map_err(|error| terminal_fault(&error))?;
    let ended = show(&mut terminal, &mut view, &messages);
    if ended.is_err() && !io::stdout().is_terminal() {
        // The terminal was closed, and the signal is on its way or ignored. ratatui would panic, because it cannot report that it cannot restore it.
        std::process::exit(0);
    }
    ratatui::restore();
    match ended.map_err(|error| terminal_fault(&error))? {
        None => Ok(ExitCode::SUCCESS),
        Some(fault) => Err(fault),
    }
}

fn terminal_fault(error: &io::Error) -> Fault {
    Fault::environment(format!("cannot use this terminal: {error}"))
}

/// Turns the signals that would end the program into a message, so that the terminal is restored first.
fn end_on_signals(sender: SyncSender<Message>) -> Result<(), Fault> {
    let signals: SigSet =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM].into_iter().collect();
    // Threads that are started later inherit the mask.
    signals
        .thread_block()
        .map_err(|error| Fault::environment(format!("cannot receive signals: {error}")))?;
    std::thread::spawn(move || {
        match signals.wait() {
            // There is no terminal any more, neither to restore nor to wait for: reading keys from it would never return.
            Ok(Signal::SIGHUP) => std::process::exit(0),
            // Without a receiver, the program is ending already.
            Ok(_) => drop(sender.send(Message::End)),
            Err(_) => {}
        }
    });
    Ok(())
}

/// Queries all processes again and again. A process that hangs delays the next status, but not the keys.
fn watch(
    mut look: impl FnMut() -> Result<Seen, Fault>,
    every: Duration,
    sender: &SyncSender<Message>,
) {
    let mut last = Instant::now();
    loop {
        std::thread::sleep(every);
        let message = match look() {
            Ok(seen) => Message::Status(seen, last.elapsed()),
            Err(fault) => Message::Failed(fault),
        };
        last = Instant::now();
        if sender.send(message).is_err() {
            return;
        }
    }
}

/// Shows the view until a key or a signal ends it, or until the status cannot be looked up.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    view: &mut View,
    messages: &Receiver<Message>,
) -> io::Result<Option<Fault>> {
    let mut changed = true;
    loop {
        if changed {
            terminal.draw(|frame| draw::draw(view, frame))?;
        }
        // Keys that are waiting already are drawn together.
        changed = false;
        let mut wait = KEY_WAIT;
        while event::poll(wait)? {
            wait = Duration::ZERO;
            changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && view.key(key.code, key.modifiers) == Step::Quit
            {
                return Ok(None);
            }
        }
        match messages.try_recv() {
            Ok(Message::Status(seen, passed)) => {
                view.update(seen, passed);
                changed = true;
            }
            Ok(Message::Failed(fault)) => return Ok(Some(fault)),
            // The threads end only by a panic.
            Ok(Message::End) | Err(TryRecvError::Disconnected) => return Ok(None),
            Err(TryRecvError::Empty) => {}
        }
    }
}
