//! Tests of the connection to the database, with a real TLS server on its own address in a network namespace.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use adit_testbed::postgres::{Certificate, Cluster, Options, missing, scratch};

const ADIT: &str = env!("CARGO_BIN_EXE_adit");
/// The environment variable that is set if this process is already in the namespace.
const INSIDE: &str = "ADIT_TEST_INSIDE";

/// Runs this test program again for one test in a network namespace. Returns true if it is already in one.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        for line in
            ["link set lo up", "addr add 192.0.2.1/32 dev lo", "addr add 192.0.2.2/32 dev lo"]
        {
            assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
        }
        return true;
    }
    if let Some(why) = missing() {
        adit_testbed::skip::skip(test, &why);
        return false;
    }
    let mut again = Command::new("unshare");
    let test = format!("line::{test}");
    again.arg("--net").arg(std::env::current_exe().unwrap()).args([
        "--exact",
        &test,
        "--nocapture",
    ]);
    let output = again.env(INSIDE, "1").output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A database at 192.0.2.1 and 192.0.2.2 with a certificate for the first, and a directory for the files of adit.
struct Line {
    cluster: Cluster,
    certificate: Certificate,
    folder: tempfile::TempDir,
    marks: std::cell::Cell<u32>,
}

impl Line {
    fn new() -> Self {
        let folder = scratch().unwrap();
        let certificate = Certificate::alone(folder.path(), &["IP:192.0.2.1"]).unwrap();
        let options = Options {
            // Without a namespace's name, a cluster does not listen on TCP. Here all processes are in one namespace.
            settings: &[
                ("listen_addresses", "*"),
                ("log_statement", "all"),
                ("log_min_messages", "log"),
            ],
            certificate: Some(&certificate),
            ..Options::default()
        };
        let cluster = Cluster::start(&folder.path().join("pg"), &options).unwrap();
        cluster.create("vpn", "geheimnis", "CREATEROLE").unwrap();
        Self { cluster, certificate, folder, marks: std::cell::Cell::new(0) }
    }

    fn adit(&self, vars: &[(&str, &str)], arguments: &[&str]) -> Output {
        let mut command = Command::new(ADIT);
        command.env_clear().env("HOME", self.folder.path()).envs(vars.iter().copied());
        command.arg("postgres").args(arguments).output().unwrap()
    }

    fn init(&self, vars: &[(&str, &str)], database: &str) -> Output {
        let dir = self.folder.path().join("hub");
        let dir = dir.to_str().unwrap();
        self.adit(
            vars,
            &[
                "init",
                database,
                "--network",
                "10.9.0.0/24",
                "--name",
                "hub",
                "--offline",
                "--dir",
                dir,
            ],
        )
    }

    /// Checks that the database admits us, so that `init` finds the existing network and has nothing to do.
    fn good(&self, vars: &[(&str, &str)], database: &str) -> String {
        let output = self.init(vars, database);
        let text = text(&output);
        assert!(
            output.status.success() && text.contains("nothing was changed"),
            "{database}: {text}"
        );
        text
    }

    /// Checks that the connection fails for this reason.
    fn bad(&self, vars: &[(&str, &str)], database: &str, said: &str) {
        let output = self.init(vars, database);
        let text = text(&output);
        assert!(!output.status.success() && text.contains(said), "{database}: {text}");
        assert!(!text.contains("geheimnis"), "{text}");
    }

