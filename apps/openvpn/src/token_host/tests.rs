//! The host as a process, with SoftHSM's module, and with one that passes calls to it and fails on demand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use adit_linux::process::wait_for_end;
use adit_openvpn::tls::{KeyHolder, SignatureForm};
use adit_testbed::skip::skip;
use adit_testbed::token::{CONFIG, NO_SOFTHSM, PIN, Tokens as Store};
use adit_testbed::wait;
use tempfile::TempDir;

use super::*;

const HOST: &str = "ADIT_TEST_TOKEN_HOST";

/// A limit for calls that block in a test.
const SHORT: Duration = Duration::from_millis(300);

const SOON: Duration = Duration::from_secs(30);

/// Is the host for the other tests, which start this program again.
#[test]
fn the_host_of_other_tests() {
    if std::env::var_os(HOST).is_some() {
        std::process::exit(i32::from(process::run().is_err()));
    }
}

/// Runs openssl in a folder.
fn openssl(folder: &Path, words: &str) -> bool {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(words.split_whitespace());
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

/// A folder with tokens.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) store: Store,
}

impl Fixture {
    /// Makes a token `office` with an EC key of the id 02. `None` without SoftHSM.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let Some(store) = Store::new(dir.path()).unwrap() else {
            skip(test, NO_SOFTHSM);
            return None;
        };
        let fixture = Self { dir, store };
        fixture.store.initialize("office").unwrap();
        fixture.add("office", "02", "ec -pkeyopt ec_paramgen_curve:P-256", false);
        Some(fixture)
    }

    /// Makes a key with a self-signed certificate, and puts both on a token.
    pub(crate) fn add(&self, token: &str, id: &str, kind: &str, private: bool) {
        let request = format!(
            "req -x509 -newkey {kind} -nodes -keyout {id}.key -out {id}.crt -days 30 -subj /CN={token}-{id}"
        );
        assert!(openssl(self.dir.path(), &request));
        let [key, crt] = ["key", "crt"].map(|name| self.dir.path().join(format!("{id}.{name}")));
        self.store.import(token, id, (&key, &crt), private).unwrap();
    }

    /// Starts a host with a module.
    fn start(
        &self,
        module: PathBuf,
        change: impl FnOnce(&mut OpenRequest),
    ) -> Result<Tokens, Fault> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "token_host::tests::the_host_of_other_tests", "--nocapture"])
            .env(HOST, "1")
            .env(CONFIG, self.store.config())
            .stdout(Stdio::null());
        let file = module.to_str().unwrap().to_owned();
        let module = ModuleFile { file, protected: false, private: false };
        let mut request = OpenRequest { modules: vec![module], ..OpenRequest::default() };
        change(&mut request);
        Tokens::start_as(command, request)
    }

    /// Starts a host with SoftHSM's module.
    pub(crate) fn plain(&self) -> Tokens {
        self.start(self.store.module(), |_| {}).unwrap()
    }

    /// Starts a host with the faulty module.
    pub(crate) fn faulty(&self) -> Tokens {
        self.start(self.store.faulty_module().unwrap(), |_| {}).unwrap()
    }

    pub(crate) fn begin(&self, fault: &str) {
        self.store.fault(fault, true).unwrap();
    }

    pub(crate) fn end(&self, fault: &str) {
        self.store.fault(fault, false).unwrap();
    }

    /// Checks a signature with openssl.
    fn verify(&self, id: &str, digest: &[u8], signature: &[u8], words: &str) {
        let write =
            |name: &str, bytes: &[u8]| fs::write(self.dir.path().join(name), bytes).unwrap();
        write("digest", digest);
        write("signature", signature);
        let verify = format!(
            "pkeyutl -verify -certin -inkey {id}.crt -in digest -sigfile signature {words}"
        );
        assert!(openssl(self.dir.path(), &verify), "{words}");
    }
}

fn pin() -> Option<Zeroizing<String>> {
    Some(Zeroizing::new(PIN.to_owned()))
}

/// Returns the only token, and the certificate with an id.
fn found(tokens: &Tokens, id: u8) -> (SeenToken, Certificate) {
    let (mut seen, mut certificates) = tokens.scan().unwrap();
    certificates.retain(|found| found.id == [id]);
    assert_eq!((seen.len(), certificates.len()), (1, 1));
    (seen.remove(0), certificates.remove(0))
}

/// Logs in, and returns the key with this id.
fn key(tokens: &Tokens, id: u8, pins: PinSource) -> TokenKey {
    let (seen, certificate) = found(tokens, id);
    assert!(seen.login);
    assert_eq!(tokens.login(&seen.token, pin(), true), Ok(Login::Done));
    TokenKey::new(tokens, &certificate, pins).unwrap()
}

