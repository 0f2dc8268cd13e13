//! A node of a tinc net in `adit status`, `adit top` and `adit doctor`.

use adit_app_server::doctor::Finding;
use adit_app_tinc::{Net, NetOptions, net_names};
use adit_runtime::control::{self, Request, Response, TincNode, TincReport};
use adit_runtime::log::clean;
use adit_runtime::paths::Paths;

use crate::text::{bytes, count, now, row, span, table_of_names, wrapped};

const CHECK: &str = "tinc";

/// Returns the section of a node.
pub(crate) fn in_status(report: &TincReport) -> String {
    let mut text = format!("  node {}, mode {}", clean(&report.node), report.mode);
    if let Some(device) = &report.device {
        text.push_str(&format!(", device {}", clean(device)));
    }
    text.push('\n');
    text.push_str(&wrapped(
        "  trust: ",
        "members announce nodes, connections and subnets unsigned, and each believes the others",
    ));
    if report.learned_keys > 0 {
        let keys = count(usize::try_from(report.learned_keys).unwrap_or(usize::MAX), "key");
        let what = format!("{keys} learned over the net on first use: compare with the nodes' own");
        text.push_str(&wrapped("  trust: ", &what));
    }
    if report.name_conflict {
        let what = "another node seems to have this node's name: give one of them another";
        text.push_str(&wrapped("  WARNING: ", what));
    }
    text + &nodes(report)
}

/// Returns the table of the other nodes.
pub(crate) fn nodes(report: &TincReport) -> String {
    if report.nodes.is_empty() {
        return "  no other node is known\n".into();
    }
    let mut rows = vec![row(["  NODE", "PATH", "ROUND TRIP", "SINCE", "RECEIVED", "SENT"])];
    for node in &report.nodes {
        rows.push(vec![
            format!("  {}", clean(&node.name)),
            path(node),
            node.rtt_us.map(round_trip).unwrap_or_default(),
            if node.since > 0 { span(now().saturating_sub(node.since)) } else { String::new() },
            bytes(node.rx_bytes),
            bytes(node.tx_bytes),
        ]);
    }
    let mut text = table_of_names(rows);
    if report.nodes.iter().any(|node| node.path == "legacy") {
        text.push_str(&wrapped(
            "  legacy: ",
            "a node of tinc 1.0, whose packets every node on the way can read",
        ));
    }
    text
}

fn path(node: &TincNode) -> String {
    match (&node.via, node.path.as_str()) {
        (Some(via), _) => format!("through {}", clean(via)),
        (None, "none") => "not reachable".to_owned(),
        (None, path) => clean(path),
    }
}

fn round_trip(micros: u64) -> String {
    if micros < 1000 { format!("{micros} µs") } else { format!("{} ms", micros / 1000) }
}

/// Examines the nets of this machine whose daemon is adit's. Having none is not a problem.
pub(crate) fn examine(folder: &std::path::Path) -> Vec<Finding> {
    let names = net_names(folder).unwrap_or_default();
    let nets = names.into_iter().filter_map(|name| {
        let options = NetOptions { name: Some(name), ..NetOptions::default() };
        Net::new(&options, None).ok()
    });
    nets.filter_map(|net| of_net(&net)).collect()
}

fn of_net(net: &Net) -> Option<Finding> {
    let socket = Paths::new(None).ok()?.run.join(format!("{}.sock", net.instance()));
    let Ok(Response::Status(status)) = control::request(&socket, &Request::Status) else {
        // The net may be one of tinc's own daemon, or switched off.
        return None;
    };
    Some(of_node(&*status.tinc?, &net.instance()))
}

fn of_node(report: &TincReport, instance: &str) -> Finding {
    let known = report.nodes.len();
    let reached = report.nodes.iter().filter(|node| node.reachable).count();
    if report.name_conflict {
        return Finding::problem(CHECK, format!("{instance}: another node has this node's name"))
            .remedy("give one of them another name with: adit tinc init");
    }
    match (known, reached) {
        (0, _) => Finding::ok(CHECK, format!("{instance}: this node runs, and knows no other")),
        (known, 0) => Finding::problem(
            CHECK,
            format!("{instance}: none of {} is reachable", count(known, "other node")),
        )
        .remedy("a node needs a ConnectTo or AutoConnect, and an Address in the other's host file")
        .remedy(format!("mistakes in the files: adit tinc{} fsck", option(report))),
        (known, reached) => Finding::ok(
            CHECK,
            format!("{instance}: {reached} of {} reachable", count(known, "other node")),
        ),
    }
}

fn option(report: &TincReport) -> String {
    report.net.as_ref().map(|net| format!(" -n {}", clean(net))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use adit_app_server::doctor::Level;

    use super::*;

    fn report() -> TincReport {
        let node = |name: &str, path: &str, reachable| TincNode {
            name: name.into(),
            path: path.into(),
            reachable,
            ..TincNode::default()
        };
        TincReport {
            net: Some("office".into()),
            node: "alice".into(),
            mode: "router".into(),
            device: Some("office".into()),
            nodes: vec![
                TincNode { rtt_us: Some(1500), rx_bytes: 1000, ..node("bob", "udp", true) },
                TincNode { via: Some("bob".into()), ..node("carol", "relay", true) },
                node("dave", "none", false),
            ],
            ..TincReport::default()
        }
    }

    #[test]
    fn the_status_names_paths_and_what_a_net_trusts() {
        let text = in_status(&report());
        for line in [
            "  node alice, mode router, device office\n",
            "  trust: members announce",
            "  bob    udp            1 ms",
            "  carol  through bob",
            "  dave   not reachable",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("first use") && !text.contains("legacy"), "{text}");
        let mut other = report();
        other.learned_keys = 1;
        other.nodes[0].path = "legacy".into();
        let text = in_status(&other);
        assert!(text.contains("1 key learned over the net on first use"), "{text}");
        assert!(text.contains("legacy: a node of tinc 1.0"), "{text}");
    }

    #[test]
    fn a_net_without_a_reachable_node_is_a_problem() {
        let finding = of_node(&report(), "tinc-office");
        assert_eq!(
            (finding.level, finding.what.as_str()),
            (Level::Fine, "tinc-office: 2 of 3 other nodes reachable")
        );
        let mut alone = report();
        alone.nodes.iter_mut().for_each(|node| node.reachable = false);
        assert_eq!(of_node(&alone, "tinc-office").level, Level::Problem);
        alone.nodes.clear();
        assert_eq!(of_node(&alone, "tinc-office").level, Level::Fine);
        alone.name_conflict = true;
        assert_eq!(of_node(&alone, "tinc-office").level, Level::Problem);
    }
}
