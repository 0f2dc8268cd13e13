use std::path::PathBuf;
use std::sync::Mutex;

use tempfile::TempDir;

use super::*;

/// A compiled plugin with its log.
struct Fixture {
    dir: TempDir,
    object: PathBuf,
}

impl Fixture {
    fn new(interface: u8) -> Self {
        Self::with(interface, &[])
    }

    fn with(interface: u8, definitions: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let object = adit_testbed::plugin::build(dir.path(), interface, definitions).unwrap();
        Self { dir, object }
    }

    fn open(&self, words: &[&str]) -> Result<(Plugin, Vec<Returned>), PluginError> {
        let log = format!("log={}", self.dir.path().join("log").display());
        let args = [self.object.to_str().unwrap(), &log].into_iter().chain(words.iter().copied());
        let args: Vec<String> = args.map(str::to_owned).collect();
        Module::load(&self.object)?.open(&args, &[("verb".into(), "3".into())])
    }

    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn logged(&self, line: &str) {
        let log = self.log();
        assert!(log.iter().any(|other| other == line), "no {line:?} in {log:#?}");
    }
}

const NO_INPUT: CallInput<'_> = CallInput { args: &[], env: &[], client: 0, certificate: None };

fn mask(kinds: &[Kind]) -> String {
    format!("mask={}", kinds.iter().fold(0, |mask, kind| mask | kind.bit()))
}

#[test]
fn each_version_of_the_interface_gets_arguments_and_environment() {
    for interface in 1..=3 {
        let fixture = Fixture::new(interface);
        let (mut plugin, list) = fixture.open(&["mask=513", "on=9:list"]).unwrap();
        assert!(list.is_empty());
        fixture.logged(&format!("open {interface} uid={}", nix::unistd::geteuid()));
        fixture.logged(&format!("open arg 0={}", fixture.object.display()));
        fixture.logged("open arg 2=mask=513");
        fixture.logged("open env verb=3");
        assert!(plugin.wants(Kind::Up) && plugin.wants(Kind::ClientConnectV2));
        assert!(!plugin.wants(Kind::Down));
        let args = ["plugin".to_owned(), "tun0".into(), "a\0b".into()];
        let env = [("dev".to_owned(), "tun0".to_owned()), ("empty".into(), String::new())];
        let input = CallInput { args: &args, env: &env, ..NO_INPUT };
        let output = plugin.call(Kind::Up, &input);
        assert_eq!(output, CallOutput { status: Status::Success, code: 0, list: Some(vec![]) });
        fixture.logged("call 0 arg 1=tun0");
        fixture.logged("call 0 arg 2=a_b");
        fixture.logged("call 0 env dev=tun0");
        fixture.logged("call 0 env empty=");
        let list = plugin.call(Kind::ClientConnectV2, &NO_INPUT).list.unwrap();
        let names: Vec<_> = list.iter().map(|entry| entry.name.as_str()).collect();
        let wanted: &[&str] = if interface == 1 { &[] } else { &["config", "other", "config"] };
        assert_eq!(names, wanted);
        drop(plugin);
        assert_eq!(fixture.log().last().unwrap(), "close");
    }
}

#[test]
fn version_three_sees_the_documented_structures() {
    let fixture = Fixture::new(3);
    let _plugin = fixture.open(&["mask=1"]).unwrap();
    fixture.logged("open version=5 known=0xf7ff ssl=1 openvpn=2.6.14 2 6 .14");
}

#[test]
fn verdicts_are_success_refusal_and_deferral() {
    let fixture = Fixture::new(2);
    let (mut plugin, _) =
        fixture.open(&["mask=0xf7ff", "on=4:refuse", "on=5:defer", "on=6:code7"]).unwrap();
    let mut status = |kind| plugin.call(kind, &NO_INPUT).status;
    assert_eq!(status(Kind::Up), Status::Success);
    assert_eq!(status(Kind::TlsVerify), Status::Error);
    assert_eq!(status(Kind::AuthUserPassVerify), Status::Deferred);
    assert_eq!(status(Kind::ClientConnect), Status::Error);
}

#[test]
fn lists_without_end_are_refused() {
    let fixture = Fixture::new(3);
    let (mut plugin, _) = fixture.open(&["mask=0xf7ef", "on=9:long", "on=0:circle"]).unwrap();
    assert_eq!(plugin.call(Kind::ClientConnectV2, &NO_INPUT).list, None);
    assert_eq!(plugin.call(Kind::Up, &NO_INPUT).list, None);
}

#[test]
fn a_list_that_is_too_large_is_refused_and_freed() {
    let value = vec![b'x'; MAX_RETURNED];
    let duplicate = |bytes: &[u8]| {
        let text = CString::new(bytes).unwrap();
        // SAFETY: it is a C string.
        unsafe { libc::strdup(text.as_ptr()) }
    };
    for (cut, fits) in [(2, true), (1, false)] {
        // SAFETY: malloc has no preconditions, and the entry is initialized before it is used.
        let list = unsafe {
            let node = libc::malloc(size_of::<StringList>()).cast::<StringList>();
            node.write(StringList {
                next: ptr::null_mut(),
                name: duplicate(b"ab"),
                value: duplicate(&value[cut..]),
            });
            returned::take(node)
        };
        assert_eq!(list.is_some(), fits);
    }
}

