//! Tests of the full-screen view of `adit top`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::world::ADIT;
use crate::world::terminal::{TAKE_TERMINAL, Terminal};

/// The end of the alternate screen (xterm's control sequences).
const LEAVE_SCREEN: &str = "\x1b[?1049l";

#[test]
fn the_terminal_is_restored_after_a_key_a_signal_and_an_error() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("vpn")).unwrap();
    let ends =
        [("q", None), ("\x03", None), ("", Some(Signal::SIGTERM)), ("", Some(Signal::SIGINT))];
    for end in ends {
        let mut terminal = start(&folder);
        let ours = terminal.ours.try_clone().unwrap();
        let cooked = LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG;
        let flags = || tcgetattr(&ours).unwrap().local_flags & cooked;
        assert_eq!(flags(), LocalFlags::empty(), "{end:?}");
        let (keys, signal) = end;
        terminal.ours.write_all(keys.as_bytes()).unwrap();
        if let Some(signal) = signal {
            kill(Pid::from_raw(terminal.child.id().try_into().unwrap()), signal).unwrap();
        }
        terminal.expect(LEAVE_SCREEN);
        assert_eq!(terminal.finish(), Some(0), "{end:?}");
        assert_eq!(flags(), cooked, "{end:?}");
    }
    // The control sockets cannot be listed any more.
    let mut terminal = start(&folder);
    fs::write(folder.path().join("vpn/run"), "").unwrap();
    terminal.expect(LEAVE_SCREEN);
    terminal.expect("cannot read");
    assert_ne!(terminal.finish(), Some(0));
}

#[test]
fn a_closed_terminal_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("vpn")).unwrap();
    assert_eq!(start(&folder).close(), Some(0));
}

/// As after nohup(1), or if it finds the terminal closed before it receives the signal.
#[test]
fn a_closed_terminal_ends_it_without_the_signal() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("vpn")).unwrap();
    let ignoring = ["--ctty", "env", "--ignore-signal=HUP"];
    assert_eq!(start_by(ignoring, &folder, "top --dir vpn").close(), Some(0));
}

/// A terminal that cannot move its cursor gets one page, as a pipe does.
#[test]
fn a_dumb_terminal_gets_one_page_without_control_sequences() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("vpn")).unwrap();
    serve_tinc(folder.path(), usize::MAX);
    for (line, text) in
        [("top --dir vpn", "Nothing is running"), ("tinc -c . --pidfile pid top", "IN PACKETS")]
    {
        let mut command = Command::new("setsid");
        command.args(TAKE_TERMINAL).args(["sh", "-c", &format!("exec \"$0\" {line}"), ADIT]);
        command.env("TERM", "dumb").current_dir(&folder);
        let mut terminal = Terminal::start(command);
        terminal.expect(text);
        assert!(!terminal.shown.contains('\x1b'), "{line}: {:?}", terminal.shown);
        assert_eq!(terminal.finish(), Some(0));
    }
}

/// The nodes of a tinc net are on the same screen, as long as the daemon answers.
#[test]
fn the_nodes_of_a_tinc_net_are_on_the_screen() {
    let folder = tempfile::tempdir().unwrap();
    let line = "tinc -c . --pidfile pid top";
    serve_tinc(folder.path(), usize::MAX);
    let mut terminal = start_line(&folder, line);
    // Blank cells between words are not sent.
    for text in ["tinc: node alice, 2 nodes, 2 reachable", "NAME ▾", "bob", "10.2.0.0/16"] {
        terminal.expect(text);
    }
    terminal.ours.write_all(b"q").unwrap();
    terminal.expect(LEAVE_SCREEN);
    assert_eq!(terminal.finish(), Some(0));
    // A daemon that ends.
    fs::remove_file(folder.path().join("pid.socket")).unwrap();
    serve_tinc(folder.path(), 4);
    let mut terminal = start_line(&folder, line);
    terminal.expect(LEAVE_SCREEN);
    terminal.expect("Lost connection to tinc daemon");
    assert_eq!(terminal.finish(), Some(1));
}

/// Answers one program as the daemon of a tinc net does, for a number of requests.
fn serve_tinc(folder: &Path, requests: usize) {
    let pid = std::process::id();
    fs::write(folder.join("pid"), format!("{pid} COOKIE 127.0.0.1 port 655\n")).unwrap();
    let listener = UnixListener::bind(folder.join("pid.socket")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for line in lines.map_while(Result::ok).take(requests.saturating_add(1)) {
            let answer = match line.as_str() {
                "0 ^COOKIE 0" => format!("0 alice 17.7\n4 0 {pid}\n"),
                "18 3" => "18 3 alice 0a MYSELF port 655 0 0 0 0 700000c 58 alice alice 0 1518 0 1518 100 -1 0 0 0 0\n\
                     18 3 bob 0b 192.0.2.7 port 655 0 0 0 0 700000c da bob bob 1 1451 1451 1451 100 1500 7 1000 8 2000\n\
                     18 3\n"
                    .to_owned(),
                "18 5" => "18 5 10.2.0.0/16 bob\n18 5\n".to_owned(),
                other => panic!("{other}"),
            };
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// Starts `adit top` at a terminal of 80 columns, and waits for its last line.
fn start(folder: &tempfile::TempDir) -> Terminal {
    start_line(folder, "top --dir vpn")
}

fn start_line(folder: &tempfile::TempDir, line: &str) -> Terminal {
    start_by(TAKE_TERMINAL, folder, line)
}

/// Starts it by setsid(1) with these arguments.
fn start_by(setsid: [&str; 3], folder: &tempfile::TempDir, line: &str) -> Terminal {
    let mut command = Command::new("setsid");
    let script = format!("stty rows 24 cols 80 && exec \"$0\" {line}");
    command.args(setsid).args(["sh", "-c", &script, ADIT]);
    command.env("TERM", "xterm").current_dir(folder);
    let mut terminal = Terminal::start(command);
    terminal.expect("quit");
    terminal
}
