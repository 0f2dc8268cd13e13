//! The TCP connections of a joining node. It has no data plane. As in a data plane, each packet is preceded by its
//! length.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::Link;
use adit_mesh::node::DIAL_TIMEOUT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

/// The longest packet of a control channel.
const MAX_PACKET: usize = 4096;

/// The bound of the queues of outgoing packets and of events: more than a handshake has in flight.
const MAX_WAITING: usize = 256;

/// The time allowed for the last packets of a connection that is being closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An event of a connection.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    Opened(Link),
    Packet(Link, Vec<u8>),
    Ended(Link),
}

/// The connections to the inviter.
#[derive(Debug)]
pub(crate) struct Streams {
    /// The packets to be sent, by connection.
    open: HashMap<Link, mpsc::Sender<Vec<u8>>>,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    opened: u64,
}

#[derive(Debug)]
enum Event {
    Opened(Link, mpsc::Sender<Vec<u8>>),
    Packet(Link, Vec<u8>),
    Ended(Link),
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self { open: HashMap::new(), events: mpsc::channel(MAX_WAITING), opened: 0 }
    }

    /// Connects to an address. Failures are ignored, because it is one of several.
    pub(crate) fn open(&mut self, to: SocketAddr) {
        self.opened = self.opened.saturating_add(1);
        let link = Link::stream(self.opened, to);
        tokio::spawn(serve(link, self.events.0.clone()));
    }

    /// Sends a packet. A connection whose queue is full is closed, because packets are not retransmitted.
    pub(crate) fn send(&mut self, link: Link, packet: &[u8]) {
        let Some(length) = u16::try_from(packet.len()).ok() else { return };
        let framed = [&length.to_be_bytes(), packet].concat();
        if let Some(queue) = self.open.get(&link)
            && queue.try_send(framed).is_err()
        {
            self.close(link);
        }
    }

    pub(crate) fn close(&mut self, link: Link) {
        self.open.remove(&link);
    }

    /// Waits for the next event. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<StreamEvent> {
        Some(match self.events.1.recv().await? {
            Event::Opened(link, queue) => {
                self.open.insert(link, queue);
                StreamEvent::Opened(link)
            }
            Event::Packet(link, packet) => StreamEvent::Packet(link, packet),
            Event::Ended(link) => {
                self.open.remove(&link);
                StreamEvent::Ended(link)
            }
        })
    }
}

/// Serves one connection until either end closes it. Sending fails only if the receiver is gone.
async fn serve(link: Link, events: mpsc::Sender<Event>) {
    let connected = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(link.remote())).await;
    let Ok(Ok(stream)) = connected else { return };
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let (queue, packets) = mpsc::channel(MAX_WAITING);
    let _ = events.send(Event::Opened(link, queue)).await;
    let reads = async {
        let mut reader = reader;
        while let Ok(packet) = read(&mut reader).await {
            if events.send(Event::Packet(link, packet)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reads => {}
        () = write(writer, packets) => {}
    }
    let _ = events.send(Event::Ended(link)).await;
}

async fn read(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let len = usize::from(from.read_u16().await?);
    if len == 0 || len > MAX_PACKET {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut packet = vec![0; len];
    from.read_exact(&mut packet).await?;
    Ok(packet)
}

async fn write(mut to: OwnedWriteHalf, mut packets: mpsc::Receiver<Vec<u8>>) {
    while let Some(packet) = packets.recv().await {
        if to.write_all(&packet).await.is_err() {
            return;
        }
    }
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, to.shutdown()).await;
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn next(streams: &mut Streams) -> StreamEvent {
        let next = tokio::time::timeout(Duration::from_secs(60), streams.next()).await;
        next.expect("nothing happens").expect("an event")
    }

    #[tokio::test]
    async fn packets_pass_with_their_lengths_until_the_other_end_sends_none() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut streams = Streams::new();
        streams.open(listener.local_addr().unwrap());
        let (mut other, _) = listener.accept().await.unwrap();
        let StreamEvent::Opened(link) = next(&mut streams).await else { panic!("it is open") };
        streams.send(link, b"hello");
        let mut framed = [0; 7];
        other.read_exact(&mut framed).await.unwrap();
        assert_eq!(&framed, b"\0\x05hello");
        // Send one byte at a time.
        for byte in b"\0\x02hi" {
            other.write_all(&[*byte]).await.unwrap();
        }
        let StreamEvent::Packet(of, packet) = next(&mut streams).await else { panic!("a packet") };
        assert_eq!((of, &packet[..]), (link, &b"hi"[..]));
        other.write_all(&[0x20, 0]).await.unwrap();
        assert!(matches!(next(&mut streams).await, StreamEvent::Ended(of) if of == link));
    }

    #[tokio::test]
    async fn what_was_sent_before_a_connection_is_closed_arrives() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut streams = Streams::new();
        streams.open(listener.local_addr().unwrap());
        let (mut other, _) = listener.accept().await.unwrap();
        let StreamEvent::Opened(link) = next(&mut streams).await else { panic!("it is open") };
        streams.send(link, b"bye");
        streams.close(link);
        let mut all = Vec::new();
        other.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"\0\x03bye");
    }
}
