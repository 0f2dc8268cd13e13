//! `client-connect`.

use std::sync::Arc;

use adit_engine::auth::{ClientParams, Rejection};
use adit_openvpn::config::{ClientFile, Program};
use adit_runtime::programs::{ExitStatus, Place, ScratchFile};

use super::{ClientFacts, Inner, failure};

const DIRECTIVE: &str = "client-connect";

/// The character in `client_connect_deferred_file` of a program that answers later.
const DEFERRED: u8 = b'2';

impl Inner {
    pub(super) async fn client_connect(
        &self,
        program: &Program,
        facts: &Arc<ClientFacts>,
        params: ClientParams,
    ) -> Result<ClientParams, Rejection> {
        let mut environment = facts.environment.clone();
        environment.set("script_type", "client-connect");
        // The file with the answer is the first, so that the settings that were written before it arrive before it.
        let files = vec![
            ScratchFile::variable("client_connect_deferred_file", None),
            ScratchFile::new(Place::ArgumentAndVariable("client_connect_config_file"), None),
        ];
        let call = self.call(program, Vec::new(), environment.pairs(), files);
        let finished = (self.run)(call).await;
        if finished.status != ExitStatus::Code(0) {
            return Err(failure(DIRECTIVE, &finished.status).into());
        }
        let mut files = finished.files.into_iter();
        let (Some(mut deferred), Some(config)) = (files.next(), files.next()) else {
            return Err(failure(DIRECTIVE, &finished.status).into());
        };
        let mut state = deferred.content();
        let is_deferred = state.first() == Some(&DEFERRED);
        // The chain's time limit ends the wait. An empty file is one that the program has truncated to write its answer.
        while is_deferred && matches!(state.first(), None | Some(&DEFERRED)) {
            state = deferred.changed().await;
        }
        match state.first() {
            None | Some(b'1') => {}
            Some(b'0') => {
                return Err(format!("{DIRECTIVE}: the answer of {} is no", program.path).into());
            }
            Some(_) => {
                return Err(format!(
                    "{DIRECTIVE}: {} wrote something else than 0, 1 or 2 into client_connect_deferred_file",
                    program.path
                )
                .into());
            }
        }
        let shown = format!("{DIRECTIVE}: {}", program.path);
        let file = ClientFile::parse(&shown, &config.content(), &self.rules)
            .map_err(|error| Rejection::from(error.to_string().replace("\n ", ";")))?;
        if file.disabled {
            return Err(format!("{DIRECTIVE}: the file of {} says disable", program.path).into());
        }
        Ok(merged(params, file.grant))
    }
}

/// Adds the parameters that a program has written to those that a client has already.
pub(crate) fn merged(mut params: ClientParams, new: ClientParams) -> ClientParams {
    let ClientParams {
        ipv4,
        ipv6,
        ifconfig4,
        ifconfig6,
        iroutes,
        push_reset,
        push_remove,
        push,
        inactive,
        session_timeout,
        groups,
        vlan,
        warnings,
        ..
    } = new;
    params.ipv4 = ipv4.or(params.ipv4);
    params.ipv6 = ipv6.or(params.ipv6);
    params.ifconfig4 = ifconfig4.or(params.ifconfig4);
    params.ifconfig6 = ifconfig6.or(params.ifconfig6);
    for network in iroutes {
        if !params.iroutes.contains(&network) {
            params.iroutes.push(network);
        }
    }
    if push_reset {
        params.push.clear();
        params.push_remove.clear();
        params.push_reset = true;
    }
    for beginning in push_remove {
        params.push.retain(|option| !option.starts_with(&beginning));
        params.push_remove.push(beginning);
    }
    params.push.extend(push);
    params.inactive = inactive.or(params.inactive);
    params.session_timeout = session_timeout.or(params.session_timeout);
    params.vlan = vlan.or(params.vlan);
    for group in groups {
        if !params.groups.contains(&group) {
            params.groups.push(group);
        }
    }
    params.warnings = params.warnings.into_iter().chain(warnings).collect();
    params
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn later_parameters_add_to_earlier_ones_and_replace_single_values() {
        let parse = |text: &str| {
            ClientFile::parse("x", text.as_bytes(), &Default::default()).unwrap().grant
        };
        let file = parse(
            "ifconfig-push 10.8.0.9 255.255.255.0\niroute 10.1.0.0 255.255.0.0\npush \"route 10.5.0.0\"\n\
             push \"dhcp-option DNS 10.8.0.1\"\nsession-timeout 60\nfilter-group staff\nvlan-pvid 7\n",
        );
        let program = parse(
            "ifconfig-push 10.8.0.8 255.255.255.0\niroute 10.1.0.0 255.255.0.0\niroute 10.2.0.0 255.255.0.0\n\
             push-remove route\npush \"route 10.6.0.0\"\nfilter-group staff ops\n",
        );
        let both = merged(file.clone(), program);
        assert_eq!(
            both.ifconfig4.map(|(address, _)| address.to_string()).as_deref(),
            Some("10.8.0.8")
        );
        assert_eq!(both.iroutes.len(), 2);
        assert_eq!(both.push, ["dhcp-option DNS 10.8.0.1", "route 10.6.0.0"]);
        assert_eq!(both.session_timeout, Some(Duration::from_secs(60)));
        assert_eq!(both.groups, ["staff", "ops"]);
        assert_eq!(both.vlan.map(|vlan| vlan.get()), Some(7));
        assert_eq!(merged(both, parse("vlan-pvid 9\n")).vlan.map(|vlan| vlan.get()), Some(9));
        let reset = merged(file, parse("push-reset\npush \"route 10.7.0.0\"\n"));
        assert!(reset.push_reset);
        assert_eq!(reset.push, ["route 10.7.0.0"]);
    }
}
