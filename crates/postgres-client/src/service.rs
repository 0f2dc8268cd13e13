//! Service files and password files, in libpq's formats.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::params::Environment;
use adit_runtime::fault::Fault;

/// The directories in which distributions and PostgreSQL itself keep the services for all users.
const SYSTEM: &[&str] = &["/etc/postgresql-common/pg_service.conf", "/etc/pg_service.conf"];

/// The names and values.
type Lines = Vec<(String, Zeroizing<String>)>;

/// Returns the lines of the service with this name.
pub(super) fn find(name: &str, env: &Environment) -> Result<Lines, Fault> {
    let mut files: Vec<PathBuf> = Vec::new();
    match env.var("PGSERVICEFILE") {
        Some(file) => files.push(file.into()),
        None => files.extend(env.home.as_ref().map(|home| home.join(".pg_service.conf"))),
    }
    match env.var("PGSYSCONFDIR") {
        Some(dir) => files.push(Path::new(dir).join("pg_service.conf")),
        None => files.extend(SYSTEM.iter().map(PathBuf::from)),
    }
    for file in &files {
        match fs::read_to_string(file) {
            Ok(text) => {
                if let Some(service) = parse_service(&text, name, file)? {
                    return Ok(service);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Fault::operator(format!("cannot read {}: {error}", file.display())));
            }
        }
    }
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    Err(Fault::operator(format!(
        "there is no service {name:?}; searched {}. Write [{name}] and lines like host=... into one of them",
        files.join(", ")
    )))
}

/// Parses the lines below `[name]`.
fn parse_service(text: &str, name: &str, file: &Path) -> Result<Option<Lines>, Fault> {
    let mut found: Option<Lines> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            if section == name {
                found = Some(Vec::new());
            }
            continue;
        }
        if let Some(found) = &mut found {
            let Some((key, value)) = line.split_once('=') else {
                return Err(Fault::operator(format!(
                    "{} line {}: write NAME=VALUE",
                    file.display(),
                    number.saturating_add(1)
                )));
            };
            found.push((key.trim().to_owned(), Zeroizing::new(value.trim().to_owned())));
        }
    }
    Ok(found)
}

/// The lines of a password file that may be used.
#[derive(Clone, Default)]
pub(super) struct Passwords(Vec<[Zeroizing<String>; 5]>);

impl Passwords {
    /// Reads the file. If other users can read it, it is ignored, and the reason is returned.
    pub(super) fn read(path: &Path) -> (Self, Option<String>) {
        // A directory or a device is not a password file.
        let Ok(meta) = fs::metadata(path) else { return (Self::default(), None) };
        if !meta.is_file() {
            return (
                Self::default(),
                Some(format!("{} is not a file; it is not used", path.display())),
            );
        }
        if meta.permissions().mode() & 0o077 != 0 {
            let warning = format!(
                "{} can be read by others, so it is not used; correct this: chmod 600 {0}",
                path.display()
            );
            return (Self::default(), Some(warning));
        }
        match fs::read_to_string(path).map(Zeroizing::new) {
            Ok(text) => (Self::parse(&text), None),
            Err(error) => {
                (Self::default(), Some(format!("cannot read {}: {error}", path.display())))
            }
        }
    }

    /// Parses lines `HOST:PORT:DATABASE:USER:PASSWORD`. `*` matches any value, and `\` escapes a
    /// colon or itself.
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(lines.filter_map(Self::line).collect())
    }

    fn line(line: &str) -> Option<[Zeroizing<String>; 5]> {
        let mut fields: Vec<Zeroizing<String>> = vec![Zeroizing::new(String::new())];
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                ':' if fields.len() < 5 => fields.push(Zeroizing::new(String::new())),
                // In the last field a colon is literal.
                '\\' => fields.last_mut()?.extend(chars.next()),
                c => fields.last_mut()?.push(c),
            }
        }
        fields.try_into().ok()
    }

    /// Returns the first line that matches.
    pub(super) fn find(
        &self,
        host: &str,
        port: u16,
        database: &str,
        user: &str,
    ) -> Option<Zeroizing<String>> {
        let port = port.to_string();
        let wanted = [host, &port, database, user];
        let line = self.0.iter().find(|line| {
            line.iter()
                .zip(wanted)
                .all(|(field, wanted)| field.as_str() == "*" || **field == *wanted)
        })?;
        line.last().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str, host: &str) -> Option<String> {
        Passwords::parse(text).find(host, 5432, "vpn", "admin").map(|found| found.to_string())
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# host:5432:vpn:admin:comment\n\nother:*:*:*:no\nhost:5433:*:*:no\nhost:*:x:*:no\n\
                    host:*:*:bob:no\nhost:*:*:admin:y:es\\\\\\:\nhost:*:*:*:late\n";
        assert_eq!(password(text, "host").unwrap(), "y:es\\:");
        assert_eq!(password(text, "third"), None);
        assert_eq!(password("fd00\\:\\:1:5432:vpn:admin:six", "fd00::1").unwrap(), "six");
        assert_eq!(password("host:5432:vpn:admin", "host"), None);
        assert_eq!(password("*:*:*:*:", "host").unwrap(), "");
    }

    #[test]
    fn a_file_that_others_can_read_is_not_used_and_that_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pgpass");
        fs::write(&path, "*:*:*:*:secret\n").unwrap();
        for (mode, used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let (passwords, warning) = Passwords::read(&path);
            assert_eq!(passwords.find("h", 1, "d", "u").is_some(), used, "{mode:o}");
            assert_eq!(warning.is_none(), used, "{mode:o}");
            assert!(warning.is_none_or(|warning| warning.contains("chmod 600")));
        }
        assert!(Passwords::read(&dir.path().join("none")).1.is_none());
        assert!(Passwords::read(dir.path()).1.unwrap().contains("not a file"));
    }

    #[test]
    fn a_service_ends_where_the_next_begins() {
        let text = "# all\n[a]\nhost=one\n\n[b]\nhost = two\nport=1 \n#x=y\n[c]\nhost=three\nbroken\n[b]\nhost=no\n";
        let find = |name| parse_service(text, name, Path::new("f"));
        let found = find("b").unwrap().unwrap();
        let found: Vec<_> = found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(found, [("host", "two"), ("port", "1")]);
        assert!(find("d").unwrap().is_none());
        assert!(find("c").unwrap_err().to_string().contains("f line 11: "));
    }

    #[test]
    fn a_service_is_looked_for_in_the_file_that_is_named_and_its_lack_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("services");
        fs::write(&file, "[vpn]\nhost=h\n").unwrap();
        let file = file.to_str().unwrap();
        let none = dir.path().to_str().unwrap();
        let env = Environment::with(&[("PGSERVICEFILE", file), ("PGSYSCONFDIR", none)], None);
        assert_eq!(find("vpn", &env).unwrap().len(), 1);
        let fault = find("nope", &env).unwrap_err().to_string();
        assert!(fault.contains(file) && fault.contains("[nope]"), "{fault}");
    }
}