    /// Makes the server read its files again, and waits until a mark in them is visible.
    fn reload(&self, settings: &[(&str, &str)]) {
        let mark = self.marks.get() + 1;
        self.marks.set(mark);
        self.cluster.configure(settings).unwrap();
        self.cluster.configure(&[("adit.mark", &mark.to_string())]).unwrap();
        self.cluster.reload().unwrap();
        let show = "SELECT current_setting('adit.mark', true)";
        while self.cluster.sql("vpn", show).unwrap().trim() != mark.to_string() {}
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.folder.path().join(name);
        adit_testbed::file::write(&path, text, mode).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[test]
fn each_mistake_is_named_and_secrets_stay_off_the_line_and_the_log() {
    if !inside("each_mistake_is_named_and_secrets_stay_off_the_line_and_the_log") {
        return;
    }
    let line = Line::new();
    let (one, two) =
        ("postgres://vpn:geheimnis@192.0.2.1/vpn", "postgres://vpn:geheimnis@192.0.2.2/vpn");
    let authority = line.certificate.authority.to_str().unwrap();

    // Without a TLS option, TLS is used, and the server proves with the password that the certificate is its own.
    let output = line.init(&[], one);
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let dir = line.folder.path().join("a");
    let url = printed.split_whitespace().find(|word| word.contains("#adit1-")).unwrap();
    let joined = line.adit(&[], &["join", url, "--name", "a", "--dir", dir.to_str().unwrap()]);
    assert!(joined.status.success(), "{}", text(&joined));

    // Tests of the server's identity.
    let full = format!("sslmode=verify-full&sslrootcert={authority}");
    line.good(&[], &format!("{one}?{full}"));
    line.bad(&[], &format!("{two}?{full}"), "is not for 192.0.2.2");
    line.good(&[], &format!("{two}?sslmode=verify-ca&sslrootcert={authority}"));
    // As with libpq, a root file makes `require` verify the chain.
    line.good(&[], &format!("{two}?sslmode=require&sslrootcert={authority}"));
    std::fs::create_dir(line.folder.path().join("other")).unwrap();
    let other = Certificate::alone(&line.folder.path().join("other"), &["IP:192.0.2.1"]).unwrap();
    let other = other.authority.to_str().unwrap();
    for mode in ["verify-full", "verify-ca", "require"] {
        line.bad(
            &[],
            &format!("{one}?sslmode={mode}&sslrootcert={other}"),
            "an authority that is not known",
        );
    }
    line.bad(
        &[],
        &format!("{one}?sslmode=verify-full&sslrootcert=/nonexistent"),
        "cannot read sslrootcert",
    );
    let odd = line.file("odd", "no certificate", 0o644);
    line.bad(&[], &format!("{one}?sslmode=verify-ca&sslrootcert={odd}"), "no certificate in PEM");
    let loose = line.good(&[], &format!("{one}?sslmode=disable"));
    assert!(loose.contains("an attacker on the path"), "{loose}");
    assert_eq!(line.good(&[], "postgres://vpn:geheimnis@127.0.0.1/vpn").matches("note").count(), 0);

    // Tests of our identity.
    line.bad(&[], "postgres://vpn:falsch@192.0.2.1/vpn", "does not accept this password");
    line.bad(&[], "postgres://vpn@192.0.2.1/vpn", "requires the password of \"vpn\"");
    line.bad(&[], "postgres://vpn:geheimnis@192.0.2.1/nosuch", "createdb nosuch");
    let bare = "postgres://vpn@192.0.2.1/vpn";
    line.good(&[("PGPASSWORD", "geheimnis")], bare);
    let passwords = line.file("pass", "192.0.2.1:5432:vpn:vpn:geheimnis\n", 0o600);
    line.good(&[("PGPASSFILE", &passwords)], bare);
    let open = line.file("open", "192.0.2.1:5432:vpn:vpn:geheimnis\n", 0o644);
    line.bad(&[("PGPASSFILE", &open)], bare, "requires the password");
    let service = line.file(
        "service",
        "[vpn]\nhost=192.0.2.1\nuser=vpn\npassword=geheimnis\ndbname=vpn\n",
        0o600,
    );
    line.good(&[("PGSERVICEFILE", &service)], "service=vpn");
    line.good(&[("PGSERVICEFILE", &service), ("PGSERVICE", "vpn")], "");

    // Tests of the server's address.
    line.bad(&[], "postgres://vpn:geheimnis@192.0.2.1:5/vpn", "no database listens at 192.0.2.1:5");
    line.good(&[], "postgres://vpn:geheimnis@192.0.2.1:5,192.0.2.1:5432/vpn");
    line.bad(&[], "postgres://vpn:geheimnis@192.0.2.1:5,192.0.2.2:6/vpn", "none of 2 hosts");

    // A server that requests no password proves nothing, and may be any server.
    let access = line.cluster.data().join("pg_hba.conf");
    let scram = std::fs::read_to_string(&access).unwrap();
    let set = |text: &str| {
        std::fs::write(&access, text).unwrap();
        line.reload(&[]);
    };
    set("local all all trust\nhost all all 0.0.0.0/0 trust\n");
    line.bad(&[], one, "does not prove that it is the end of the TLS connection");
    line.good(&[], &format!("{one}?channel_binding=prefer"));
    line.good(&[], &format!("{one}?{full}"));
    // A server that requests the password in the clear proves nothing either, and an eavesdropper could read the
    // password.
    set("local all all trust\nhost all all 0.0.0.0/0 password\n");
    line.bad(&[], one, "does not prove that it is the end of the TLS connection");
    set("local all all trust\n");
    line.bad(&[], one, "pg_hba.conf needs a line");
    set(&scram);
    line.reload(&[("ssl", "off")]);
    line.bad(&[], one, "does not support TLS");

    // Every statement was logged. They contain verifiers, but never a password.
    let log = line.cluster.log().unwrap();
    assert!(log.contains("adit.register"), "statements are not logged");
    for node in ["hub", "a"] {
        let file = line.folder.path().join(node).join("postgres/vpn/node.key");
        let secrets = std::fs::read_to_string(file).unwrap();
        let password = secrets.lines().find_map(|line| line.strip_prefix("password = ")).unwrap();
        assert!(password.len() == 32 && !log.contains(password), "{node}'s password is in the log");
    }
    let settings = std::fs::read_to_string(Path::new(&dir).join("postgres/vpn/node.toml")).unwrap();
    assert!(
        settings.contains("database = \"postgres://192.0.2.1:5432/vpn\"")
            && !settings.contains("geheimnis")
    );
}

/// Runs `command` on a terminal, types `answer` as soon as `question` is shown, and returns the screen's contents and
/// whether the command succeeded.
fn on_a_terminal(line: &Line, command: &str, question: &str, answer: &str) -> (String, bool) {
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &format!("exec {ADIT} {command}"), "/dev/null"])
        .env("HOME", line.folder.path())
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keyboard, mut screen) =
        (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains(question) {
        let mut byte = [0];
        assert_eq!(screen.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&shown));
        shown.extend(byte);
    }
    keyboard.write_all(format!("{answer}\n").as_bytes()).unwrap();
    screen.read_to_end(&mut shown).unwrap();
    drop(keyboard);
    (String::from_utf8_lossy(&shown).into_owned(), terminal.wait().unwrap().success())
}

