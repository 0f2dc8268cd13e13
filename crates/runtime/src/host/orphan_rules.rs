//! Finds rules of a full tunnel that are in no undo log.

use adit_linux::net::{Net, Rule};

use super::policy_routing::{capturing, is_of_tunnel};
use super::undo_log;

/// Returns the rules that capture all traffic into a table without a route and that are in no undo
/// log. Either the log was removed, or it is in a directory that this process cannot see.
pub(super) async fn rules(net: &Net) -> Vec<Rule> {
    let rules = net.rules().await.unwrap_or_default();
    let capturing: Vec<Rule> = rules.iter().filter_map(capturing).collect();
    if capturing.is_empty() {
        // This is almost always the case. Return early, because a router has many routes.
        return Vec::new();
    }
    let routes = net.routes().await.unwrap_or_default();
    let claims = undo_log::Claims::read();
    // An active tunnel has a route into its device.
    let leads = |rule: &Rule| routes.iter().any(|route| route.table == Some(rule.table));
    capturing.into_iter().filter(|rule| !claims.contain(rule) && !leads(rule)).collect()
}

/// Removes the rules that [`rules`] finds, the earlier rules of the same tunnel, and its table.
pub(super) async fn release(net: &Net) -> Vec<String> {
    let mut undone = Vec::new();
    for rule in rules(net).await {
        let listed = net.rules().await.unwrap_or_default();
        let same = listed.iter().filter(|other| is_of_tunnel(other, &rule));
        for other in same {
            let rule =
                Rule { preference: other.preference, table: other.table, not_mark: None, ..rule };
            if net.delete_rule(&rule).await.is_ok() {
                undone.push(format!("the rule {rule}"));
            }
        }
        let mut routes = net.all_routes().await.unwrap_or_default();
        routes.retain(|route| route.table == Some(rule.table));
        for route in routes {
            if net.delete_route(&route).await.is_ok() {
                undone.push(format!("the route {route}"));
            }
        }
    }
    undone
}
