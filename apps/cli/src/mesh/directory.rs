//! `adit mesh directory`.

use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_mesh::{
    DirectoryChosen, DirectoryInit, InitOptions, init_directory, use_directory, use_file, use_hint,
};
use adit_runtime::control::{MeshDirectory, Request, Response};
use adit_runtime::fault::Fault;
use clap::{Args, Subcommand, ValueHint};

use super::show::Show;
use super::{MeshSelector, unexpected};
use crate::text::{count, span};
use crate::{note, print, print_json};

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Directory {
    /// Make a PostgreSQL database the directory of this node, starting with its next start
    #[command(after_help = "Examples:
  sudo adit mesh directory postgres postgres://owner@db/mesh --init
  sudo adit mesh directory postgres postgres://owner@db/mesh --init \\
      --node web1 --passfile web1
  sudo adit mesh directory postgres 'postgres://ROLE@db/mesh?passfile=web1'

Passwords come from ~/.pgpass, PGPASSWORD, a service file, passfile=FILE, or a
question; a password in the URL disappears from the process list at once.")]
    Postgres(Postgres),

    /// Show the directory of the running node, and compare it with the entries that it has shown
    /// before
    #[command(after_help = "Example:
  sudo adit mesh directory status --json")]
    Status(Show),

    /// Use only the node's own file, starting with its next start
    #[command(after_help = "Example:
  sudo adit mesh directory file")]
    File(Show),
}

#[derive(Debug, Args)]
pub(crate) struct Postgres {
    /// The database: postgres://ROLE@HOST/DATABASE, a connection string as for psql, or "" for the
    /// environment
    #[arg(value_name = "URL")]
    url: String,

    /// As the owner of the database: create the directory if there is none, put all changes of this node into it, and create the
    /// node's role
    #[arg(long)]
    init: bool,

    /// Create the role for this member instead of this machine
    #[arg(long, value_name = "NAME", requires = "init", requires = "passfile")]
    node: Option<String>,

