//! Checks under valgrind that comparisons with secrets execute the same instructions whichever byte
//! differs.
//!
//! The test restarts itself under callgrind, which writes one count for each return of
//! [`adit_counted`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use adit_crypto::block::{OpenBlock, SealBlock};
use adit_crypto::{BlockCipher, Digest, DirectionKey};
use adit_engine::{Instant, UnixTime};

use crate::keys::{ServerKey, StaticKey};
use crate::packet::{Acks, Control, Opcode, SessionId};
use crate::server::cookie::Cookies;
use crate::wrap::{WrapConfig, WrapServer, Wrapper};

const TEST: &str = "constant_time::comparisons_take_the_same_instructions_whichever_byte_differs";
/// The name of [`adit_counted`] in callgrind's output.
const COUNTED: &str = "adit_openvpn::constant_time::adit_counted";
/// The environment variable that names the case to the counted process.
const CASE: &str = "ADIT_CONSTANT_TIME";
/// The number of times that each comparison is made, so that caches and allocations reach their
/// steady state.
const ROUNDS: usize = 3;
const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

/// The number of bytes that can be altered, and a function that alters one of them and returns the
/// comparison.
type Case = (usize, Box<dyn FnMut(usize) -> Box<dyn FnMut() -> bool>>);

/// Runs the comparison whose instructions are counted. Returns true if it found a difference.
#[inline(never)]
fn adit_counted(work: &mut dyn FnMut() -> bool) -> bool {
    std::hint::black_box(work())
}

fn case(name: &str) -> Case {
    match name {
        "cookie" => cookie(),
        "tls-auth" => wrapped(
            WrapConfig::TlsAuth { key: key(), direction: None, digest: Digest::Sha256 },
            9,
            Digest::Sha256.output_len(),
        ),
        "tls-auth-md5" => wrapped(
            WrapConfig::TlsAuth { key: key(), direction: None, digest: Digest::Md5 },
            9,
            Digest::Md5.output_len(),
        ),
        "tls-crypt" => wrapped(WrapConfig::TlsCrypt { key: key() }, 17, 32),
        "client-key" => client_key(),
        "cbc" => cbc(),
        "early-exit" => early_exit(),
        other => panic!("no case {other}"),
    }
}

fn key() -> StaticKey {
    StaticKey::new([3; StaticKey::LEN])
}

fn control(opcode: Opcode) -> Control<'static> {
    let acks = Acks::default();
    let session = SessionId([7; 8]);
    Control { opcode, key_id: 0, session, acks, remote: None, message: Some(0), payload: &[] }
}

fn cookie() -> Case {
    let address: SocketAddr = "192.0.2.1:5000".parse().expect("an address");
    let cookies = std::rc::Rc::new(Cookies::new([5; 32], Duration::from_secs(60)).expect("a key"));
    let good = cookies.create_cookie(NOW, address, SessionId([7; 8]));
    let spoil = move |at: usize| -> Box<dyn FnMut() -> bool> {
        let mut wrong = good;
        wrong.0[at] ^= 0x41;
        let acks = Acks::from_slice(&[0]).expect("one fits");
        let remote = Some(wrong);
        let packet = Control { acks, remote, message: Some(1), ..control(Opcode::ControlV1) };
        let cookies = std::rc::Rc::clone(&cookies);
        Box::new(move || !cookies.returned(NOW, address, &packet))
    };
    (SessionId::LEN, Box::new(spoil))
}

/// Makes the case for a wrapping whose MAC of `len` bytes begins at byte `from`.
fn wrapped(config: WrapConfig, from: usize, len: usize) -> Case {
    let mut client = Wrapper::client(&config).expect("a wrapping");
    let mut good = Vec::new();
    client.seal(&control(Opcode::HardResetClientV2), UnixTime(1), &mut good).expect("a packet");
    let server = WrapServer::new(&config).expect("a wrapping");
    assert!(server.open_first(&mut good.clone()).is_ok(), "unspoilt it is good");
    let server = std::rc::Rc::new(server);
    let spoil = move |at: usize| -> Box<dyn FnMut() -> bool> {
        let mut packet = good.clone();
        packet[from + at] ^= 0x41;
        let server = std::rc::Rc::clone(&server);
        let mut buffer = packet.clone();
        Box::new(move || {
            buffer.copy_from_slice(&packet);
            server.open_first(&mut buffer).is_err()
        })
    };
    (len, Box::new(spoil))
}

