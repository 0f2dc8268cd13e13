//! Directives for the role of this end, and for a client's reaction to a server's options and
//! challenges.

use adit_engine::auth::{Challenge, ChallengeKind};

use super::{Roles, Spec, flag, used};
use crate::config::ConfigError;
use crate::config::options::{AuthRetry, UserPass};
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;
use crate::negotiate::{FilterAction, PullFilter};

pub(super) const TABLE: &[Spec] = &[
    used("client", "", 0..=0, |raw, _| {
        (raw.client.pull, raw.tls_client) = (true, true);
        Ok(())
    })
    .roles(Roles::CLIENT)
    .doc("A client: pull and tls-client."),
    flag("pull", |raw| &mut raw.client.pull)
        .roles(Roles::CLIENT)
        .doc("Accepts options from the server."),
    flag("tls-client", |raw| &mut raw.tls_client)
        .roles(Roles::DIALS)
        .doc("Acts as the client in TLS."),
    flag("tls-server", |raw| &mut raw.tls_server)
        .roles(Roles::NOT_CLIENT)
        .doc("Acts as the server in TLS."),
    used("mode", "server", 1..=1, |raw, d| {
        raw.mode_server = match d.arg(0) {
            "server" => true,
            "p2p" => false,
            other => {
                return Err(d.error(
                    format!("there is no mode \"{other}\""),
                    "write: mode server, or leave it out",
                ));
            }
        };
        Ok(())
    })
    .doc("A server for many clients; without it, one end of a point-to-point tunnel."),
    used("auth-user-pass", "[FILE]", 0..=1, |raw, d| {
        raw.client.auth_user_pass = match d.get(0) {
            None | Some("stdin") if d.inline.is_none() => Some(UserPass::Prompt),
            _ => d
                .source("auth-user-pass", raw.base.as_deref())
                .map(UserPass::Source)
                .or(raw.client.auth_user_pass.take()),
        };
        Ok(())
    })
    .or_block()
    .roles(Roles::CLIENT)
    .doc("The user name and the password for the server, from a file or the terminal."),
    flag("auth-nocache", |raw| &mut raw.client.auth_nocache).doc(
        "Forgets the password once it has been sent, and reads its file again or asks for it \
             again. A password from the terminal is kept.",
    ),
    used("static-challenge", "\"TEXT\" 0|1 [scrv1|concat]", 2..=3, static_challenge)
        .roles(Roles::CLIENT)
        .doc(
            "A question to the user in addition to the password, and whether the answer is shown.",
        ),
    used("auth-retry", "none|nointeract|interact", 1..=1, auth_retry)
        .roles(Roles::CLIENT_LAX)
        .doc("Whether a client whose password is refused tries again."),
    used("pull-filter", "accept|ignore|reject \"TEXT\"", 2..=2, pull_filter)
        .roles(Roles::CLIENT_LAX)
        .doc(
            "The treatment of pushed options that begin with TEXT; the first matching line \
         applies.",
        ),
    flag("route-nopull", |raw| &mut raw.client.route_nopull)
        .roles(Roles::CLIENT_LAX)
        .doc("Ignores routes and DNS settings from the server."),
    flag("allow-pull-fqdn", |raw| &mut raw.client.allow_names)
        .roles(Roles::CLIENT_LAX)
        .doc("Looks up hosts' names in the routes that a server pushes."),
    flag("push-peer-info", |raw| &mut raw.options.session.push_peer_info)
        .roles(Roles::DIALS_LAX)
        .doc("Sends the server more information about this end than negotiation needs."),
];

fn auth_retry(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.client.auth_retry = match d.arg(0) {
        "none" => AuthRetry::None,
        "nointeract" => AuthRetry::NoInteract,
        "interact" => AuthRetry::Interact,
        other => {
            return Err(
                d.error(format!("\"{other}\" is not known"), "write none, nointeract or interact")
            );
        }
    };
    Ok(())
}

fn static_challenge(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let echo = d.number::<u8>(1, 0..=1)? == 1;
    let concatenate = match d.get(2) {
        None | Some("scrv1") => false,
        Some("concat") => true,
        Some(other) => {
            return Err(d.error(format!("\"{other}\" is not known"), "write scrv1 or concat"));
        }
    };
    let kind = ChallengeKind::Static { concatenate };
    raw.client.static_challenge = Some(Challenge { text: d.arg(0).to_owned(), echo, kind });
    Ok(())
}

fn pull_filter(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let action = match d.arg(0) {
        "accept" => FilterAction::Accept,
        "ignore" => FilterAction::Ignore,
        "reject" => FilterAction::Reject,
        other => {
            return Err(
                d.error(format!("\"{other}\" is not known"), "write accept, ignore or reject")
            );
        }
    };
    raw.client.pull_filters.push(PullFilter::new(action, d.arg(1)));
    Ok(())
}
