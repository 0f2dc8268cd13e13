//! Enforces the mesh's policy with this node's packet filter.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use adit_dataplane::FilterConfig;
use adit_engine::{PeerAddresses, PeerId};
use adit_mesh::node::{Node, PolicyState, routes_of};
use adit_mesh::roster::Member;
use adit_mesh::session::KeyHash;
use adit_openvpn_data::Plane;
use adit_runtime::control::{MeshPolicy, Request, Response, StatusReport};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::filter::{Filter, LiveFilter, mesh_policy};
use adit_runtime::helper::files;
use adit_runtime::metrics::Samples;

use super::report::hex;
use crate::{Paths, Settings, short};

/// The rules of a mesh without a policy.
const OPEN: &str = "table inet mesh {
    chain forward {
        type filter hook forward priority filter; policy accept;
    }
}
";

/// The rules of a node that has neither the text of the mesh's policy nor that of an earlier one.
const CLOSED: &str = "table inet mesh {
    chain forward {
        type filter hook forward priority filter; policy drop;
    }
}
";

/// The first of the filter's numbers for members. Peers of the data plane have lower numbers.
const FIRST_ID: u32 = 1 << 24;

/// The policy that this node enforces.
#[derive(Debug)]
pub(super) struct NodePolicy {
    mesh: String,
    file: PathBuf,
    device: String,
    workers: u16,
    /// The packet filter, once there has been a policy.
    filter: Option<LiveFilter>,
    /// The text in force, or `None` without a policy, or if everything is dropped.
    text: Option<String>,
    /// The reason why the text in force is not the roster's.
    problem: Option<String>,
    /// The numbers of members in the filter.
    ids: BTreeMap<KeyHash, PeerId>,
    /// The id of the next new member. Ids are never used again.
    next_id: u32,
}

/// Reads the policy's text from an earlier run.
///
/// # Errors
/// The file cannot be read.
pub(super) fn stored(paths: &Paths) -> Result<Option<String>, Fault> {
    let path = paths.policy_file();
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_fault("cannot read", &path, &error)),
    }
}

impl NodePolicy {
    /// Applies the policy of a starting node, with the text from an earlier run. Without any text, nothing passes.
    ///
    /// # Errors
    /// There are no random bytes.
    pub(super) fn new(
        paths: &Paths,
        settings: &Settings,
        workers: u16,
        stored: Option<String>,
        node: &Node,
    ) -> Result<Self, Fault> {
        let mut policy = Self {
            mesh: paths.name().to_owned(),
            file: paths.policy_file(),
            device: settings.device.clone(),
            workers,
            filter: None,
            text: None,
            problem: None,
            ids: BTreeMap::new(),
            next_id: FIRST_ID,
        };
        if node.policy() != PolicyState::None {
            let former = stored.and_then(|text| Some((policy.compile(&text).ok()?, text)));
            let (rules, text) = match former {
                Some((rules, text)) => (rules, Some(text)),
                None => (policy.compile(CLOSED)?, None),
            };
            policy.enforce(rules)?;
            policy.text = text;
            policy.update(node)?;
        }
        policy.members_changed(node);
        Ok(policy)
    }

    /// Returns the data plane's configuration, once there has been a policy.
    pub(super) fn filter_config(&self) -> Option<FilterConfig> {
        let filter = self.filter.as_ref()?;
        Some(FilterConfig { firewall: Arc::clone(filter.firewall()), device: self.device.clone() })
    }

    /// Returns the reason why the mesh's policy is not in force here.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Applies the node's current policy.
    pub(super) fn changed(&mut self, node: &Node, plane: &Plane) {
        let was_off = self.filter.is_none();
        if let Err(fault) = self.update(node) {
            tracing::error!("{fault}");
        }
        self.members_changed(node);
        if was_off && let Some(config) = self.filter_config() {
            plane.set_filter(config);
        }
        if let Some(problem) = &self.problem {
            tracing::warn!("{problem}");
        }
    }

    fn update(&mut self, node: &Node) -> Result<(), Fault> {
        self.problem = None;
        let (text, rules) = match node.policy() {
            PolicyState::None if self.filter.is_none() => return Ok(()),
            PolicyState::None => ("", OPEN),
            PolicyState::Missing => {
                self.problem =
                    Some(format!("the mesh's policy has not arrived yet: {}", self.kept()));
                return Ok(());
            }
            PolicyState::Text(text) => (text, text),
        };
        if self.filter.is_some() && self.text.as_deref() == Some(text) {
            return Ok(());
        }
        match self.compile(rules) {
            Err(fault) => {
                let kept = self.kept();
                self.problem =
                    Some(format!("the mesh's policy does not compile here: {kept}: {fault}"));
                return Ok(());
            }
            Ok(rules) => self.enforce(rules)?,
        }
        self.text = Some(text.to_owned()).filter(|text| !text.is_empty());
        if let Err(error) = files::replace(&self.file, text.as_bytes()) {
            tracing::warn!("cannot write {}: {error}", self.file.display());
        }
        Ok(())
    }

