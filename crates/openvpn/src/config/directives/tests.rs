//! Checks the tables of docs/openvpn.md, and the consistency of the table of directives.

use super::*;

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
