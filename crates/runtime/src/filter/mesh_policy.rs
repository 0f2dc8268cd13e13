//! The policy of a mesh: rules about nodes, whether connected or not.

use std::path::PathBuf;

use adit_engine::{PeerAddresses, PeerId};
use adit_filter::Filter;
use adit_filter::ruleset::Members as Who;

use super::{LiveFilter, Members, compile, parse, start};
use crate::control::RuleFiles;
use crate::fault::Fault;

/// Compiles the policy of a mesh.
///
/// # Errors
/// Returns the errors in the text, with line and column. A policy cannot include files or name clients.
pub fn mesh_policy(name: &str, text: &str) -> Result<Filter, Fault> {
    let texts = [(name.to_owned(), text.to_owned())].into();
    let filter = compile(name, parse(&RuleFiles { name: name.to_owned(), texts })?)?;
    let client = filter.wanted().find(|who| matches!(who, Who::Client(_)));
    match client.and_then(Who::label) {
        Some(label) => Err(Fault::operator(format!(
            "{name}: {label}: a mesh has nodes and no clients; write {}",
            label.replacen("@client:", "@node:", 1)
        ))),
        None => Ok(filter),
    }
}

impl LiveFilter {
    /// Applies the policy of a mesh, for `workers` threads.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn of_mesh(policy: Filter, name: &str, workers: usize) -> Result<Self, Fault> {
        let live = Self::new(start(policy, Some(workers))?, PathBuf::from(name));
        Ok(Self { members: Members::of_nodes(), ..live })
    }

    /// Replaces all members.
    pub fn set_nodes(&mut self, nodes: Vec<PeerAddresses>) {
        let is_gone = |peer: &PeerId| nodes.iter().all(|node| node.peer != *peer);
        let gone: Vec<PeerId> = self.members.peers().map(|it| it.peer).filter(is_gone).collect();
        gone.into_iter().for_each(|peer| self.remove(peer));
        for node in nodes {
            if self.members.peer(node.peer) != Some(&node) {
                self.put(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "table inet mesh {
        chain forward {
            type filter hook forward priority filter; policy drop;
            ip saddr @group:web ip daddr @node:db tcp dport 5432 accept
        }
    }";

    fn node(peer: u32, name: &str, groups: &[&str], address: &str) -> PeerAddresses {
        PeerAddresses {
            peer: PeerId(peer),
            name: name.into(),
            groups: groups.iter().map(ToString::to_string).collect(),
            prefixes: vec![address.parse().unwrap()],
        }
    }

    #[test]
    fn a_policy_names_nodes_and_groups_and_includes_nothing() {
        mesh_policy("policy", POLICY).unwrap();
        let refused = |text: &str| mesh_policy("policy", text).unwrap_err().to_string();
        let client = refused(&POLICY.replace("@node:db", "@client:db"));
        assert!(client.contains("write @node:db"), "{client}");
        assert!(refused(&format!("include \"/etc/passwd\"\n{POLICY}")).contains("/etc/passwd"));
        assert!(refused("").contains("no chain has a hook"), "{}", refused(""));
    }

    #[test]
    fn nodes_that_are_gone_leave_the_sets() {
        let policy = mesh_policy("policy", POLICY).unwrap();
        let mut live = LiveFilter::of_mesh(policy, "policy", 1).unwrap();
        let web = node(1, "web1", &["web"], "100.87.0.2/32");
        let db = node(2, "db", &[], "100.87.0.3/32");
        live.set_nodes(vec![web.clone(), db]);
        let of = |live: &LiveFilter, who: Who| live.members.of(&who).len();
        let (group, name) = (Who::Group("web".into()), Who::Node("db".into()));
        assert_eq!((of(&live, group.clone()), of(&live, name.clone())), (1, 1));
        live.set_nodes(vec![PeerAddresses { groups: Vec::new(), ..web }]);
        assert_eq!((of(&live, group), of(&live, name)), (0, 0));
    }
}
