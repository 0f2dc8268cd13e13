//! Streams: peers over TCP. Each packet stands behind its length, `u16` big-endian.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use adit_engine::Link;
use adit_linux::tcp::TcpStream;

/// Longest packet taken from a stream unless [`StreamOptions::max_frame`] says otherwise: a jumbo
/// frame of 9000 bytes with what any data format adds. Stock derives its own bound from `tun-mtu`
/// and so refuses more than we do.
pub const MAX_FRAME: u16 = 9_600;

/// How to serve a stream.
#[derive(Copy, Clone, Debug)]
pub struct StreamOptions {
    /// Data packets that may wait while the socket is full (`tcp-queue-limit`).
    pub queue_limit: u32,
    /// Longest packet taken; a longer one ends the stream.
    pub max_frame: u16,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { queue_limit: 64, max_frame: MAX_FRAME }
    }
}

/// Why a stream ended.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum StreamEnd {
    /// The peer closed it.
    Closed,
    /// A length of 0 or above the maximum: the ends no longer agree where packets begin.
    BadLength,
    /// A data packet that is not authentic, or comes twice.
    BadPacket,
    /// More control packets than a stranger may send, or than there was room for.
    Flood,
    /// The kernel's error, by number.
    Failed(i32),
}

impl std::fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the connection"),
            Self::BadLength => f.write_str("a packet's length makes no sense"),
            Self::BadPacket => f.write_str("a packet failed authentication or came twice"),
            Self::Flood => f.write_str("too many control packets"),
            Self::Failed(errno) => io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

/// The streams of the plane, by id.
#[derive(Debug, Default)]
pub(crate) struct Streams(RwLock<HashMap<u64, Arc<Stream>>>);

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    #[expect(dead_code)]
    pub link: Link,
    pub socket: TcpStream,
    #[expect(dead_code)]
    pub options: StreamOptions,
}

impl Streams {
    pub fn insert(&self, id: u64, stream: Stream) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(stream));
    }

    pub fn get(&self, id: u64) -> Option<Arc<Stream>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub fn remove(&self, id: u64) -> Option<Arc<Stream>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

impl Stream {
    pub fn send_control(&self, frame: &[u8]) -> bool {
        let Ok(len) = u16::try_from(frame.len()) else { return false };
        let mut framed = len.to_be_bytes().to_vec();
        framed.extend_from_slice(frame);
        self.socket.send(&framed).is_ok_and(|sent| sent == framed.len())
    }
}
