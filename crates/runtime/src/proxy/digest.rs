//! HTTP's Digest authentication (RFC 7616) to a proxy, which does not send the password.

use adit_crypto::{Digest, hash};
use zeroize::Zeroizing;

use super::Login;

/// A proxy's challenge with the supported parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    algorithm: Digest,
    /// Whether the algorithm is a session variant such as `MD5-sess`, with one more round over both nonces.
    session: bool,
    /// Whether the response contains `qop=auth`, with a count and our nonce.
    counted: bool,
    realm: String,
    nonce: String,
    opaque: Option<String>,
}

/// The authentication schemes that the proxy offers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// The strongest digest challenge.
    pub(super) digest: Option<Challenge>,
    pub(super) basic: bool,
    /// The names of all offered schemes, for messages.
    pub(super) names: Vec<String>,
}

/// Parses the `Proxy-Authenticate` headers of a response.
pub(super) fn offer(answer: &str) -> Offer {
    let mut offer = Offer::default();
    for line in answer.lines().skip(1) {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.trim().eq_ignore_ascii_case("proxy-authenticate") {
            challenges(value.trim()).into_iter().for_each(|found| offer.take(&found));
        }
    }
    offer
}

impl Offer {
    fn take(&mut self, found: &Raw<'_>) {
        self.names.push(found.scheme.to_owned());
        self.basic |= found.scheme.eq_ignore_ascii_case("basic");
        let Some(challenge) = found.digest() else { return };
        let better = self.digest.as_ref().is_none_or(|have| {
            have.algorithm == Digest::Md5 && challenge.algorithm == Digest::Sha256
        });
        if better {
            self.digest = Some(challenge);
        }
    }
}

/// A scheme with its parameters.
#[derive(Debug, Default)]
struct Raw<'a> {
    scheme: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

/// The maximum number of challenges and parameters that are parsed.
const MAX_ITEMS: usize = 64;

/// Splits `Basic realm="a", Digest realm="b, c", nonce=d`.
fn challenges(value: &str) -> Vec<Raw<'_>> {
    let mut all: Vec<Raw<'_>> = Vec::new();
    for item in items(value).into_iter().take(MAX_ITEMS) {
        // `Scheme`, `Scheme name=value` or `name=value`.
        let (scheme, parameter) = match item.split_once('=') {
            None => (Some(item), None),
            Some((left, right)) => match left.trim().rsplit_once(' ') {
                Some((scheme, name)) => (Some(scheme.trim()), Some((name, right))),
                None => (None, Some((left.trim(), right))),
            },
        };
        if let Some(scheme) = scheme {
            all.push(Raw { scheme, parameters: Vec::new() });
        }
        if let (Some(last), Some((name, value))) = (all.last_mut(), parameter) {
            let value = value.trim();
            let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            last.parameters.push((name, quoted.unwrap_or(value)));
        }
    }
    all
}

/// Splits at commas outside quotes.
fn items(value: &str) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = value.split(|c: char| {
        let plain = !std::mem::take(&mut escaped);
        match c {
            '\\' if quoted => escaped = plain,
            '"' if plain => quoted = !quoted,
            ',' => return !quoted,
            _ => {}
        }
        false
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

impl Raw<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(have, _)| have.eq_ignore_ascii_case(name));
        found.map(|(_, value)| *value)
    }

    fn digest(&self) -> Option<Challenge> {
        if !self.scheme.eq_ignore_ascii_case("digest") {
            return None;
        }
        let named = self.get("algorithm").unwrap_or("MD5").to_ascii_uppercase();
        let (name, session) = match named.strip_suffix("-SESS") {
            Some(name) => (name, true),
            None => (named.as_str(), false),
        };
        let algorithm = match name {
            "MD5" => Digest::Md5,
            "SHA-256" => Digest::Sha256,
            _ => return None,
        };
        let counted = match self.get("qop") {
            None => false,
            // `auth-int` is not supported, because there is no body to protect.
            Some(offered) => {
                let auth = |word: &str| word.trim().eq_ignore_ascii_case("auth");
                if !offered.split(',').any(auth) {
                    return None;
                }
                true
            }
        };
        let plain = |text: &&str| !text.chars().any(char::is_control);
        Some(Challenge {
            algorithm,
            session,
            counted,
            realm: self.get("realm").filter(plain)?.to_owned(),
            nonce: self.get("nonce").filter(plain)?.to_owned(),
            opaque: self.get("opaque").filter(plain).map(str::to_owned),
        })
    }
}

