//! Which codes each user has used, so that each works once. The file `used-codes.json` keeps this across restarts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use adit_pki::{CodeCheck, RecoveryHash, User};
use adit_runtime::helper::files;
use adit_runtime::paths::Paths;
use serde::{Deserialize, Serialize};

/// The maximum size of the file that is read, in bytes.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// The file with the used codes.
#[derive(Debug)]
pub(crate) struct UsedCodes {
    path: PathBuf,
    state: Mutex<BTreeMap<String, Used>>,
}

/// The used codes of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Used {
    /// The step of the last one-time code.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    /// The used recovery codes, at most as many as the user has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recovery: Vec<RecoveryHash>,
}

/// The result of a login's code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum CodeUse {
    /// The code is valid, and is recorded as used.
    Accepted,
    /// The code was used before.
    Used,
    /// The code is neither a valid one-time code nor a recovery code.
    Wrong,
    /// The use of a recovery code cannot be recorded, so the code is not accepted.
    NotRecorded,
}

impl UsedCodes {
    /// Returns the path of the file.
    pub(crate) fn file(paths: &Paths) -> PathBuf {
        paths.data.join("used-codes.json")
    }

    pub(crate) fn open(paths: &Paths) -> Self {
        let path = Self::file(paths);
        let small = fs::metadata(&path).is_ok_and(|meta| meta.len() <= MAX_FILE);
        let state = small.then(|| fs::read(&path).ok()).flatten();
        let state = match state.map(|text| serde_json::from_slice(&text)) {
            None => BTreeMap::new(),
            Some(Ok(state)) => state,
            Some(Err(error)) => {
                tracing::warn!("used codes: {}: not read: {error}", path.display());
                BTreeMap::new()
            }
        };
        Self { path, state: Mutex::new(state) }
    }

    /// Checks a user's code at `now` (seconds since 1970), and records its use. It may write the file, so it belongs on a
    /// thread that may block.
    pub(super) fn redeem(&self, user: &User, code: &str, now: u64) -> CodeUse {
        // No other thread needs this lock while the file is written, except those that check codes.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let name = user.name.as_str();
        let mut used = state.get(name).cloned().unwrap_or_default();
        let hash = RecoveryHash::of(code).filter(|hash| user.recovery.contains(hash));
        let by_recovery = hash.is_some();
        match hash {
            Some(hash) if used.recovery.contains(&hash) => return CodeUse::Used,
            Some(hash) => {
                used.recovery.retain(|old| user.recovery.contains(old));
                used.recovery.push(hash);
            }
            None => {
                let Some(secret) = &user.totp else { return CodeUse::Wrong };
                match secret.check(code, now, used.step) {
                    CodeCheck::Valid(step) => used.step = Some(step),
                    CodeCheck::Used => return CodeUse::Used,
                    CodeCheck::Wrong => return CodeUse::Wrong,
                }
            }
        }
        let former = state.insert(name.to_owned(), used);
        match self.write(&state) {
            Ok(()) => CodeUse::Accepted,
            // After a restart the recovery code would work again.
            Err(error) if by_recovery => {
                tracing::warn!("used codes: {}: not written: {error}", self.path.display());
                match former {
                    Some(former) => drop(state.insert(name.to_owned(), former)),
                    None => drop(state.remove(name)),
                }
                CodeUse::NotRecorded
            }
            // A one-time code expires soon, and a full disk must not keep the operator out.
            Err(error) => {
                tracing::warn!("used codes: {}: not written: {error}", self.path.display());
                CodeUse::Accepted
            }
        }
    }

    /// Returns the number of a user's recovery codes that were not used yet.
    pub(crate) fn recovery_left(&self, user: &User) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let used = state.get(user.name.as_str());
        let is_used = |hash: &RecoveryHash| used.is_some_and(|used| used.recovery.contains(hash));
        user.recovery.iter().filter(|hash| !is_used(hash)).count()
    }

    fn write(&self, state: &BTreeMap<String, Used>) -> Result<(), String> {
        let text = serde_json::to_vec(state).map_err(|error| error.to_string())?;
        files::replace(&self.path, &text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use adit_pki::TotpSecret;

    use super::*;
    use crate::testing::{alice, folders};

    const NOW: u64 = 1_795_000_000;

    fn user(codes: &[&str]) -> User {
        User {
            totp: Some(TotpSecret::generate().unwrap()),
            recovery: codes.iter().map(|code| RecoveryHash::of(code).unwrap()).collect(),
            ..alice()
        }
    }

    #[test]
    fn a_code_works_once_even_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, user) = (folders(&dir), user(&[]));
        let code = user.totp.as_ref().unwrap().code_at(NOW);
        let used = UsedCodes::open(&paths);
        assert_eq!(used.redeem(&user, "000", NOW), CodeUse::Wrong);
        assert_eq!(used.redeem(&user, &code, NOW), CodeUse::Accepted);
        assert_eq!(used.redeem(&user, &code, NOW), CodeUse::Used);
        let restarted = UsedCodes::open(&paths);
        assert_eq!(restarted.redeem(&user, &code, NOW + 29), CodeUse::Used);
        let next = user.totp.as_ref().unwrap().code_at(NOW + 30);
        assert_eq!(restarted.redeem(&user, &next, NOW + 30), CodeUse::Accepted);
    }

    #[test]
    fn a_recovery_code_works_once_and_only_for_its_user() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = ("aaaa-bbbb-cccc-dddd", "aaaa-bbbb-cccc-eeee");
        let (paths, user) = (folders(&dir), user(&[one, other]));
        let used = UsedCodes::open(&paths);
        assert_eq!(used.recovery_left(&user), 2);
        assert_eq!(used.redeem(&user, "aaaa-bbbb-cccc-ffff", NOW), CodeUse::Wrong);
        assert_eq!(used.redeem(&user, &one.to_uppercase(), NOW), CodeUse::Accepted);
        assert_eq!(used.redeem(&user, one, NOW), CodeUse::Used);
        let restarted = UsedCodes::open(&paths);
        assert_eq!(restarted.recovery_left(&user), 1);
        assert_eq!(restarted.redeem(&user, one, NOW), CodeUse::Used);
        assert_eq!(restarted.redeem(&user, other, NOW), CodeUse::Accepted);
    }

    /// A directory in the file's place makes each write fail.
    #[test]
    fn a_recovery_code_whose_use_cannot_be_recorded_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, user) = (folders(&dir), user(&["aaaa-bbbb-cccc-dddd"]));
        let used = UsedCodes::open(&paths);
        fs::create_dir_all(UsedCodes::file(&paths).join("in the way")).unwrap();
        for _ in 0..2 {
            assert_eq!(used.redeem(&user, "aaaa-bbbb-cccc-dddd", NOW), CodeUse::NotRecorded);
        }
        let code = user.totp.as_ref().unwrap().code_at(NOW);
        assert_eq!(used.redeem(&user, &code, NOW), CodeUse::Accepted);
        assert_eq!(used.redeem(&user, &code, NOW), CodeUse::Used);
    }

    #[test]
    fn a_damaged_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, user) = (folders(&dir), user(&[]));
        fs::write(UsedCodes::file(&paths), "{").unwrap();
        let code = user.totp.as_ref().unwrap().code_at(NOW);
        assert_eq!(UsedCodes::open(&paths).redeem(&user, &code, NOW), CodeUse::Accepted);
    }
}
