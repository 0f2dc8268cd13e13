//! The requests that a running node answers.

use std::collections::BTreeSet;

use adit_engine::UnixTime;
use adit_mesh::join::JoinRefusal;
use adit_mesh::roster::{Action, Label, Member, NodeInfo, Revocation};
use adit_mesh::token::Terms;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::control::{
    MeshDescription, MeshInvitation, MeshJoiner, MeshPath, MeshPong, MeshToken, Request, Response,
};
use adit_runtime::fault::Fault;
use adit_runtime::filter::mesh_policy;
use ipnet::{IpNet, Ipv4Net};

use super::Running;
use super::admin::report_of;
use super::report::hex;

impl Running {
    pub(super) fn answer(&mut self, request: Request) -> Response {
        if let Some(response) = self.policy.answer(&request) {
            return response;
        }
        let result = match request {
            Request::MeshInvite(invitation) => self.invite(&invitation).map(Response::MeshToken),
            Request::MeshInviteApp(app) => {
                self.invite_app(app).map(|profile| Response::MeshProfile(Box::new(profile)))
            }
            Request::MeshRemove { name, with_invited } => self.remove(&name, with_invited),
            Request::MeshSet { name, description } => self.set(&name, description),
            Request::MeshAdmins => Ok(Response::MeshAdmins(Box::new(self.admins()))),
            Request::MeshAdmin(request) => self.admin(request).map(Response::MeshSigned),
            Request::MeshPath { name } => self.path(&name),
            Request::MeshApprove { name, refuse } => self.approve(&name, refuse),
            Request::MeshPing { name, ping } => self.ping(&name, ping),
            Request::MeshPolicy => {
                Ok(Response::MeshPolicy(self.policy.describe(self.driver.engine())))
            }
            Request::MeshDirectory => {
                self.check_directory();
                Ok(Response::MeshDirectory(self.directory_report().map(Box::new)))
            }
            Request::MeshSetPolicy { text } => self.set_policy(text),
            _ => Err(Fault::operator("a mesh node does not support this request")),
        };
        result.unwrap_or_else(|fault| Response::Error { message: fault.to_string() })
    }

    pub(super) fn invite(&mut self, invitation: &MeshInvitation) -> Result<MeshToken, Fault> {
        self.check_roles(invitation.gateway, false)?;
        let name = invitation.name.as_deref().map(node_name).transpose()?;
        if name.is_some() && invitation.uses > 1 {
            return Err(Fault::operator(
                "a token with a name is for one node: omit --uses or the name",
            ));
        }
        let terms = Terms {
            name,
            approve: invitation.approve,
            range: self.range(),
            groups: labels(&invitation.groups)?,
            subnets: subnets(&invitation.subnets)?,
            relay: invitation.relay,
            gateway: invitation.gateway,
            not_after: None,
        };
        let until = UnixTime(unix_time().0.saturating_add(invitation.valid_s));
        let uses = invitation.uses.max(1);
        let token = self
            .driver
            .act(|node, now, out| node.invite(now, terms, uses, until, out))
            .map_err(|error| Fault::operator(error.to_string()))?;
        let hash = token.secret().hash(token.mesh());
        Ok(MeshToken { token: token.to_string(), until: until.0, invitation: hex(&hash) })
    }

    /// Admits or refuses a waiting node.
    fn approve(&mut self, name: &str, refuse: bool) -> Result<Response, Fault> {
        let joiner = self.joiner(name)?;
        let key = self
            .driver
            .engine()
            .pending(now())
            .map(|pending| pending.key)
            .find(|key| hex(key) == joiner.key)
            .ok_or_else(|| Fault::operator(JoinRefusal::NotWaiting.to_string()))?;
        if refuse {
            self.driver.act(|node, _, _| node.refuse_joiner(&key));
        } else {
            let admitted = self.driver.act(|node, now, out| node.approve(now, &key, out));
            admitted.map_err(|reason| {
                Fault::operator(format!("{} is not admitted: {reason}", joiner.name))
            })?;
        }
        Ok(Response::MeshJoiner(joiner))
    }

