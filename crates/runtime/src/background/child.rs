//! A supervised program: its connection to the supervisor, through which it gets answers and notices the supervisor's end.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::driver::watch;
use crate::prompts;

/// The environment variable that the supervisor sets for its program.
pub(super) const SUPERVISED: &str = "ADIT_SUPERVISED";

/// The maximum length of the line with the answers in bytes.
pub(super) const ANSWERS_LIMIT: usize = 64 * 1024;

/// Standard input, if it is the connection to a supervisor.
static CONNECTION: OnceLock<OwnedFd> = OnceLock::new();

/// Takes the answers from the supervisor, if one started this process. Call it early in `main`.
///
/// # Errors
/// The supervisor has ended.
pub fn adopt() -> io::Result<()> {
    if std::env::var_os(SUPERVISED).is_none() {
        return Ok(());
    }
    let line = read_line(&mut io::stdin().lock(), ANSWERS_LIMIT)?;
    prompts::give(serde_json::from_slice(&line).map_err(io::Error::other)?);
    let _ = CONNECTION.set(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(())
}

/// Reads one line. The reader must not read ahead.
///
/// # Errors
/// The line does not end, or is longer than `limit` bytes.
pub(super) fn read_line(from: &mut dyn Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        if byte == *b"\n" {
            return Ok(line);
        }
        if line.len() >= limit {
            return Err(io::ErrorKind::InvalidData.into());
        }
        line.extend_from_slice(&byte);
    }
}

/// Waits for the end of the supervisor; forever, if there is none.
#[derive(Debug)]
pub(crate) struct SupervisorEnd(Option<AsyncFd<OwnedFd>>);

impl SupervisorEnd {
    /// Call it inside a tokio runtime.
    ///
    /// # Errors
    /// The connection cannot be watched.
    pub(crate) fn watch() -> io::Result<Self> {
        let Some(connection) = CONNECTION.get() else { return Ok(Self(None)) };
        watch(connection.try_clone()?, Interest::READABLE).map(Some).map(Self)
    }

    /// Returns once, when the supervisor has ended. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        match &self.0 {
            // Nothing follows the answers, so the connection becomes readable when it is closed.
            Some(connection) => drop(connection.readable().await),
            None => std::future::pending().await,
        }
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_and_nothing_after_it() {
        let mut from: &[u8] = b"{}\nrest";
        assert_eq!(read_line(&mut from, 2).unwrap(), b"{}");
        assert_eq!(from, b"rest");
        let mut long: &[u8] = b"{} \n";
        assert_eq!(read_line(&mut long, 2).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut cut: &[u8] = b"{}";
        assert_eq!(read_line(&mut cut, 9).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn the_end_of_the_supervisor_is_noticed_once() {
        let (read, write) = nix::unistd::pipe().unwrap();
        let mut end = SupervisorEnd(Some(watch(read, Interest::READABLE).unwrap()));
        drop(write);
        end.ended().await;
        let again = tokio::time::timeout(std::time::Duration::from_millis(1), end.ended());
        assert!(again.await.is_err());
    }
}
