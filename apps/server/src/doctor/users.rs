//! Checks of a managed server's users, if they log in.

use std::path::Path;

use adit_pki::{Store, User, UserState};

use super::super::settings::{Login, Settings};
use super::super::users::{stranded, without_codes};
use super::Finding;
use adit_linux::clock;
use adit_runtime::paths::Paths;

/// The maximum number of names in a finding.
const MAX_NAMES: usize = 5;

pub(super) fn examine(paths: &Paths, settings: &Settings) -> Vec<Finding> {
    let login = settings.login;
    // Another check reports a store that cannot be opened.
    let Ok(store) = Store::open(&paths.data) else { return Vec::new() };
    let users = match store.users() {
        Ok(users) => users,
        Err(error) => {
            let finding = Finding::problem("users", error.to_string());
            return vec![finding.remedy("run as root, or restore the file from a backup")];
        }
    };
    if login == Login::CertificateOidc {
        return Vec::new();
    }
    if login.uses_pam() {
        return vec![pam_service(Path::new("/etc/pam.d"), settings)];
    }
    if !login.asks_password() {
        return unused(paths, settings, &users).into_iter().collect();
    }
    if users.iter().all(|user| user.state == UserState::Disabled) {
        let what = format!("no user can log in, and login = \"{}\" requires one", login.name());
        return vec![Finding::problem("users", what).remedy(paths.command("server user add NAME"))];
    }
    let mut findings = Vec::new();
    let mut warn = |names: Vec<String>, what: &str, remedy: String| {
        if !names.is_empty() {
            let what = format!("{what}: {}", listed(&names));
            findings.push(Finding::warning("users", what).remedy(remedy));
        }
    };
    if login.requires_code() {
        warn(
            without_codes(&store).unwrap_or_default(),
            "these users cannot log in, because they have no one-time codes",
            paths.command("server user totp NAME"),
        );
    }
    if !login.uses_certificate() {
        let bound = users.iter().filter(|user| !user.clients.is_empty());
        warn(
            bound.map(|user| user.name.to_string()).collect(),
            "these users cannot log in, because they are bound to certificates",
            paths.command("server user bind NAME"),
        );
    }
    warn(
        stranded(&store).unwrap_or_default(),
        "these users are bound only to clients that are revoked",
        paths.command("server user bind NAME CLIENT"),
    );
    if findings.is_empty() {
        let count = users.iter().filter(|user| user.state == UserState::Active).count();
        findings.push(Finding::ok("users", format!("users that can log in: {count}")));
    }
    findings.extend(codes_clock(&users, clock::is_synchronised()));
    findings
}

/// Checks whether PAM's service exists. Without it, PAM refuses everyone on most hosts.
fn pam_service(folder: &Path, settings: &Settings) -> Finding {
    let file = folder.join(&settings.pam_service);
    if file.exists() {
        return Finding::ok("users", format!("PAM checks passwords by {}", file.display()));
    }
    Finding::problem("users", format!("PAM has no service {}", settings.pam_service))
        .remedy(format!("create {}, for example with: @include common-auth", file.display()))
        .remedy("and in the next line: @include common-account")
}

/// Warns about users that are never asked for their passwords.
fn unused(paths: &Paths, settings: &Settings, users: &[User]) -> Option<Finding> {
    (!users.is_empty()).then(|| {
        let what = format!(
            "there are users, but login = \"{}\" does not ask for their passwords",
            settings.login.name()
        );
        Finding::warning("users", what)
            .remedy(format!(
                "set login = \"{}\" in {}",
                Login::CertificatePassword.name(),
                paths.settings_file().display()
            ))
            .remedy(format!("then: {}", paths.command("reload")))
    })
}

/// Warns about a clock that is not synchronised, because codes depend on the time.
fn codes_clock(users: &[User], synchronised: Option<bool>) -> Option<Finding> {
    let used = users.iter().any(|user| user.totp.is_some() && user.state == UserState::Active);
    (used && synchronised == Some(false)).then(|| {
        let what = "the clock is not synchronised: one-time codes are wrong if it is off by 30 s";
        Finding::warning("codes", what)
            .remedy("timedatectl set-ntp true, and allow outgoing UDP to port 123")
            .remedy("a virtual machine may get its time from the host; compare it with: date -u")
    })
}