    /// Returns the waiting node that has this name, or whose key's hash begins with this text.
    fn joiner(&self, name: &str) -> Result<MeshJoiner, Fault> {
        let all = self.joiners();
        let is_named = |joiner: &&MeshJoiner| {
            let key = name.replace(' ', "");
            joiner.name == name || (key.len() >= MIN_PREFIX && joiner.key.starts_with(&key))
        };
        let mut found = all.iter().filter(is_named);
        match (found.next(), found.next()) {
            (Some(joiner), None) => Ok(joiner.clone()),
            (None, _) => Err(Fault::operator(format!(
                "{name}: no node of this name waits for approval; list them with: adit mesh approve"
            ))),
            (Some(_), Some(_)) => Err(Fault::operator(format!(
                "{name}: several nodes wait under this name: give the beginning of the key's hash instead"
            ))),
        }
    }

    /// Sends a ping, or returns the answer to an earlier one.
    fn ping(&mut self, name: &str, ping: Option<u64>) -> Result<Response, Fault> {
        let key = self.member(name)?.key;
        if key == self.driver.engine().key_hash() {
            return Err(Fault::operator(format!("{name} is this node itself: ping another one")));
        }
        let ping = ping.or_else(|| self.driver.act(|node, now, out| node.ping(now, &key, out)));
        let pong = ping.and_then(|ping| self.driver.engine().pong(ping));
        let (route, via) = pong.map(|pong| self.route(pong.route)).unzip();
        let pong = MeshPong {
            peer: self.peer_report(&key),
            ping,
            rtt_ms: pong.map(|pong| (pong.rtt.as_secs_f64() * 100_000.0).round() / 100.0),
            route: route.map(ToOwned::to_owned),
            via: via.flatten(),
        };
        Ok(Response::MeshPong(Box::new(pong)))
    }

    fn remove(&mut self, name: &str, with_invited: bool) -> Result<Response, Fault> {
        let key = self.member(name)?.key;
        if key == self.driver.engine().key_hash() {
            return Err(Fault::operator("a node does not remove itself: do it on another machine"));
        }
        let last = self.last_change(&key);
        let revocation = Revocation { key, last, with_invited };
        self.sign(Action::Revoke(revocation)).map(Response::MeshSigned)
    }

    /// Changes the name, the groups, the networks or the roles of a member.
    fn set(&mut self, name: &str, description: MeshDescription) -> Result<Response, Fault> {
        let member = self.member(name)?;
        let MeshDescription { name, groups, subnets: networks, relay, gateway, openvpn } =
            description;
        self.check_roles(gateway == Some(true), openvpn == Some(true))?;
        let name = match name {
            Some(name) => node_name(&name)?,
            None => member.name.clone().ok_or_else(|| {
                Fault::operator(
                    "another member has this node's name: give it another one with --name",
                )
            })?,
        };
        let node = NodeInfo {
            name,
            ipv4: member.ipv4,
            groups: groups.map_or_else(|| Ok(member.groups.clone()), |groups| labels(&groups))?,
            subnets: networks.map_or_else(|| Ok(member.subnets.clone()), |nets| subnets(&nets))?,
            relay: relay.unwrap_or(member.relay),
            gateway: gateway.unwrap_or(member.gateway),
            openvpn: openvpn.unwrap_or(member.openvpn),
            leaf_of: member.leaf_of,
            not_after: member.not_after,
        };
        let key = member.key;
        self.sign(Action::SetNames { key, node }).map(Response::MeshSigned)
    }

    fn set_policy(&mut self, text: String) -> Result<Response, Fault> {
        if !text.is_empty() {
            mesh_policy("policy", &text)?;
        }
        let signed = self
            .driver
            .act(|node, now, out| node.set_policy(now, text, out))
            .map_err(|error| Fault::operator(error.to_string()))?;
        Ok(Response::MeshSigned(report_of(signed)))
    }

