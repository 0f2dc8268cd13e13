//! The choice of connections by `AutoConnect`: every node keeps a few, to nodes chosen at random.

use std::time::Duration;

use adit_engine::Random;

use crate::name::NodeName;

/// The number of connections that a node wants.
pub const WANTED: usize = 3;

/// The time between two choices.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// The number of choices in a row that must find too many connections before one is closed. Otherwise two nodes could open and close their
/// connections in turn.
const PATIENCE: u32 = 3;

/// The state of a node's connection to another one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// There is none.
    None,
    /// The other node opened it, or a line `ConnectTo` asks for it.
    Kept,
    /// The choice opened it.
    Chosen,
    /// The choice asked for it, and the next attempt waits for its time.
    Waiting,
    /// An attempt is in progress.
    Opening,
}

/// A known node, apart from the own one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The node's name.
    pub node: &'a NodeName,
    /// The own node's connection to it.
    pub connection: Connection,
    /// It can be reached through the net.
    pub is_reachable: bool,
    /// Its host file has an address.
    pub has_address: bool,
    /// The number of its connections.
    pub edges: usize,
}

impl Candidate<'_> {
    const fn is_active(&self) -> bool {
        matches!(self.connection, Connection::Kept | Connection::Chosen)
    }

    const fn is_free(&self) -> bool {
        matches!(self.connection, Connection::None)
    }
}

/// What to do with a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Open one.
    Open(NodeName),
    /// Close one.
    Close(NodeName),
    /// Try no longer to open one.
    Cancel(NodeName),
}

/// Chooses connections.
#[derive(Debug, Default)]
pub struct AutoConnect {
    /// The number of choices in a row that found too many connections.
    excess: u32,
}

impl AutoConnect {
    /// Chooses what to change. Call it every [`INTERVAL`].
    ///
    /// With fewer connections than [`WANTED`], it opens one to a random node. With enough, it cancels attempts that wait, and now and then tries
    /// one unreachable node, so that two parts of a net find each other again. With too many for some time, it closes a connection that it
    /// opened itself, but only to a node that has enough without it.
    pub fn choose(&mut self, nodes: &[Candidate<'_>], random: &mut Random) -> Vec<Choice> {
        let active = nodes.iter().filter(|node| node.is_active()).count();
        self.excess = if active > WANTED { self.excess.saturating_add(1) } else { 0 };
        if active < WANTED {
            let reached =
                |node: &&Candidate<'_>| node.is_free() && (node.is_reachable || node.has_address);
            return pick(nodes.iter().filter(reached), random)
                .map(Choice::Open)
                .into_iter()
                .collect();
        }
        let mut choices = Vec::new();
        if self.excess >= PATIENCE {
            let spare = |node: &&Candidate<'_>| {
                node.connection == Connection::Chosen && node.edges > WANTED
            };
            choices.extend(pick(nodes.iter().filter(spare), random).map(Choice::Close));
            self.excess = 0;
        }
        let waiting = nodes.iter().filter(|node| node.connection == Connection::Waiting);
        choices.extend(waiting.map(|node| Choice::Cancel(node.node.clone())));
        choices.extend(try_unreachable(nodes, random));
        choices
    }
}

