//! A client's configuration from a profile of adit's managed server.

use std::fs;
use std::path::Path;

use adit_openvpn::client::ClientConfig;
use adit_openvpn::keys::ClientKey;
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, CommonTlsOptions, Pem};
use adit_openvpn::wrap::WrapConfig;
use adit_testbed::failure::{Context, Result};

use super::config;

/// Reads the inline parts of a profile: `ca`, `cert`, `key`, `tls-crypt-v2`.
///
/// # Errors
/// A part is missing or malformed.
pub fn client(profile: &Path) -> Result<ClientConfig> {
    let text = fs::read_to_string(profile).context(profile.display())?;
    let pem = |tag: &str| -> Result<Option<Pem>> {
        Ok(Some(Pem::new(tag, part(&text, tag)?.as_bytes())))
    };
    let common = CommonTlsOptions {
        ca: pem("ca")?,
        cert: pem("cert")?,
        key: pem("key")?,
        ..CommonTlsOptions::default()
    };
    let tls = ClientTls::new(ClientTlsOptions { common }).context("the profile")?;
    let key = part(&text, "tls-crypt-v2")?;
    let key = ClientKey::parse(key).context("the profile's tls-crypt-v2")?;
    let wrap = WrapConfig::TlsCryptV2Client { key };
    Ok(config::of(Settings { wrap, ..Settings::default() }, tls))
}

fn part<'a>(text: &'a str, tag: &str) -> Result<&'a str> {
    let missing = || format!("no <{tag}> in the profile");
    let (_, after) = text.split_once(&format!("<{tag}>\n")).context(missing())?;
    Ok(after.split_once(&format!("</{tag}>")).context(missing())?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_inline_parts() {
        let text = "client\n<ca>\none\n</ca>\n<key>\ntwo\n</key>\n";
        assert_eq!(part(text, "ca").unwrap(), "one\n");
        assert_eq!(part(text, "key").unwrap(), "two\n");
        assert!(part(text, "cert").unwrap_err().0.contains("<cert>"));
    }
}
