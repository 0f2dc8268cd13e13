use proptest::prelude::*;

use super::*;
use crate::meta::{AddressToken, Token};

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn edge(weight: i32, flags: u32) -> EdgeInfo {
    EdgeInfo {
        address: AddressToken::from(SocketAddr::from(([192, 0, 2, 1], 655))),
        options: Options::new(flags),
        weight,
        local: None,
    }
}

/// Adds both directions of connections between nodes with names of one letter.
fn connect(graph: &mut Graph, connections: &[(&str, i32, u32)]) {
    for (ends, weight, flags) in connections {
        let (from, to) = (name(&ends[..1]), name(&ends[1..]));
        graph.add_edge(&from, &to, edge(*weight, *flags)).unwrap();
        graph.add_edge(&to, &from, edge(*weight, *flags)).unwrap();
    }
}

fn graph(connections: &[(&str, i32, u32)]) -> Graph {
    let mut graph = Graph::new(name("a"));
    connect(&mut graph, connections);
    graph.compute();
    graph
}

/// Returns a route as `distance weight next_hop via`.
fn route(graph: &Graph, to: &str) -> String {
    let Some(route) = graph.route(&name(to)) else { return "none".to_owned() };
    format!("{} {} {} {}", route.distance, route.weight, route.next_hop, route.via)
}

fn changes(graph: &mut Graph) -> Vec<(String, bool)> {
    graph.compute().into_iter().map(|change| (change.node.to_string(), change.reachable)).collect()
}

/// Specification 8.1: an edge counts only with its reverse.
#[test]
fn a_node_is_reachable_when_both_ends_have_announced_the_connection() {
    let mut graph = Graph::new(name("a"));
    assert_eq!(route(&graph, "a"), "0 0 a a");
    assert_eq!(graph.add_edge(&name("a"), &name("b"), edge(1, 0)), Ok(EdgeChange::Added));
    assert_eq!(changes(&mut graph), []);
    assert_eq!(route(&graph, "b"), "none");
    assert_eq!(graph.add_edge(&name("b"), &name("a"), edge(1, 0)), Ok(EdgeChange::Added));
    assert_eq!(changes(&mut graph), [("b".to_owned(), true)]);
    assert_eq!(route(&graph, "b"), "1 1 b b");
    assert_eq!(changes(&mut graph), [], "computed again");
    assert!(graph.remove_edge(&name("b"), &name("a")));
    assert!(!graph.remove_edge(&name("b"), &name("a")));
    assert_eq!(changes(&mut graph), [("b".to_owned(), false)]);
    assert_eq!(graph.remove_unused(), [], "an edge leads to it");
    assert!(graph.remove_edge(&name("a"), &name("b")));
    assert_eq!(graph.remove_unused(), [name("b")]);
    assert_eq!(graph.remove_unused(), [], "the node itself stays");
}

/// Specification 8.1: fewest hops, then the lowest weight.
#[test]
fn the_shortest_way_wins_and_then_the_lightest() {
    let graph = graph(&[("ab", 100, 0), ("ac", 1, 0), ("cb", 1, 0), ("bd", 5, 0), ("cd", 50, 0)]);
    assert_eq!(route(&graph, "b"), "1 100 b b", "one heavy edge is shorter than two light ones");
    assert_eq!(route(&graph, "d"), "2 51 c d", "of two ways of two edges the lighter one");
}

/// Specification 8.2: the static relay is the last node that may be sent to directly.
#[test]
fn datagrams_to_a_node_behind_an_indirect_edge_go_to_the_node_before_it() {
    let indirect = Options::INDIRECT;
    let chain = graph(&[("ab", 1, 0), ("bc", 1, indirect), ("cd", 1, 0)]);
    assert_eq!(route(&chain, "b"), "1 1 b b");
    assert_eq!(route(&chain, "c"), "2 2 b b");
    assert_eq!(route(&chain, "d"), "3 3 b b", "and so do those to the nodes behind it");
    let neighbour = graph(&[("ab", 1, indirect)]);
    assert_eq!(
        route(&neighbour, "b"),
        "1 1 b a",
        "an indirect neighbour: the way is through this node"
    );
}

