//! Checks the tables of docs/openvpn.md, and the consistency of the table of directives.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Directives that the manual of openvpn 2.7 calls deprecated, or lists as removed.
const DEPRECATED: &[&str] = &[
    "allow-deprecated-insecure-static-crypto",
    "client-cert-not-required",
    "comp-lzo",
    "comp-noadapt",
    "compress",
    "disable-occ",
    "fast-io",
    "http-proxy-retry",
    "http-proxy-timeout",
    "ifconfig-pool-linear",
    "key-method",
    "link-mtu",
    "management-client-pf",
    "max-routes",
    "ncp-disable",
    "no-iv",
    "no-replay",
    "ns-cert-type",
    "opt-verify",
    "persist-key",
    "prng",
    "socks-proxy-retry",
    "use-prediction-resistance",
    "verify-hash",
    "windows-driver",
];

/// Directives that the manual lists as those of Windows.
const OTHER_PLATFORMS: &[&str] = &[
    "allow-nonadmin",
    "block-outside-dns",
    "cryptoapicert",
    "dhcp-release",
    "dhcp-renew",
    "ip-win32",
    "pause-exit",
    "register-dns",
    "route-method",
    "service",
    "show-adapters",
    "show-net",
    "show-net-up",
    "show-valid-subnets",
    "tap-sleep",
    "win-sys",
];

/// Directives that have no place in a configuration: a server pushes them, and the client then uses them.
const PUSHED: &[&str] = &["auth-token", "auth-token-user"];

/// The share of the manual's directives that must be in force, in percent.
const LEAST_SHARE: usize = 95;

/// Returns the directives and commands of the manual of openvpn 2.7 that a program for Linux should have.
fn manual() -> Vec<&'static str> {
    let names = include_str!("../fixtures/directives-2.7.txt").lines();
    names.filter(|name| !DEPRECATED.contains(name) && !OTHER_PLATFORMS.contains(name)).collect()
}

/// Returns the number of the manual's directives, and how many of them are in force, without effect, and refused.
fn counts() -> (usize, [usize; 3]) {
    let names = manual();
    let mut counts = [0; 3];
    for name in &names {
        let spec = find(name).unwrap_or_else(|| panic!("{name} has no row"));
        let at = match spec.support {
            _ if PUSHED.contains(name) => 0,
            Support::Used(_) | Support::ClientFile | Support::Alone(..) => 0,
            Support::NoEffect(_) => 1,
            Support::Refused(..) => 2,
        };
        counts[at] += 1;
    }
    (names.len(), counts)
}

/// Returns the share of the directives in force in tenths of a percent, rounded down.
fn share(count: usize, all: usize) -> String {
    let tenths = count * 1000 / all;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn count_text() -> String {
    let (all, [in_force, without, refused]) = counts();
    let share = share(in_force, all);
    format!(
        "The manual of openvpn 2.7 describes {all} directives and commands that are neither deprecated nor for other platforms. Of these,\n\
         {in_force} ({share} %) are in force, {without} are accepted without effect, and {refused} are refused. Each directive in force is shown by a\n\
         [test](../crates/openvpn/src/config/fixtures/tests-of-directives.txt).\n"
    )
}

/// Returns the rows of a support level by name.
fn rows(level: fn(&Support) -> bool) -> Vec<&'static Spec> {
    let mut rows: Vec<_> = all().filter(|spec| level(&spec.support)).collect();
    rows.sort_by_key(|spec| spec.name);
    rows
}

/// Returns the ends of the tunnel where a directive is in force.
fn ends(roles: Roles) -> String {
    let fits = [(roles.client, "client"), (roles.server, "server"), (roles.p2p, "point-to-point")];
    match fits.iter().filter(|(fit, _)| *fit != DirectiveEffect::Used).count() {
        0 => "all".into(),
        _ => {
            let used = fits.iter().filter(|(fit, _)| {
                matches!(fit, DirectiveEffect::Used | DirectiveEffect::IgnoredWithTun)
            });
            let ends: Vec<_> = used
                .map(|(fit, end)| match fit {
                    DirectiveEffect::IgnoredWithTun => format!("{end} with TAP"),
                    _ => (*end).to_owned(),
                })
                .collect();
            ends.join(", ")
        }
    }
}

/// Returns the other places that allow the directive, and its alternatives.
fn places(spec: &Spec) -> String {
    let places = [
        (spec.block, "block"),
        (!matches!(spec.in_connection, InConnection::Refused), "connection"),
        (spec.in_client_file.is_some(), "client"),
    ];
    let places: Vec<_> = places.into_iter().filter(|(is, _)| *is).map(|(_, place)| place).collect();
    places.join(", ")
}

fn used_table() -> String {
    let mut text = "| directive | ends | places | what it does |\n|---|---|---|---|\n".to_owned();
    for spec in rows(|support| matches!(support, Support::Used(_))) {
        let usage = spec.usage().replace('|', "\\|");
        let (ends, places) = (ends(spec.roles), places(spec));
        text += &format!("| `{usage}` | {ends} | {places} | {} |\n", spec.doc);
    }
    text
}

fn client_file_table() -> String {
    let mut text = "| directive | what it does |\n|---|---|\n".to_owned();
    for spec in rows(|support| matches!(support, Support::ClientFile)) {
        text += &format!("| `{}` | {} |\n", spec.usage().replace('|', "\\|"), spec.doc);
    }
    text
}

