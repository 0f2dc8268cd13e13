//! Reads the command line and files into a list of directives with their locations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::Zeroizing;

use super::lexer;
use super::{ConfigError, Files};

/// The maximum depth of nested `config` directives.
const MAX_DEPTH: usize = 10;
/// The maximum number of files. Without it, a file that includes itself twice would be read 2^depth
/// times.
const MAX_FILES: usize = 100;
/// The maximum size of a config file in bytes, with room for inline certificates and a long
/// revocation list.
const MAX_FILE: usize = 16 << 20;
/// The maximum number of directives in all files.
const MAX_DIRECTIVES: usize = 100_000;

/// The position of a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) file: Arc<str>,
    pub(super) line: usize,
}

impl Location {
    pub(super) fn error(
        &self,
        directive: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        ConfigError {
            file: self.file.to_string(),
            line: self.line,
            directive: directive.to_owned(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

/// A directive as written.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    /// The name; never empty.
    pub(super) name: String,
    pub(super) args: Vec<String>,
    /// The text between `<name>` and `</name>`.
    pub(super) inline: Option<Zeroizing<String>>,
    /// Whether `setenv opt` precedes the directive.
    pub(super) optional: bool,
    /// The `<connection>` block that contains it, counted from 0.
    pub(super) connection: Option<usize>,
    /// The directory set by the `cd` directives so far.
    pub(super) directory: Option<PathBuf>,
    pub(super) location: Location,
}

/// Reads all directives in the order in which they take effect.
pub(super) fn read(args: &[String], files: &dyn Files) -> Result<Vec<Directive>, ConfigError> {
    let mut reader = Reader {
        files,
        alone: false,
        out: Vec::new(),
        directory: None,
        connections: 0,
        depth: 0,
        read: 0,
    };
    reader.command_line(args)?;
    Ok(reader.out)
}

/// Reads directives up to the first error.
pub(super) fn read_leniently(args: &[String], files: &dyn Files) -> Vec<Directive> {
    let mut reader = Reader {
        files,
        alone: false,
        out: Vec::new(),
        directory: None,
        connections: 0,
        depth: 0,
        read: 0,
    };
    // Keep the directives that precede the first error.
    let _ = reader.command_line(args);
    reader.out
}

impl Directive {
    /// Formats the directive as written, with its location, but without the content of blocks and
    /// without passwords.
    pub(super) fn shown(&self) -> String {
        let mut text = format!("{}:{}: {}", self.location.file, self.location.line, self.name);
        let secret = matches!(self.name.as_str(), "auth-token" | "setenv" | "setenv-safe");
        // The name of a variable is not secret.
        let open = if secret { usize::from(self.name.starts_with("setenv")) } else { usize::MAX };
        for (index, arg) in self.args.iter().enumerate() {
            text.push(' ');
            if index < open {
                text.extend(arg.chars().map(|c| if c.is_control() { '?' } else { c }));
            } else {
                text.push_str("[not shown]");
            }
        }
        if self.inline.is_some() {
            text.push_str(" [inline]");
        }
        text
    }
}

/// Reads one file that includes no others.
pub(super) fn read_alone(name: &str, bytes: &[u8]) -> Result<Vec<Directive>, ConfigError> {
    struct Nothing;
    impl Files for Nothing {
        fn read(&self, _: &Path) -> std::io::Result<Vec<u8>> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }
    let location = Location { file: name.into(), line: 1 };
    if bytes.len() > super::client_file::MAX_CLIENT_FILE {
        return Err(location.error("", "the file is too large for that of a single client", ""));
    }
    let text = decode(Path::new(name), bytes, &location)?;
    let mut reader = Reader {
        files: &Nothing,
        alone: true,
        out: Vec::new(),
        directory: None,
        connections: 0,
        depth: 0,
        read: 0,
    };
    let lines: Vec<&str> = text.split('\n').collect();
    reader.lines(&lines, &location.file, 0, None)?;
    Ok(reader.out)
}

struct Reader<'a> {
    files: &'a dyn Files,
    /// Whether `config` and `cd` have no effect.
    alone: bool,
    out: Vec<Directive>,
    directory: Option<PathBuf>,
    connections: usize,
    depth: usize,
    read: usize,
}

impl Reader<'_> {
    fn command_line(&mut self, args: &[String]) -> Result<(), ConfigError> {
        let file: Arc<str> = "command line".into();
        if let [only] = args
            && !only.starts_with("--")
        {
            return self.file(only, &Location { file, line: 1 });
        }
        let mut index = 0_usize;
        let mut rest = args;
        while let Some((name, after)) = rest.split_first() {
            index = index.saturating_add(1);
            let location = Location { file: Arc::clone(&file), line: index };
            let Some(name) = name.strip_prefix("--").filter(|name| !name.is_empty()) else {
                return Err(location.error(
                    name,
                    "this is not an option, or one argument too many for the option before it",
                    "options begin with --; a config file alone needs none, with others write --config FILE",
                ));
            };
            let count = after.iter().take_while(|arg| !arg.starts_with("--")).count();
            let (values, next) = after.split_at_checked(count).unwrap_or((after, &[]));
            index = index.saturating_add(count);
            rest = next;
            let mut words = vec![name.to_owned()];
            words.extend_from_slice(values);
            self.directive(words, None, None, location)?;
        }
        Ok(())
    }

    fn file(&mut self, name: &str, location: &Location) -> Result<(), ConfigError> {
        if self.depth >= MAX_DEPTH {
            return Err(location.error(
                "config",
                format!("config files include each other more than {MAX_DEPTH} deep"),
                "remove the line that includes a file which includes this one",
            ));
        }
        self.read = self.read.saturating_add(1);
        if self.read > MAX_FILES {
            return Err(location.error(
                "config",
                format!("more than {MAX_FILES} config files are included"),
                "put them into fewer files",
            ));
        }
        let path = match &self.directory {
            Some(directory) => directory.join(name),
            None => PathBuf::from(name),
        };
        let bytes = self.files.read(&path).map_err(|error| {
            location.error(
                "config",
                format!("cannot read {}: {error}", path.display()),
                "check the name and who may read the file",
            )
        })?;
        let text = decode(&path, &bytes, location)?;
        self.depth = self.depth.saturating_add(1);
        let lines: Vec<&str> = text.split('\n').collect();
        self.lines(&lines, &path.to_string_lossy().into(), 0, None)?;
        self.depth = self.depth.saturating_sub(1);
        Ok(())
    }

    /// Splits a text into lines. `offset` is the number of the line before the first one.
    fn lines(
        &mut self,
        lines: &[&str],
        file: &Arc<str>,
        offset: usize,
        connection: Option<usize>,
    ) -> Result<(), ConfigError> {
        let mut index = 0_usize;
        while let Some(line) = lines.get(index) {
            let number = offset.saturating_add(index).saturating_add(1);
            let location = Location { file: Arc::clone(file), line: number };
            index = index.saturating_add(1);
            let line = line.strip_suffix('\r').unwrap_or(line);
            let mut words = lexer::words(line).map_err(|error| {
                let name = line.split_whitespace().next().unwrap_or_default();
                location.error(name, error.problem(), error.remedy())
            })?;
            let Some(first) = words.first_mut() else { continue };
            if let Some(bare) = first.strip_prefix("--") {
                *first = bare.to_owned();
            }
            let tag = match words.as_slice() {
                [only] => only.strip_prefix('<').and_then(|tag| tag.strip_suffix('>')),
                _ => None,
            };
            let Some(tag) = tag.filter(|tag| !tag.is_empty()) else {
                self.directive(words, None, connection, location)?;
                continue;
            };
            let start = index;
            let close = format!("</{tag}>");
            let rest = lines.get(start..).unwrap_or_default();
            let Some(length) =
                rest.iter().position(|line| line.trim_start().starts_with(close.as_str()))
            else {
                return Err(location.error(
                    tag,
                    format!("the block is not closed: there is no {close}"),
                    format!("write {close} on a line of its own behind it"),
                ));
            };
            let body = rest.get(..length).unwrap_or_default();
            index = start.saturating_add(length).saturating_add(1);
            if tag == "connection" && connection.is_none() {
                let number = self.connections;
                self.connections = number.saturating_add(1);
                self.lines(body, file, offset.saturating_add(start), Some(number))?;
                continue;
            }
            let mut text = Zeroizing::new(String::new());
            for line in body {
                text.push_str(line.strip_suffix('\r').unwrap_or(line));
                text.push('\n');
            }
            self.directive(vec![tag.to_owned()], Some(text), connection, location)?;
        }
        Ok(())
    }

    fn directive(
        &mut self,
        words: Vec<String>,
        inline: Option<Zeroizing<String>>,
        connection: Option<usize>,
        location: Location,
    ) -> Result<(), ConfigError> {
        let mut words = words.into_iter().peekable();
        let mut name = words.next().unwrap_or_default();
        let mut optional = false;
        if name == "setenv" && words.next_if(|word| word == "opt").is_some() {
            optional = true;
            name = words.next().ok_or_else(|| {
                location.error(
                    "setenv",
                    "there is nothing after opt",
                    "write: setenv opt DIRECTIVE [ARGUMENTS]",
                )
            })?;
        }
        let args: Vec<String> = words.collect();
        match (name.as_str(), args.as_slice()) {
            _ if self.alone => {}
            ("config", [file]) if connection.is_none() => return self.file(file, &location),
            ("config", _) => {
                return Err(location.error("config", "it takes one file", "write: config FILE"));
            }
            ("cd", [directory]) => {
                let base = self.directory.take().unwrap_or_default();
                self.directory = Some(base.join(directory));
            }
            _ => {}
        }
        if self.out.len() >= MAX_DIRECTIVES {
            return Err(location.error(&name, "there are more directives than can be meant", ""));
        }
        self.out.push(Directive {
            name,
            args,
            inline,
            optional,
            connection,
            directory: self.directory.clone(),
            location,
        });
        Ok(())
    }
}

/// Decodes UTF-8 and removes a byte order mark. In other encodings each byte becomes a character,
/// so a comment in Latin-1 does no harm.
fn decode(
    path: &Path,
    bytes: &[u8],
    location: &Location,
) -> Result<Zeroizing<String>, ConfigError> {
    if bytes.len() > MAX_FILE {
        return Err(location.error(
            "config",
            format!("{} is larger than {} MiB", path.display(), MAX_FILE >> 20),
            "is it a config file?",
        ));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.contains(&0) {
        return Err(location.error(
            "config",
            format!("{} contains NUL bytes", path.display()),
            "save it as UTF-8 text",
        ));
    }
    Ok(Zeroizing::new(match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
    }))
}