/// Specification 8.1: a direct way takes precedence for `via`, even if it is longer.
#[test]
fn a_longer_way_without_indirect_edges_decides_where_datagrams_go() {
    let graph = graph(&[
        ("ab", 1, 0),
        ("bd", 1, Options::INDIRECT),
        ("ac", 1, 0),
        ("ce", 1, 0),
        ("ed", 1, 0),
    ]);
    let to_d = graph.route(&name("d")).unwrap();
    assert_eq!((to_d.via.as_str(), to_d.indirect), ("d", false));
    assert_eq!(to_d.next_hop.as_str(), "b", "messages still take the shortest way");
    assert_eq!(to_d.distance, 3);
}

#[test]
fn the_last_edge_gives_the_address_and_the_minor_version() {
    let mut graph = graph(&[("ab", 1, 0), ("bc", 1, 0)]);
    let address: SocketAddr = "[2001:db8::1]:700".parse().unwrap();
    let own =
        EdgeInfo { address: address.into(), options: Options(0x0400_0004), weight: 1, local: None };
    assert_eq!(graph.add_edge(&name("b"), &name("c"), own), Ok(EdgeChange::Updated));
    graph.compute();
    let to_c = graph.route(&name("c")).unwrap();
    assert_eq!((to_c.address, to_c.options.minor()), (Some(address), 4));
}

/// Specification 6.3.
#[test]
fn an_equal_announcement_changes_nothing() {
    let mut graph = graph(&[("bc", 1, 0)]);
    let mut add = |edge: EdgeInfo| graph.add_edge(&name("b"), &name("c"), edge).unwrap();
    let with = |host: &str| AddressToken {
        host: Token::new(host.as_bytes()).unwrap(),
        port: Token::new(b"655").unwrap(),
    };
    assert_eq!(add(edge(1, 0)), EdgeChange::Equal);
    assert_eq!(add(edge(2, 0)), EdgeChange::Updated);
    assert_eq!(add(edge(2, Options::CLAMP_MSS)), EdgeChange::Updated);
    assert_eq!(add(EdgeInfo { address: with("192.0.2.9"), ..edge(1, 0) }), EdgeChange::Updated);
    assert_eq!(add(edge(1, 0)), EdgeChange::Updated);
    let local = EdgeInfo { local: Some(with("10.0.0.1")), ..edge(1, 0) };
    assert_eq!(add(local.clone()), EdgeChange::Updated);
    assert_eq!(add(local.clone()), EdgeChange::Equal);
    assert_eq!(add(edge(1, 0)), EdgeChange::Equal, "no local address says nothing");
    assert_eq!(add(EdgeInfo { local: Some(with("nonsense")), ..edge(1, 0) }), EdgeChange::Equal);
    assert_eq!(add(edge(2, 0)), EdgeChange::Updated);
    assert_eq!(graph.edge(&name("b"), &name("c")), Some(&EdgeInfo { weight: 2, ..local }));
}

/// Specification 8.4.
#[test]
fn the_tree_has_the_lightest_edges() {
    let graph = graph(&[("ab", 3, 0), ("bc", 1, 0), ("ca", 2, 0), ("cd", 9, 0)]);
    let tree: Vec<String> = graph.tree().iter().map(|(from, to)| format!("{from}{to}")).collect();
    assert_eq!(tree, ["ac", "bc", "cd"]);
    assert!(Graph::new(name("a")).tree().is_empty());
}

/// Weights that a node invents must not keep the search busy.
#[test]
fn negative_weights_end() {
    let all = ["ab", "bc", "cd", "da", "ac", "bd", "de", "ea", "be"];
    let connections: Vec<(&str, i32, u32)> = all
        .iter()
        .enumerate()
        .map(|(at, ends)| (*ends, i32::MIN, u32::from(at % 2 == 0)))
        .collect();
    let graph = graph(&connections);
    assert!(["b", "c", "d", "e"].iter().all(|node| graph.route(&name(node)).is_some()));
    assert_eq!(graph.search(2).len(), 3, "the node itself, and two steps");
}

