//! adit at a git revision, built in a separate folder, `target/lab/rev/<full sha>`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::process::output;

use super::Subject;

/// Builds the revisions that `adit@REVISION` names, unless they are already built, and returns the paths of the
/// binaries by the revision as written.
///
/// Call it before [`adit_testbed::sandbox::enter`]: cargo may need the registry, and the sandbox has no network. It
/// takes milliseconds if everything is built.
///
/// # Errors
/// git does not know a revision, which the error names; there is no git repository here; or a revision does not build.
pub fn prepare(subjects: &[Subject]) -> Result<BTreeMap<String, PathBuf>> {
    let mut built = BTreeMap::new();
    for subject in subjects {
        let Some(revision) = subject.revision() else { continue };
        let root = workspace()?;
        let sha = resolve(&root, revision)?;
        let binary = binary(&root, &sha);
        if !binary.exists() {
            build(&root, &sha, revision)?;
        }
        built.insert(revision.to_owned(), binary);
    }
    Ok(built)
}

/// Returns the folder of adit's sources, searched upwards from this program and from the current folder.
///
/// # Errors
/// Neither is in a checkout.
pub fn workspace() -> Result<PathBuf> {
    let starts = [std::env::current_exe()?, std::env::current_dir()?];
    let is_root = |path: &&Path| path.join("lab/Cargo.toml").exists();
    starts
        .iter()
        .find_map(|start| start.ancestors().find(is_root))
        .map(Path::to_owned)
        .context("adit's sources are needed for this: run it inside a checkout of adit")
}

/// Runs git in the folder of adit's sources.
pub(crate) fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    // Under sudo the checkout belongs to another user, which git refuses unless it is declared safe.
    command.args(["-c", "safe.directory=*", "-C"]).arg(root);
    command
}

/// Returns the full sha of a revision.
fn resolve(root: &Path, revision: &str) -> Result<String> {
    ensure(!revision.starts_with('-'), || format!("adit@{revision}: not a revision"))?;
    let mut command = git(root);
    command.args(["rev-parse", "--verify", "--quiet", "--end-of-options"]);
    command.arg(format!("{revision}^{{commit}}"));
    let sha = output(command).map_err(|_| {
        format!("adit@{revision}: git knows no such revision in {}: see git log", root.display())
    })?;
    Ok(sha.trim().to_owned())
}

/// Returns the revision of this tree's sources, with `-dirty` if files differ from it; `None` without git.
pub(super) fn of_this_tree() -> Option<String> {
    let mut command = git(&workspace().ok()?);
    command.args(["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]);
    output(command).ok().map(|text| text.trim().to_owned())
}

/// Returns a source file that has changed since the binary was built, according to cargo's list of source files.
pub(super) fn newer_source(binary: &Path) -> Option<PathBuf> {
    let built = std::fs::metadata(binary).ok()?.modified().ok()?;
    let list = std::fs::read_to_string(binary.with_extension("d")).ok()?;
    let changed = |path: &PathBuf| {
        let modified = std::fs::metadata(path).and_then(|data| data.modified());
        modified.is_ok_and(|modified| modified > built)
    };
    sources(&list).into_iter().find(changed)
}

/// Returns the files after the colon; a backslash precedes each space within a name.
fn sources(list: &str) -> Vec<PathBuf> {
    let (_, files) = list.split_once(": ").unwrap_or_default();
    let files = files.trim_end().replace("\\ ", "\0");
    files.split(' ').map(|file| PathBuf::from(file.replace('\0', " "))).collect()
}

fn side(root: &Path, sha: &str) -> PathBuf {
    root.join("target/lab/rev").join(sha)
}

/// Returns the path of the finished binary.
fn binary(root: &Path, sha: &str) -> PathBuf {
    side(root, sha).join("adit")
}

/// Unpacks and builds the revision. The binary is moved to its final path last, so that an interrupted build is
/// repeated.
fn build(root: &Path, sha: &str, revision: &str) -> Result<()> {
    let side = side(root, sha);
    let sources = side.join("src");
    std::fs::create_dir_all(&sources).context(sources.display())?;
    eprintln!("building adit@{revision} ({sha}) in {}: this takes minutes", side.display());
    let mut archive = git(root);
    let mut archive = archive
        .args(["archive", "--format=tar", sha])
        .stdout(Stdio::piped())
        .spawn()
        .context("git archive")?;
    let stdout = archive.stdout.take().context("git archive has no output")?;
    let mut tar = Command::new("tar");
    let unpacked = tar.arg("-x").arg("-C").arg(&sources).stdin(stdout).status().context("tar")?;
    let archived = archive.wait()?;
    ensure(unpacked.success() && archived.success(), || {
        format!("adit@{revision}: its sources could not be unpacked into {}", sources.display())
    })?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(&sources)
        .args(["build", "--release", "--locked", "--quiet", "-p", "adit-cli"])
        .env("CARGO_TARGET_DIR", side.join("target"))
        .stdin(Stdio::null())
        .status()
        .context("starting cargo: it must be in PATH (with sudo: sudo env PATH=$PATH ...)")?;
    ensure(status.success(), || {
        format!(
            "adit@{revision} ({sha}) does not build: see above; its sources: {}",
            sources.display()
        )
    })?;
    let finished = side.join("target/release/adit");
    std::fs::copy(&finished, side.join("adit.new")).context(finished.display())?;
    std::fs::rename(side.join("adit.new"), binary(root, sha)).context("the finished binary")?;
    // This frees most of a gigabyte that is not needed again, because a revision does not change.
    std::fs::remove_dir_all(side.join("target")).context("removing what the build left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_revision_is_refused_by_name() {
        let subject = |name: &str| name.parse::<Subject>().unwrap();
        let failure = prepare(&[subject("adit@no-such-thing")]).unwrap_err();
        assert!(failure.0.contains("adit@no-such-thing"), "{failure}");
        let failure = prepare(&[subject("adit@--help")]).unwrap_err();
        assert!(failure.0.contains("adit@--help"), "{failure}");
    }

    #[test]
    fn what_is_no_revision_needs_no_build() {
        assert!(prepare(&[Subject::Bare, Subject::ADIT]).unwrap().is_empty());
    }

    #[test]
    fn a_binary_older_than_a_source_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (binary, source) = (path("adit"), path("a b.rs"));
        std::fs::write(&source, "").unwrap();
        std::fs::write(&binary, "").unwrap();
        let name = source.display().to_string().replace(' ', "\\ ");
        std::fs::write(path("adit.d"), format!("{}: {name} /gone.rs\n", binary.display())).unwrap();
        let touch = |path: &Path, seconds| {
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
        };
        touch(&binary, 1_000);
        touch(&source, 2_000);
        assert_eq!(newer_source(&binary), Some(source.clone()));
        touch(&source, 500);
        assert_eq!(newer_source(&binary), None);
    }

    #[test]
    fn a_sha_resolves_to_itself() {
        let root = workspace().unwrap();
        let Ok(sha) = resolve(&root, "HEAD") else { return };
        assert_eq!(resolve(&root, &sha[..12]).unwrap(), sha);
    }
}