impl Challenge {
    /// Computes the value of `Proxy-Authorization` for a CONNECT to `uri`. `nonce` is ours, fresh and random.
    pub(super) fn answer(&self, login: &Login, uri: &str, nonce: &[u8]) -> Zeroizing<String> {
        let hex = |bytes: &[u8]| {
            Zeroizing::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        };
        let joined = |parts: &[&str]| {
            let text = Zeroizing::new(parts.join(":"));
            hex(hash(self.algorithm, &[text.as_bytes()]).as_bytes())
        };
        let ours = hex(nonce);
        let Login { username, password } = login;
        let mut secret = joined(&[username, &self.realm, password]);
        if self.session {
            secret = joined(&[&secret, &self.nonce, &ours]);
        }
        let request = joined(&["CONNECT", uri]);
        let response = if self.counted {
            joined(&[&secret, &self.nonce, "00000001", &ours, "auth", &request])
        } else {
            joined(&[&secret, &self.nonce, &request])
        };
        let user = username.replace('\\', "\\\\").replace('"', "\\\"");
        let algorithm = match self.algorithm {
            Digest::Sha256 => "SHA-256",
            _ => "MD5",
        };
        let sess = if self.session { "-sess" } else { "" };
        let mut text = Zeroizing::new(format!(
            "Digest username=\"{user}\", realm=\"{}\", nonce=\"{}\", uri=\"{uri}\", \
             algorithm={algorithm}{sess}, response=\"{}\"",
            self.realm,
            self.nonce,
            response.as_str()
        ));
        if let Some(opaque) = &self.opaque {
            text.push_str(&format!(", opaque=\"{opaque}\""));
        }
        if self.counted {
            text.push_str(&format!(", qop=auth, nc=00000001, cnonce=\"{}\"", ours.as_str()));
        } else if self.session {
            text.push_str(&format!(", cnonce=\"{}\"", ours.as_str()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(username: &str, password: &str) -> Login {
        Login { username: username.into(), password: Zeroizing::new(password.into()) }
    }

    fn only(value: &str) -> Offer {
        offer(&format!("HTTP/1.1 407 x\r\nProxy-Authenticate: {value}\r\n\r\n"))
    }

    /// The values were computed with another implementation of the hashes, by the formulas of RFC 7616, 3.4.
    #[test]
    fn answers_are_those_of_the_standard() {
        let nonce = &[1, 2, 3, 4];
        let cases = [
            ("Digest realm=\"lan\", nonce=\"abc\"", "MD5 plain"),
            ("Digest realm=\"lan\", nonce=\"abc\", qop=\"auth\", opaque=\"o\"", "MD5 counted"),
            (
                "Digest realm=\"lan\",nonce=\"abc\",qop=\"auth-int,auth\",algorithm=MD5-sess",
                "session",
            ),
            ("digest realm=lan, nonce=abc, qop=auth, algorithm=SHA-256", "SHA-256"),
        ];
        let shown = cases.map(|(value, what)| {
            let challenge = only(value).digest.unwrap_or_else(|| panic!("{what}"));
            let answer = challenge.answer(&login("ann", "se:cret"), "vpn.example:443", nonce);
            let (_, rest) = answer.split_once("response=\"").unwrap();
            rest.split_once('"').unwrap().0.to_owned()
        });
        assert_eq!(shown, EXPECTED);
    }

    const EXPECTED: [&str; 4] = [
        "111c85f6ba5d8c9161fc8cf7d384c2d9",
        "c825d5662865b2a80a478e24a3a12eaa",
        "b72db7883721d272e8292e000e8ac699",
        "52017ecc53fa13dfb7178cefd795786dd0e7caf8da35cbadb6d34b808c345c42",
    ];

    #[test]
    fn the_strongest_offer_that_is_understood_is_taken() {
        let both = "HTTP/1.0 407 x\nProxy-Authenticate: NTLM\nproxy-authenticate: Basic realm=\"a, b\", \
                    Digest realm=\"a \\\" , b\", nonce=\"n\", Digest realm=\"c\", nonce=\"m\", algorithm=SHA-256\n\n";
        let offer = offer(both);
        assert!(offer.basic);
        assert_eq!(offer.names, ["NTLM", "Basic", "Digest", "Digest"]);
        let digest = offer.digest.unwrap();
        assert_eq!((digest.algorithm, digest.realm.as_str()), (Digest::Sha256, "c"));
        let first = only("Digest realm=\"a \\\" , b\", nonce=\"n\"").digest.unwrap();
        assert_eq!((first.realm.as_str(), first.counted), ("a \\\" , b", false));
    }

    #[test]
    fn what_is_not_understood_is_no_offer() {
        for value in [
            "Digest nonce=\"n\"",
            "Digest realm=\"r\"",
            "Digest realm=\"r\", nonce=\"n\", algorithm=SHA-512-256",
            "Digest realm=\"r\", nonce=\"n\", qop=\"auth-int\"",
            "Digest realm=\"r\u{1}\", nonce=\"n\"",
            "Negotiate",
            "",
            "=,=,\"",
        ] {
            assert_eq!(only(value).digest, None, "{value:?}");
        }
        assert_eq!(offer("HTTP/1.1 407 x\r\n\r\n"), Offer::default());
    }

    #[test]
    fn names_are_escaped_and_the_password_is_not_there() {
        let challenge = only("Digest realm=\"r\", nonce=\"n\", qop=\"auth\"").digest.unwrap();
        let answer = challenge.answer(&login("a\"b\\c", "s3cret"), "h:1", &[0xff]);
        assert!(answer.contains("username=\"a\\\"b\\\\c\""), "{}", answer.as_str());
        assert!(!answer.contains("s3cret"));
        assert!(answer.ends_with("qop=auth, nc=00000001, cnonce=\"ff\""), "{}", answer.as_str());
    }
}
