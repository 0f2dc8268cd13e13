//! Runs the programs that manage DNS, with absolute paths, no shell, few variables and a time
//! limit.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

/// The directories that are searched for programs, and the programs' own PATH.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment variables that a program gets from this process.
const PASSED: [&str; 1] = ["DBUS_SYSTEM_BUS_ADDRESS"];

/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(8);

/// The maximum number of bytes read from a program's output.
const OUTPUT_LIMIT: u64 = 16 * 1024;

/// Finds a program.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| executable(path))
}

/// Runs a program to completion and returns its standard output.
///
/// # Errors
/// Returns one sentence with the program and its output.
pub(super) async fn run(program: &Path, args: &[&str], input: &str) -> Result<String, String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", PATH).env("LC_ALL", "C");
    for variable in PASSED {
        if let Some(value) = std::env::var_os(variable) {
            command.env(variable, value);
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.current_dir("/");
    let work = async {
        let mut child = command.spawn().map_err(|e| format!("{name}: {e}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input closes it.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read_out = async {
            if let Some(stdout) = stdout {
                let _ = stdout.take(OUTPUT_LIMIT).read_to_end(&mut out).await;
            }
        };
        let read_err = async {
            if let Some(stderr) = stderr {
                let _ = stderr.take(OUTPUT_LIMIT).read_to_end(&mut err).await;
            }
        };
        tokio::join!(read_out, read_err);
        let status = child.wait().await.map_err(|e| format!("{name}: {e}"))?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&out).into_owned());
        }
        let words = if err.is_empty() { &out } else { &err };
        let words = String::from_utf8_lossy(words);
        let words: String = words.trim().chars().filter(|c| !c.is_control()).take(200).collect();
        Err(format!("{name} {}: {words} ({status})", args.first().unwrap_or(&"")))
    };
    match timeout(LIMIT, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("{name}: no end within {} s", LIMIT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn programs_get_their_input_and_few_variables() {
        let cat = find("cat").unwrap();
        assert_eq!(
            run(&cat, &[], "nameserver 192.0.2.1\n").await.unwrap(),
            "nameserver 192.0.2.1\n"
        );
        let env = run(&find("env").unwrap(), &[], "").await.unwrap();
        let mut names: Vec<&str> =
            env.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        names.retain(|name| !PASSED.contains(name));
        names.sort_unstable();
        assert_eq!(names, ["LC_ALL", "PATH"]);
        let failed = run(&cat, &["/no/such/file"], "").await.unwrap_err();
        assert!(failed.contains("No such file"), "{failed}");
        assert!(find("no-such-program").is_none());
        assert!(find("../bin/cat/x").is_none());
    }
}