    fn compile(&self, rules: &str) -> Result<Filter, Fault> {
        mesh_policy(&self.name(), rules)
    }

    fn enforce(&mut self, rules: Filter) -> Result<(), Fault> {
        let name = self.name();
        match &mut self.filter {
            Some(filter) => filter.replace(rules, name),
            None => self.filter = Some(LiveFilter::of_mesh(rules, &name, self.workers.into())?),
        }
        Ok(())
    }

    fn name(&self) -> String {
        format!("policy of {}", self.mesh)
    }

    fn kept(&self) -> &'static str {
        match (&self.text, &self.filter) {
            (Some(_), _) => "the previous one stays in force",
            (None, None) => "members reach each other until then",
            (None, Some(_)) => "no packets pass",
        }
    }

    /// Passes the names, groups and addresses of all members to the filter.
    pub(super) fn members_changed(&mut self, node: &Node) {
        let Some(filter) = &mut self.filter else { return };
        self.ids.retain(|key, _| node.roster().member(key).is_some());
        let next = &mut self.next_id;
        let mut nodes = Vec::new();
        for member in node.roster().members() {
            let id = *self.ids.entry(member.key).or_insert_with(|| {
                let id = PeerId(*next);
                *next = next.saturating_add(1);
                id
            });
            nodes.push(in_filter(id, member));
        }
        filter.set_nodes(nodes);
    }

    pub(super) fn tick(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.tick();
        }
    }

    pub(super) fn report(&self, report: &mut StatusReport) {
        report.filter = self.filter.as_ref().map(|filter| filter.file().to_owned());
        report.connections = self.filter.as_ref().map(LiveFilter::connections);
    }

    /// Adds the filter's metrics to the samples.
    pub(super) fn measure(&self, samples: &mut Samples) {
        if let Some(filter) = &self.filter {
            filter.measure(samples);
        }
    }

    /// Answers the requests of `adit filter`. Returns `None` for any other request.
    pub(super) fn answer(&mut self, request: &Request) -> Option<Response> {
        let error = |message: &str| Some(Response::Error { message: message.into() });
        match (request, &mut self.filter) {
            (Request::FilterReload { .. }, _) => {
                error("the rules are the policy of the mesh: change them with adit mesh policy")
            }
            (_, Some(filter)) => filter.answer(request),
            (
                Request::FilterShow { .. }
                | Request::FilterElement { .. }
                | Request::FilterFlush { .. }
                | Request::FilterCapture { .. },
                None,
            ) => error("there is no filter here: the mesh has no policy"),
            _ => None,
        }
    }

    /// Describes the policy.
    pub(super) fn describe(&self, node: &Node) -> MeshPolicy {
        let is_set = node.policy() != PolicyState::None;
        MeshPolicy {
            text: self.text.clone(),
            hash: node.roster().policy().filter(|_| is_set).map(|hash| hex(&hash)),
            problem: self.problem.clone(),
        }
    }
}