#[test]
fn a_password_that_was_typed_serves_the_check_for_a_pooler_too() {
    if !inside("a_password_that_was_typed_serves_the_check_for_a_pooler_too") {
        return;
    }
    let line = Line::new();
    line.reload(&[("log_connections", "on")]);
    let dir = line.folder.path().join("hub");
    let command = format!(
        "postgres init postgres://vpn@127.0.0.1/vpn --network 10.9.0.0/24 --name hub --dir {}",
        dir.display()
    );
    let (shown, success) = on_a_terminal(&line, &command, "Password of vpn", "geheimnis");
    assert!(success && shown.contains("Start it:"), "{shown}");
    assert!(!shown.contains("geheimnis"), "{shown}");
    let log = line.cluster.log().unwrap();
    let probes =
        log.lines().filter(|l| l.contains("connection authorized") && l.contains("adit probe"));
    assert_eq!(probes.count(), 1, "{log}");
}

#[test]
fn a_node_is_removed_on_a_terminal_only_after_a_yes() {
    if !inside("a_node_is_removed_on_a_terminal_only_after_a_yes") {
        return;
    }
    let line = Line::new();
    let printed = text(&line.init(&[], "postgres://vpn:geheimnis@127.0.0.1/vpn"));
    let url = printed.split_whitespace().find(|word| word.contains("#adit1-")).unwrap();
    let dir = |node: &str| line.folder.path().join(node).display().to_string();
    let joined = line.adit(&[], &["join", url, "--name", "a", "--dir", &dir("a")]);
    assert!(joined.status.success(), "{}", text(&joined));
    let present = || {
        let sql = "SELECT count(*) FROM adit.node WHERE name = 'a' AND removed IS NULL";
        line.cluster.sql("vpn", sql).unwrap().trim() == "1"
    };
    let command = format!("postgres remove a --dir {}", dir("hub"));
    let question = "Remove a from the network vpn permanently? [y/N] ";
    for answer in ["", "n", "remove"] {
        let (shown, success) = on_a_terminal(&line, &command, question, answer);
        assert!(!success && shown.contains("Nothing was changed."), "{shown}");
        assert!(present(), "{answer:?} removed the node");
    }
    let (shown, success) = on_a_terminal(&line, &command, question, "y");
    assert!(success && shown.contains("a is out of the network vpn."), "{shown}");
    assert!(!present());
}
