//! Limits the memory that a database can make us use: checks the header of every message before reading its body.
//!
//! The client library buffers a message until it is complete, whatever length the server announces, up to 4 GiB. Without TLS, any host on
//! the path can send such a message, even before a password is requested. The library also keeps every notice that is sent before the login
//! is complete, and every parameter that a server reports. So all input passes through [`LimitedStream`], which tracks the frames (one byte
//! of type, four of length) and ends the connection at one that is too long. With TLS there are two such streams. One is inside TLS
//! ([`LimitedTls`]) and checks the frames. The other is around the raw connection, for the answer to the request for TLS. It checks the
//! frames of a server that answers no, where that is allowed. Unix sockets and loopback connections are checked too.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::TryFutureExt;
use futures_util::future::MapOk;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The maximum length of a message in bytes. Our rows have up to about 8 KiB, and error texts are much shorter.
pub(super) const MAX_MESSAGE: u32 = 4 << 20;

/// The maximum total length of messages in bytes until the login is complete. About 1 KiB is usual.
const MAX_LOGIN: u32 = 256 << 10;

/// The maximum total length of parameter reports in bytes after the login, over the lifetime of the connection, because
/// the library keeps every name that it receives.
const MAX_REPORTS: u32 = 1 << 20;

/// The length of a message's type and length fields.
const HEADER: usize = 5;

/// The length of the length field. The field includes it.
const LENGTH: u32 = 4;

/// A server's positive answer to the request for TLS.
const TLS_FOLLOWS: u8 = b'S';

const READY_FOR_QUERY: u8 = b'Z';
const PARAMETER_STATUS: u8 = b'S';

/// The reason why a connection was closed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum LimitError {
    /// A message announces this length.
    Message(u32),
    /// A message announces this length, but it is too short.
    Short(u32),
    /// The login takes too many bytes.
    Login,
    /// The parameter reports exceed their limit.
    Reports,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(len) => write!(
                f,
                "it announced a message of {len} bytes, and at most {MAX_MESSAGE} are accepted; the connection was ended"
            ),
            Self::Short(len) => write!(
                f,
                "it announced a message of {len} bytes, which is too short; the connection was ended"
            ),
            Self::Login => write!(
                f,
                "it sent more than {MAX_LOGIN} bytes before the login was complete; the connection was ended"
            ),
            Self::Reports => write!(
                f,
                "it reported more than {MAX_REPORTS} bytes of parameters; the connection was ended"
            ),
        }
    }
}

impl From<LimitError> for io::Error {
    fn from(refused: LimitError) -> Self {
        Self::new(io::ErrorKind::InvalidData, refused.to_string())
    }
}

/// The position in a server's bytes.
#[derive(Copy, Clone, Debug)]
enum ParseState {
    /// The next byte answers the request for TLS and is not a frame.
    Answer,
    /// The stream is TLS from here on. Its content is checked inside TLS.
    Opaque,
    /// A header of which `have` bytes are read.
    Header { have: usize, bytes: [u8; HEADER] },
    /// A body of which this many bytes are left.
    Body(u32),
    /// A limit was exceeded; nothing more is read.
    Ended(LimitError),
}

/// Follows a server's messages.
#[derive(Debug)]
struct Frames {
    place: ParseState,
    /// The remaining budget for the login, until it is complete.
    login: Option<u32>,
    /// The remaining budget for reports of parameters.
    reports: u32,
}

const START: ParseState = ParseState::Header { have: 0, bytes: [0; HEADER] };

impl Frames {
    fn new(place: ParseState) -> Self {
        Self { place, login: Some(MAX_LOGIN), reports: MAX_REPORTS }
    }

