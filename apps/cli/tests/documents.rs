//! Checks the documents. Links must have targets, files and tests that the text names must exist, the glossary must be
//! in order, and the pre-commit hook must refuse what it should.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the Markdown files for readers, in the root, `docs` with its guides, and `testing/fuzz`.
fn documents() -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/guides", "testing/fuzz"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "md"));
    files.sort();
    files
}

/// Returns a page's lines outside code blocks, without code spans.
fn prose(text: &str) -> impl Iterator<Item = String> {
    let mut code = false;
    text.lines().filter_map(move |line| {
        if line.trim_start().starts_with("```") {
            code = !code;
            return None;
        }
        (!code).then(|| line.split('`').step_by(2).collect())
    })
}

/// Returns the anchor of a heading, in lower case, with words joined by hyphens and without other signs.
fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| slug(line.trim_start_matches('#').trim())).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut links = 0;
    for document in documents() {
        let text = read(&document);
        for line in prose(&text) {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if target.contains("://") {
                    continue;
                }
                links += 1;
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let path = match file {
                    "" => document.clone(),
                    file => document.parent().unwrap().join(file),
                };
                let shown = document.display();
                assert!(path.exists(), "{shown}: {target}: there is no such file");
                let known = anchor.is_empty() || anchors(&read(&path)).contains(anchor);
                assert!(known, "{shown}: {target}: there is no such heading");
            }
        }
    }
    assert!(links > 50, "{links} links were found");
}

/// Returns the Rust files of the repository.
fn sources() -> Vec<PathBuf> {
    let mut folders = ["apps", "crates", "lab", "testing"].map(|name| root().join(name)).to_vec();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                Some(end) if end == "rs" => files.push(path),
                None if path.is_dir() && !path.ends_with("target") => folders.push(path),
                _ => {}
            }
        }
    }
    files
}

#[test]
fn source_files_that_documents_name_exist() {
    let sources = sources();
    let mut named = 0;
    for document in documents().iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let text = read(document);
        for path in text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|span| span.ends_with(".rs") && !span.contains("NAME"))
        {
            named += 1;
            let exists = sources.iter().any(|source| source.ends_with(path));
            assert!(exists, "{}: {path} does not exist", document.display());
        }
    }
    assert!(named > 100, "{named} files");
}

#[test]
fn tests_that_the_threats_name_exist() {
    let sources: String = sources().iter().map(|path| read(path)).collect();
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names: BTreeSet<&str> = sources.split(|c| !is_word(c)).collect();
    let text = read(&root().join("docs/security.md"));
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut named = 0;
    for row in rows {
        let Some(tests) = row.rsplit(" | ").next() else { continue };
        let prose: String = tests.split('`').step_by(2).collect();
        for name in prose.split(|c: char| !is_word(c) && c != '…').filter(|word| word.contains('_'))
        {
            named += 1;
            let exists = match name.strip_suffix('…') {
                Some(start) => names.iter().any(|name| name.starts_with(start)),
                None => names.contains(name),
            };
            assert!(exists, "docs/security.md: there is no test {name}");
        }
    }
    assert!(named > 100, "{named} tests");
}

#[test]
fn the_glossary_is_sorted_and_names_files_that_exist() {
    let text = read(&root().join("docs/GLOSSARY.md"));
    let terms: Vec<String> = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("- **")?.split_once("**: ")?.0.to_lowercase()))
        .collect();
    assert!(terms.len() >= 40, "{} terms", terms.len());
    assert!(terms.is_sorted(), "{terms:?}");
    let distinct: BTreeSet<&String> = terms.iter().collect();
    assert_eq!(distinct.len(), terms.len(), "{terms:?}");
    let is_path = |span: &&str| span.contains('/') && span.is_ascii() && !span.contains(' ');
    let paths: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_path).collect();
    assert!(paths.len() >= terms.len(), "{paths:?}");
    for path in paths {
        assert!(root().join(path).exists(), "docs/GLOSSARY.md: {path} does not exist");
    }
}

/// A repository with the hook installed.
struct Repository(tempfile::TempDir);

impl Repository {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        for file in ["scripts/hooks/pre-commit", "scripts/words.sh", "rustfmt.toml"] {
            let to = this.0.path().join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(root().join(file), to).unwrap();
        }
        for arguments in [&["init", "-q"][..], &["config", "core.hooksPath", "scripts/hooks"]] {
            assert!(this.git(arguments).status.success());
        }
        this
    }

    /// Runs git without configuration and with the test's own repository; ignores the caller's environment.
    fn git(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("git");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GIT_") {
                command.env_remove(name);
            }
        }
        command
            .args(["-c", "user.name=a", "-c", "user.email=a@example.org"])
            .args(["-c", "commit.gpgSign=false"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .current_dir(&self.0)
            .output()
            .unwrap()
    }

    /// Commits a file. Returns the hook's message if it refuses.
    fn commit(&self, file: &str, text: &str) -> Result<(), String> {
        fs::write(self.0.path().join(file), text).unwrap();
        assert!(self.git(&["add", file]).status.success());
        let output = self.git(&["commit", "-q", "-m", "a change"]);
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

#[test]
fn the_hook_looks_at_what_is_staged() {
    let repository = Repository::new();
    repository.commit("good.rs", "// A comment.\nfn main() {}\n").unwrap();
    let refusal = repository.commit("bad.rs", "fn main( ) {}\n").unwrap_err();
    assert!(refusal.contains("bad.rs is not formatted"), "{refusal}");
    repository.commit("bad.rs", "mod elsewhere;\n\nfn main() {}\n").unwrap();

    let refusal = repository.commit("page.md", "# A page\n\nNobody knows.\n").unwrap_err();
    assert!(refusal.contains("page.md:3: \"nobody\""), "{refusal}");
    let code = "# A page\n\nThe user `nobody`.\n\n```text\nnobody\n```\n";
    repository.commit("page.md", code).unwrap();
    let refusal = repository.commit("good.rs", "// Whoever.\nfn main() {}\n").unwrap_err();
    assert!(refusal.contains("good.rs:1: \"whoever\""), "{refusal}");
    repository.commit("good.rs", "fn main() {\n    let _told = 1;\n}\n").unwrap();

    // A line that existed before is not checked, but an added line is, wherever it is in the file.
    let old = repository.git(&["commit", "-q", "--allow-empty", "-m", "empty"]);
    assert!(old.status.success());
    fs::write(repository.0.path().join("old.md"), "He said so.\n").unwrap();
    assert!(repository.git(&["add", "old.md"]).status.success());
    assert!(repository.git(&["commit", "-q", "--no-verify", "-m", "old"]).status.success());
    repository.commit("old.md", "He said so.\n\nMore.\n").unwrap();
    let refusal = repository.commit("old.md", "He said so.\n\nMore, anew.\n").unwrap_err();
    assert!(refusal.contains("old.md:3: \"anew\"") && !refusal.contains("said"), "{refusal}");
}