    /// The file for the role's password, for that member
    #[arg(long, value_name = "FILE", requires = "node", value_hint = ValueHint::FilePath)]
    passfile: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

pub(super) fn run(verb: &Directory) -> Result<ExitCode, Fault> {
    match verb {
        Directory::Postgres(options) => options.run(),
        Directory::Status(options) => status(options),
        Directory::File(options) => file(options),
    }
}

impl Postgres {
    fn run(&self) -> Result<ExitCode, Fault> {
        let paths = self.here.paths()?;
        if self.init {
            let node = self.node.clone().zip(self.passfile.clone());
            let done = init_directory(&paths, &self.url, &InitOptions { node })?;
            self.notes(&done.chosen);
            if self.json {
                print_json(&serde_json::json!({
                    "new": done.is_new,
                    "database": done.chosen.database,
                    "role": done.chosen.role,
                    "appended": done.appended,
                    "removed": done.removed,
                    "retired": done.retired,
                }))?;
            } else {
                print(&self.done(&done, &paths.command("up")));
            }
            return Ok(ExitCode::SUCCESS);
        }
        let chosen = use_directory(&paths, &self.url)?;
        self.notes(&chosen);
        if self.json {
            print_json(&serde_json::json!({ "database": chosen.database, "role": chosen.role }))?;
        } else {
            print(&format!(
                "directory  {} as {}\n{}",
                chosen.database,
                chosen.role,
                restart(&paths.command("up"))
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn notes(&self, chosen: &DirectoryChosen) {
        chosen.notes.iter().for_each(|text| note(&format!("adit: note: {text}\n")));
    }

    fn done(&self, done: &DirectoryInit, up: &str) -> String {
        let DirectoryInit { is_new, chosen, appended, removed, retired } = done;
        let new = if *is_new { " (new)" } else { "" };
        let mut text = format!("directory  {}{new}\nrole       {}\n", chosen.database, chosen.role);
        text.push_str(&format!("appended   {}\n", count(*appended, "change")));
        if *removed > 0 {
            let rows = if *removed == 1 { "entry" } else { "entries" };
            text.push_str(&format!("removed    {removed} {rows}: not valid changes\n"));
        }
        for role in retired {
            text.push_str(&format!("retired    {role}: its node is no longer a member\n"));
        }
        match (&self.node, &self.passfile) {
            (Some(node), Some(file)) => text.push_str(&format!(
                "On {node}, with a copy of {}:\n  sudo {}\n",
                file.display(),
                use_hint(chosen, file)
            )),
            _ => text.push_str(&restart(up)),
        }
        text
    }
}

fn restart(up: &str) -> String {
    format!("The node uses it from its next start on: restart the service, or {up}\n")
}

fn file(options: &Show) -> Result<ExitCode, Fault> {
    let paths = options.here.paths()?;
    let had_another = use_file(&paths)?;
    if options.json {
        print_json(&serde_json::json!({ "changed": had_another }))?;
    } else if had_another {
        print(&format!("directory  the node's own file\n{}", restart(&paths.command("up"))));
    } else {
        print("directory  the node's own file, as before\n");
    }
    Ok(ExitCode::SUCCESS)
}

fn status(options: &Show) -> Result<ExitCode, Fault> {
    let Response::MeshDirectory(directory) = options.here.ask(&Request::MeshDirectory)? else {
        return Err(unexpected());
    };
    if options.json {
        print_json(&directory)?;
    } else {
        print(&page(directory.as_deref()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the line of the directory in `adit mesh status`.
pub(super) fn line(directory: &MeshDirectory) -> String {
    let lacks = match directory.lacks {
        Some(0) => ", complete".to_owned(),
        Some(lacks) => format!(", lacks {}", count(lacks, "change")),
        None => String::new(),
    };
    let state = state(directory);
    format!("{} ({state} for {}{lacks})", directory.database, span(directory.since_s))
}

fn state(directory: &MeshDirectory) -> &str {
    if directory.state == "not-reachable" { "not reachable" } else { &directory.state }
}

fn page(directory: Option<&MeshDirectory>) -> String {
    let Some(directory) = directory else {
        return "directory  the node's own file\n".into();
    };
    let mut text = format!("directory  {}\nrole       {}\n", line(directory), directory.role);
    text.push_str(&format!(
        "entries    {}; this node has {}\n",
        directory.entries,
        count(directory.changes, "change")
    ));
    text.push_str(&format!(
        "traffic    {} received, {} appended, {} refused; {} found missing, {} not valid\n",
        directory.received,
        directory.appended,
        directory.refused,
        directory.withheld,
        directory.invalid
    ));
    for (number, what) in [
        (directory.mismatches, "times the directory had other entries than before"),
        (directory.conflicts as u64, "changes cannot be stored: another entry has the number"),
        (directory.invalid_entries as u64, "entries are not valid changes"),
    ] {
        if number > 0 {
            text.push_str(&format!("warning    {number} {what}\n"));
        }
    }
    if let Some(problem) = &directory.problem {
        text.push_str(&format!("problem    {problem}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> MeshDirectory {
        MeshDirectory {
            database: "postgres://db:5432/mesh".into(),
            role: "adit_mesh_7f3ac21b_0102030405060708".into(),
            state: "connected".into(),
            since_s: 65,
            entries: 12,
            changes: 12,
            lacks: Some(0),
            ..MeshDirectory::default()
        }
    }

    #[test]
    fn the_page_says_what_the_directory_lacks_and_why_it_is_not_used() {
        let page_of = |directory: MeshDirectory| page(Some(&directory));
        let complete = page_of(directory());
        assert!(complete.contains("connected for 1 min 5 s, complete"), "{complete}");
        assert!(!complete.contains("warning"), "{complete}");
        let lacking = page_of(MeshDirectory { lacks: Some(3), mismatches: 1, ..directory() });
        assert!(lacking.contains("lacks 3 changes") && lacking.contains("warning    1 times"));
        let down = MeshDirectory {
            state: "not-reachable".into(),
            lacks: None,
            problem: Some("no database listens".into()),
            ..directory()
        };
        let down = page_of(down);
        assert!(down.contains("not reachable for 1 min 5 s)"), "{down}");
        assert!(down.contains("problem    no database listens"), "{down}");
        assert_eq!(page(None), "directory  the node's own file\n");
    }
}