    fn path(&mut self, name: &str) -> Result<Response, Fault> {
        let member = self.member(name)?;
        if let Some(gateway) = member.leaf_of {
            let gateway = self.name(&gateway);
            return Err(Fault::operator(format!(
                "{name} is an OpenVPN app, and is reached through {gateway}: ask for the path to that"
            )));
        }
        let key = member.key;
        self.driver.act(|node, now, out| node.connect(now, &key, out));
        let report = self.driver.engine().path(now(), &key);
        let path = MeshPath {
            peer: self.peer_report(&key),
            text: report.as_ref().map(ToString::to_string).unwrap_or_default(),
            report: report.and_then(|report| serde_json::to_value(report).ok()),
        };
        Ok(Response::MeshPath(Box::new(path)))
    }

    /// Returns the member that has this name, or whose key's hash begins with this text.
    pub(super) fn member(&self, name: &str) -> Result<&Member, Fault> {
        let roster = self.driver.engine().roster();
        if let Some(member) = Label::new(name).and_then(|label| roster.by_name(&label)) {
            return Ok(member);
        }
        with_prefix(
            roster.members(),
            |member| &member.key,
            name,
            || format!("not a member of the mesh {}; list them with: adit mesh peers", self.mesh),
        )
    }

    /// Returns the range of new members' addresses.
    pub(super) fn range(&self) -> Option<Ipv4Net> {
        self.driver.engine().changes().genesis().ranges.first().copied()
    }
}

/// The minimum length of a hash prefix that names a key or a change.
const MIN_PREFIX: usize = 4;

fn node_name(name: &str) -> Result<Label, Fault> {
    Label::new(name).ok_or_else(|| {
        Fault::operator(format!(
            "{name:?} is not a name for a node: use lower-case letters, digits and inner hyphens"
        ))
    })
}

/// Returns the names of groups.
pub(super) fn labels(groups: &[String]) -> Result<BTreeSet<Label>, Fault> {
    let label = |group: &String| {
        Label::new(group).ok_or_else(|| {
            Fault::operator(format!(
                "{group:?} is not a name for a group: use lower-case letters, digits and inner hyphens"
            ))
        })
    };
    groups.iter().map(label).collect()
}

/// Returns the networks behind a node.
fn subnets(networks: &[IpNet]) -> Result<BTreeSet<IpNet>, Fault> {
    match networks.iter().find(|net| net.prefix_len() == 0) {
        Some(all) => Err(Fault::operator(format!(
            "{all} is no network behind a node: a node through which others reach the internet has --gateway"
        ))),
        None => Ok(networks.iter().copied().collect()),
    }
}

/// Returns the item whose hash in hex begins with this text; `missing` is the error if there is none.
pub(super) fn with_prefix<T>(
    items: impl Iterator<Item = T>,
    hash: impl Fn(&T) -> &[u8; 32],
    prefix: &str,
    missing: impl FnOnce() -> String,
) -> Result<T, Fault> {
    let begins = |item: &T| prefix.len() >= MIN_PREFIX && hex(hash(item)).starts_with(prefix);
    let mut found = items.filter(begins);
    match (found.next(), found.next()) {
        (Some(item), None) => Ok(item),
        (Some(first), Some(second)) if hash(&first) == hash(&second) => Ok(first),
        (None, _) => Err(Fault::operator(format!("{prefix}: {}", missing()))),
        (Some(_), Some(_)) => Err(Fault::operator(format!(
            "{prefix}: several hashes begin like this: give more digits"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_must_be_long_enough_and_of_one_hash() {
        let find = |hashes: &[[u8; 32]], prefix| {
            let found = with_prefix(hashes.iter(), |hash| *hash, prefix, || "not there".into());
            found.copied().map_err(|fault| fault.to_string())
        };
        let hashes = [[0xab; 32], [0xac; 32], [0xab; 32]];
        assert_eq!(find(&hashes, "abab").unwrap(), [0xab; 32]);
        for wrong in ["ab", "a", "", "ffff"] {
            assert!(find(&hashes, wrong).unwrap_err().contains("not there"), "{wrong}");
        }
        let mut close = [0xab; 32];
        close[31] = 0;
        assert!(find(&[[0xab; 32], close], "abab").unwrap_err().contains("several"));
    }
}
