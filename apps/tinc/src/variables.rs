//! `get`, `set`, `add` and `del`: variables of `tinc.conf` and of host files.

use adit_runtime::fault::Fault;
use adit_tinc::config::split_line;
use adit_tinc::config::variables::{Place, Support, Variable};
use adit_tinc::name::NodeName;
use adit_tinc::subnet::{Subnet, SubnetError};

use crate::conf_file::ConfFile;
use crate::console::Console;
use crate::control::client;
use crate::net::Net;

/// Variables that no version of tinc in use reads any more.
pub(crate) const OBSOLETE: &[&str] = &["GraphDumpFile", "PrivateKey", "PublicKey", "PublicKeyFile"];

/// A change of a variable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Replaces all values.
    Set,
    /// Adds a value, or replaces the one of a variable that can have only one.
    Add,
    /// Removes all values, or one.
    Delete,
}

/// A variable as the command line names it: `[HOST.]VARIABLE [=] [VALUE]`.
struct Target<'a> {
    host: Option<NodeName>,
    /// As the table of variables writes it, if it is known.
    name: &'a str,
    known: Option<&'static Variable>,
    value: &'a str,
}

impl<'a> Target<'a> {
    fn parse(text: &'a str) -> Result<Self, Fault> {
        let (name, value) = split_line(text.trim());
        let (host, name) = match name.split_once('.') {
            None => (None, name),
            Some((host, name)) => (Some(host), name),
        };
        if name.is_empty() {
            return Err(Fault::operator("No variable given."));
        }
        let host = host.map(str::parse).transpose();
        let host = host.map_err(|_| Fault::operator("Invalid name for node."))?;
        let known = Variable::find(name);
        Ok(Self { host, name: known.map_or(name, |known| known.name), known, value })
    }

    /// Warns of a variable that does not exist.
    fn warn_if_unknown(&self, console: &mut Console<'_>) {
        if self.known.is_none() {
            let name = self.name;
            console.note(&format!("Warning: {name} is not a known configuration variable!"));
        }
    }

    /// Refuses a name or a value that would be a mistake in the file. `--force` turns the mistakes in names into warnings.
    fn check(&self, console: &mut Console<'_>) -> Result<(), Fault> {
        let Self { host, name, known, value } = self;
        if value.is_empty() {
            return Err(Fault::operator("No value for variable given."));
        }
        let problem = match known {
            None => Some(format!("{name}: is not a known configuration variable!")),
            Some(_) if OBSOLETE.contains(name) => Some(format!("{name} is an obsolete variable!")),
            Some(known) if host.is_some() && known.place == Place::Server => {
                Some(format!("{name} is not a host configuration variable!"))
            }
            Some(known) => match known.support {
                Support::Refused(why) => Some(format!("{name} is not supported: {why}.")),
                Support::Yes | Support::Ignored(_) => None,
            },
        };
        match problem {
            Some(_) if console.force && known.is_none() => self.warn_if_unknown(console),
            Some(problem) if console.force => console.note(&format!("Warning: {problem}")),
            Some(problem) => {
                return Err(Fault::operator(format!("{problem} Use --force to use it anyway.")));
            }
            None => {}
        }
        if *name == "Subnet" {
            check_subnet(value)?;
        }
        Ok(())
    }

    /// Reads the file that the variable belongs into.
    fn file(&self, net: &Net) -> Result<ConfFile, Fault> {
        let in_own_host_file = self.known.is_some_and(|known| known.place == Place::Host);
        match &self.host {
            Some(host) => ConfFile::read(&net.host_file(host)),
            None if in_own_host_file => ConfFile::read(&net.host_file(&net.own_name()?)),
            None => ConfFile::read(&net.server_file()),
        }
    }
}

fn check_subnet(value: &str) -> Result<(), Fault> {
    let problem = match Subnet::from_config(value) {
        Ok(_) => return Ok(()),
        Err(SubnetError::HostBits(_)) => "Network address and prefix length do not match:",
        Err(_) => "Malformed subnet definition",
    };
    Err(Fault::operator(format!("{problem} {value}")))
}

/// Prints the values of a variable, each on a line.
///
/// # Errors
/// Fails if the variable has none.
pub fn get(net: &Net, words: &[String], console: &mut Console<'_>) -> Result<(), Fault> {
    let text = joined(words)?;
    let target = Target::parse(&text)?;
    target.warn_if_unknown(console);
    let file = target.file(net)?;
    let mut lines = String::new();
    for (name, value) in file.variables() {
        if name.eq_ignore_ascii_case(target.name) {
            lines.push_str(&format!("{value}\n"));
        }
    }
    if lines.is_empty() {
        return Err(Fault::operator("No matching configuration variables found."));
    }
    console.print(&lines);
    Ok(())
}

