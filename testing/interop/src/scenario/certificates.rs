//! Certificates with unusual names, and checks of the server's certificate: with adit as with openvpn.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::refusals::serial;
use super::server_hooks::{meanwhile, script};
use super::variables::{self, Variables, read_dumps};
use super::{Scenario, ping_until};
use crate::case::{Configs, READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::run;
use crate::wait::until;

const SOON: Duration = Duration::from_secs(10);

/// A client's name.
struct Name {
    label: &'static str,
    /// The permitted types of strings, as in openssl's `string_mask`.
    types: &'static str,
    /// The subject, as in openssl's `-subj`.
    subject: &'static str,
}

const NAMES: &[Name] = &[
    Name {
        label: "utf8", types: "utf8only", subject: "/O=Müller & Söhne/OU=日本/CN=Jürgen Öz"
    },
    Name { label: "t61", types: "MASK:0x4", subject: "/O=Müller & Söhne/CN=Jürgen Öz" },
    Name { label: "bmp", types: "MASK:0x800", subject: "/O=Łódź/CN=Żółw 東京" },
    Name {
        label: "signs",
        types: "utf8only",
        subject: "/O=a=b,c\"d'e\\\\f;g\\+h#i<j>k%l$m`n/L= edges /CN=x=y;z \"q\"\\/r;s's",
    },
    Name {
        label: "control",
        types: "utf8only",
        subject: "/O=line\nbreak\ttab/L=\u{1b}[31mred\u{7f}/CN=controls END",
    },
    Name {
        label: "repeated",
        types: "utf8only",
        subject: "/OU=first/OU=second/DC=a/DC=b/CN=one/CN=two",
    },
    Name {
        label: "mail",
        types: "utf8only",
        subject: "/CN=mail/emailAddress=a@b.example/UID=u1/serialNumber=77",
    },
];

/// A name that openvpn accepts and adit refuses.
const LINE_BREAK: Name = Name { label: "line-break", types: "utf8only", subject: "/CN=new\nline" };

/// Creates a certificate for the client's key with this name, unless there is one, and the configurations that use it.
fn with_name(scenario: &Scenario<'_>, name: &Name) -> Result<Configs> {
    let folder = scenario.folder();
    let path = |file: &str| folder.join(format!("{}.{file}", name.label)).display().to_string();
    let mut configs = scenario.configs();
    configs.client = configs.client.replace(&scenario.pki("client.crt"), &path("crt"));
    if Path::new(&path("crt")).exists() {
        return Ok(configs);
    }
    let config = format!("[req]\nstring_mask={}\ndistinguished_name=dn\n[dn]\n", name.types);
    fs::write(path("cnf"), config)?;
    let key = scenario.pki("client.key");
    run(
        "openssl",
        &[
            "req",
            "-new",
            "-utf8",
            "-config",
            &path("cnf"),
            "-key",
            &key,
            "-subj",
            name.subject,
            "-out",
            &path("csr"),
        ],
    )?;
    let (ca, ca_key, extensions) =
        (scenario.pki("ca.crt"), scenario.pki("ca.key"), scenario.pki("client.ext"));
    run(
        "openssl",
        &[
            "x509",
            "-req",
            "-in",
            &path("csr"),
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-CAserial",
            &path("srl"),
            "-days",
            "30",
            "-extfile",
            &extensions,
            "-extensions",
            "leaf",
            "-out",
            &path("crt"),
        ],
    )?;
    Ok(configs)
}

/// Writes a program that dumps its variables and arguments.
fn dumper(scenario: &Scenario<'_>) -> Result<String> {
    script(
        scenario,
        "dump",
        "name=$script_type\ncase $script_type in tls-verify|learn-address) name=$name-$1;; esac\n\
         env -0 > $OUT/dumps/$name\nprintf '%s|' \"$@\" > $OUT/dumps/$name.args\n\
         [ \"$name\" != \"$(cat $OUT/refused)\" ]",
    )
}

/// Empties the folder of the dumps, and chooses the program that refuses.
fn prepare(scenario: &Scenario<'_>, refused: &str) -> Result<()> {
    let folder = scenario.folder().join("dumps");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder)?;
    Ok(fs::write(scenario.folder().join("refused"), refused)?)
}

/// What a session shows of a certificate.
#[derive(Debug, PartialEq)]
struct Shown {
    variables: Variables,
    /// Everything that is compared as text: arguments, status and log lines.
    lines: Vec<String>,
}

/// Returns a line without what depends on the run: all numbers, and the time in the log.
fn plain(line: &str) -> String {
    let parts: Vec<&str> =
        line.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
    parts.join("#").trim().to_owned()
}

/// Returns the arguments that programs got.
fn arguments(folder: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // The argument of client-connect is a random name.
        let arguments = path.extension().is_some_and(|extension| extension == "args");
        if arguments && name != "client-connect" {
            lines.push(format!("{name}: {}", String::from_utf8_lossy(&fs::read(&path)?)));
        }
    }
    lines.sort();
    Ok(lines)
}

/// Asks the management interface for the status.
fn management_status(path: &Path) -> Result<Vec<String>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"status 3\n")?;
    let mut rows = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.starts_with("CLIENT_LIST") {
            rows.push(plain(&line));
        } else if line.starts_with("END") {
            break;
        }
    }
    Ok(rows)
}

