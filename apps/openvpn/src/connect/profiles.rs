//! Profiles of clients in the background: the folder in which they are kept, and the questions that they ask.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{ConnectOptions, control_socket, read};
use crate::config_files::Configs;
use crate::helper_duty::named_files;
use crate::openvpn;
use adit_runtime::background::Service;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::paths::{Paths, make_folder, shell_word, write_whole};
use adit_runtime::prompts::{self, Answers};

/// The extension of a profile.
const EXTENSION: &str = "ovpn";

/// The maximum length of a name.
const NAME_LIMIT: usize = 64;

/// The maximum size of a profile in bytes.
const SIZE_LIMIT: u64 = 4 << 20;

/// The questions whose answers can be saved.
const USER: &str = "Enter Auth Username: ";
const PASSWORD: &str = "Enter Auth Password: ";
const KEY_PASSWORD: &str = "Enter Private Key Password: ";

/// The line before the ones that are added to a saved profile.
const SAVED: &str = "# Saved by adit up --save-password:";

/// The profiles of clients in the background, in `/etc/adit/connect` or below `--dir`.
#[derive(Clone, Debug)]
pub struct Profiles {
    paths: Paths,
    folder: PathBuf,
}

/// How a profile differs from the one of the same name in the folder.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is none of this name.
    New,
    /// They are the same, except for a saved password.
    Same,
    /// They differ.
    Differs,
}

impl Profiles {
    /// Returns the profiles below these paths.
    pub fn new(paths: Paths) -> Self {
        Self { folder: paths.config.join("connect"), paths }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the profile with this name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{EXTENSION}"))
    }