/// Makes the case for the hash of a tls-crypt-v2 client's wrapped key, which must stay the same
/// within a session.
fn client_key() -> Case {
    let server_key = ServerKey::new(&[42; ServerKey::LEN]);
    let client_key = server_key.client_key(key(), None).expect("a key");
    let mut client =
        Wrapper::client(&WrapConfig::TlsCryptV2Client { key: client_key }).expect("a wrapping");
    let server = WrapServer::new(&WrapConfig::tls_crypt_v2_server(server_key)).expect("one");
    let mut seal = |control: &Control<'_>| {
        let mut packet = Vec::new();
        client.seal(control, UnixTime(1), &mut packet).expect("a packet");
        packet
    };
    let first = seal(&control(Opcode::HardResetClientV3));
    let acks = Acks::from_slice(&[0]).expect("one fits");
    let remote = Some(SessionId([9; 8]));
    let later = Control { acks, remote, message: Some(1), ..control(Opcode::ControlWkcV1) };
    let later = seal(&later);
    let spoil = move |at: usize| -> Box<dyn FnMut() -> bool> {
        let mut wrapper = server.open_first(&mut first.clone()).expect("a reset").wrapper;
        wrapper.spoil_expected(at);
        let packet = later.clone();
        let mut buffer = packet.clone();
        Box::new(move || {
            buffer.copy_from_slice(&packet);
            wrapper.open(&mut buffer).is_err()
        })
    };
    (32, Box::new(spoil))
}

fn cbc() -> Case {
    let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
    let suite = (Some(BlockCipher::Aes256Cbc), Some(Digest::Sha1));
    let seal = SealBlock::new(suite.0, suite.1, &half).expect("a key");
    let open = std::rc::Rc::new(OpenBlock::new(suite.0, suite.1, &half).expect("a key"));
    let mut good = vec![0; 200];
    let len = seal.seal(1, &[0; 4], &[5; 100], &mut good).expect("room");
    good.truncate(len);
    let spoil = move |at: usize| -> Box<dyn FnMut() -> bool> {
        let mut packet = good.clone();
        packet[at] ^= 0x41;
        let open = std::rc::Rc::clone(&open);
        let mut buffer = packet.clone();
        Box::new(move || {
            buffer.copy_from_slice(&packet);
            open.open(&mut buffer).is_err()
        })
    };
    (Digest::Sha1.output_len(), Box::new(spoil))
}

/// Makes the negative control: a comparison that ends at the first difference.
fn early_exit() -> Case {
    let spoil = |at: usize| -> Box<dyn FnMut() -> bool> {
        let (right, mut wrong) = ([7_u8; 20], [7_u8; 20]);
        wrong[at] ^= 0x41;
        Box::new(move || right.iter().zip(&wrong).any(|(a, b)| a != b))
    };
    (20, Box::new(spoil))
}

/// Makes all comparisons of a case, in the counted process.
fn run(name: &str) {
    let (bytes, mut spoil) = case(name);
    for at in 0..bytes {
        let mut work = spoil(at);
        for _ in 0..ROUNDS {
            assert!(adit_counted(&mut work), "{name}: byte {at} is spoilt");
        }
    }
}

/// Counts the instructions of each comparison of a case, in the last round for each byte.
fn count(name: &str, folder: &Path) -> Vec<u64> {
    let out = folder.join(name);
    let mut command = Command::new("valgrind");
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env(CASE, name);
    command.args(["--tool=callgrind", "--quiet", "--combine-dumps=no"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    // A pattern would work for the first option, but not for the second.
    command.arg(format!("--toggle-collect={COUNTED}")).arg(format!("--dump-after={COUNTED}"));
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", TEST, "--test-threads=1"]);
    let output = command.output().expect("valgrind: apt-get install valgrind");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
    let mut dumps = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let number = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        if let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) {
            let text = std::fs::read_to_string(&path).expect("a dump");
            let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
            let total = total.and_then(|total| total.trim().parse::<u64>().ok());
            dumps.insert(number, total.expect("a total"));
        }
    }
    let counts: Vec<u64> = dumps.into_values().filter(|count| *count > 0).collect();
    assert!(counts.len() >= ROUNDS * case(name).0, "{name}: {} counts", counts.len());
    counts.chunks_exact(ROUNDS).filter_map(|rounds| rounds.last().copied()).collect()
}

#[test]
fn comparisons_take_the_same_instructions_whichever_byte_differs() {
    if let Ok(name) = std::env::var(CASE) {
        return run(&name);
    }
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["cookie", "tls-auth", "tls-auth-md5", "tls-crypt", "client-key", "cbc"] {
        let counts = count(name, folder.path());
        let different: BTreeSet<u64> = counts.iter().copied().collect();
        assert_eq!(different.len(), 1, "{name}: {counts:?}");
    }
    // Counting detects a comparison that ends early.
    let counts = count("early-exit", folder.path());
    let different: BTreeSet<u64> = counts.iter().copied().collect();
    assert_eq!(different.len(), 20, "{counts:?}");
}
