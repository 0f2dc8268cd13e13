//! The findings of `adit doctor` about this machine's meshes.

use std::path::Path;

use adit_app_mesh::Paths;
use adit_app_server::doctor::{Finding, firewall_of_mesh};
use adit_runtime::control::{self, MeshReport, Request, Response};

const CHECK: &str = "mesh";

/// Examines all meshes of this machine. Having none is not a problem.
pub(crate) fn examine(dir: Option<&Path>) -> Vec<Finding> {
    match Paths::all(dir) {
        Ok(meshes) => meshes.iter().flat_map(of_mesh).collect(),
        Err(fault) => vec![Finding::warning(CHECK, fault.to_string())],
    }
}

fn of_mesh(paths: &Paths) -> Vec<Finding> {
    let status = control::request(&paths.control_socket(), &Request::Status);
    let Ok(Response::Status(status)) = status else {
        return vec![
            Finding::warning(
                CHECK,
                format!("the node of the mesh {} is not running", paths.name()),
            )
            .remedy(format!("sudo {}", paths.command("up")))
            .remedy(format!("or as a service: systemctl enable --now adit-mesh@{}", paths.name())),
        ];
    };
    match status.mesh {
        Some(report) => {
            let mut findings = of_node(&report, paths);
            let device = Some(report.device.as_str()).filter(|_| report.forwards);
            findings.extend(firewall_of_mesh(device, report.port));
            findings
        }
        None => vec![Finding::warning(CHECK, "another version of adit runs as the node")],
    }
}

fn of_node(report: &MeshReport, paths: &Paths) -> Vec<Finding> {
    let MeshReport { mesh, peers, .. } = report;
    let is_reached = |route: &str| matches!(route, "direct" | "relay");
    let reached = peers.iter().filter(|peer| is_reached(&peer.route)).count();
    let mut findings = vec![match (peers.len(), reached) {
        (0, _) => Finding::ok(CHECK, format!("{mesh}: this node runs, and is the only member"))
            .remedy(format!("invite others: sudo {}", paths.command("invite"))),
        (members, 0) => Finding::problem(
            CHECK,
            format!("{mesh}: cannot reach any of {members} other members"),
        )
        .remedy("this machine must be able to send UDP, or TCP to port 443; and a member that both can reach must be running")
        .remedy(format!(
            "on a member with a public address, open UDP port {} in its firewall and at its provider",
            port(report)
        ))
        .remedy(format!("why: sudo {}", paths.command("path NAME"))),
        (members, reached) => {
            let what = format!("{mesh}: sessions with {reached} of {members} other members");
            Finding::ok(CHECK, what)
        }
    }];
    let relays = peers.iter().filter(|peer| peer.relay).count() + usize::from(report.relay);
    if relays == 0 && !peers.is_empty() {
        let what =
            format!("{mesh}: no member is a relay: members behind NATs may not reach each other");
        findings.push(Finding::warning(CHECK, what).remedy(
            "join a machine with a public address, with a token of adit mesh invite --relay",
        ));
    }
    if report.relay && report.nat.starts_with("symmetric") {
        let what = format!("{mesh}: this node relays for others, but is behind a {}", report.nat);
        findings.push(
            Finding::warning(CHECK, what)
                .remedy(format!("forward UDP port {} at the router to this machine", port(report))),
        );
    }
    let warnings = report.warnings.iter();
    findings.extend(warnings.map(|warning| Finding::warning(CHECK, format!("{mesh}: {warning}"))));
    findings
}

/// Returns the node's port. A report of another version lacks it.
fn port(report: &MeshReport) -> u16 {
    if report.port == 0 { 1194 } else { report.port }
}

#[cfg(test)]
mod tests {
    use adit_app_server::doctor::Level;
    use adit_runtime::control::MeshPeer;

    use super::*;

    fn levels(report: &MeshReport) -> Vec<Level> {
        let paths = Paths::new(None, "home").unwrap();
        of_node(report, &paths).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn a_node_that_reaches_no_other_is_a_problem_and_its_warnings_are_shown() {
        let peer =
            |route: &str, relay| MeshPeer { route: route.into(), relay, ..MeshPeer::default() };
        let alone = MeshReport { mesh: "home".into(), relay: true, ..MeshReport::default() };
        assert_eq!(levels(&alone), [Level::Fine]);
        let cut_off = MeshReport { peers: vec![peer("none", true)], ..alone.clone() };
        assert_eq!(levels(&cut_off), [Level::Problem]);
        let well = MeshReport { peers: vec![peer("direct", true)], ..alone.clone() };
        assert_eq!(levels(&well), [Level::Fine]);
        let warned = MeshReport { warnings: vec!["a key is in use twice".into()], ..well.clone() };
        assert_eq!(levels(&warned), [Level::Fine, Level::Warning]);
        let unrelayed =
            MeshReport { relay: false, peers: vec![peer("direct", false)], ..alone.clone() };
        assert_eq!(levels(&unrelayed), [Level::Fine, Level::Warning]);
        let hidden = MeshReport { nat: "symmetric NAT with random ports".into(), ..well };
        assert_eq!(levels(&hidden), [Level::Fine, Level::Warning]);
    }

    #[test]
    fn a_mesh_whose_node_does_not_run_is_a_warning_with_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        paths.create().unwrap();
        std::fs::write(paths.roster_file(), "").unwrap();
        let findings = examine(Some(dir.path()));
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.remedy[0].contains("adit mesh up"), "{finding:?}");
        assert!(examine(Some(&dir.path().join("none"))).is_empty());
    }
}