fn in_filter(peer: PeerId, member: &Member) -> PeerAddresses {
    let name = member.name.as_ref().map_or_else(|| short(&member.key), ToString::to_string);
    let groups = member.groups.iter().map(ToString::to_string).collect();
    PeerAddresses { peer, name, groups, prefixes: routes_of(member) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use adit_engine::{Instant, UnixTime};
    use adit_mesh::roster::{Action, Label, NodeInfo, Revocation};
    use adit_openvpn::data_format::Outbox;

    use super::*;
    use crate::testing::{found_mesh, open_node};

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    /// Returns a policy that names a port.
    fn policy(port: u16) -> String {
        CLOSED.replace("policy drop;", &format!("policy drop; tcp dport {port} accept"))
    }

    struct Machine {
        _dir: tempfile::TempDir,
        paths: Paths,
    }

    impl Machine {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let paths = found_mesh(dir.path(), false);
            Self { _dir: dir, paths }
        }

        /// Returns a node with this text from its last run, whose mesh has the policy `set`.
        fn node(&self, policy_text: Option<&str>, set: Option<&str>) -> Node {
            let unix = UnixTime(1_800_000_000);
            let (mut node, mut roster) = open_node(&self.paths, policy_text, NOW, unix);
            if let Some(text) = set {
                let set = node.set_policy(NOW, text.to_owned(), &mut Outbox::new()).unwrap();
                roster.append(&[node.changes().get(&set.change).unwrap()]).unwrap();
            }
            node
        }

        fn starts(&self, stored: Option<&str>, node: &Node) -> NodePolicy {
            let settings = Settings::load(&self.paths).unwrap();
            NodePolicy::new(&self.paths, &settings, 1, stored.map(str::to_owned), node).unwrap()
        }
    }

    fn rules(policy: &mut NodePolicy) -> String {
        let show = Request::FilterShow { flows: false, brief: false };
        match policy.answer(&show) {
            Some(Response::Filter(report)) => report.rules,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_mesh_without_a_policy_has_no_filter_until_there_is_one() {
        let machine = Machine::new();
        let mut started = machine.starts(None, &machine.node(None, None));
        assert!(started.filter_config().is_none() && rules(&mut started).contains("no policy"));
        started.update(&machine.node(None, Some(&policy(22)))).unwrap();
        assert!(rules(&mut started).contains("tcp dport 22"));
        assert_eq!(stored(&machine.paths).unwrap(), Some(policy(22)));
        started.update(&machine.node(None, Some(""))).unwrap();
        assert!(rules(&mut started).contains("policy accept"));
        assert_eq!(started.text, None);
    }

    #[test]
    fn without_the_text_a_node_that_starts_keeps_the_former_one_or_lets_nothing_pass() {
        let machine = Machine::new();
        machine.node(None, Some(&policy(22)));
        let mut started = machine.starts(None, &machine.node(None, None));
        assert!(rules(&mut started).contains("policy drop"));
        assert!(started.problem().unwrap().contains("no packets pass"));
        let former = policy(23);
        let mut started = machine.starts(Some(&former), &machine.node(Some(&former), None));
        assert!(rules(&mut started).contains("tcp dport 23"));
        assert!(started.problem().unwrap().contains("previous one stays"));
        let arrived = machine.node(Some(&policy(22)), None);
        started.update(&arrived).unwrap();
        assert!(rules(&mut started).contains("tcp dport 22") && started.problem().is_none());
    }

    #[test]
    fn a_text_that_does_not_compile_leaves_the_former_one_in_force() {
        let machine = Machine::new();
        let mut started = machine.starts(None, &machine.node(None, Some(&policy(22))));
        started.update(&machine.node(None, Some("table of a later version"))).unwrap();
        assert!(started.problem().unwrap().contains("does not compile"), "{started:?}");
        assert!(rules(&mut started).contains("tcp dport 22"));
    }

    #[test]
    fn members_are_known_by_name_and_what_is_not_this_nodes_own_is_refused() {
        let machine = Machine::new();
        let named = policy(22).replace("tcp dport", "ip daddr @node:hub tcp dport");
        let mut started = machine.starts(Some(&named), &machine.node(None, Some(&named)));
        let Some(Response::Filter(report)) =
            started.answer(&Request::FilterShow { flows: false, brief: false })
        else {
            panic!("no report")
        };
        let own = report.members.get("@node:hub").unwrap();
        assert!(own.iter().any(|it| it.starts_with("100.87.")), "{own:?}");
        let reload = started.answer(&Request::FilterReload { files: None });
        let Some(Response::Error { message }) = reload else { panic!("{reload:?}") };
        assert!(message.contains("adit mesh policy"));
    }

    #[test]
    fn the_number_of_a_removed_member_is_forgotten_and_never_used_again() {
        let machine = Machine::new();
        let mut node = machine.node(None, Some(&policy(22)));
        let mut started = machine.starts(Some(&policy(22)), &node);
        let mut numbers = BTreeSet::new();
        for key in [[1; 32], [2; 32]] {
            let info = NodeInfo::named(Label::new("guest").unwrap());
            let out = &mut Outbox::new();
            node.sign(NOW, Action::Admit { key, node: info }, out).unwrap();
            started.members_changed(&node);
            numbers.extend(started.ids.values().copied());
            let revocation = Revocation { key, last: None, with_invited: false };
            node.sign(NOW, Action::Revoke(revocation), out).unwrap();
            started.members_changed(&node);
            assert_eq!(started.ids.keys().collect::<Vec<_>>(), [&node.key_hash()]);
        }
        assert_eq!(numbers.len(), 3, "the hub's and one for each guest");
    }
}