fn no_effect_table() -> String {
    let mut text = "| directive | why |\n|---|---|\n".to_owned();
    for spec in rows(|support| matches!(support, Support::NoEffect(_))) {
        let Support::NoEffect(why) = spec.support else { continue };
        text += &format!("| `{}` | {why} |\n", spec.name);
    }
    text
}

fn alone_table() -> String {
    let mut text = "| command | what it does |\n|---|---|\n".to_owned();
    for spec in rows(|support| matches!(support, Support::Alone(..))) {
        let Support::Alone(command, effect) = spec.support else { continue };
        text += &format!("| `adit openvpn {}` | {effect} |\n", command.replace('|', "\\|"));
    }
    text
}

fn refused_table() -> String {
    let mut text = "| directive | why | instead |\n|---|---|---|\n".to_owned();
    for spec in rows(|support| matches!(support, Support::Refused(..))) {
        let Support::Refused(why, instead) = spec.support else { continue };
        text += &format!("| `{}` | {why} | {instead} |\n", spec.name);
    }
    text
}

/// Regenerates the regions of a page, from `<!-- directives: NAME -->` to `<!-- end of directives -->`.
fn with_tables(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    for (name, table) in [
        ("count", count_text()),
        ("in force", used_table()),
        ("of a client's file", client_file_table()),
        ("commands", alone_table()),
        ("without effect", no_effect_table()),
        ("refused", refused_table()),
    ] {
        let (begin, end) = (format!("<!-- directives: {name} -->\n"), "<!-- end of directives -->");
        let (before, after) = rest.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = after.split_once(end).expect("the region ends");
        text += &format!("{before}{begin}{table}{end}");
        rest = after;
    }
    text + rest
}

/// Run `UPDATE_DOCS=1 cargo test -p adit-openvpn --lib directives` to update the tables.
#[test]
fn the_page_about_directives_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openvpn.md");
    let page = std::fs::read_to_string(path).unwrap();
    let current = with_tables(&page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(path, &current).unwrap();
    }
    assert!(page == current, "docs/openvpn.md is not the table's: run this with UPDATE_DOCS=1");
}

#[test]
fn nearly_all_directives_of_the_manual_are_in_force() {
    let (all, [in_force, ..]) = counts();
    assert!(in_force * 100 >= all * LEAST_SHARE, "{in_force} of {all}: {}", share(in_force, all));
    for name in DEPRECATED.iter().chain(OTHER_PLATFORMS).chain(PUSHED) {
        let listed =
            include_str!("../fixtures/directives-2.7.txt").lines().any(|line| line == *name);
        assert!(listed, "{name} is not in the manual");
    }
}

/// `fixtures/tests-of-directives.txt` names, for each directive in force, a file and a function in it that shows the
/// directive's effect. The file also names the directive, or the field in the fourth column.
#[test]
fn each_directive_in_force_is_shown_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let list = include_str!("../fixtures/tests-of-directives.txt");
    let mut shown = BTreeMap::new();
    for line in list.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, path, function, named @ ..] = words.as_slice() else { panic!("{line}") };
        let named = named.first().unwrap_or(name);
        assert!(shown.insert(*name, (*path, *function, *named)).is_none(), "{name}: twice");
    }
    let in_force = all().filter(|spec| {
        matches!(spec.support, Support::Used(_) | Support::ClientFile | Support::Alone(..))
            || PUSHED.contains(&spec.name)
    });
    let in_force: BTreeSet<_> = in_force.map(|spec| spec.name).collect();
    let listed: BTreeSet<_> = shown.keys().copied().collect();
    let differences: Vec<_> = in_force.symmetric_difference(&listed).collect();
    assert!(differences.is_empty(), "fixtures/tests-of-directives.txt: {differences:?}");
    for (name, (path, function, named)) in shown {
        let text =
            std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(text.contains(&format!("fn {function}(")), "{path} has no {function}");
        assert!(names(&text, named), "{path} does not name {named}, for {name}");
    }
}

/// Returns whether a source file contains a name as a word, possibly after `--` or an escaped line break.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let begins =
            before.ends_with("\\n") || before.ends_with("--") || !before.ends_with(is_word);
        begins && !after.starts_with(is_word)
    })
}

#[test]
fn each_name_is_there_once_and_described() {
    let mut names: Vec<_> = all().map(|spec| spec.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for spec in all() {
        let does = matches!(spec.support, Support::Used(_) | Support::ClientFile);
        assert_eq!(does, !spec.doc.is_empty(), "{}", spec.name);
        assert!(spec.doc.is_empty() || spec.doc.ends_with('.'), "{}", spec.name);
    }
}

#[test]
fn a_typing_error_finds_its_directive() {
    assert_eq!(nearest("remtoe"), Some("remote"));
    assert_eq!(nearest("presist-key"), Some("persist-key"));
    assert_eq!(nearest("data-cipher"), Some("data-ciphers"));
    assert_eq!(nearest("gibberish-entirely"), None);
}

#[test]
fn the_help_has_each_directive_in_force() {
    let help = help();
    for spec in all() {
        let shown = help.lines().any(|line| line == format!("--{}", spec.usage()));
        assert_eq!(shown, matches!(spec.support, Support::Used(_)), "{}", spec.name);
    }
}