    /// Advances the state by the bytes read.
    fn follow(&mut self, mut read: &[u8]) -> Result<(), LimitError> {
        while let Some((first, rest)) = read.split_first() {
            match &mut self.place {
                ParseState::Opaque => return Ok(()),
                ParseState::Ended(refused) => return Err(*refused),
                ParseState::Answer => {
                    // The library interprets any other byte as a no, and continues without TLS.
                    self.place = if *first == TLS_FOLLOWS { ParseState::Opaque } else { START };
                    read = rest;
                }
                ParseState::Header { have, bytes } => {
                    if let Some(byte) = bytes.get_mut(*have) {
                        *byte = *first;
                    }
                    *have = have.saturating_add(1);
                    read = rest;
                    if *have >= HEADER {
                        let header = *bytes;
                        self.place =
                            self.state_after_header(header).unwrap_or_else(ParseState::Ended);
                        if let ParseState::Ended(refused) = self.place {
                            return Err(refused);
                        }
                    }
                }
                ParseState::Body(left) => {
                    let here = u32::try_from(read.len()).unwrap_or(u32::MAX).min(*left);
                    *left = left.saturating_sub(here);
                    read = read.get(here as usize..).unwrap_or_default();
                    if *left == 0 {
                        self.place = START;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the state after this header.
    fn state_after_header(
        &mut self,
        [kind, length @ ..]: [u8; HEADER],
    ) -> Result<ParseState, LimitError> {
        let len = u32::from_be_bytes(length);
        if len > MAX_MESSAGE {
            return Err(LimitError::Message(len));
        }
        let body = len.checked_sub(LENGTH).ok_or(LimitError::Short(len))?;
        let whole = len.saturating_add(1);
        if let Some(left) = self.login {
            let left = left.checked_sub(whole).ok_or(LimitError::Login)?;
            self.login = (kind != READY_FOR_QUERY).then_some(left);
        } else if kind == PARAMETER_STATUS {
            self.reports = self.reports.checked_sub(whole).ok_or(LimitError::Reports)?;
        }
        Ok(if body == 0 { START } else { ParseState::Body(body) })
    }
}

/// A stream from a server with limited messages.
pub struct LimitedStream<S> {
    inner: S,
    frames: Frames,
}

impl<S> LimitedStream<S> {
    /// Wraps a stream that begins with messages, because TLS was not requested or this is the stream inside TLS.
    pub(super) fn messages(inner: S) -> Self {
        Self { inner, frames: Frames::new(START) }
    }

    /// Wraps a stream that begins with the answer to the request for TLS.
    pub(super) fn answer_first(inner: S) -> Self {
        Self { inner, frames: Frames::new(ParseState::Answer) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let ParseState::Ended(refused) = this.frames.place {
            return Poll::Ready(Err(refused.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        let read = buf.filled().get(before..).unwrap_or_default();
        if let Err(refused) = this.frames.follow(read) {
            // An error means that nothing was read.
            buf.set_filled(before);
            return Poll::Ready(Err(refused.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: TlsStream + Unpin> TlsStream for LimitedStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.inner.channel_binding()
    }
}

/// Wraps another TLS implementation, and limits the messages inside TLS.
pub(super) struct LimitedTls<T>(pub(super) T);

impl<S, T: TlsConnect<S>> TlsConnect<S> for LimitedTls<T> {
    type Stream = LimitedStream<T::Stream>;
    type Error = T::Error;
    type Future = MapOk<T::Future, fn(T::Stream) -> Self::Stream>;

    fn connect(self, stream: S) -> Self::Future {
        self.0.connect(stream).map_ok(LimitedStream::messages)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len()).unwrap() + LENGTH;
        [&[kind][..], &len.to_be_bytes(), body].concat()
    }

    fn header(kind: u8, len: u32) -> Vec<u8> {
        [&[kind][..], &len.to_be_bytes()].concat()
    }

    /// Returns a login and a few answers, one of them without a body.
    fn usual() -> Vec<u8> {
        [
            message(b'R', &[0, 0, 0, 0]),
            message(PARAMETER_STATUS, b"server_version\x0015\0"),
            message(READY_FOR_QUERY, b"I"),
            message(b'1', b""),
            message(b'D', &[7; 300]),
            message(READY_FOR_QUERY, b"I"),
        ]
        .concat()
    }

    fn logged_in() -> Frames {
        let mut frames = Frames::new(START);
        frames.follow(&message(READY_FOR_QUERY, b"I")).unwrap();
        frames
    }

    #[tokio::test]
    async fn what_is_split_anywhere_passes_unchanged() {
        let bytes = usual();
        for at in 0..=bytes.len() {
            let (first, second) = bytes.split_at(at);
            let (mut server, client) = duplex(bytes.len());
            let mut client = LimitedStream::messages(client);
            let mut got = vec![0; bytes.len()];
            server.write_all(first).await.unwrap();
            client.read_exact(&mut got[..at]).await.unwrap();
            server.write_all(second).await.unwrap();
            drop(server);
            client.read_exact(&mut got[at..]).await.unwrap();
            assert_eq!(got, bytes, "split at {at}");
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
            // The parser has found the next header again.
            let refused = client.frames.follow(&header(b'D', u32::MAX));
            assert_eq!(refused, Err(LimitError::Message(u32::MAX)), "split at {at}");
        }
    }

    #[test]
    fn byte_by_byte_is_as_all_at_once() {
        let mut frames = Frames::new(START);
        for byte in usual() {
            frames.follow(&[byte]).unwrap();
        }
        let all = header(b'D', MAX_MESSAGE + 1);
        let (last, most) = all.split_last().unwrap();
        for byte in most {
            frames.follow(&[*byte]).unwrap();
        }
        assert_eq!(frames.follow(&[*last]), Err(LimitError::Message(MAX_MESSAGE + 1)));
    }

    #[tokio::test]
    async fn a_message_too_long_is_refused_at_its_header_and_nothing_is_read_after_it() {
        let (mut server, client) = duplex(1 << 10);
        let mut client = LimitedStream::messages(client);
        server.write_all(&usual()).await.unwrap();
        client.read_exact(&mut vec![0; usual().len()]).await.unwrap();
        // The body is never sent, so a reader that waited for it would wait forever.
        server.write_all(&header(b'D', 1 << 30)).await.unwrap();
        let mut got = Vec::new();
        let error = client.read_buf(&mut got).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("a message of 1073741824 bytes"), "{error}");
        assert!(got.is_empty());
        server.write_all(&usual()).await.unwrap();
        assert!(client.read_buf(&mut got).await.is_err());
        assert!(got.is_empty());
    }

    #[tokio::test]
    async fn a_refused_read_leaves_nothing_behind() {
        let (mut server, client) = duplex(1 << 10);
        let mut client = LimitedStream::messages(client);
        server.write_all(&header(b'D', 1 << 30)).await.unwrap();
        let mut room = [0; 64];
        let mut buf = ReadBuf::new(&mut room);
        let refused =
            std::future::poll_fn(|cx| Pin::new(&mut client).poll_read(cx, &mut buf)).await;
        assert!(refused.is_err());
        assert!(buf.filled().is_empty());
    }

    #[test]
    fn the_longest_message_is_taken_and_one_byte_more_is_not() {
        assert_eq!(logged_in().follow(&header(b'D', MAX_MESSAGE)), Ok(()));
        let refused = logged_in().follow(&header(b'D', MAX_MESSAGE + 1));
        assert_eq!(refused, Err(LimitError::Message(MAX_MESSAGE + 1)));
        assert_eq!(logged_in().follow(&header(b'D', 3)), Err(LimitError::Short(3)));
    }

    #[test]
    fn before_the_login_less_is_taken_in_all() {
        let mut frames = Frames::new(START);
        assert_eq!(frames.follow(&header(b'E', u32::MAX)), Err(LimitError::Message(u32::MAX)));
        assert_eq!(frames.follow(&usual()), Err(LimitError::Message(u32::MAX)), "it stays ended");

        // Many small messages, each within the limit for a single message.
        let notice = message(b'N', &[0; 1000]);
        let fit = MAX_LOGIN as usize / notice.len();
        let mut frames = Frames::new(START);
        frames.follow(&notice.repeat(fit)).unwrap();
        assert_eq!(frames.follow(&notice), Err(LimitError::Login));
        logged_in().follow(&notice.repeat(2 * fit)).unwrap();
    }

    #[test]
    fn reports_of_parameters_are_counted_for_ever() {
        let report = message(PARAMETER_STATUS, &[b'a'; 1000]);
        let fit = MAX_REPORTS as usize / report.len();
        let mut frames = logged_in();
        for _ in 0..fit {
            frames.follow(&report).unwrap();
            frames.follow(&message(READY_FOR_QUERY, b"I")).unwrap();
        }
        assert_eq!(frames.follow(&report), Err(LimitError::Reports));
    }

    #[test]
    fn the_answer_about_tls_is_no_message() {
        // The server refuses TLS, so the messages that follow are checked.
        let mut frames = Frames::new(ParseState::Answer);
        frames.follow(b"N").unwrap();
        frames.follow(&usual()).unwrap();
        assert_eq!(frames.follow(&header(b'D', 1 << 30)), Err(LimitError::Message(1 << 30)));
        // The server accepts TLS, so the following bytes are not frames.
        let mut frames = Frames::new(ParseState::Answer);
        frames.follow(b"S").unwrap();
        frames.follow(&[0xff; 64]).unwrap();
        frames.follow(&header(b'D', 1 << 30)).unwrap();
    }

    struct Plain;

    impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Plain {
        type Stream = Bound<S>;
        type Error = io::Error;
        type Future = std::future::Ready<io::Result<Bound<S>>>;

        fn connect(self, stream: S) -> Self::Future {
            std::future::ready(Ok(Bound(stream)))
        }
    }

    /// A "TLS" stream that changes nothing, but supports channel binding.
    struct Bound<S>(S);

    impl<S: AsyncRead + Unpin> AsyncRead for Bound<S> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl<S: AsyncWrite + Unpin> AsyncWrite for Bound<S> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Bound<S> {
        fn channel_binding(&self) -> ChannelBinding {
            ChannelBinding::tls_server_end_point(vec![1])
        }
    }

    /// Returns the library's error for a server that sends this after the answer to the request for TLS.
    async fn login_error(answer: u8, then: Vec<u8>) -> String {
        let (mut server, client) = duplex(1 << 10);
        let serve = async {
            server.read_exact(&mut [0; 8]).await.unwrap();
            server.write_all(&[answer]).await.unwrap();
            server.write_all(&then).await.unwrap();
            server
        };
        let mut config = tokio_postgres::Config::new();
        config.user("u").ssl_mode(tokio_postgres::config::SslMode::Prefer);
        let line = LimitedStream::answer_first(client);
        let (_server, made) = tokio::join!(serve, config.connect_raw(line, LimitedTls(Plain)));
        let error = made.err().unwrap();
        std::error::Error::source(&error).unwrap().to_string()
    }

    #[tokio::test]
    async fn the_library_meets_the_bound_before_any_login_with_and_without_tls() {
        for answer in [b'N', b'S'] {
            let error = login_error(answer, header(b'R', u32::MAX)).await;
            assert!(error.contains("4294967295 bytes"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_tls_is_bound_to_passes() {
        let (mut server, client) = duplex(1 << 10);
        let serve = async {
            server.read_exact(&mut [0; 8]).await.unwrap();
            server.write_all(b"S").await.unwrap();
            let sasl = message(b'R', b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
            server.write_all(&sasl).await.unwrap();
            // The client's choice, the method with or without channel binding, arrives at once.
            let mut said = Vec::new();
            let holds = |said: &[u8], name: &[u8]| said.windows(name.len()).any(|at| at == name);
            while !holds(&said, b"SCRAM-SHA-256") {
                assert_ne!(server.read_buf(&mut said).await.unwrap(), 0);
            }
            holds(&said, b"SCRAM-SHA-256-PLUS\0")
        };
        let mut config = tokio_postgres::Config::new();
        config.user("u").password("p").ssl_mode(tokio_postgres::config::SslMode::Require);
        let line = LimitedStream::answer_first(client);
        let made = config.connect_raw(line, LimitedTls(Plain));
        tokio::select! {
            bound = serve => assert!(bound),
            made = made => panic!("{:?}", made.err()),
        }
    }
}