/// Changes a variable, and makes a running daemon read its files again.
///
/// # Errors
/// Fails if the variable or the value is wrong, or if nothing was removed that should be.
pub fn change(
    net: &Net,
    change: Change,
    words: &[String],
    console: &mut Console<'_>,
) -> Result<(), Fault> {
    let text = joined(words)?;
    let target = Target::parse(&text)?;
    let (name, value) = (target.name, target.value);
    if change == Change::Delete {
        target.warn_if_unknown(console);
    } else {
        target.check(console)?;
    }
    let mut file = target.file(net)?;
    // tinc's `add` replaces the value of a variable that has only one, and warns of it. Its `set` warns if there could be several.
    let many = target.known.is_some_and(|known| known.many);
    match change {
        Change::Delete => {
            let value = Some(value).filter(|value| !value.is_empty());
            if file.remove(name, value) == 0 {
                return Err(Fault::operator("No configuration variables deleted."));
            }
        }
        Change::Add if many || target.known.is_none() => file.add(name, value),
        Change::Add | Change::Set => {
            for old in file.set(name, value) {
                if many == (change == Change::Set) {
                    console.note(&format!("Warning: removing {name} = {old}"));
                }
            }
        }
    }
    file.write(0o644)?;
    // It is not a failure if no daemon runs.
    let _ = client::reload(net);
    Ok(())
}

fn joined(words: &[String]) -> Result<String, Fault> {
    if words.is_empty() {
        return Err(Fault::operator("Invalid number of arguments."));
    }
    Ok(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Folder, Printed};

    fn run(folder: &Folder, how: Option<Change>, words: &str, force: bool) -> Printed {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        folder.run(b"", force, |net, console| match how {
            None => get(net, &words, console),
            Some(how) => change(net, how, &words, console),
        })
    }

    #[test]
    fn variables_go_into_the_file_that_they_belong_to() {
        let folder = Folder::new();
        for line in ["Mode switch", "Subnet = 10.1.0.0/16", "Cipher = none", "bob.Port 7"] {
            assert_eq!(run(&folder, Some(Change::Set), line, false), Printed::default(), "{line}");
        }
        assert_eq!(folder.read("tinc.conf"), "Name = alice\nMode = switch\nCipher = none\n");
        assert_eq!(folder.read("hosts/alice"), "Subnet = 10.1.0.0/16\n");
        assert_eq!(folder.read("hosts/bob"), "Port = 7\n");
        assert_eq!(run(&folder, None, "mode", false).out, "switch\n");
        assert_eq!(run(&folder, None, "bob.port", false).out, "7\n");
    }

    #[test]
    fn a_second_value_is_added_or_replaces_the_first_as_the_variable_allows() {
        let folder = Folder::new();
        let add = |words: &str| run(&folder, Some(Change::Add), words, false).notes;
        assert_eq!(add("Subnet 10.1.0.0/16") + &add("Subnet 10.2.0.0/16"), "");
        assert_eq!(add("Mode hub") + &add("Mode router"), "Warning: removing Mode = hub\n");
        let set = |words: &str| run(&folder, Some(Change::Set), words, false).notes;
        assert_eq!(set("Mode hub"), "");
        assert_eq!(
            set("Subnet 10.3.0.0/16"),
            "Warning: removing Subnet = 10.1.0.0/16\nWarning: removing Subnet = 10.2.0.0/16\n"
        );
        assert_eq!(folder.read("hosts/alice"), "Subnet = 10.3.0.0/16\n");
        assert_eq!(run(&folder, Some(Change::Delete), "Subnet 10.3.0.0/16", false).error, None);
        assert_eq!(folder.read("hosts/alice"), "");
    }

    #[test]
    fn mistakes_are_refused_in_tincs_words() {
        let folder = Folder::new();
        let cases = [
            (
                Some(Change::Set),
                "Foo 1",
                "Foo: is not a known configuration variable! Use --force to use it anyway.",
            ),
            (
                Some(Change::Set),
                "GraphDumpFile x",
                "GraphDumpFile is an obsolete variable! Use --force to use it anyway.",
            ),
            (
                Some(Change::Add),
                "bob.Mode hub",
                "Mode is not a host configuration variable! Use --force to use it anyway.",
            ),
            (Some(Change::Set), "Mode", "No value for variable given."),
            (Some(Change::Set), "bob. x", "No variable given."),
            (Some(Change::Set), "bo-b.Port 5", "Invalid name for node."),
            (
                Some(Change::Add),
                "Subnet 10.0.0.1/8",
                "Network address and prefix length do not match: 10.0.0.1/8",
            ),
            (Some(Change::Add), "Subnet foo", "Malformed subnet definition foo"),
            (Some(Change::Delete), "Mode", "No configuration variables deleted."),
            (None, "Mode", "No matching configuration variables found."),
            (None, "", "No variable given."),
        ];
        for (how, words, error) in cases {
            assert_eq!(run(&folder, how, words, false).error.as_deref(), Some(error), "{words}");
        }
        assert_eq!(folder.read("tinc.conf"), "Name = alice\n");
        let forced = run(&folder, Some(Change::Set), "ScriptsInterpreter sh", true);
        assert!(
            forced.notes.starts_with("Warning: ScriptsInterpreter is not supported"),
            "{forced:?}"
        );
        assert_eq!(folder.read("tinc.conf"), "Name = alice\nScriptsInterpreter = sh\n");
        let unknown = run(&folder, None, "Foo", false);
        assert_eq!(unknown.notes, "Warning: Foo is not a known configuration variable!\n");
    }
}