fn listed(names: &[String]) -> String {
    let mut text = names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(MAX_NAMES).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::clients::{self, ClientRequest};
    use super::super::super::users::{self, UserRequest};
    use super::super::Level;
    use super::*;
    use crate::testing::server;

    struct Setup {
        _dir: tempfile::TempDir,
        paths: Paths,
        settings: Settings,
    }

    impl Setup {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (paths, settings) = server(&dir);
            Self { _dir: dir, paths, settings }
        }

        /// Returns the findings other than that about the clock.
        fn findings(&self, login: Login) -> Vec<(Level, String)> {
            let settings = Settings { login, ..self.settings.clone() };
            let findings = examine(&self.paths, &settings);
            let findings = findings.into_iter().filter(|finding| finding.check != "codes");
            findings.map(|finding| (finding.level, finding.what)).collect()
        }
    }

    #[test]
    fn users_who_cannot_log_in_are_named() {
        let setup = Setup::new();
        let paths = &setup.paths;
        assert!(setup.findings(Login::Certificate).is_empty());
        let none = setup.findings(Login::CertificatePassword);
        assert!(matches!(&none[..], [(Level::Problem, what)] if what.contains("no user")));
        users::add(paths, &UserRequest::new("alice"), "correct horse").unwrap();
        let fine = setup.findings(Login::CertificatePassword);
        assert!(matches!(&fine[..], [(Level::Fine, what)] if what.contains(": 1")), "{fine:?}");
        let unused = setup.findings(Login::Certificate);
        assert!(matches!(&unused[..], [(Level::Warning, what)] if what.contains("does not ask")));
        let codes = setup.findings(Login::CertificatePasswordCode);
        assert!(matches!(&codes[..], [(Level::Warning, what)] if what.ends_with("codes: alice")));
        users::set_codes(paths, "alice").unwrap();
        let fine = setup.findings(Login::CertificatePasswordCode);
        assert!(matches!(&fine[..], [(Level::Fine, _)]), "{fine:?}");
        let laptop = ClientRequest { name: "laptop".into(), ..ClientRequest::default() };
        clients::add(paths, &laptop).unwrap();
        users::bind(paths, "alice", &["laptop".into()]).unwrap();
        clients::revoke(paths, "laptop").unwrap();
        let bound = setup.findings(Login::CertificatePassword);
        assert!(matches!(&bound[..], [(Level::Warning, what)] if what.contains("revoked: alice")));
    }

    #[test]
    fn pam_needs_its_service() {
        let setup = Setup::new();
        let folder = setup.paths.config.as_path();
        assert_eq!(pam_service(folder, &setup.settings).level, Level::Problem);
        std::fs::write(folder.join("adit"), "").unwrap();
        assert_eq!(pam_service(folder, &setup.settings).level, Level::Fine);
    }

    #[test]
    fn the_clock_matters_only_for_codes() {
        let setup = Setup::new();
        let paths = &setup.paths;
        users::add(paths, &UserRequest::new("alice"), "correct horse").unwrap();
        let users = || Store::open(&paths.data).unwrap().users().unwrap();
        assert_eq!(codes_clock(&users(), Some(false)), None);
        users::set_codes(paths, "alice").unwrap();
        assert_eq!(codes_clock(&users(), Some(false)).unwrap().level, Level::Warning);
        assert_eq!(codes_clock(&users(), Some(true)), None);
        assert_eq!(codes_clock(&users(), None), None);
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let names: Vec<String> = (0..7).map(|n| format!("u{n}")).collect();
        assert_eq!(listed(&names), "u0, u1, u2, u3, u4 and 2 more");
        assert_eq!(listed(&names[..5]), "u0, u1, u2, u3, u4");
    }
}
