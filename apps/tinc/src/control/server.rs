//! The daemon's end of the control socket, without I/O: one [`Session`] for each connection.

use std::fmt::{self, Write as _};

use adit_engine::Random;
use adit_tinc::meta::{Id, Identity, MAJOR, MINOR};
use adit_tinc::name::NodeName;

use super::{CONTROL, COOKIE_LEN, Kind, MAX_LINE};

/// The number of connections at a time.
pub const MAX_SESSIONS: usize = 32;

/// The number of requests that are read at once. The others wait in the socket.
pub const MAX_REQUESTS: usize = 16;

/// The secret that a client must know. It is in the pid file, which only the daemon's user can read.
pub struct Cookie(String);

impl Cookie {
    /// Generates a new one.
    pub fn generate(random: &mut Random) -> Self {
        let bytes: [u8; COOKIE_LEN / 2] = random.bytes();
        Self(bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02X}");
            text
        }))
    }

    /// Returns the content of the pid file. `address` is where the daemon listens, such as `127.0.0.1 port 655`.
    pub fn pid_file(&self, pid: u32, address: &str) -> String {
        format!("{pid} {} {address}\n", self.0)
    }

    /// Compares in constant time.
    fn is(&self, other: &[u8]) -> bool {
        let differences = |sum, (one, other): (&u8, &u8)| sum | (one ^ other);
        self.0.len() == other.len() && self.0.as_bytes().iter().zip(other).fold(0, differences) == 0
    }
}

// Written by hand so that the cookie never reaches a log.
impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(..)")
    }
}

/// A request of an authorized client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A request that has no argument.
    Plain(Kind),
    /// Sets the debug level, or only asks for it.
    Debug(Option<u8>),
    /// Ends the connection with a node; `None` if the name was missing or wrong.
    Disconnect(Option<NodeName>),
    /// Sends copies of packets, each cut to this length; 0: whole ones.
    Pcap(u16),
    /// Sends log lines of this level; `None`: of the daemon's.
    Log(Option<u8>),
    /// A request of an unknown type.
    Unknown,
}

/// The reason why a connection ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// The client did not begin with the right cookie.
    NotAuthorized,
    /// A line is too long.
    TooLong,
    /// A line is no request.
    Malformed,
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAuthorized => "the client has not sent the cookie in the pid file",
            Self::TooLong => "the client's line is too long",
            Self::Malformed => "the client's line is no request",
        })
    }
}

/// A connection of a client.
#[derive(Debug, Default)]
pub struct Session {
    /// Bytes that are no whole line yet.
    input: Vec<u8>,
    authorized: bool,
}

impl Session {
    /// Takes bytes from the client. Appends the greeting to `out` when the client has sent the cookie, and returns its requests.
    ///
    /// # Errors
    /// The connection must be closed.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        cookie: &Cookie,
        name: &NodeName,
        out: &mut Vec<u8>,
    ) -> Result<Vec<Request>, SessionError> {
        self.input.extend_from_slice(bytes);
        let mut requests = Vec::new();
        while requests.len() < MAX_REQUESTS {
            let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
                if self.input.len() > MAX_LINE {
                    return Err(SessionError::TooLong);
                }
                break;
            };
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            if line.len() > MAX_LINE {
                return Err(SessionError::TooLong);
            }
            if self.authorized {
                requests.push(parse(line)?);
            } else {
                authorize(line, cookie)?;
                self.authorized = true;
                let pid = std::process::id();
                let greeting = format!("0 {name} {MAJOR}.{MINOR}\n4 0 {pid}\n");
                out.extend_from_slice(greeting.as_bytes());
            }
        }
        Ok(requests)
    }

    /// Returns whether the client has sent the cookie.
    pub fn is_authorized(&self) -> bool {
        self.authorized
    }

    /// Returns whether a whole line waits: [`Session::receive`] stopped at [`MAX_REQUESTS`].
    pub fn has_more(&self) -> bool {
        self.input.contains(&b'\n')
    }
}

fn authorize(line: &[u8], cookie: &Cookie) -> Result<(), SessionError> {
    match Id::parse(line) {
        Ok(Id { identity: Identity::Control(sent), .. }) if cookie.is(&sent) => Ok(()),
        _ => Err(SessionError::NotAuthorized),
    }
}

fn parse(line: &[u8]) -> Result<Request, SessionError> {
    let line = std::str::from_utf8(line).map_err(|_| SessionError::Malformed)?;
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some(CONTROL) {
        return Err(SessionError::Malformed);
    }
    let number = words.next().and_then(|word| word.parse().ok()).ok_or(SessionError::Malformed)?;
    let argument = words.next();
    let level = || argument.and_then(|word| word.parse().ok());
    Ok(match Kind::of(number) {
        None => Request::Unknown,
        Some(Kind::Debug) => {
            // A missing level is a mistake; a negative one asks for the current one.
            argument.ok_or(SessionError::Malformed)?;
            Request::Debug(level())
        }
        Some(Kind::Disconnect) => Request::Disconnect(argument.and_then(|name| name.parse().ok())),
        Some(Kind::Pcap) => Request::Pcap(argument.and_then(|word| word.parse().ok()).unwrap_or(0)),
        Some(Kind::Log) => Request::Log(level()),
        Some(kind) => Request::Plain(kind),
    })
}

/// Appends the answer to a request that has a code.
pub fn answer(kind: Kind, code: i32, out: &mut Vec<u8>) {
    line(out, format_args!("{CONTROL} {} {code}", kind.number()));
}

/// Appends the answer to a request of an unknown type.
pub fn refuse(out: &mut Vec<u8>) {
    line(out, format_args!("{CONTROL} -1"));
}