fn with_file() -> PinSource {
    PinSource { file: FilePin::new(pin()), ..PinSource::default() }
}

/// Returns the reason why there is no signature.
#[track_caller]
fn refused(key: &TokenKey, text: &str) {
    let reason = key.sign(SignatureForm::Ecdsa, &[7; 32]).unwrap_err();
    assert!(reason.contains(text), "{reason}");
}

fn signs(key: &TokenKey) {
    assert!(key.sign(SignatureForm::Ecdsa, &[7; 32]).is_ok());
}

/// The beginning of a DigestInfo for SHA-256.
const SHA256: [u8; 19] = [
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0, 0x04, 0x20,
];

#[test]
fn keys_of_both_kinds_sign_in_every_form() {
    let Some(fixture) = Fixture::new("keys_of_both_kinds_sign_in_every_form") else { return };
    fixture.add("office", "01", "rsa:2048", false);
    let tokens = fixture.plain();
    let ec = key(&tokens, 2, PinSource::default());
    let digest = [7; 32];
    let signature = ec.sign(SignatureForm::Ecdsa, &digest).unwrap();
    fixture.verify("02", &digest, &signature, "");
    let (_, certificate) = found(&tokens, 1);
    let rsa = TokenKey::new(&tokens, &certificate, PinSource::default()).unwrap();
    let info = [&SHA256[..], &digest].concat();
    let signature = rsa.sign(SignatureForm::Pkcs1, &info).unwrap();
    fixture.verify("01", &digest, &signature, "-pkeyopt digest:sha256");
    let mut block = vec![0xff; 256 - info.len()];
    (block[0], block[1]) = (0, 1);
    *block.last_mut().unwrap() = 0;
    block.extend(&info);
    assert_eq!(rsa.sign(SignatureForm::Raw, &block).unwrap(), signature);
    for (digest, bits) in [
        (adit_crypto::Digest::Sha256, 256),
        (adit_crypto::Digest::Sha384, 384),
        (adit_crypto::Digest::Sha512, 512),
    ] {
        assert!(rsa.makes(SignatureForm::Pss(digest)));
        let hashed = vec![7; bits / 8];
        let signature = rsa.sign(SignatureForm::Pss(digest), &hashed).unwrap();
        let words = format!(
            "-pkeyopt digest:sha{bits} -pkeyopt rsa_padding_mode:pss -pkeyopt rsa_pss_saltlen:digest"
        );
        fixture.verify("01", &hashed, &signature, &words);
    }
}

#[test]
fn a_token_shows_its_names_and_certificates() {
    let Some(fixture) = Fixture::new("a_token_shows_its_names_and_certificates") else { return };
    let tokens = fixture.plain();
    let (seen, certificate) = found(&tokens, 2);
    assert_eq!((seen.token.label().as_str(), seen.hidden, seen.keypad), ("office", false, false));
    assert_eq!(certificate.label, "certificate");
    let id = certificate.id().to_string();
    assert!(id.starts_with("SoftHSM\\x20project/SoftHSM\\x20v2/"), "{id}");
    assert!(id.ends_with("/office/02"), "{id}");
    // The key is not there for another id.
    let other = Certificate { id: vec![9], ..certificate };
    assert_eq!(tokens.login(&seen.token, pin(), true), Ok(Login::Done));
    let fault = tokens.choose(&other).unwrap_err();
    assert!(fault.to_string().contains("no private key"), "{fault}");
}

#[test]
fn certificates_may_be_hidden_until_the_pin() {
    let Some(fixture) = Fixture::new("certificates_may_be_hidden_until_the_pin") else { return };
    fixture.add("office", "03", "ec -pkeyopt ec_paramgen_curve:P-384", true);
    let private = |request: &mut OpenRequest| request.modules[0].private = true;
    let tokens = fixture.start(fixture.store.module(), private).unwrap();
    let (seen, certificates) = tokens.scan().unwrap();
    assert!(seen[0].hidden && certificates.is_empty());
    assert_eq!(tokens.login(&seen[0].token, pin(), true), Ok(Login::Done));
    let (seen, certificates) = tokens.scan().unwrap();
    assert_eq!((seen[0].hidden, seen[0].login, certificates.len()), (false, false, 2));
}

