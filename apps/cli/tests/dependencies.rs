//! Checks that the crates depend on each other only as docs/ARCHITECTURE.md allows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A crate's dependencies within the workspace, identified by their directories as in the document.
#[derive(Debug, Default)]
struct Dependencies {
    always: BTreeSet<String>,
    tests: BTreeSet<String>,
}

/// Returns the rows of the document's table.
fn allowed(document: &str) -> BTreeMap<String, Dependencies> {
    let names = |cell: &str| {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (_, section) = document.split_once("## Crates and their dependencies").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [name, _purpose, always, tests] = cells[..] else { panic!("four columns: {row}") };
        let name = names(name).into_iter().next().unwrap();
        (name, Dependencies { always: names(always), tests: names(tests) })
    })
    .collect()
}

/// Returns the dependencies in the manifests.
fn actual(root: &Path) -> BTreeMap<String, Dependencies> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folder = manifest.parent().unwrap().strip_prefix(root).unwrap();
        let folder = folder.to_str().unwrap();
        folder.strip_prefix("crates/").unwrap_or(folder).to_owned()
    };
    let folders: BTreeMap<&str, String> = packages
        .iter()
        .map(|package| (package["name"].as_str().unwrap(), folder(package)))
        .collect();
    let mut crates = BTreeMap::new();
    for package in packages {
        let mut found = Dependencies::default();
        for dependency in package["dependencies"].as_array().unwrap() {
            let Some(to) = folders.get(dependency["name"].as_str().unwrap()) else { continue };
            match dependency["kind"].as_str() {
                Some("dev") => found.tests.insert(to.clone()),
                _ => found.always.insert(to.clone()),
            };
        }
        crates.insert(folder(package), found);
    }
    crates
}

#[test]
fn every_dependency_is_one_that_the_architecture_allows() {
    let root = std::fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap();
    let document = std::fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
    let (allowed, actual) = (allowed(&document), actual(&root));
    let rows: Vec<&String> = allowed.keys().collect();
    assert_eq!(rows, actual.keys().collect::<Vec<_>>(), "a row for each crate, and no other");
    for (name, found) in &actual {
        let Dependencies { always, tests } = &allowed[name];
        let forbidden: Vec<&String> = found.always.difference(always).collect();
        assert!(forbidden.is_empty(), "{name} must not depend on {forbidden:?}");
        let known = always | tests;
        let forbidden: Vec<&String> = found.tests.difference(&known).collect();
        assert!(forbidden.is_empty(), "the tests of {name} must not use {forbidden:?}");
    }
}

#[test]
fn a_row_is_read_as_it_is_written() {
    let document =
        "## Crates and their dependencies\n| `a/b` | with `code` | `c`, `d/e` | `f` |\n\n## Next";
    let rows = allowed(document);
    let row = &rows["a/b"];
    assert_eq!(row.always, ["c".to_owned(), "d/e".to_owned()].into());
    assert_eq!(row.tests, ["f".to_owned()].into());
}

/// The bill of materials lists what is compiled into the program, with hashes, and nothing that only tests use.
#[test]
fn the_bill_of_materials_lists_the_crates_of_the_program() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let output = Command::new(root.join("scripts/sbom.py"))
        .arg("adit-cli")
        .env("CARGO_NET_OFFLINE", "true")
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bom: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bom["metadata"]["component"]["name"], "adit");
    let components = bom["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    for name in ["rustls", "aws-lc-sys", "tokio", "clap"] {
        let component = named(name).unwrap();
        assert_eq!(component["hashes"][0]["content"].as_str().unwrap().len(), 64, "{name}");
        assert!(component["purl"].as_str().unwrap().starts_with("pkg:cargo/"), "{name}");
        assert!(!component["licenses"][0]["expression"].as_str().unwrap().is_empty(), "{name}");
    }
    assert!(named("adit-openvpn").unwrap().get("hashes").is_none());
    for name in ["adit-testbed", "proptest"] {
        assert!(named(name).is_none(), "{name} is only for tests");
    }
}
