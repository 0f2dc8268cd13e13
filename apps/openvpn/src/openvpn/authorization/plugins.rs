//! Plugins as a check of a server's clients.

use std::sync::Arc;
use std::time::Duration;

use adit_engine::auth::{ClientParams, Rejection};
use adit_engine::command::Counters;
use adit_linux::plugin::Kind;
use adit_openvpn::config::{ClientFile, ClientRules};
use tokio::sync::oneshot;

use super::programs::merged;
use super::{
    AddressChange, ChangeKind, Check, ClientFacts, DoneFuture, ParamsFuture, Pending, Verdict,
    VerdictFuture, printable_name,
};
use crate::openvpn::environment::Environment;
use crate::plugin_host::{self, CALL_LIMIT, Call, Outcome, Plugins};

/// The time for a password check. The chain's own limit, which a plugin may extend, is shorter.
const PASSWORD_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The plugins of the configuration.
#[derive(Clone)]
pub(crate) struct PluginCheck {
    plugins: Plugins,
    /// The rules for what plugins may return for a client.
    rules: ClientRules,
    /// The time for `client-connect`.
    patience: Duration,
}

impl PluginCheck {
    pub(crate) fn new(plugins: Plugins, rules: ClientRules, patience: Duration) -> Self {
        Self { plugins, rules, patience }
    }

    fn call(&self, kind: Kind, facts: &ClientFacts, environment: &Environment) -> Call {
        let mut environment = environment.clone();
        // The last call for the device was made at the start.
        environment.set("script_context", "init");
        Call { client: facts.identity.session, ..Call::new(kind, Vec::new(), environment.pairs()) }
    }

    /// Makes a call whose answer is a verdict. A client that is rejected at its start needs no memory of the plugins.
    async fn verdict(&self, call: Call, renegotiation: bool) -> Verdict {
        let client = call.client;
        let verdict = verdict(self.plugins.call(call, &mut |_| {}).await);
        if matches!(verdict, Verdict::Reject(_)) && !renegotiation {
            self.plugins.end_client(client);
        }
        verdict
    }

    async fn check_password(&self, call: Call, facts: &ClientFacts, pending: &Pending) -> Verdict {
        let (sender, unsupported) = oneshot::channel();
        let mut sender = Some(sender);
        let mut on_request = |request: plugin_host::Pending| {
            if supports(&facts.identity.peer_info, &request.method) {
                let timeout = Duration::from_secs(request.timeout.into());
                pending.extend(timeout, Some(request.extra));
            } else if let Some(sender) = sender.take() {
                // The other end waits below.
                let _ = sender.send(request.method);
            }
        };
        tokio::select! {
            biased;
            outcome = self.plugins.call(call, &mut on_request) => verdict(outcome),
            Ok(method) = unsupported => {
                let method = printable_name(&method);
                let log =
                    format!("plugin: the client does not support the method '{method}' (IV_SSO)");
                Verdict::Reject(log.into())
            }
        }
    }

    /// Returns the parameters that plugins add for a client.
    fn added(&self, config: &[String], params: ClientParams) -> Result<ClientParams, Rejection> {
        let mut params = params;
        for text in config {
            let file = ClientFile::parse("client-connect: plugin", text.as_bytes(), &self.rules)
                .map_err(|error| Rejection::from(error.to_string().replace("\n ", ";")))?;
            if file.disabled {
                return Err("client-connect: a plugin's configuration says disable".into());
            }
            params = merged(params, file.grant);
        }
        Ok(params)
    }
}

impl Check for PluginCheck {
    fn verify_certificate(&self, facts: &Arc<ClientFacts>, depth: usize) -> VerdictFuture {
        let Some(certificate) =
            facts.identity.certificates.get(depth).filter(|_| self.plugins.wants(Kind::TlsVerify))
        else {
            return not_mine();
        };
        let mut environment = facts.environment.clone();
        if depth == 0 {
            environment.set_international("common_name", &facts.identity.common_name);
        }
        let mut call = self.call(Kind::TlsVerify, facts, &environment);
        call.args = vec![depth.to_string(), certificate.subject.clone()];
        call.certificate = u8::try_from(depth).ok().map(|depth| (depth, certificate.der.to_vec()));
        let (this, renegotiation) = (self.clone(), facts.identity.renegotiation);
        Box::pin(async move { this.verdict(call, renegotiation).await })
    }

