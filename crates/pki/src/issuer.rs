//! An authority without a store, whose owner registers clients elsewhere.

use std::fmt;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::clients::CLIENT_DAYS;
use crate::issue::{self, Authority, Purpose};
use crate::profile::ProfileContent;
use crate::{ClientName, PkiError, Profile, Remote};

/// The lifetimes of the authority's and the server's certificate, in days.
const CA_DAYS: u32 = 7300;
const SERVER_DAYS: u32 = 3650;

/// The size of the text that is reserved, so that no copy of the keys is left behind.
const TEXT: usize = 16 * 1024;

/// An authority, and a server with a certificate from it. The owner keeps its text ([`Self::to_text`]), and decides which clients may
/// connect.
pub struct Issuer {
    server_name: ClientName,
    ca: String,
    ca_key: Zeroizing<String>,
    cert: String,
    key: Zeroizing<String>,
    tls_crypt_v2_server_key: Zeroizing<String>,
}

// Written by hand because it holds keys.
impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// The text of an [`Issuer`].
#[derive(Serialize)]
struct Stored<'a> {
    server_name: &'a ClientName,
    ca: &'a str,
    ca_key: &'a str,
    cert: &'a str,
    key: &'a str,
    tls_crypt_v2_server_key: &'a str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    server_name: ClientName,
    ca: String,
    ca_key: String,
    cert: String,
    key: String,
    tls_crypt_v2_server_key: String,
}

/// A client that gets a profile.
pub struct NewProfile<'a> {
    /// The common name of its certificate.
    pub name: ClientName,
    /// The addresses of the server, in the order in which the client tries them; at least one.
    pub remotes: &'a [Remote],
    /// The `OpenVPN tls-crypt-v2 client key` in PEM.
    pub tls_crypt_v2_client_key: &'a str,
    /// Further lines of the profile.
    pub options: &'a [&'a str],
}

/// A profile, and what identifies its client.
#[derive(Debug)]
pub struct IssuedProfile {
    /// The profile, with the only copy of the private key.
    pub profile: Profile,
    /// The SHA-256 of the client's certificate, in lower-case hex.
    pub fingerprint: String,
    /// The end of the certificate's validity, in seconds since 1970.
    pub expires: u64,
}

impl Issuer {
    /// Creates the authority, and the server's certificate.
    ///
    /// # Errors
    /// The cryptographic library failed, or the system's time is impossible.
    pub fn generate(
        server_name: ClientName,
        tls_crypt_v2_server_key: Zeroizing<String>,
        now: SystemTime,
    ) -> Result<Self, PkiError> {
        let ca_name = format!("adit CA {}", issue::hex(&issue::random::<4>()?));
        let ca = issue::authority(&ca_name, CA_DAYS, now)?;
        let authority = Authority::new(&ca.cert, &ca.key)?;
        let server = authority.issue(server_name.as_str(), Purpose::Server, SERVER_DAYS, now)?;
        Ok(Self {
            server_name,
            ca: ca.cert,
            ca_key: ca.key,
            cert: server.cert,
            key: server.key,
            tls_crypt_v2_server_key,
        })
    }