    /// Returns the names of all profiles, in order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>, Fault> {
        let fault = |error: &io::Error| file_fault("cannot read", &self.folder, error);
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| fault(&error))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| fault(&error))?.path();
            let stem = path.file_stem().and_then(OsStr::to_str);
            let is_profile = path.extension().is_some_and(|end| end == EXTENSION);
            names.extend(stem.filter(|stem| is_profile && is_name(stem)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Returns the name that a command line means, and the path of the profile if it is not in the folder yet.
    ///
    /// # Errors
    /// It is no profile, or its name cannot be the name of a service.
    pub fn find(
        &self,
        given: &Path,
        name: Option<&str>,
    ) -> Result<(String, Option<PathBuf>), Fault> {
        let text = given.to_string_lossy();
        if name.is_none() && is_name(&text) && self.file(&text).exists() {
            return Ok((text.into_owned(), None));
        }
        if !given.is_file() {
            return Err(Fault::operator(format!(
                "there is no file {}, and no profile of this name in {}; list them with: {}",
                given.display(),
                self.folder.display(),
                self.paths.command("list")
            )));
        }
        let stem = given.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.unwrap_or(&stem);
        if !is_name(name) {
            return Err(Fault::operator(format!(
                "{name:?} cannot be the name of a profile in the background: choose one of 1 to {NAME_LIMIT} of \
                 A-Z a-z 0-9 _ -, for example --name office"
            )));
        }
        let source = fs::canonicalize(given).map_err(|e| file_fault("cannot read", given, &e))?;
        // It may be the one in the folder.
        let known = fs::canonicalize(self.file(name)).is_ok_and(|known| known == source);
        Ok((name.to_owned(), Some(source).filter(|_| !known)))
    }

    /// Returns the program that keeps a profile connected.
    pub fn service(&self, name: &str) -> Service {
        let profile = self.file(name);
        let mut arguments = vec!["connect".to_owned(), profile.to_string_lossy().into_owned()];
        if self.paths.dir.is_some() {
            arguments.extend(["--dir".into(), self.paths.run.to_string_lossy().into_owned()]);
        }
        let dir = Some(self.paths.run.clone());
        let socket = control_socket(&ConnectOptions { profile, dir, ..ConnectOptions::default() });
        Service::new(&self.paths, "adit-connect", Some(name), arguments, socket)
    }

    /// Compares a profile with the one of this name in the folder.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn compare(&self, source: &Path, name: &str) -> Result<Change, Fault> {
        let file = self.file(name);
        let known = match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Change::New),
            known => known.map_err(|error| file_fault("cannot read", &file, &error))?,
        };
        let fresh = profile_text(source)?;
        let same = known.strip_prefix(fresh.as_slice()).is_some_and(|added| {
            added.is_empty() || added.trim_ascii_start().starts_with(SAVED.as_bytes())
        });
        Ok(if same { Change::Same } else { Change::Differs })
    }

    /// Checks a profile and asks for what is in no file, because in the background there is no terminal. Returns the answers.
    ///
    /// # Errors
    /// The profile is wrong, depends on the current folder, or there is no terminal.
    pub fn check(&self, profile: &Path) -> Result<Answers, Fault> {
        let wanted = ConnectOptions { profile: profile.to_owned(), ..ConnectOptions::default() };
        if let Some(relative) = named_files(&wanted)?.into_iter().find(|path| path.is_relative()) {
            return Err(Fault::operator(format!(
                "{}: {} is relative to the current folder, but a client in the background has none: write the \
                 whole path, or put the file's content into the profile",
                profile.display(),
                relative.display()
            )));
        }
        prompts::record();
        let read = read(&wanted, &Configs::default()).and_then(|profile| {
            openvpn::dial_settings(&profile.options, &profile.client.dial, &mut openvpn::Terminal)
        });
        let answers = prompts::recorded();
        read.map(|_| answers)
    }

    /// Returns the question that only a person can answer each time, if there is one among the answers.
    pub fn unsaved(answers: &Answers) -> Option<&str> {
        let mut questions = answers.keys().map(String::as_str);
        questions.find(|question| ![USER, PASSWORD, KEY_PASSWORD].contains(question))
    }

    /// Copies a profile into the folder. With `saved`, these answers are added to it, so that it asks no questions.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn install(&self, source: &Path, name: &str, saved: Option<&Answers>) -> Result<(), Fault> {
        let mut text = profile_text(source)?;
        if let Some(at) = text.windows(SAVED.len()).position(|window| window == SAVED.as_bytes()) {
            text.truncate(at);
        }
        make_folder(&self.folder, 0o700)?;
        if let Some(answers) = saved.filter(|answers| !answers.is_empty()) {
            text.extend_from_slice(self.save(name, answers)?.as_bytes());
        }
        write_whole(&self.file(name), 0o600, &text)
    }

    /// Returns the lines that contain the answers.
    fn save(&self, name: &str, answers: &Answers) -> Result<String, Fault> {
        let mut lines = format!("\n{SAVED}\n");
        match (answers.get(USER), answers.get(PASSWORD)) {
            (Some(user), Some(password)) => {
                lines.push_str(&format!(
                    "<auth-user-pass>\n{user}\n{password}\n</auth-user-pass>\n"
                ));
            }
            (None, Some(_)) => {
                return Err(Fault::operator(
                    "--save-password: the profile contains the user name: write the password on the line after it",
                ));
            }
            _ => {}
        }
        if let Some(password) = answers.get(KEY_PASSWORD) {
            let path = self.folder.join(format!("{name}.key-password"));
            write_whole(&path, 0o600, format!("{password}\n").as_bytes())?;
            let quoted = path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
            lines.push_str(&format!("askpass \"{quoted}\"\n"));
        }
        Ok(lines)
    }

    /// Formats the command that lists the profiles, for advice.
    pub fn list_command(&self) -> String {
        self.paths.command("list")
    }

    /// Formats a command with the name of a profile, for advice.
    pub fn command(&self, verb: &str, name: &str) -> String {
        self.paths.command(&format!("{verb} {}", shell_word(Path::new(name))))
    }
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    // A name that begins with a hyphen would be an option.
    (1..=NAME_LIMIT).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('-')
}