/// Chooses an unreachable node to try: all nodes of the net together try about one in each interval.
fn try_unreachable(nodes: &[Candidate<'_>], random: &mut Random) -> Option<Choice> {
    // The own node counts as well.
    let known = u32::try_from(nodes.len()).unwrap_or(u32::MAX).saturating_add(1);
    if random.below(known) != 0 {
        return None;
    }
    let lost = |node: &&Candidate<'_>| node.is_free() && !node.is_reachable && node.has_address;
    pick(nodes.iter().filter(lost), random).map(Choice::Open)
}

fn pick<'a>(
    mut nodes: impl Iterator<Item = &'a Candidate<'a>> + Clone,
    random: &mut Random,
) -> Option<NodeName> {
    let count = u32::try_from(nodes.clone().count()).unwrap_or(u32::MAX);
    let index = usize::try_from(random.below(count)).unwrap_or(0);
    nodes.nth(index).map(|node| node.node.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(count: usize) -> Vec<NodeName> {
        (0..count).map(|number| format!("n{number}").parse().unwrap()).collect()
    }

    fn candidate(node: &NodeName) -> Candidate<'_> {
        let connection = Connection::None;
        Candidate { node, connection, is_reachable: true, has_address: false, edges: 4 }
    }

    fn random() -> Random {
        Random::new([4; 32])
    }

    /// Specification 8.5.
    #[test]
    fn a_node_with_too_few_connections_opens_one() {
        let names = names(6);
        let mut nodes: Vec<Candidate<'_>> = names.iter().map(candidate).collect();
        nodes[0].connection = Connection::Kept;
        nodes[1].connection = Connection::Chosen;
        nodes[2].connection = Connection::Opening;
        nodes[3].is_reachable = false;
        nodes[4].is_reachable = false;
        nodes[4].has_address = true;
        let mut random = random();
        let chosen: BTreeSet<String> = (0..200)
            .map(|_| match &AutoConnect::default().choose(&nodes, &mut random)[..] {
                [Choice::Open(name)] => name.to_string(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(chosen, BTreeSet::from(["n4".to_owned(), "n5".to_owned()]));
        assert_eq!(AutoConnect::default().choose(&nodes[..4], &mut random), [], "none is left");
        assert_eq!(AutoConnect::default().choose(&[], &mut random), []);
    }

    /// Specification 8.5, and 7.5: it does not close what it would open again.
    #[test]
    fn a_node_with_too_many_connections_closes_one_after_some_time() {
        let names = names(6);
        let mut nodes: Vec<Candidate<'_>> = names.iter().map(candidate).collect();
        for node in &mut nodes {
            node.connection = Connection::Chosen;
        }
        nodes[0].connection = Connection::Kept;
        nodes[1].edges = 3;
        nodes[2].edges = 2;
        nodes[3].connection = Connection::Waiting;
        let mut random = random();
        let mut closed = BTreeSet::new();
        for _ in 0..100 {
            let mut auto = AutoConnect::default();
            let mut choose = || {
                let mut choices = auto.choose(&nodes, &mut random);
                assert_eq!(choices.pop(), Some(Choice::Cancel(names[3].clone())));
                choices
            };
            assert_eq!((choose(), choose()), (vec![], vec![]), "patience");
            match &choose()[..] {
                [Choice::Close(name)] => closed.insert(name.to_string()),
                other => panic!("{other:?}"),
            };
            assert_eq!(choose(), [], "patience again");
        }
        assert_eq!(closed, BTreeSet::from(["n4".to_owned(), "n5".to_owned()]));
        // As many as wanted: nothing is closed.
        nodes[0].connection = Connection::None;
        nodes[3].connection = Connection::None;
        nodes[1].connection = Connection::Kept;
        nodes[2].connection = Connection::None;
        let mut auto = AutoConnect::default();
        assert!((0..50).all(|_| auto.choose(&nodes, &mut random).is_empty()));
        // The count starts again when there were few in between.
        nodes[0].connection = Connection::Kept;
        let mut auto = AutoConnect::default();
        auto.choose(&nodes, &mut random);
        auto.choose(&nodes, &mut random);
        auto.choose(&nodes[1..], &mut random);
        assert_eq!(auto.choose(&nodes, &mut random), []);
    }

    /// Specification 8.5: with a probability of one in the number of known nodes.
    #[test]
    fn an_unreachable_node_is_tried_now_and_then() {
        let names = names(19);
        let mut nodes: Vec<Candidate<'_>> = names.iter().map(candidate).collect();
        for node in &mut nodes[..3] {
            node.connection = Connection::Kept;
        }
        nodes[3].is_reachable = false;
        nodes[4].is_reachable = false;
        nodes[4].has_address = true;
        nodes[5].has_address = true;
        let (mut random, mut auto) = (random(), AutoConnect::default());
        let mut tried = 0;
        for _ in 0..20_000 {
            let choices = auto.choose(&nodes, &mut random);
            assert!(choices.is_empty() || choices == [Choice::Open(names[4].clone())]);
            tried += choices.len();
        }
        assert!((900..1100).contains(&tried), "{tried}");
    }
}
