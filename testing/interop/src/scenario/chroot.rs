//! Tests of programs in another root directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Scenario;
use super::server_hooks::{PASSWORD, login, meanwhile, read, script};
use crate::case::inner_addrs;
use crate::failure::{Result, ensure};
use crate::file;
use crate::process::run;
use crate::wait::until;

const SOON: Duration = Duration::from_secs(10);

/// Creates a root directory with a shell, a folder for temporary files, and a log that every user may write.
fn root_directory(scenario: &Scenario<'_>) -> Result<PathBuf> {
    let root = scenario.folder().join("jail");
    for folder in ["bin", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    file::set_mode(root.join("tmp"), 0o1777)?;
    fs::copy("/bin/sh", root.join("bin/sh"))?;
    let libraries = run("ldd", &["/bin/sh"])?;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let copy = root.join(library.trim_start_matches('/'));
        copy.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(library, copy)?;
    }
    file::write(root.join("log"), "", 0o666)?;
    Ok(root)
}

/// With `chroot`, `up` and `route-up` run outside of the directory, and all programs for clients inside it, as the
/// configured user. Their files are inside it, too.
pub(super) fn programs_inside(scenario: &Scenario<'_>) -> Result<String> {
    let root = root_directory(scenario)?;
    let hook = root.join("hook");
    file::write(
        &hook,
        "#!/bin/sh\necho \"$script_type $1\" >> /log\ncase $script_type in\n\
         user-pass-verify) { read -r name; read -r password; } < \"$1\"; [ \"$name\" = alice ] || exit 1\n\
         read -r right < /right; [ \"$password\" = \"$right\" ];;\n\
         client-connect) echo 'ifconfig-push 10.88.0.77 255.255.255.0' > \"$1\";;\nesac\n",
        0o755,
    )?;
    fs::write(root.join("right"), format!("{PASSWORD}\n"))?;
    let mut configs = scenario.configs();
    configs.server(&format!("chroot {}\nuser nobody\ngroup nogroup", root.display()));
    configs.server("script-security 2\ntls-verify /hook\nauth-user-pass-verify /hook via-file");
    configs.server("client-connect /hook\nclient-disconnect /hook\nlearn-address /hook");
    for name in ["up", "route-up"] {
        let outside =
            script(scenario, name, &format!("[ -e $OUT/jail ] && echo > $OUT/{name}.ran"))?;
        configs.server(&format!("{name} {outside}"));
    }
    configs.client(&login(scenario, PASSWORD)?);
    let mut tunnel = scenario.tunnel(&configs)?;
    let given = inner_addrs(&tunnel.pair.client)?.v4.to_string();
    ensure(given == "10.88.0.77", || {
        tunnel.server.failure(&format!("the client has {given}, not that of client-connect")).0
    })?;
    tunnel.ping_all(4)?;
    tunnel.client.stop()?;
    let log = || fs::read_to_string(root.join("log")).unwrap_or_default();
    until("client-disconnect is run", SOON, || Ok(log().contains("client-disconnect")))
        .map_err(|f| meanwhile(&f.0, &tunnel.server))?;
    for kind in ["tls-verify", "user-pass-verify", "client-connect", "learn-address"] {
        ensure(log().contains(kind), || tunnel.server.failure(&format!("{kind}: {}", log())).0)?;
    }
    ensure(log().contains("user-pass-verify /tmp/openvpn_"), || {
        format!("another folder: {}", log())
    })?;
    for name in ["up", "route-up"] {
        ensure(!read(scenario, &format!("{name}.ran")).is_empty(), || {
            format!("{name} was not run")
        })?;
    }
    empties(&root.join("tmp"))?;
    Ok(String::new())
}

/// Waits until no temporary file is left.
fn empties(folder: &Path) -> Result<()> {
    until("the files of the programs are removed", Duration::from_secs(20), || {
        Ok(fs::read_dir(folder)?.next().is_none())
    })
}
