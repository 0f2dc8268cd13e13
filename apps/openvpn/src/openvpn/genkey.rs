//! `--genkey`: generates the keys that wrap control channels.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use adit_openvpn::keys::{Metadata, ServerKey, StaticKey, TokenKey};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use zeroize::Zeroizing;

use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;
use adit_runtime::helper::files::{self, WriteMode};
use adit_runtime::random;

/// The kind of key to generate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyRequest<'a> {
    kind: &'a str,
    file: Option<&'a str>,
    server_key: Option<&'a str>,
    /// The metadata of a client's key, in base64.
    metadata: Option<&'a str>,
}

/// Generates a key if the arguments ask for one: `--genkey secret FILE`, `--genkey --secret FILE`,
/// `--genkey tls-crypt-v2-server FILE`, `--tls-crypt-v2 KEY --genkey tls-crypt-v2-client FILE [METADATA]`.
///
/// # Errors
/// The kind of key does not exist, or a file cannot be read or written.
pub(super) fn run(args: &[String]) -> Option<Result<(), Fault>> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    wanted(&words).map(|wanted| make(&wanted).and_then(|text| deliver(wanted.file, &text)))
}

fn wanted<'a>(args: &[&'a str]) -> Option<KeyRequest<'a>> {
    let at = args.iter().position(|arg| *arg == "--genkey")?;
    let plain = |index: usize| args.get(index).copied().filter(|arg| !arg.starts_with("--"));
    let after = |option: &str| {
        let at = args.iter().position(|arg| *arg == option)?;
        plain(at.saturating_add(1))
    };
    // In the old form, a separate option gives the kind and the file.
    let (kind, file) = match plain(at.saturating_add(1)) {
        Some(kind) => (kind, plain(at.saturating_add(2))),
        None => ("secret", after("--secret")),
    };
    let metadata = plain(at.saturating_add(3)).filter(|_| kind == "tls-crypt-v2-client");
    Some(KeyRequest { kind, file, server_key: after("--tls-crypt-v2"), metadata })
}

fn make(wanted: &KeyRequest<'_>) -> Result<Zeroizing<String>, Fault> {
    match wanted.kind {
        "secret" | "tls-auth" | "tls-crypt" => Ok(StaticKey::new(random::bytes()?).to_text()),
        "auth-token" => Ok(TokenKey::new(&random::bytes()?).to_pem()),
        "tls-crypt-v2-server" => Ok(ServerKey::new(&random::bytes()?).to_pem()),
        "tls-crypt-v2-client" => {
            let Some(path) = wanted.server_key else {
                return Err(Fault::operator(
                    "genkey tls-crypt-v2-client: name the server's key too: --tls-crypt-v2 FILE",
                ));
            };
            let problem = |e: String| Fault::operator(format!("tls-crypt-v2: '{path}': {e}"));
            let text = std::fs::read_to_string(path).map_err(|e| problem(e.to_string()))?;
            let server = ServerKey::parse(&text).map_err(|e| problem(e.to_string()))?;
            let made = match wanted.metadata {
                Some(text) => Metadata::User(BASE64_STANDARD.decode(text).map_err(|e| {
                    Fault::operator(format!("genkey: the metadata is not base64: {e}"))
                })?),
                None => Metadata::Timestamp(unix_time().0),
            };
            let key = server.client_key(StaticKey::new(random::bytes()?), Some(&made));
            key.map(|key| key.to_pem()).map_err(|e| Fault::operator(format!("genkey: {e}")))
        }
        other => Err(Fault::operator(format!(
            "genkey {other}: this kind is not supported; use secret, tls-auth, tls-crypt, \
             tls-crypt-v2-server, tls-crypt-v2-client or auth-token"
        ))),
    }
}

fn deliver(file: Option<&str>, text: &str) -> Result<(), Fault> {
    let Some(path) = file else {
        print!("{text}");
        return Ok(());
    };
    // openvpn also overwrites the file. Only the owner may read a key, even if the file was
    // readable by others before.
    let written = files::write(Path::new(path), WriteMode::Empty).and_then(|mut file| {
        if file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        file.write_all(text.as_bytes())
    });
    written.map_err(|e| Fault::operator(format!("genkey: cannot write '{path}': {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_command_are_understood() {
        let bare = KeyRequest { kind: "secret", file: None, server_key: None, metadata: None };
        let secret = |file| Some(KeyRequest { file, ..bare.clone() });
        assert_eq!(wanted(&["--genkey", "secret", "ta.key"]), secret(Some("ta.key")));
        assert_eq!(wanted(&["--genkey", "--secret", "ta.key"]), secret(Some("ta.key")));
        assert_eq!(wanted(&["--genkey", "secret"]), secret(None));
        assert_eq!(wanted(&["--config", "x"]), None);
        let client =
            wanted(&["--tls-crypt-v2", "s.key", "--genkey", "tls-crypt-v2-client", "c.key"]);
        let (file, server_key) = (Some("c.key"), Some("s.key"));
        let kind = "tls-crypt-v2-client";
        assert_eq!(client, Some(KeyRequest { kind, file, server_key, metadata: None }));
        let words = ["--genkey", kind, "c.key", "aGk=", "--tls-crypt-v2", "s.key"];
        let metadata = Some("aGk=");
        assert_eq!(wanted(&words), Some(KeyRequest { kind, file, server_key, metadata }));
    }

    #[test]
    fn a_clients_key_is_wrapped_for_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.key").display().to_string();
        let args = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        run(&args(&["--genkey", "tls-crypt-v2-server", &path])).unwrap().unwrap();
        let server_key = Some(path.as_str());
        let kind = "tls-crypt-v2-client";
        let wanted = KeyRequest { kind, file: None, server_key, metadata: None };
        let client = adit_openvpn::keys::ClientKey::parse(&make(&wanted).unwrap()).unwrap();
        let server = ServerKey::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let unwrapped = server.unwrap(&client.wkc).unwrap();
        assert_eq!(unwrapped.kc.as_bytes(), client.kc.as_bytes());
        assert!(matches!(unwrapped.metadata, Some(Metadata::Timestamp(_))));
        let named = KeyRequest { metadata: Some("aGVsbG8="), ..wanted.clone() };
        let client = adit_openvpn::keys::ClientKey::parse(&make(&named).unwrap()).unwrap();
        let unwrapped = server.unwrap(&client.wkc).unwrap();
        assert_eq!(unwrapped.metadata, Some(Metadata::User(b"hello".to_vec())));
        let odd = KeyRequest { metadata: Some("not base64!"), ..wanted };
        assert!(make(&odd).unwrap_err().to_string().contains("base64"));
    }

    #[test]
    fn an_existing_file_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ta.key");
        std::fs::write(&path, "open").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        deliver(Some(path.to_str().unwrap()), "key").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"key");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_unknown_kind_is_named() {
        let wanted = |kind| KeyRequest { kind, file: None, server_key: None, metadata: None };
        assert!(make(&wanted("token")).unwrap_err().to_string().contains("genkey token"));
        TokenKey::parse(&make(&wanted("auth-token")).unwrap()).unwrap();
    }
}
