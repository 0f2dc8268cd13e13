//! The verification of an ID token: its signature by a key of the provider, its issuer, its audience and its time.
//!
//! The device flow has no nonce: the server itself fetches the token over TLS, with a device code that only it and the
//! provider know, so no other party can replay a token to it.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The maximum number of a provider's keys that are kept.
const MAX_KEYS: usize = 32;
/// The difference between the provider's clock and ours that is tolerated, in seconds.
const CLOCK_TOLERANCE: u64 = 60;
/// The algorithms of signatures by a key pair. With the others, everybody who knows the public key could sign.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// The claims of a token.
pub(super) type Claims = Map<String, Value>;

/// The keys with which a provider signs.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySet(Vec<Jwk>);

/// The reason why a token is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenError {
    /// None of the keys belongs to the token. The provider may have new ones.
    UnknownKey,
    /// The token is not valid.
    Invalid(String),
}

impl std::fmt::Display for TokenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownKey => {
                f.write_str("it is signed with a key that the provider does not publish")
            }
            Self::Invalid(why) => f.write_str(why),
        }
    }
}

impl KeySet {
    /// Reads the provider's keys. Those of unknown kinds are left out.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Read {
            keys: Vec<Value>,
        }
        let read: Read = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let keys = read.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        Ok(Self(keys.filter(signs).take(MAX_KEYS).collect()))
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the keys that may have signed a token. A token without the name of its key may have any of them.
    fn candidates<'a>(&'a self, header: &'a Header) -> impl Iterator<Item = &'a Jwk> {
        self.0.iter().filter(move |key| header.kid.is_none() || key.common.key_id == header.kid)
    }

    /// Verifies a token for `client`, and returns its claims.
    pub(super) fn verify(
        &self,
        token: &str,
        issuer: &str,
        client: &str,
    ) -> Result<Claims, TokenError> {
        let header = decode_header(token)
            .map_err(|error| TokenError::Invalid(format!("its head cannot be read: {error}")))?;
        if !ALGORITHMS.contains(&header.alg) {
            let why = format!("it is signed with {:?}, which is not accepted", header.alg);
            return Err(TokenError::Invalid(why));
        }
        let mut validation = Validation::new(header.alg);
        validation.leeway = CLOCK_TOLERANCE;
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.set_issuer(&[issuer]);
        validation.set_audience(&[client]);
        let mut last = TokenError::UnknownKey;
        for key in self.candidates(&header) {
            let result = DecodingKey::from_jwk(key)
                .and_then(|key| decode::<Claims>(token, &key, &validation));
            match result {
                Ok(data) => return for_us_alone(data.claims, client),
                Err(error) => last = TokenError::Invalid(error.to_string()),
            }
        }
        Err(last)
    }
}

/// Checks whether a key may be the public part of one for signatures.
fn signs(key: &Jwk) -> bool {
    use AlgorithmParameters::{EllipticCurve, OctetKeyPair, RSA};
    let is_public = matches!(key.algorithm, EllipticCurve(_) | OctetKeyPair(_) | RSA(_));
    is_public && matches!(key.common.public_key_use, None | Some(PublicKeyUse::Signature))
}

/// Checks that a token with several audiences was issued to this client.
fn for_us_alone(claims: Claims, client: &str) -> Result<Claims, TokenError> {
    let several = claims.get("aud").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
    match claims.get("azp") {
        Some(party) if party.as_str() != Some(client) => {
            Err(TokenError::Invalid("it was issued to another client (azp)".into()))
        }
        None if several => Err(TokenError::Invalid("it has several audiences, and no azp".into())),
        _ => Ok(claims),
    }
}

/// Verifies any bytes as a token, and parses them as keys, for fuzzing.
pub(super) fn fuzz(bytes: &[u8]) {
    let keys = KeySet::parse(bytes).unwrap_or_default();
    assert!(keys.len() <= MAX_KEYS);
    if let Ok(text) = std::str::from_utf8(bytes) {
        for keys in [keys, KeySet::parse(FUZZ_KEYS.as_bytes()).unwrap_or_default()] {
            assert!(keys.verify(text, "https://sso.example.net", "adit").is_err());
        }
    }
}

/// A public key whose private part is not known.
const FUZZ_KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;