#[test]
fn a_full_graph_refuses_and_counts() {
    let mut graph = Graph::new(name("a"));
    for number in 1..MAX_NODES {
        graph.add_node(&name(&format!("n{number}"))).unwrap();
    }
    assert_eq!(graph.add_node(&name("b")), Err(Full));
    assert_eq!(graph.add_edge(&name("a"), &name("b"), edge(1, 0)), Err(Full));
    assert_eq!(graph.add_edge(&name("a"), &name("n1"), edge(1, 0)), Ok(EdgeChange::Added));
    assert_eq!((graph.refused(), graph.nodes().count()), (2, MAX_NODES));
}

/// The tree as the specification describes it: a list in order, and a new start from its head after an edge that others were skipped before.
fn tree_by_scanning(graph: &Graph) -> BTreeSet<(NodeName, NodeName)> {
    let mut list: Vec<(i32, NodeName, NodeName)> = Vec::new();
    for from in graph.nodes() {
        list.extend(graph.edges_of(from).map(|(to, edge)| (edge.weight, from.clone(), to.clone())));
    }
    list.sort();
    let (mut tree, mut visited) = (BTreeSet::new(), BTreeSet::new());
    let Some((_, start, _)) = list.iter().find(|(_, from, _)| graph.route(from).is_some()) else {
        return tree;
    };
    visited.insert(start.clone());
    let (mut at, mut skipped) = (0, false);
    while let Some((_, from, to)) = list.get(at) {
        at += 1;
        let crosses = visited.contains(from) != visited.contains(to);
        if !crosses || graph.edge(to, from).is_none() {
            skipped = true;
            continue;
        }
        visited.extend([from.clone(), to.clone()]);
        tree.insert((from.clone(), to.clone()));
        if std::mem::take(&mut skipped) {
            at = 0;
        }
    }
    tree
}

proptest! {
    #[test]
    fn the_tree_is_the_one_of_the_specification(
        edges in proptest::collection::vec((0..7_u8, 0..7_u8, 0..4_i32, any::<bool>()), 0..40),
        own in 0..7_u8,
    ) {
        let node = |number: u8| name(&format!("n{number}"));
        let mut graph = Graph::new(node(own));
        for (from, to, weight, both) in edges {
            if from != to {
                graph.add_edge(&node(from), &node(to), edge(weight, 0)).unwrap();
                if both {
                    graph.add_edge(&node(to), &node(from), edge(weight, 0)).unwrap();
                }
            }
        }
        graph.compute();
        prop_assert_eq!(graph.tree(), tree_by_scanning(&graph));
    }

    /// Whatever the edges are, exactly the nodes that a plain search finds are reachable, by as many hops, and routes lead to neighbours.
    #[test]
    fn reachable_is_what_a_plain_search_finds(
        edges in proptest::collection::vec((0..8_u8, 0..8_u8, 0..9_i32, any::<bool>()), 0..50),
    ) {
        let node = |number: u8| name(&format!("n{number}"));
        let mut graph = Graph::new(node(0));
        for (from, to, weight, indirect) in &edges {
            if from != to {
                let edge = edge(*weight, u32::from(*indirect));
                graph.add_edge(&node(*from), &node(*to), edge).unwrap();
            }
        }
        let changed = graph.compute();
        let mut found = BTreeMap::from([(node(0), 0_u32)]);
        let mut queue = VecDeque::from([node(0)]);
        while let Some(from) = queue.pop_front() {
            let next: Vec<NodeName> = graph
                .edges_of(&from)
                .map(|(to, _)| to.clone())
                .filter(|to| graph.edge(to, &from).is_some() && !found.contains_key(to))
                .collect();
            for to in next {
                found.insert(to.clone(), found[&from] + 1);
                queue.push_back(to);
            }
        }
        for number in 0..8 {
            let route = graph.route(&node(number));
            prop_assert_eq!(route.is_some(), found.contains_key(&node(number)));
            let Some(route) = route else { continue };
            prop_assert!(route.distance >= found[&node(number)]);
            if number == 0 {
                continue;
            }
            prop_assert!(graph.edge(&node(0), &route.next_hop).is_some());
            let change = Reachability { node: node(number), reachable: true };
            prop_assert!(changed.contains(&change));
            if !route.indirect {
                prop_assert_eq!(&route.via, &node(number));
            }
        }
    }
}