fn profile_text(path: &Path) -> Result<Vec<u8>, Fault> {
    use std::io::Read;
    let fault = |error: io::Error| file_fault("cannot read", path, &error);
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(fault)?;
    file.take(SIZE_LIMIT + 1).read_to_end(&mut text).map_err(fault)?;
    if text.len() as u64 > SIZE_LIMIT {
        return Err(Fault::operator(format!("{} is too large for a profile", path.display())));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "client\ndev tun\nremote h 1194\nremote-cert-tls server\n";

    fn profiles() -> (tempfile::TempDir, Profiles) {
        let dir = tempfile::tempdir().unwrap();
        let profiles = Profiles::new(Paths::new(Some(dir.path())).unwrap());
        (dir, profiles)
    }

    #[test]
    fn a_profile_is_found_by_its_file_and_later_by_its_name() {
        let (dir, profiles) = profiles();
        let source = dir.path().join("laptop.ovpn");
        fs::write(&source, PROFILE).unwrap();
        let missing = profiles.find(Path::new("laptop"), None).unwrap_err();
        assert!(missing.to_string().contains("adit list"), "{missing}");
        let (name, from) = profiles.find(&source, None).unwrap();
        assert_eq!((name.as_str(), from.is_some()), ("laptop", true));
        assert_eq!(profiles.compare(&source, "laptop"), Ok(Change::New));
        profiles.install(&source, "laptop", None).unwrap();
        assert_eq!(profiles.compare(&source, "laptop"), Ok(Change::Same));
        assert_eq!(profiles.find(Path::new("laptop"), None), Ok(("laptop".into(), None)));
        assert_eq!(profiles.find(&profiles.file("laptop"), None), Ok(("laptop".into(), None)));
        fs::write(&source, format!("{PROFILE}nobind\n")).unwrap();
        assert_eq!(profiles.compare(&source, "laptop"), Ok(Change::Differs));
        let (name, _) = profiles.find(&source, Some("other")).unwrap();
        profiles.install(&source, &name, None).unwrap();
        fs::write(profiles.folder().join("not a name.ovpn"), "").unwrap();
        assert_eq!(profiles.names().unwrap(), ["laptop", "other"]);
    }

    #[test]
    fn a_name_is_that_of_a_file_and_of_a_unit() {
        let (dir, profiles) = profiles();
        for name in ["a b", "-a", "a.b", "é", ""] {
            let source = dir.path().join("x.ovpn");
            fs::write(&source, PROFILE).unwrap();
            assert!(profiles.find(&source, Some(name)).is_err(), "{name}");
        }
        let service = profiles.service("home-1");
        assert_eq!(service.unit(), "adit-connect@home-1.service");
    }

    #[test]
    fn a_profile_that_depends_on_the_current_folder_is_refused() {
        let (dir, profiles) = profiles();
        let source = dir.path().join("x.ovpn");
        fs::write(&source, format!("{PROFILE}ca ca.crt\ncert a\nkey b\n")).unwrap();
        let refused = profiles.check(&source).unwrap_err().to_string();
        assert!(refused.contains("relative to the current folder"), "{refused}");
        fs::write(&source, format!("{PROFILE}colour red\n")).unwrap();
        let refused = profiles.check(&source).unwrap_err().to_string();
        assert!(refused.contains("colour"), "{refused}");
    }

    #[test]
    fn a_saved_password_is_in_files_that_only_root_reads() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, profiles) = profiles();
        let source = dir.path().join("x.ovpn");
        fs::write(&source, format!("{PROFILE}auth-user-pass\n")).unwrap();
        let answers = Answers::from([
            (USER.into(), "alice".into()),
            (PASSWORD.into(), "s3cret".into()),
            (KEY_PASSWORD.into(), "k".into()),
        ]);
        assert_eq!(Profiles::unsaved(&answers), None);
        let more = Answers::from([("CHALLENGE: Your code ".into(), "1".into())]);
        assert_eq!(Profiles::unsaved(&more), Some("CHALLENGE: Your code "));
        profiles.install(&source, "x", Some(&answers)).unwrap();
        let file = profiles.file("x");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.ends_with(&format!(
            "{SAVED}\n<auth-user-pass>\nalice\ns3cret\n</auth-user-pass>\naskpass \"{}\"\n",
            profiles.folder().join("x.key-password").display()
        )));
        for path in [&file, &profiles.folder().join("x.key-password")] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(profiles.compare(&source, "x"), Ok(Change::Same));
        // It is saved once, however often.
        profiles.install(&file, "x", Some(&answers)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap().matches(SAVED).count(), 1);
        let only = Answers::from([(PASSWORD.into(), "p".into())]);
        assert!(profiles.install(&source, "x", Some(&only)).is_err());
    }
}
