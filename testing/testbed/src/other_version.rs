//! A process of another version at one end of a control socket: the real process answers the real program, and what passes between them is
//! altered on the way, as another version would write it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::failure::{Context, Result};

/// A text, and what another version writes in its place.
pub type Change = (&'static str, &'static str);

/// A relay in the place of a control socket, which comes back when this is dropped.
#[derive(Debug)]
pub struct OtherVersion {
    socket: PathBuf,
    aside: PathBuf,
    ends: Arc<AtomicBool>,
    relay: Option<JoinHandle<()>>,
}

impl OtherVersion {
    /// Moves a control socket aside, and relays from its place with these changes to each request and each answer.
    ///
    /// # Errors
    /// There is no such socket, or it cannot be moved.
    pub fn between(socket: &Path, aside: &Path, request: Change, answer: Change) -> Result<Self> {
        fs::rename(socket, aside).context(socket.display())?;
        let listener = UnixListener::bind(socket).context(socket.display())?;
        let ends = Arc::new(AtomicBool::new(false));
        let (behind, ended) = (aside.to_owned(), Arc::clone(&ends));
        let relay = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Relaxed) {
                    return;
                }
                // The program notices a connection that ends without an answer.
                let _ = stream.and_then(|stream| relay_one(stream, &behind, request, answer));
            }
        });
        let (socket, aside) = (socket.to_owned(), aside.to_owned());
        Ok(Self { socket, aside, ends, relay: Some(relay) })
    }
}

impl Drop for OtherVersion {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        drop(UnixStream::connect(&self.socket));
        if let Some(relay) = self.relay.take() {
            let _ = relay.join();
        }
        let _ = fs::rename(&self.aside, &self.socket);
    }
}

/// Relays one request and its answer.
fn relay_one(
    stream: UnixStream,
    behind: &Path,
    request: Change,
    answer: Change,
) -> std::io::Result<()> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut line)?;
    let mut process = UnixStream::connect(behind)?;
    process.write_all(line.replace(request.0, request.1).as_bytes())?;
    process.shutdown(std::net::Shutdown::Write)?;
    let mut text = String::new();
    process.read_to_string(&mut text)?;
    reader.get_mut().write_all(text.replace(answer.0, answer.1).as_bytes())
}
