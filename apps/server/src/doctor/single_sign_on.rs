//! Checks of the provider with which users log in in a browser.

use adit_runtime::paths::Paths;

use super::super::login::Provider;
use super::super::settings::{Login, Settings};
use super::Finding;

/// Asks the provider for its metadata and keys, as the server does.
pub(super) fn examine(paths: &Paths, settings: &Settings) -> Option<Finding> {
    let oidc = settings.oidc.as_ref().filter(|_| settings.login == Login::CertificateOidc)?;
    let remedy = format!("check [oidc] in {}", paths.settings_file().display());
    let problem = |what: String| Finding::problem("sign-on", what).remedy(remedy.clone());
    let provider = match Provider::open(paths, oidc) {
        Ok(provider) => provider,
        Err(fault) => return Some(problem(fault.to_string())),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let checked = match runtime {
        Ok(runtime) => runtime.block_on(provider.check()),
        Err(error) => Err(error.to_string()),
    };
    let issuer = &oidc.issuer;
    Some(match checked {
        Ok(0) => problem(format!("{issuer} publishes no key for signatures")),
        Ok(keys) => Finding::ok(
            "sign-on",
            format!("{issuer} answers and offers the device flow; keys: {keys}"),
        ),
        Err(why) => problem(format!("{issuer}: {why}")).remedy(
            "and that this machine may open connections to the provider, and knows its authority",
        ),
    })
}
