//! The programs of adit and of the real tinc 1.1.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::super::Scenario;
use super::NO_TINC;
use crate::failure::Result;
use crate::peer::{Program, in_root};
use crate::skip::skip;

/// The program of the commands and the daemon of one implementation, each with its first arguments.
#[derive(Clone)]
pub(super) struct Programs {
    pub(super) tinc: Vec<OsString>,
    pub(super) tincd: Vec<OsString>,
}

impl Programs {
    /// Returns the programs of tinc 1.1. Without them, the test is skipped.
    pub(super) fn real() -> Option<Self> {
        let programs = (real_program("usr/sbin/tinc"), real_program("usr/sbin/tincd"));
        let (Some(tinc), Some(tincd)) = programs else {
            skip("tinc", NO_TINC);
            return None;
        };
        Some(Self { tinc, tincd })
    }

    /// Returns the programs of adit, with a link named `tincd` in the scenario's folder, and the path of `adit`.
    pub(super) fn of_adit(scenario: &Scenario<'_>) -> Result<(Self, PathBuf)> {
        let Program::Adit(adit) = Program::adit()? else { return Err("no adit".into()) };
        let link = scenario.folder().join("tincd");
        symlink(&adit, &link)?;
        let tinc = vec![adit.clone().into(), "tinc".into()];
        Ok((Self { tinc, tincd: vec![link.into()] }, adit))
    }
}

/// Returns a program of tinc 1.1 with its first arguments, unless its root is missing.
pub(super) fn real_program(file: &str) -> Option<Vec<OsString>> {
    in_root(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/roots/tinc"), file)
}
