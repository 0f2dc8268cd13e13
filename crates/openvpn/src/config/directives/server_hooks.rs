//! Directives for the programs that check clients, or take note of what they do.

use super::Field::{self, Path};
use super::hooks::{CMD, program};
use super::{DirectiveEffect, Roles, Spec, one, used};
use crate::config::ConfigError;
use crate::config::options::PasswordProgram;
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;

/// The ends whose engine asks about the other end's certificate.
const ASKS: Roles = Roles { p2p: DirectiveEffect::Refused, ..Roles::ANY };

pub(super) const TABLE: &[Spec] = &[
    one("tls-verify", CMD, Field::Program(|raw| &mut raw.options.hooks.tls_verify))
        .roles(ASKS)
        .tls()
        .doc("A program that checks each certificate of the other end, the root's first."),
    one("tls-export-cert", "DIRECTORY", Path(|raw| &mut raw.options.hooks.export_cert))
        .roles(ASKS)
        .tls()
        .doc("The directory for the file with the certificate that tls-verify checks."),
    used("auth-user-pass-verify", AUTH_USER_PASS_VERIFY, 2..=2, auth_user_pass_verify)
        .roles(Roles::SERVER)
        .doc("A program that checks clients' user names and passwords, at once or later."),
    one("client-connect", CMD, Field::Program(|raw| &mut raw.options.hooks.client_connect))
        .roles(Roles::SERVER)
        .doc("A program that admits a client, and may write further settings for it."),
    one("client-disconnect", CMD, Field::Program(|raw| &mut raw.options.hooks.client_disconnect))
        .roles(Roles::SERVER)
        .doc("A program to run when a client's session has ended."),
    one("learn-address", CMD, Field::Program(|raw| &mut raw.options.hooks.learn_address))
        .roles(Roles::SERVER)
        .doc("A program to run before a client gets an address, and after it has lost it."),
    one(
        "tls-crypt-v2-verify",
        CMD,
        Field::Program(|raw| &mut raw.options.hooks.tls_crypt_v2_verify),
    )
    .roles(Roles::SERVER)
    .doc("A program that checks the metadata of a client's tls-crypt-v2 key."),
    one("client-crresponse", CMD, Field::Program(|raw| &mut raw.options.hooks.client_cr_response))
        .roles(Roles::SERVER)
        .doc("A program that checks a client's response to a challenge of auth-user-pass-verify."),
];

const AUTH_USER_PASS_VERIFY: &str = "\"COMMAND [ARGUMENT ...]\" via-env|via-file";

fn auth_user_pass_verify(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let via_file = match d.arg(1) {
        "via-file" => true,
        "via-env" => false,
        other => {
            let problem = format!("\"{other}\" is not a way to pass the password");
            return Err(d.error(problem, "write via-file, or via-env with script-security 3"));
        }
    };
    raw.options.hooks.auth_user_pass_verify =
        Some(PasswordProgram { program: program(d)?, via_file });
    Ok(())
}