    fn password(&self, facts: &Arc<ClientFacts>, pending: &Pending) -> VerdictFuture {
        if !self.plugins.wants(Kind::AuthUserPassVerify) {
            return not_mine();
        }
        let identity = &facts.identity;
        let mut environment = facts.environment.clone();
        // Plugins get the name as the client sent it. Values of variables have no control characters.
        environment.set_international("username", identity.username.as_deref().unwrap_or_default());
        let mut call = self.call(Kind::AuthUserPassVerify, facts, &environment);
        let password = identity.password.as_ref().map(|password| printable(password));
        call.env.push(("password".into(), password.unwrap_or_default()));
        call.limit = PASSWORD_LIMIT;
        let (this, facts, pending) = (self.clone(), Arc::clone(facts), pending.clone());
        Box::pin(async move {
            let verdict = this.check_password(call, &facts, &pending).await;
            if matches!(verdict, Verdict::Reject(_)) && !facts.identity.renegotiation {
                this.plugins.end_client(facts.identity.session);
            }
            verdict
        })
    }

    fn parameters(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        if !self.plugins.wants(Kind::TlsFinal) {
            return Box::pin(std::future::ready(Ok(params)));
        }
        let mut call = self.call(Kind::TlsFinal, facts, &facts.environment);
        if let Some(key) = &facts.identity.exported_key {
            call.env.push(("exported_keying_material".into(), hex(key)));
        }
        let (this, renegotiation) = (self.clone(), facts.identity.renegotiation);
        Box::pin(async move {
            match this.verdict(call, renegotiation).await {
                Verdict::Reject(rejection) => Err(rejection),
                Verdict::Accept | Verdict::NotMine => Ok(params),
            }
        })
    }

    fn connect(&self, facts: &Arc<ClientFacts>, params: ClientParams) -> ParamsFuture {
        if let Some(remote) = facts.identity.remote {
            let mut call = self.call(Kind::IpChange, facts, &facts.environment);
            // openvpn makes this call before the client has its addresses.
            let later =
                |name: &str| name.starts_with("ifconfig_pool_") || name.starts_with("time_");
            call.env.retain(|(name, _)| !later(name));
            call.args = vec![plugin_host::address_argument(remote)];
            self.plugins.notify(call);
        }
        let calls = [Kind::ClientConnect, Kind::ClientConnectV2].map(|kind| Call {
            limit: self.patience,
            ..self.call(kind, facts, &facts.environment)
        });
        let this = self.clone();
        Box::pin(async move {
            let mut params = params;
            for call in calls {
                match this.plugins.call(call, &mut |_| {}).await {
                    Outcome::Accepted { config } => params = this.added(&config, params)?,
                    Outcome::Refused { log, peer } => return Err(Rejection { log, peer }),
                }
            }
            Ok(params)
        })
    }

    fn learns(&self) -> bool {
        self.plugins.wants(Kind::LearnAddress)
    }

    fn learn(&self, facts: &Arc<ClientFacts>, change: AddressChange) -> VerdictFuture {
        if !self.plugins.wants(Kind::LearnAddress) {
            return not_mine();
        }
        let mut call = self.call(Kind::LearnAddress, facts, &facts.environment);
        call.args = vec![change.kind.name().to_owned(), change.text()];
        if change.kind == ChangeKind::Delete {
            self.plugins.notify(call);
            return not_mine();
        }
        call.args.push(printable_name(&facts.identity.common_name));
        let this = self.clone();
        // The client has other addresses, so its memory stays.
        Box::pin(async move { this.verdict(call, true).await })
    }

    fn disconnected(
        &self,
        facts: &Arc<ClientFacts>,
        traffic: Counters,
        duration: Duration,
    ) -> DoneFuture {
        let mut environment = facts.environment.clone();
        environment.traffic(traffic, duration);
        let call =
            Call { limit: CALL_LIMIT, ..self.call(Kind::ClientDisconnect, facts, &environment) };
        let this = self.clone();
        Box::pin(async move {
            let client = call.client;
            if let Outcome::Refused { log, .. } = this.plugins.call(call, &mut |_| {}).await {
                tracing::warn!("{log}");
            }
            this.plugins.end_client(client);
        })
    }

    fn challenge_response(&self, facts: &Arc<ClientFacts>, text: String) -> DoneFuture {
        let mut call = self.call(Kind::ClientCrResponse, facts, &facts.environment);
        call.args = vec![printable(&text)];
        let this = self.clone();
        Box::pin(async move {
            if let Outcome::Refused { log, .. } = this.plugins.call(call, &mut |_| {}).await {
                tracing::warn!("{log}");
            }
        })
    }
}

fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Accepted { .. } => Verdict::Accept,
        Outcome::Refused { log, peer } => Verdict::Reject(Rejection { log, peer }),
    }
}

fn not_mine() -> VerdictFuture {
    Box::pin(std::future::ready(Verdict::NotMine))
}

/// Returns whether a client supports a method of authentication (`IV_SSO`).
fn supports(peer_info: &[(String, String)], method: &str) -> bool {
    let methods = peer_info.iter().find(|(name, _)| name == "IV_SSO").map(|(_, value)| value);
    methods.is_some_and(|methods| methods.split(',').any(|other| other == method))
}

/// Replaces control characters by underscores, as openvpn does in variables.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}

/// Formats a secret as openvpn does in variables.
fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

#[cfg(test)]
mod tests {
    use adit_engine::auth::Connecting;
    use adit_engine::{CertificateFacts, Identity};
    use adit_runtime::authorize::PendingSender;
    use zeroize::Zeroizing;

    use super::super::Address;
    use super::super::tests::{fact_settings, facts_of};
    use super::*;
    use crate::plugin_host::tests::{Fixture, until};

    const MINUTE: Duration = Duration::from_secs(60);

    fn check(plugins: &Plugins) -> PluginCheck {
        let rules = ClientRules::default();
        PluginCheck::new(plugins.clone(), rules, MINUTE)
    }

    fn alice() -> Identity {
        Identity {
            common_name: "alice".into(),
            username: Some("ali ce@x".into()),
            password: Some(Zeroizing::new("open\nsesame".into())),
            session: 7,
            peer_info: vec![("IV_SSO".into(), "webauth,openurl".into())],
            ..Identity::default()
        }
    }

    fn pending() -> Pending {
        Pending::new(PendingSender::none(), MINUTE, MINUTE)
    }

