//! The RPM, the tarball and the container image.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::debian::server_address;
use super::{Case, FORMATS, VERSION, build, ensure_same, without_folders};
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::process::{Daemon, output, run};
use crate::sandbox::text;
use crate::traffic::ping;
use crate::wait::until;

/// The time within which a server is up.
const SOON: Duration = Duration::from_secs(30);

/// The RPM installs, replaces itself and goes without remains; its files are those of the Debian package.
pub(super) fn rpm(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    let file = case.file(&format!("adit-{VERSION}-1."), ".rpm")?;
    let (before, users) = (machine.files()?, machine.users()?);
    // Debian's packages satisfy none of an RPM's names.
    let database = format!("_dbpath {}", case.folder.join("database").display());
    let rpm = |words: &[&str]| {
        let mut command = Command::new("rpm");
        command.args(["--root", text(&machine.root), "--define", &database, "--nodeps"]);
        output({
            command.args(words);
            command
        })
    };
    for action in ["--install", "--reinstall"] {
        rpm(&[action, text(&file)])?;
        let version = machine.run("adit", &["--version"])?;
        ensure(version.starts_with("adit "), || format!("not adit: {version}"))?;
        ensure(machine.users()?.contains("adit:x:"), || "no user adit".into())?;
    }
    let remains = run("rpm", &["--query", "--package", "--requires", text(&file)])?;
    for name in ["libc.so.6(GLIBC_2.", "shadow-utils"] {
        ensure(remains.contains(name), || format!("does not require {name}: {remains}"))?;
    }
    let packed = |list: String| -> BTreeSet<String> {
        // Debian's zsh looks in another folder.
        let list = list.replace("vendor-completions", "site-functions");
        list.lines().map(|line| line.trim_start_matches('.').to_owned()).collect()
    };
    let mut debian = Command::new("sh");
    debian.args(["-c", "dpkg-deb --fsys-tarfile \"$1\" | tar -t | grep -v '/$'", "sh"]);
    let debian = packed(output({
        debian.arg(case.deb("adit", VERSION)?);
        debian
    })?);
    let listed = packed(run("rpm", &["--query", "--list", "--package", text(&file)])?);
    let folders =
        ["", "/docs", "/docs/guides", "/packaging", "/packaging/examples", "/packaging/metrics"];
    let folders = folders.map(|folder| format!("/usr/share/doc/adit{folder}"));
    ensure_same(&debian, &listed.difference(&folders.into()).cloned().collect())?;
    rpm(&["--erase", "adit"])?;
    // What is left are the user, state, the database, and folders that a system with RPMs has.
    let mut after = without_folders(machine.files()?);
    after.retain(|name| !name.starts_with("tmp/"));
    ensure_same(&without_folders(before), &after)?;
    let made = machine.users()?.replace(users.trim_end(), "");
    ensure(made.contains("adit"), || "the user is gone".into())?;
    Ok(String::new())
}

/// The tarball is unpacked as docs/install.md says, and removed by its own list.
pub(super) fn tarball(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    let file = case.file(&format!("adit-{VERSION}-"), ".tar.gz")?;
    let before = machine.files()?;
    let root = text(&machine.root);
    run("tar", &["-C", root, "--strip-components=1", "--no-overwrite-dir", "-xzf", text(&file)])?;
    machine.run("systemd-sysusers", &[])?;
    machine.run("systemd-tmpfiles", &["--create", "adit.conf"])?;
    ensure(machine.users()?.contains("adit:x:"), || "no user adit".into())?;
    machine.expect_file("run/adit", true)?;
    let version = machine.run("adit", &["--version"])?;
    ensure(version.starts_with("adit "), || format!("not adit: {version}"))?;
    let mut removal = Command::new("sh");
    let line = "tar -tzf \"$1\" | grep -v '/$' | cut -d/ -f2- | (cd \"$2\" && xargs -d '\\n' rm)";
    removal.args(["-c", line, "sh"]).arg(&file).arg(root);
    output(removal)?;
    ensure_same(&without_folders(before), &without_folders(machine.files()?))?;
    Ok(String::new())
}