#[test]
fn a_wrong_pin_in_a_file_is_tried_once() {
    let Some(fixture) = Fixture::new("a_wrong_pin_in_a_file_is_tried_once") else { return };
    let tokens = fixture.faulty();
    let file = FilePin::new(Some(Zeroizing::new("9999".to_owned())));
    let key = key(&tokens, 2, PinSource { file, ..PinSource::default() });
    signs(&key);
    fixture.begin("gone");
    refused(&key, "token 'office' is not there: insert it");
    fixture.end("gone");
    refused(&key, "the file of askpass is wrong");
    refused(&key, "the PIN is needed again");
    assert_eq!(fixture.store.logins(), ["1 1234", "1 9999"]);
}

#[test]
fn a_token_that_was_removed_works_again_with_its_pin() {
    let Some(fixture) = Fixture::new("a_token_that_was_removed_works_again_with_its_pin") else {
        return;
    };
    let tokens = fixture.faulty();
    let key = key(&tokens, 2, with_file());
    fixture.begin("gone");
    refused(&key, "is not there");
    fixture.end("gone");
    signs(&key);
    signs(&key);
    assert_eq!(fixture.store.logins(), ["1 1234", "1 1234"]);
}

#[test]
fn a_person_enters_the_pin_again() {
    #[derive(Debug)]
    struct Person(Option<&'static str>);
    impl PinEntry for Person {
        fn pin(&self, token: &str) -> Option<Zeroizing<String>> {
            assert_eq!(token, "office");
            self.0.map(|pin| Zeroizing::new(pin.to_owned()))
        }
    }
    let Some(fixture) = Fixture::new("a_person_enters_the_pin_again") else { return };
    for (entered, problem) in [
        (Some(PIN), None),
        (Some("9999"), Some("the PIN is wrong")),
        (None, Some("it was not entered")),
    ] {
        let tokens = fixture.faulty();
        let entry: Arc<dyn PinEntry> = Arc::new(Person(entered));
        let key = key(&tokens, 2, PinSource { entry: Some(entry), ..PinSource::default() });
        fixture.begin("gone");
        refused(&key, "is not there");
        fixture.end("gone");
        match problem {
            None => signs(&key),
            Some(problem) => refused(&key, problem),
        }
    }
}

#[test]
fn the_last_attempt_is_for_persons() {
    let Some(fixture) = Fixture::new("the_last_attempt_is_for_persons") else { return };
    let tokens = fixture.faulty();
    let (seen, _) = found(&tokens, 2);
    fixture.begin("final-try");
    assert_eq!(tokens.login(&seen.token, pin(), false), Ok(Login::LastTry));
    assert_eq!(fixture.store.logins(), [""; 0]);
    let wrong = Some(Zeroizing::new("9999".to_owned()));
    assert_eq!(tokens.login(&seen.token, wrong, true), Ok(Login::Wrong { last: true }));
    assert_eq!(tokens.login(&seen.token, pin(), true), Ok(Login::Done));
    fixture.end("final-try");
    fixture.begin("locked");
    let reason = tokens.login(&seen.token, pin(), true).unwrap_err();
    assert!(reason.contains("is locked"), "{reason}");
    assert_eq!(fixture.store.logins(), ["1 9999", "1 1234"]);
}

#[test]
fn a_keypad_takes_the_pin_itself() {
    let Some(fixture) = Fixture::new("a_keypad_takes_the_pin_itself") else { return };
    fixture.begin("keypad");
    for protected in [false, true] {
        let module = fixture.store.faulty_module().unwrap();
        let tokens = fixture.start(module, |r| r.modules[0].protected = protected).unwrap();
        let (seen, _) = found(&tokens, 2);
        assert_eq!(seen.keypad, protected);
        let pin = pin().filter(|_| !protected);
        assert_eq!(tokens.login(&seen.token, pin, false), Ok(Login::Done));
    }
    assert_eq!(fixture.store.logins(), ["1 1234", "1 -"]);
}

#[test]
fn a_key_may_need_the_pin_for_each_signature() {
    let Some(fixture) = Fixture::new("a_key_may_need_the_pin_for_each_signature") else { return };
    fixture.begin("always");
    let tokens = fixture.faulty();
    let key = key(&tokens, 2, with_file());
    signs(&key);
    signs(&key);
    assert_eq!(fixture.store.logins(), ["1 1234", "2 1234", "2 1234"]);
    // The PIN is entered again for a token that was removed, and kept again.
    fixture.begin("gone");
    refused(&key, "is not there");
    fixture.end("gone");
    signs(&key);
    assert_eq!(fixture.store.logins()[3..], ["1 1234", "2 1234"]);
}

#[test]
fn the_pin_is_forgotten_in_time() {
    let Some(fixture) = Fixture::new("the_pin_is_forgotten_in_time") else { return };
    let module = || fixture.store.faulty_module().unwrap();
    let tokens = fixture.start(module(), |request| request.pin_cache = Some(3600)).unwrap();
    let lasting = key(&tokens, 2, PinSource::default());
    signs(&lasting);
    signs(&lasting);
    assert!(!found(&tokens, 2).0.login);
    assert_eq!(fixture.store.logins(), ["1 1234"; 1]);
    let tokens = fixture.start(module(), |request| request.pin_cache = Some(0)).unwrap();
    let short = key(&tokens, 2, with_file());
    signs(&short);
    signs(&short);
    assert!(found(&tokens, 2).0.login);
    assert_eq!(fixture.store.logins(), ["1 1234"; 3]);
}

#[test]
fn a_token_that_blocks_delays_one_signature() {
    let Some(fixture) = Fixture::new("a_token_that_blocks_delays_one_signature") else { return };
    let tokens = fixture.faulty();
    let key = key(&tokens, 2, PinSource::default());
    fixture.begin("block");
    let sign = || Request::Sign { mechanism: Mechanism::Ecdsa, data: vec![7; 32] };
    let reason = tokens.link.call(sign(), SHORT).unwrap_err();
    assert!(reason.contains("did not answer within"), "{reason}");
    refused(&key, "still does not answer");
    assert!(tokens.fault().is_none());
    fixture.end("block");
    // Its late signature is dropped.
    wait::until("the token answers again", SOON, || {
        Ok(key.sign(SignatureForm::Ecdsa, &[7; 32]).is_ok())
    })
    .unwrap();
}

#[test]
fn a_module_that_crashes_is_reported() {
    let Some(fixture) = Fixture::new("a_module_that_crashes_is_reported") else { return };
    let tokens = fixture.faulty();
    key(&tokens, 2, PinSource::default());
    fixture.begin("crash");
    let sign = || Request::Sign { mechanism: Mechanism::Ecdsa, data: vec![7; 32] };
    for _ in 0..2 {
        let reason = tokens.link.call(sign(), SOON).unwrap_err();
        assert!(reason.contains("has crashed"), "{reason}");
    }
    assert!(tokens.fault().is_some());
}

#[test]
fn a_module_that_cannot_be_loaded_is_named() {
    let Some(fixture) = Fixture::new("a_module_that_cannot_be_loaded_is_named") else { return };
    let refused = |path: &Path, part: &str| {
        let fault = fixture.start(path.to_owned(), |_| {}).unwrap_err().to_string();
        assert!(fault.contains(path.to_str().unwrap()) && fault.contains(part), "{fault}");
    };
    refused(Path::new("/nonexistent/module.so"), "cannot open shared object file");
    // A shared object without the functions.
    refused(Path::new("libm.so.6"), "C_GetFunctionList");
}

#[test]
fn only_the_first_request_loads_modules() {
    let Some(fixture) = Fixture::new("only_the_first_request_loads_modules") else { return };
    let tokens = fixture.plain();
    let again = tokens.link.call(Request::Open(OpenRequest::default()), SOON).unwrap();
    assert!(matches!(again, Reply::Failed(_)), "{again:?}");
    let none = tokens.link.call(Request::Certificate(9), SOON).unwrap();
    assert!(matches!(none, Reply::Failed(_)), "{none:?}");
}

/// Even while the module blocks.
#[test]
fn the_host_ends_soon_after_the_network_process() {
    let Some(fixture) = Fixture::new("the_host_ends_soon_after_the_network_process") else {
        return;
    };
    let tokens = fixture.faulty();
    key(&tokens, 2, PinSource::default());
    fixture.begin("block");
    let sign = Request::Sign { mechanism: Mechanism::Ecdsa, data: vec![7; 32] };
    tokens.link.call(sign, SHORT).unwrap_err();
    let host = tokens.link.process();
    drop(tokens);
    wait::until("the host has ended", SOON * 2, || Ok(wait_for_end(&host, SHORT)?)).unwrap();
}

#[test]
fn a_pin_is_not_in_debug_output() {
    let pin = Pin(Zeroizing::new("987654".to_owned()));
    assert_eq!(format!("{:?}", Some(pin)), "Some(Pin)");
}

#[test]
fn a_static_build_refuses_modules_by_name() {
    check_build(true).unwrap();
    let refusal = check_build(false).unwrap_err().to_string();
    assert!(refusal.starts_with("pkcs11-providers: ") && refusal.contains("glibc"), "{refusal}");
}