/// Appends the rows of a list, and its end.
pub fn list<T: fmt::Display>(kind: Kind, rows: impl IntoIterator<Item = T>, out: &mut Vec<u8>) {
    for row in rows {
        line(out, format_args!("{CONTROL} {} {row}", kind.number()));
    }
    line(out, format_args!("{CONTROL} {}", kind.number()));
}

/// Appends a packet or a log line, cut to 65,535 bytes.
pub fn item(kind: Kind, bytes: &[u8], out: &mut Vec<u8>) {
    let bytes = bytes.get(..usize::from(u16::MAX)).unwrap_or(bytes);
    line(out, format_args!("{CONTROL} {} {}", kind.number(), bytes.len()));
    out.extend_from_slice(bytes);
}

fn line(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    out.extend_from_slice(text.to_string().as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cookie() -> Cookie {
        Cookie::generate(&mut Random::new([1; 32]))
    }

    fn name() -> NodeName {
        "alice".parse().unwrap()
    }

    fn hello() -> String {
        format!("0 ^{} 0\n", cookie().0)
    }

    fn send(session: &mut Session, text: &str) -> Result<(Vec<Request>, String), SessionError> {
        let mut out = Vec::new();
        let requests = session.receive(text.as_bytes(), &cookie(), &name(), &mut out)?;
        Ok((requests, String::from_utf8(out).unwrap()))
    }

    fn requests(text: &str) -> Result<Vec<Request>, SessionError> {
        send(&mut Session::default(), &(hello() + text)).map(|(requests, _)| requests)
    }

    #[test]
    fn a_client_with_the_cookie_is_greeted_as_by_tinc() {
        let mut session = Session::default();
        let hello = hello();
        let (first, rest) = hello.split_at(9);
        assert_eq!(send(&mut session, first).unwrap(), (Vec::new(), String::new()));
        let greeting = format!("0 alice 17.7\n4 0 {}\n", std::process::id());
        assert_eq!(send(&mut session, rest).unwrap(), (Vec::new(), greeting));
        assert!(session.is_authorized());
        let (requests, out) = send(&mut session, "18 3\n18 10\n").unwrap();
        assert_eq!(requests, [Request::Plain(Kind::Nodes), Request::Plain(Kind::Retry)]);
        assert_eq!(out, "");
    }

    #[test]
    fn nothing_is_accepted_before_the_cookie() {
        let wrong = format!("0 ^{} 0\n", "0".repeat(COOKIE_LEN));
        let short = hello().replacen('^', "^A", 1);
        for text in ["18 3\n", "0 bob 17.7\n", "0 ^ 0\n", "\n", &wrong, &short] {
            let mut session = Session::default();
            assert_eq!(send(&mut session, text), Err(SessionError::NotAuthorized), "{text}");
        }
    }

    #[test]
    fn requests_have_tincs_arguments() {
        let one = |text: &str| requests(&format!("{text}\n")).unwrap().remove(0);
        assert_eq!(one("18 9 3"), Request::Debug(Some(3)));
        assert_eq!(one("18 9 -1"), Request::Debug(None));
        assert_eq!(one("18 12 bob"), Request::Disconnect(Some("bob".parse().unwrap())));
        assert_eq!(one("18 12"), Request::Disconnect(None));
        assert_eq!(one("18 14 100"), Request::Pcap(100));
        assert_eq!(one("18 15"), Request::Log(None));
        assert_eq!(one("18 15 5"), Request::Log(Some(5)));
        for number in [2, 7, 11, 99, -1] {
            assert_eq!(one(&format!("18 {number}")), Request::Unknown, "{number}");
        }
        for text in ["18 x\n", "18\n", "8\n", "\n", "18 9\n", "\u{fffd}\n"] {
            assert_eq!(requests(text), Err(SessionError::Malformed), "{text}");
        }
    }

    #[test]
    fn a_client_cannot_make_the_daemon_store_much() {
        let mut session = Session::default();
        let long = "x".repeat(MAX_LINE + 1);
        assert_eq!(send(&mut session, &long), Err(SessionError::TooLong));
        let many = "18 3\n".repeat(MAX_REQUESTS + 1);
        let mut session = Session::default();
        let (first, _) = send(&mut session, &(hello() + &many)).unwrap();
        assert_eq!((first.len(), session.has_more()), (MAX_REQUESTS, true));
        assert_eq!(send(&mut session, "").unwrap().0.len(), 1);
        assert!(!session.has_more());
    }

    #[test]
    fn answers_are_tincs() {
        let mut out = Vec::new();
        answer(Kind::Reload, 0, &mut out);
        refuse(&mut out);
        list(Kind::Traffic, ["alice 0 0 0 0"], &mut out);
        item(Kind::Log, b"hello", &mut out);
        let expected = "18 1 0\n18 -1\n18 13 alice 0 0 0 0\n18 13\n18 15 5\nhello";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_cookie_differs_from_every_other_in_the_pid_file() {
        let other = Cookie::generate(&mut Random::new([2; 32]));
        assert!(!cookie().is(other.0.as_bytes()));
        assert_eq!(cookie().0.len(), COOKIE_LEN);
        let line = cookie().pid_file(7, "127.0.0.1 port 655");
        assert_eq!(line, format!("7 {} 127.0.0.1 port 655\n", cookie().0));
        assert_eq!(format!("{:?}", cookie()), "Cookie(..)");
    }

    proptest! {
        #[test]
        fn no_client_causes_a_panic(text: Vec<u8>) {
            let mut session = Session::default();
            let _ = session.receive(hello().as_bytes(), &cookie(), &name(), &mut Vec::new());
            let _ = session.receive(&text, &cookie(), &name(), &mut Vec::new());
        }
    }
}
