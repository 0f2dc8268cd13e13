//! Rights to change the mesh: the requests of `adit mesh admin`.

use std::collections::BTreeMap;

use adit_engine::UnixTime;
use adit_mesh::node::Signed;
use adit_mesh::roster::{
    Action, ChangeHash, Inviter, Refusal, Revocation, Right, Rotation, Warning,
};
use adit_mesh::session::KeyHash;
use adit_runtime::control::{
    MeshAdminRequest, MeshAdmins, MeshInviter, MeshSigned, MeshSigner, MeshWaiting,
};
use adit_runtime::fault::Fault;

use super::Running;
use super::report::hex;
use super::requests::{labels, with_prefix};
use crate::state::new_key;

/// Returns the description of a signed change for a command.
pub(super) fn report_of(signed: Signed) -> MeshSigned {
    MeshSigned { change: hex(&signed.change), is_waiting: signed.is_waiting }
}

impl Running {
    pub(super) fn admin(&mut self, request: MeshAdminRequest) -> Result<MeshSigned, Fault> {
        match request {
            MeshAdminRequest::Grant { name, inviter } => {
                let key = self.member(&name)?.key;
                let right = match inviter {
                    Some(limits) => Right::Inviter(self.inviter(limits)?),
                    None => Right::Admin,
                };
                self.sign(Action::Grant { key, right })
            }
            MeshAdminRequest::Threshold { admins } => self.sign(Action::SetThreshold(admins)),
            MeshAdminRequest::Approve { change } => {
                let waiting = self.waiting().into_keys();
                let found = named(waiting, &change, "change that waits for approvals")?;
                self.sign(Action::Approve(found))
            }
            MeshAdminRequest::Revoke { key } => self.revoke(&key),
            MeshAdminRequest::Rotate => self.rotate(),
        }
    }

    pub(super) fn sign(&mut self, action: Action) -> Result<MeshSigned, Fault> {
        let signed = self.driver.act(|node, now, out| node.sign(now, action, out));
        signed.map(report_of).map_err(|error| Fault::operator(error.to_string()))
    }

    /// Returns a key's last change that is known here. A revocation names it, so the key's earlier changes stay valid.
    pub(super) fn last_change(&self, key: &KeyHash) -> Option<ChangeHash> {
        let heads = self.driver.engine().changes().heads();
        heads.into_iter().find(|head| head.signer == *key).map(|head| head.hash)
    }

    /// Revokes a key that belongs to no member.
    fn revoke(&mut self, key: &str) -> Result<MeshSigned, Fault> {
        let node = self.driver.engine();
        let signers = node.roster().admins().iter().chain(node.roster().inviters().keys());
        let key = named(signers.copied(), key, "key of an admin or inviter")?;
        if node.roster().member(&key).is_some() {
            let name = self.name(&key);
            return Err(Fault::operator(format!(
                "this key is that of the node {name}: use adit mesh remove {name}"
            )));
        }
        if key == node.signer() {
            return Err(Fault::operator(
                "this node signs with this key itself: revoke it on another machine, or replace it with adit mesh admin rotate",
            ));
        }
        let revocation = Revocation { key, last: self.last_change(&key), with_invited: false };
        self.sign(Action::Revoke(revocation))
    }

    /// Replaces this machine's admin key.
    fn rotate(&mut self) -> Result<MeshSigned, Fault> {
        let node = self.driver.engine();
        if node.admin_key().is_some_and(|key| key != node.signer()) {
            return Err(Fault::operator(
                "this machine's admin.key was replaced or revoked: restore one that counts with adit mesh admin recover",
            ));
        }
        let (old, new) = self.admin_keys.prepare(new_key()?, node.changes())?;
        let rotation = Rotation { old, new, last: self.last_change(&old) };
        let signed = self.sign(Action::Rotate(rotation));
        if signed.is_err() {
            self.admin_keys.give_up()?;
        }
        signed
    }

    /// Signs with the new key as soon as it is valid.
    pub(super) fn advance_admin_key(&mut self) -> Result<(), Fault> {
        let next = self.admin_keys.advance(self.driver.engine().roster())?;
        if let Some(key) = next {
            self.driver.act(|node, _, _| node.set_admin_key(key));
        }
        Ok(())
    }

