//! The variables that programs get, compared with those that openvpn sets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Result, ensure};

/// The variables of each program, by the name of its file.
pub(super) type Variables = BTreeMap<String, BTreeMap<String, String>>;

/// Differences to openvpn's variables that are intended, each with its reason. `*` at the end matches any text.
const DIFFERENCES: &[(&str, &str)] = &[
    ("daemon_pid", "another process"),
    ("daemon_start_time", "another time"),
    ("time_ascii", "another time"),
    ("time_unix", "another time"),
    ("time_duration", "another time"),
    ("bytes_received", "another session"),
    ("bytes_sent", "another session"),
    ("trusted_port", "another session"),
    ("untrusted_port", "another session"),
    ("auth_control_file", "a random name"),
    ("auth_failed_reason_file", "a random name"),
    ("auth_pending_file", "a random name"),
    ("client_connect_config_file", "a random name"),
    ("client_connect_deferred_file", "a random name"),
];

/// The extensions of files with a program's arguments, and with their number.
const OTHERS: &[&str] = &["args", "count"];

/// Compares the variables of all programs. Returns how many there are.
///
/// # Errors
/// They differ from openvpn's.
pub(super) fn same(theirs: &Variables, ours: &Variables) -> Result<String> {
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (program, wanted) in theirs {
        let Some(got) = ours.get(program) else {
            wrong.push(format!("{program} was not run"));
            continue;
        };
        let names = wanted.keys().chain(got.keys().filter(|name| !wanted.contains_key(*name)));
        for name in names {
            compared += 1;
            let (wanted, got) = (wanted.get(name), got.get(name));
            let known = DIFFERENCES.iter().any(|(known, _)| match known.strip_suffix('*') {
                Some(begin) => name.starts_with(begin),
                None => name == known,
            });
            // Of a value that differs by nature, only the presence counts.
            let same = if known { wanted.is_some() == got.is_some() } else { wanted == got };
            // The files of a password check are gone by then.
            let same = same || (name.starts_with("auth_") && got.is_none());
            if !same {
                wrong.push(format!("{program}: {name}: openvpn {wanted:?}, adit {got:?}"));
            }
        }
    }
    for program in ours.keys().filter(|program| !theirs.contains_key(*program)) {
        wrong.push(format!("{program} is not run by openvpn"));
    }
    ensure(wrong.is_empty(), || wrong.join("\n"))?;
    Ok(format!("{compared} variables of {} programs", theirs.len()))
}

/// Reads the files that programs wrote with `env -0`. Files with the extensions of [`OTHERS`] contain something else.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn read_dumps(folder: &Path) -> Result<Variables> {
    let mut all = Variables::new();
    for entry in fs::read_dir(folder)? {
        let path: PathBuf = entry?.path();
        if path.extension().is_some_and(|extension| OTHERS.iter().any(|other| extension == *other))
        {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.insert(name, pairs);
    }
    Ok(all)
}