    #[track_caller]
    fn rejection(verdict: Verdict) -> Rejection {
        match verdict {
            Verdict::Reject(rejection) => rejection,
            other => panic!("not rejected: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_password_is_checked_with_the_name_as_it_is() {
        let fixture = Fixture::new();
        let check = check(&fixture.start("mask=0x20"));
        let facts = facts_of(alice());
        assert_eq!(check.password(&facts, &pending()).await, Verdict::Accept);
        assert!(fixture.is_logged("call 5 env username=ali ce@x"));
        assert!(fixture.is_logged("call 5 env password=open_sesame"));
        assert!(fixture.is_logged("call 5 env common_name=alice"));
        assert_eq!(check.verify_certificate(&facts, 0).await, Verdict::NotMine);
    }

    #[tokio::test]
    async fn a_refusal_has_the_plugins_reason_and_ends_the_clients_memory() {
        let fixture = Fixture::new();
        let check = check(&fixture.start("mask=0x20 on=5:reason"));
        let refused = rejection(check.password(&facts_of(alice()), &pending()).await);
        assert_eq!(refused.peer.as_deref(), Some("the account is locked"));
        until("its memory is released", || fixture.is_logged("end client-0")).await;
        let again = Identity { renegotiation: true, ..alice() };
        rejection(check.password(&facts_of(again), &pending()).await);
        // The chain reports the end of a session.
        assert!(!fixture.is_logged("end client-1"));
    }

    #[tokio::test]
    async fn a_method_that_the_client_lacks_is_a_refusal() {
        let fixture = Fixture::new();
        let check = check(&fixture.start("mask=0x20 on=5:defer1pending"));
        let old = Identity { peer_info: Vec::new(), ..alice() };
        let refused = rejection(check.password(&facts_of(old), &pending()).await);
        assert!(refused.log.contains("openurl"), "{refused}");
        fixture.go();
        let facts = facts_of(alice());
        assert_eq!(check.password(&facts, &pending()).await, Verdict::Accept);
    }

    #[tokio::test]
    async fn certificates_are_verified_one_by_one() {
        let fixture = Fixture::of(3);
        let check = check(&fixture.start("mask=0x10 on=4:depth"));
        let key = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        let der: Arc<[u8]> = key.cert.der().to_vec().into();
        let certificate =
            CertificateFacts { der, subject: "CN=alice".into(), ..CertificateFacts::default() };
        let facts = facts_of(Identity { certificates: vec![certificate], ..alice() });
        assert_eq!(check.verify_certificate(&facts, 0).await, Verdict::Accept);
        assert!(fixture.is_logged("call 4 arg 1=0") && fixture.is_logged("call 4 arg 2=CN=alice"));
        let length = facts.identity.certificates[0].der.len();
        assert!(fixture.is_logged(&format!("certificate depth=0 length={length}")));
        assert_eq!(check.verify_certificate(&facts, 1).await, Verdict::NotMine);
    }

    fn connecting() -> Arc<ClientFacts> {
        let connecting = Connecting {
            identity: Identity { remote: Some("192.0.2.7:1194".parse().unwrap()), ..alice() },
            params: ClientParams::default(),
            ipv4: Some("10.8.0.2".parse().unwrap()),
            ipv6: None,
            netmask_or_far_end: None,
        };
        let environment = Environment::default();
        Arc::new(ClientFacts::connecting(connecting, &environment, &fact_settings(), 0))
    }

    #[tokio::test]
    async fn both_versions_of_the_connect_call_add_parameters() {
        let fixture = Fixture::new();
        let check = check(&fixture.start("mask=0x248 on=6:connect on=9:list"));
        let params =
            ClientParams { push: vec!["route 10.1.0.0".into()], ..ClientParams::default() };
        let params = check.connect(&connecting(), params).await.unwrap();
        let route = |net: &str| format!("route {net} 255.255.0.0");
        assert_eq!(
            params.push,
            ["route 10.1.0.0".to_owned(), route("10.7.0.0"), route("10.9.0.0")]
        );
        assert_eq!(params.iroutes, ["10.8.0.0/16".parse().unwrap()]);
        assert!(fixture.is_logged("call 3 arg 1=[AF_INET]192.0.2.7 1194"));
        assert!(!fixture.is_logged("call 3 env ifconfig_pool_remote_ip=10.8.0.2"));
        assert!(fixture.is_logged("call 6 env ifconfig_pool_remote_ip=10.8.0.2"));
    }

    #[tokio::test]
    async fn directives_that_a_client_may_not_have_are_a_refusal() {
        let fixture = Fixture::new();
        let check = check(&fixture.start("mask=0x200"));
        for text in ["up /bin/sh", "disable"] {
            let refused = check.added(&[text.into()], ClientParams::default());
            assert!(refused.unwrap_err().log.contains("client-connect: "), "{text}");
        }
        let accepted = check.added(&["push \"x\"\n".into()], ClientParams::default());
        assert_eq!(accepted.unwrap().push, ["x"]);
    }

    /// `keying-material-exporter`.
    #[tokio::test]
    async fn the_last_call_of_a_handshake_has_the_secret_of_the_session() {
        let fixture = Fixture::new();
        let check = check(&fixture.start("mask=0x440"));
        let exported_key = Some(Zeroizing::new(vec![0x0a, 0xff]));
        let facts = facts_of(Identity { exported_key, ..alice() });
        check.parameters(&facts, ClientParams::default()).await.unwrap();
        assert!(fixture.is_logged("call 10 env exported_keying_material=0aff"));
        check.connect(&facts, ClientParams::default()).await.unwrap();
        assert!(!fixture.is_logged("call 6 env exported_keying_material=0aff"));
    }

    #[tokio::test]
    async fn addresses_and_the_end_are_reported() {
        let fixture = Fixture::new();
        let check = check(&fixture.start("mask=0x580 on=10:refuse"));
        let facts = connecting();
        let change = |kind| AddressChange {
            kind,
            address: Address::Net("10.8.0.2/32".parse().unwrap()),
            primary: true,
        };
        assert_eq!(check.learn(&facts, change(ChangeKind::Add)).await, Verdict::Accept);
        assert!(
            fixture.is_logged("call 8 arg 1=add") && fixture.is_logged("call 8 arg 2=10.8.0.2")
        );
        assert!(fixture.is_logged("call 8 arg 3=alice"));
        let traffic = Counters { rx_bytes: 3, tx_bytes: 4, ..Counters::default() };
        check.disconnected(&facts, traffic, MINUTE).await;
        assert!(fixture.is_logged("call 7 env bytes_received=3"));
        assert!(fixture.is_logged("call 7 env time_duration=60"));
        until("its memory is released", || fixture.is_logged("end client-0")).await;
        // The end of the handshake.
        assert!(check.parameters(&facts, ClientParams::default()).await.is_err());
    }
}