#[test]
fn a_client_keeps_its_memory_until_it_ends() {
    let fixture = Fixture::new(2);
    let (mut plugin, _) = fixture.open(&["mask=0xf7ff"]).unwrap();
    for client in [0, 7, 7, 9] {
        plugin.call(Kind::Up, &CallInput { client, ..NO_INPUT });
    }
    plugin.end_client(7);
    plugin.end_client(7);
    plugin.end_client(8);
    plugin.call(Kind::Up, &CallInput { client: 7, ..NO_INPUT });
    drop(plugin);
    let log = fixture.log();
    let count = |start: &str| log.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!((count("new "), count("end ")), (4, 4));
    let calls: Vec<_> = log.iter().filter_map(|line| line.split_once(" client=")).collect();
    let memories: Vec<_> = calls.iter().map(|(_, memory)| *memory).collect();
    assert_eq!(memories[1], memories[2]);
    assert!(memories[0] != memories[1] && memories[1] != memories[3] && memories[1] != memories[4]);
}

static LINES: Mutex<Vec<(LogLevel, String)>> = Mutex::new(Vec::new());

#[test]
fn log_messages_and_helpers_have_their_arguments() {
    log_to(|level, line| LINES.lock().unwrap().push((level, line.to_owned())));
    let fixture = Fixture::new(3);
    let (mut plugin, _) = fixture.open(&["mask=1", "on=0:log"]).unwrap();
    plugin.call(Kind::Up, &NO_INPUT);
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    let wanted = [
        (LogLevel::Warning, "PLUGIN TEST: one 2 three 4 5 6.50 7000000000 eight"),
        (LogLevel::Note, "PLUGIN TEST: aGVsbG8= hello -1"),
        (LogLevel::Debug, "PLUGIN TEST: 00"),
    ];
    assert_eq!(lines, wanted.map(|(level, line)| (level, line.to_owned())));
}

#[test]
fn a_version_three_plugin_gets_openssls_certificate() {
    let fixture = Fixture::new(3);
    let (mut plugin, _) = fixture.open(&[&mask(&[Kind::TlsVerify]), "on=4:depth"]).unwrap();
    let key = fixture.dir.path().join("key.pem");
    let file = fixture.dir.path().join("certificate.der");
    let made = std::process::Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=test", "-outform", "DER",
        ])
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(&file)
        .output()
        .expect("openssl runs: see scripts/deps.sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let der = std::fs::read(file).unwrap();
    let with = |der| CallInput { certificate: Some((1, der)), ..NO_INPUT };
    assert_eq!(plugin.call(Kind::TlsVerify, &with(&der)).status, Status::Success);
    fixture.logged(&format!("certificate depth=1 length={}", der.len()));
    assert_eq!(plugin.call(Kind::TlsVerify, &with(b"none")).status, Status::Error);
    assert_eq!(fixture.log().iter().filter(|line| line.starts_with("call 4 uid")).count(), 1);
}

#[test]
fn objects_that_are_no_usable_plugins_are_refused() {
    let refused = |fixture: &Fixture, words: &[&str]| fixture.open(words).unwrap_err();
    let fixture = Fixture::new(2);
    assert_eq!(refused(&fixture, &["open=fail"]), PluginError::Open);
    assert_eq!(refused(&fixture, &["mask=2048"]), PluginError::PacketFilter);
    assert_eq!(refused(&fixture, &["mask=0x10001"]), PluginError::Unknown(0x10000));
    // A plugin that was opened is closed again.
    assert_eq!(fixture.log().last().unwrap(), "close");
    assert_eq!(refused(&Fixture::with(2, &["REQUIRES=4"]), &[]), PluginError::Newer(4));
    assert_eq!(refused(&Fixture::with(2, &["POINT=5"]), &[]), PluginError::InitPoint(5));
    let module = Module::load(&Fixture::with(2, &["POINT=4"]).object).unwrap();
    assert_eq!(module.init_point(), InitPoint::AfterUserChange);
    let missing = Module::load(Path::new("/nowhere/plugin.so")).unwrap_err();
    assert!(missing.to_string().contains("No such file"), "{missing}");
    let other = ["libc.so.6", "libm.so.6"].map(|name| Module::load(Path::new(name)).unwrap_err());
    assert!(other.iter().all(|e| matches!(e, PluginError::Missing(_))), "{other:?}");
}

#[test]
fn an_open_function_may_return_a_list() {
    let (_plugin, list) = Fixture::new(3).open(&["mask=1", "open=list"]).unwrap();
    assert_eq!(list, [Returned { name: "config".into(), value: "verb 5".into() }]);
}

#[test]
fn kinds_have_the_interfaces_numbers() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_number(kind.number()), Some(kind));
    }
    assert_eq!(Kind::from_number(11), None);
    assert_eq!(Kind::ClientCrResponse.number(), 15);
    assert_eq!(KNOWN, 0xf7ff);
}