    fn inviter(&self, limits: MeshInviter) -> Result<Inviter, Fault> {
        self.check_roles(limits.gateway, limits.openvpn)?;
        Ok(Inviter {
            groups: labels(&limits.groups)?,
            range: self.range(),
            subnets: limits.subnets.into_iter().collect(),
            relay: limits.relay,
            gateway: limits.gateway,
            leaves: limits.openvpn,
            count: limits.count,
            until: limits.until.map(UnixTime),
        })
    }

    pub(super) fn admins(&self) -> MeshAdmins {
        let node = self.driver.engine();
        let roster = node.roster();
        let here = [Some(node.key_hash()), node.admin_key()];
        let signer = |key: &KeyHash, limits| MeshSigner {
            key: hex(key),
            name: roster.member(key).and_then(|it| it.name.as_ref()).map(ToString::to_string),
            here: here.contains(&Some(*key)),
            limits,
        };
        let limits = |it: &Inviter| MeshInviter {
            groups: it.groups.iter().map(ToString::to_string).collect(),
            subnets: it.subnets.iter().copied().collect(),
            relay: it.relay,
            gateway: it.gateway,
            openvpn: it.leaves,
            count: it.count,
            until: it.until.map(|time| time.0),
        };
        let inviters = roster.inviters().iter();
        MeshAdmins {
            admins: roster.admins().iter().map(|key| signer(key, None)).collect(),
            threshold: roster.threshold(),
            inviters: inviters.map(|(key, it)| signer(key, Some(limits(it)))).collect(),
            waiting: self.waiting().into_values().collect(),
            warnings: roster.warnings().iter().filter(is_fault).map(ToString::to_string).collect(),
        }
    }

    /// Returns the changes that wait for approvals.
    fn waiting(&self) -> BTreeMap<ChangeHash, MeshWaiting> {
        let node = self.driver.engine();
        let (changes, admins) = (node.changes(), node.roster().admins());
        let mut waiting = BTreeMap::new();
        for warning in node.roster().warnings() {
            let Warning::Ignored { change, reason: Refusal::Unapproved } = warning else {
                continue;
            };
            let Some(signed) = changes.get(change) else { continue };
            let signer = Some(signed.signer()).filter(|signer| admins.contains(signer));
            let approved_by = signer.iter().map(|key| hex(key)).collect();
            let what = self.describe(signed.action());
            waiting.insert(*change, MeshWaiting { change: hex(change), what, approved_by });
        }
        for change in changes.in_causal_order() {
            let Action::Approve(hash) = change.action() else { continue };
            if let Some(waits) = waiting.get_mut(hash)
                && admins.contains(&change.signer())
            {
                waits.approved_by.push(hex(&change.signer()));
            }
        }
        waiting
    }

    /// Describes an action in words.
    fn describe(&self, action: &Action) -> String {
        match action {
            Action::Admit { key, node } => format!("admits {} ({})", node.name, self.name(key)),
            Action::Revoke(revocation) => format!("revokes {}", self.name(&revocation.key)),
            Action::SetPolicy(hash) => {
                let hash = hex(hash);
                format!("sets the policy {}", hash.get(..8).unwrap_or(&hash))
            }
            Action::Grant { key, right: Right::Admin } => {
                format!("makes {} an admin", self.name(key))
            }
            Action::Grant { key, right: Right::Inviter(_) } => {
                format!("lets {} invite", self.name(key))
            }
            Action::SetNames { key, node } => {
                format!("changes {} to {}", self.name(key), node.name)
            }
            Action::SetThreshold(count) => format!("requires {count} admins"),
            Action::Rotate(rotation) => {
                format!("replaces the key {}", self.name(&rotation.old))
            }
            Action::Approve(_) => "approves another change".into(),
        }
    }
}

/// Returns whether a warning concerns anything but a change that waits for approvals.
fn is_fault(warning: &&Warning) -> bool {
    !matches!(warning, Warning::Ignored { reason: Refusal::Unapproved, .. })
}

fn named(
    hashes: impl Iterator<Item = [u8; 32]>,
    prefix: &str,
    what: &str,
) -> Result<[u8; 32], Fault> {
    with_prefix(
        hashes,
        |hash| hash,
        prefix,
        || format!("not the beginning of a {what}; list them with: adit mesh admin show"),
    )
}