    /// Reads the text of [`Self::to_text`]. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let read: Read = serde_json::from_str(text).ok()?;
        let issuer = Self {
            server_name: read.server_name,
            ca: read.ca,
            ca_key: Zeroizing::new(read.ca_key),
            cert: read.cert,
            key: Zeroizing::new(read.key),
            tls_crypt_v2_server_key: Zeroizing::new(read.tls_crypt_v2_server_key),
        };
        Authority::new(&issuer.ca, &issuer.ca_key).ok()?;
        Some(issuer)
    }

    /// Returns the text to be kept, with all keys.
    pub fn to_text(&self) -> Zeroizing<Vec<u8>> {
        let mut text = Zeroizing::new(Vec::with_capacity(TEXT));
        let stored = Stored {
            server_name: &self.server_name,
            ca: &self.ca,
            ca_key: &self.ca_key,
            cert: &self.cert,
            key: &self.key,
            tls_crypt_v2_server_key: &self.tls_crypt_v2_server_key,
        };
        // Writing to memory does not fail.
        let _ = serde_json::to_writer_pretty(&mut *text, &stored);
        text.push(b'\n');
        text
    }

    /// Returns the authority's certificate in PEM.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// Returns the server's certificate in PEM.
    pub fn cert(&self) -> &str {
        &self.cert
    }

    /// Returns the server's key in PEM.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the `OpenVPN tls-crypt-v2 server key` in PEM.
    pub fn tls_crypt_v2_server_key(&self) -> &str {
        &self.tls_crypt_v2_server_key
    }

    /// Issues a certificate to a client.
    ///
    /// # Errors
    /// A remote cannot be used in a profile, or the cryptographic library failed.
    pub fn profile(
        &self,
        new: &NewProfile<'_>,
        now: SystemTime,
    ) -> Result<IssuedProfile, PkiError> {
        if new.remotes.is_empty() {
            return Err(PkiError::BadSetting("remote", "a profile needs an address".into()));
        }
        new.remotes.iter().try_for_each(Remote::check)?;
        let authority = Authority::new(&self.ca, &self.ca_key)?;
        let client = authority.issue(new.name.as_str(), Purpose::Client, CLIENT_DAYS, now)?;
        let profile = Profile::new(&ProfileContent {
            name: &new.name,
            remotes: new.remotes,
            server_name: self.server_name.as_str(),
            ca: &self.ca,
            pair: Some((&client.cert, &client.key)),
            tls_crypt_v2: new.tls_crypt_v2_client_key,
            options: new.options,
        });
        let (_, pem) = x509_parser::pem::parse_x509_pem(client.cert.as_bytes())
            .map_err(|error| PkiError::Crypto(error.to_string()))?;
        let fingerprint = issue::hex(digest(&SHA256, &pem.contents).as_ref());
        Ok(IssuedProfile { profile, fingerprint, expires: client.expires })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Proto;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn remote(host: &str) -> Remote {
        Remote { host: host.into(), port: 1195, proto: Proto::Udp, further: Vec::new() }
    }

    #[test]
    fn an_issuer_is_read_as_it_was_written_and_issues_profiles() {
        let issuer =
            Issuer::generate("gateway".parse().unwrap(), Zeroizing::new("V2".into()), now())
                .unwrap();
        let text = issuer.to_text();
        let read = Issuer::parse(std::str::from_utf8(&text).unwrap()).unwrap();
        assert_eq!(*read.to_text(), *text);
        assert!(Issuer::parse("{}").is_none());
        let damaged = std::str::from_utf8(&text).unwrap().replace("-----BEGIN", "BEGIN");
        assert!(Issuer::parse(&damaged).is_none());
        let remotes = [remote("192.0.2.1"), remote("2001:db8::1")];
        let new = NewProfile {
            name: "phone.1".parse().unwrap(),
            remotes: &remotes,
            tls_crypt_v2_client_key: "CLIENT V2",
            options: &["redirect-gateway def1 ipv6"],
        };
        let issued = read.profile(&new, now()).unwrap();
        let other = read.profile(&new, now()).unwrap();
        assert_eq!(issued.fingerprint.len(), 64);
        assert_ne!(issued.fingerprint, other.fingerprint);
        assert_eq!(issued.expires, 1_800_000_000 + u64::from(CLIENT_DAYS) * 86_400);
        let lines: Vec<&str> = issued.profile.text().lines().collect();
        for line in [
            "proto udp",
            "remote 192.0.2.1 1195",
            "remote 2001:db8::1 1195 udp",
            "server-poll-timeout 10",
            "verify-x509-name gateway name",
            "redirect-gateway def1 ipv6",
            "CLIENT V2",
        ] {
            assert!(lines.contains(&line), "{line} in {lines:?}");
        }
        assert!(read.profile(&NewProfile { remotes: &[], ..new }, now()).is_err());
    }

    #[test]
    fn a_host_that_is_no_single_word_is_refused() {
        let issuer =
            Issuer::generate("gateway".parse().unwrap(), Zeroizing::new("V2".into()), now())
                .unwrap();
        let remotes = [remote("192.0.2.1\nup /bin/sh")];
        let new = NewProfile {
            name: "phone".parse().unwrap(),
            remotes: &remotes,
            tls_crypt_v2_client_key: "",
            options: &[],
        };
        assert!(issuer.profile(&new, now()).unwrap_err().to_string().contains("host"));
    }
}