/// Runs a session of a client with this name at a server of this kind.
fn show(scenario: &Scenario<'_>, name: &Name, server: &Program) -> Result<Shown> {
    prepare(scenario, "")?;
    let folder = scenario.folder();
    let (status, management) = (folder.join("status"), folder.join("management"));
    let (_, _) = (fs::remove_file(&status), fs::remove_file(&management));
    let mut configs = with_name(scenario, name)?;
    let dump = dumper(scenario)?;
    configs.server(&format!(
        "script-security 2\ntls-verify {dump}\nclient-connect {dump}\nlearn-address {dump}\nstatus {} 1\nstatus-version 2\n\
         management {} unix\ndisable-dco",
        status.display(),
        management.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    let mut rows = Vec::new();
    // openvpn lists a client before it knows the name.
    until("the client in the status file", SOON, || {
        let text = fs::read(&status).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
        rows = text.split('\n').filter(|row| row.starts_with("CLIENT_LIST")).map(plain).collect();
        Ok(!rows.is_empty() && !rows.iter().any(|row| row.starts_with("CLIENT_LIST,UNDEF,")))
    })?;
    let mut lines = arguments(&folder.join("dumps"))?;
    lines.append(&mut rows);
    lines.extend(management_status(&management)?);
    let log = server.log();
    let verified = log.lines().filter_map(|line| line.split_once("VERIFY OK: "));
    lines.extend(verified.map(|(_, text)| format!("VERIFY OK: {text}")));
    client.stop()?;
    server.stop()?;
    Ok(Shown { variables: read_dumps(&folder.join("dumps"))?, lines })
}

/// Programs, the status file, the management interface and the log show unusual names as with openvpn.
pub(super) fn names(scenario: &Scenario<'_>) -> Result<String> {
    let mut wrong = Vec::new();
    for name in NAMES {
        let theirs = show(scenario, name, &Program::OpenVpn);
        let theirs = theirs.map_err(|f| format!("{}: openvpn: {}", name.label, f.0))?;
        let ours = show(scenario, name, scenario.server);
        let ours = ours.map_err(|f| format!("{}: adit: {}", name.label, f.0))?;
        if let Err(failure) = variables::same(&theirs.variables, &ours.variables) {
            wrong.push(format!("{}: {}", name.label, failure.0));
        }
        if theirs.lines != ours.lines {
            let only = |these: &[String], those: &[String]| {
                these.iter().filter(|line| !those.contains(line)).cloned().collect::<Vec<_>>()
            };
            let (a, b) = (only(&theirs.lines, &ours.lines), only(&ours.lines, &theirs.lines));
            wrong.push(format!("{}: openvpn {a:#?}, adit {b:#?}", name.label));
        }
    }
    ensure(wrong.is_empty(), || wrong.join("\n"))?;
    if let Program::Adit(_) = scenario.server {
        line_break(scenario)?;
    }
    Ok(format!("{} names", NAMES.len()))
}

/// A common name with a line break names no client of adit.
fn line_break(scenario: &Scenario<'_>) -> Result<()> {
    let configs = with_name(scenario, &LINE_BREAK)?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    server
        .wait_for_any(&["its common name has a control character"], SETUP_LIMIT)
        .map_err(|f| meanwhile(&f.0, &client))?;
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)
}

/// A client checks each certificate of its server with the same variables and arguments as openvpn, and refuses the
/// root or the server.
pub(super) fn server_checked(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.client(&format!(
        "script-security 2\ntls-verify {}\nconnect-retry 1 1\ndisable-dco",
        dumper(scenario)?
    ));
    let dumps = scenario.folder().join("dumps");
    let mut shown = Vec::new();
    for client in [&Program::OpenVpn, scenario.client] {
        prepare(scenario, "")?;
        let pair = Pair::new()?;
        let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        let mut daemon = dial(&pair, scenario.folder(), &configs, client)?;
        daemon.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
        ping_until(&pair.client, "10.88.0.1".parse().context("an address")?, SOON)?;
        daemon.stop()?;
        shown.push((read_dumps(&dumps)?, arguments(&dumps)?));
        for depth in ["tls-verify-1", "tls-verify-0"] {
            prepare(scenario, depth)?;
            let mut daemon = dial(&pair, scenario.folder(), &configs, client)?;
            let refused = daemon.wait_for_any(&["verify script error"], SETUP_LIMIT);
            refused.map_err(|f| meanwhile(&f.0, &server))?;
            std::thread::sleep(Duration::from_secs(1));
            ensure(daemon.count(READY) == 0, || daemon.failure("it trusted the server").0)?;
            ensure(dumps.join(depth).exists(), || format!("{depth} was not run"))?;
            ensure(depth == "tls-verify-0" || !dumps.join("tls-verify-0").exists(), || {
                "the server's certificate was checked although its authority was refused".into()
            })?;
            daemon.stop()?;
        }
        server.stop()?;
    }
    let [(theirs, their_arguments), (ours, our_arguments)] = shown.as_slice() else {
        return Err("two clients were compared".into());
    };
    ensure(their_arguments == our_arguments, || {
        format!("openvpn {their_arguments:#?}, adit {our_arguments:#?}")
    })?;
    variables::same(theirs, ours)
}

/// `crl-verify DIRECTORY dir` at a client: a file with the serial number of the server's certificate revokes it.
pub(super) fn server_revoked(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let folder = scenario.folder();
    let revoked = folder.join("revoked");
    fs::create_dir(&revoked)?;
    configs.client(&format!("crl-verify {} dir\nconnect-retry 1 1", revoked.display()));
    let told = run("openssl", &["x509", "-in", &scenario.pki("server.crt"), "-noout", "-text"])?;
    let number = serial(&told).ok_or("no serial number")?;
    fs::write(revoked.join(&number), "")?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client.wait_for_any(&["verify crl: "], SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    std::thread::sleep(Duration::from_secs(1));
    ensure(client.count(READY) == 0, || client.failure("it trusted the server").0)?;
    // The directory is read for each connection.
    fs::remove_file(revoked.join(&number))?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    Ok(number)
}