/// The image is a valid layout. Its server in a container that has nothing else serves a client, and takes further commands.
pub(super) fn image(case: &Case<'_>) -> Result<String> {
    let file = case.file(&format!("adit-{VERSION}-"), ".oci.tar")?;
    let (layout, bundle) = (case.folder.join("layout"), case.folder.join("bundle"));
    fs::create_dir_all(bundle.join("rootfs"))?;
    fs::create_dir_all(&layout)?;
    run("tar", &["-C", text(&layout), "-xf", text(&file)])?;
    let index = document(&layout.join("index.json"))?;
    let manifest = document(&blob(&layout, &index["manifests"][0])?)?;
    let config = document(&blob(&layout, &manifest["config"])?)?;
    let layer = blob(&layout, &manifest["layers"][0])?;
    run("tar", &["-C", text(&bundle.join("rootfs")), "-xzf", text(&layer)])?;
    let mut hash = Command::new("sh");
    hash.args(["-c", "gzip -dc \"$1\" | sha256sum", "sh"]).arg(&layer);
    let hash = format!("sha256:{}", output(hash)?.split_whitespace().next().unwrap_or_default());
    ensure(config["rootfs"]["diff_ids"][0] == json!(hash), || "diff_ids is wrong".into())?;
    let shells = run("find", &[text(&bundle), "-name", "sh", "-o", "-name", "bash"])?;
    ensure(shells.is_empty(), || format!("more than adit: {shells}"))?;

    let pair = Pair::new()?;
    pair.server.run("ip", &["route", "add", "default", "via", "192.0.2.2"])?;
    let entry = config["config"]["Entrypoint"][0].as_str().context("no entry point")?;
    let words = json!([entry, "server", "up", "--client", "laptop"]);
    fs::write(bundle.join("config.json"), container(&words).to_string())?;
    // A container's manager wants one hierarchy of groups of processes.
    let script = "mount -t tmpfs tmpfs /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; \
                  cd \"$1\"; exec crun --root \"$1/state\" --cgroup-manager=disabled run adit";
    let mut command = pair.server.command("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(&bundle);
    let mut server = Daemon::spawn("container", command)?;
    server.wait_for("Self-test passed", SOON)?;
    let rules = pair.server.run("nft", &["list", "ruleset"])?;
    ensure(rules.contains("masquerade"), || format!("no NAT: {rules}"))?;
    let root = bundle.join("rootfs");
    let mut dial = pair.client.command(text(case.adit));
    dial.args(["connect", "--dns", "off"]).arg(root.join("laptop.ovpn"));
    let mut client = Daemon::spawn("adit connect", dial)?;
    let inside = server_address(&root)?;
    until("the client", SOON, || Ok(ping(&pair.client, inside, 56, 1)? == 1))
        .map_err(|e| client.failure(&server.failure(&e.0).0))?;
    let state = bundle.join("state");
    let exec = ["--root", text(&state), "--cgroup-manager=disabled", "exec", "adit"];
    let words = ["/usr/bin/adit", "server", "client", "add", "phone", "-o", "-"];
    let profile = run("crun", &[&exec[..], &words[..]].concat())?;
    ensure(profile.contains("<key>"), || format!("no second profile: {profile}"))?;
    client.stop()?;
    server.stop()?;
    Ok(String::new())
}

/// Reads a JSON document.
fn document(path: &Path) -> Result<serde_json::Value> {
    serde_json::from_slice(&fs::read(path)?).context(path.display())
}

/// Returns the file that a descriptor names, after checking its hash and size.
fn blob(layout: &Path, descriptor: &serde_json::Value) -> Result<std::path::PathBuf> {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    let digest = digest.context(format!("no digest: {descriptor}"))?;
    let path = layout.join("blobs/sha256").join(digest);
    let hash = run("sha256sum", &[text(&path)])?;
    ensure(hash.starts_with(digest), || format!("{digest} has the hash {hash}"))?;
    let size = fs::metadata(&path)?.len();
    ensure(descriptor["size"] == json!(size), || format!("{descriptor} has {size} bytes"))?;
    Ok(path)
}

/// Returns the configuration of a container with the privileges that docs/install.md names.
fn container(words: &serde_json::Value) -> serde_json::Value {
    let capabilities = json!([
        "CAP_NET_ADMIN",
        "CAP_NET_BIND_SERVICE",
        "CAP_SETUID",
        "CAP_SETGID",
        "CAP_SETPCAP",
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FOWNER"
    ]);
    let sets = json!({
        "bounding": capabilities, "effective": capabilities, "permitted": capabilities
    });
    json!({
        "ociVersion": "1.0.0",
        "process": {
            "terminal": false, "user": {"uid": 0, "gid": 0}, "args": words, "cwd": "/",
            "env": ["PATH=/usr/sbin:/usr/bin"], "capabilities": sets, "noNewPrivileges": true
        },
        "root": {"path": "rootfs", "readonly": false},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}
        ],
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            "devices": [{"path": "/dev/net/tun", "type": "c", "major": 10, "minor": 200, "fileMode": 438}]
        }
    })
}

/// A second build gives the same bytes. The program is a small one, and each build has another folder.
pub(super) fn same_bytes(case: &Case<'_>) -> Result<String> {
    let small = Path::new("/usr/bin/true");
    let folders = ["first", "second"].map(|name| case.folder.join(name));
    for folder in &folders {
        build(folder, VERSION, small, case.adit, &FORMATS)?;
    }
    let [first, second] = &folders;
    let mut compared = 0;
    for entry in fs::read_dir(first)? {
        let path = entry?.path();
        let name = path.file_name().context("no name")?;
        run("cmp", &[text(&path), text(&second.join(name))])?;
        compared += 1;
    }
    ensure(compared == 5, || format!("{compared} packages"))?;
    Ok(String::new())
}
