//! The manual pages: one for each command, adit-bridge.toml(5), server.toml(5) and adit-filter(7).

mod markdown;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[cfg(feature = "bridge")]
use adit_app_bridge::BRIDGE_KEYS;
use adit_app_server::{EVENT_KEYS, KEYS, OIDC_KEYS};
use adit_runtime::fault::Fault;
use adit_runtime::settings::Key;
use clap::CommandFactory;

use crate::args::Cli;

/// The documentation of the rule language.
const FILTER: &str = include_str!("../../../docs/filter.md");

/// Writes a page for each command, one for each settings file, and one for the rule language.
pub(crate) fn write(dir: &Path) -> Result<ExitCode, Fault> {
    let fault = |error: io::Error| {
        Fault::environment(format!(
            "cannot write man pages into {}: {error}; name a folder that you may write to",
            dir.display()
        ))
    };
    std::fs::create_dir_all(dir).map_err(fault)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, dir).map_err(fault)?;
    let pages = [
        (5, "server.toml.5", settings_page()),
        #[cfg(feature = "bridge")]
        (5, "adit-bridge.toml.5", bridge_page()),
        (7, "adit-filter.7", filter_page()),
    ];
    for (section, name, page) in pages {
        let folder = section_folder(dir, section);
        std::fs::create_dir_all(&folder).map_err(fault)?;
        std::fs::write(folder.join(name), page).map_err(fault)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for a command, and one for each of its subcommands.
fn write_pages(command: &clap::Command, dir: &Path) -> io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_pages(verb, dir)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    std::fs::write(dir.join(format!("{name}.1")), page(command, name)?)
}

/// Returns the page that clap generates, with the program in the title and the options' values in the synopsis.
fn page(command: &clap::Command, name: &str) -> io::Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    let mut text = String::new();
    let (mut in_synopsis, mut in_examples) = (false, false);
    for line in String::from_utf8_lossy(&page).lines() {
        if line.starts_with(".SH ") {
            in_examples = line == ".SH EXTRA";
        }
        if line.starts_with(".TH ") {
            let version = env!("CARGO_PKG_VERSION");
            text.push_str(&format!(".TH {name} 1 \"\" \"adit {version}\" \"adit manual\""));
        } else if std::mem::take(&mut in_synopsis) {
            text.push_str(&synopsis(command));
        } else if in_examples {
            text.push_str(&example(line));
        } else {
            text.push_str(line);
        }
        in_synopsis |= line == ".SH SYNOPSIS";
        text.push('\n');
    }
    text.push_str(&see_also(name));
    Ok(text)
}

/// Formats a line of the examples. Command lines stay unchanged, and the text around them is filled.
fn example(line: &str) -> String {
    match line {
        ".SH EXTRA" => ".SH EXAMPLES".to_owned(),
        "Example:" | "Examples:" | "" => ".PP".to_owned(),
        _ if line.starts_with("  ") => format!(".nf\n{}\n.fi", within_page(line)),
        _ => line.to_owned(),
    }
}

/// The number of columns for lines that are not filled, in a terminal of 80.
const COLUMNS: usize = 73;

/// Fits a command line of the examples. In a long one, the part after three blanks (its last option or its last words)
/// moves to the next line.
fn within_page(line: &str) -> String {
    let shown = line.replace("\\-", "-").replace("\\*(Aq", "'").chars().count();
    if shown <= COLUMNS {
        return line.to_owned();
    }
    let command = line.trim_start();
    if let Some((command, words)) = command.split_once("   ") {
        return format!("  {command}\n      {}", words.trim_start());
    }
    match command.rsplit_once(" \\-\\-") {
        Some((command, option)) => format!("  {command} \\e\n      \\-\\-{option}"),
        None => {
            let end = command.char_indices().map(|(at, _)| at).nth(COLUMNS - 8);
            let at = end.and_then(|end| command.get(..end)).and_then(|head| head.rfind(' '));
            let (command, words) = command.split_at(at.unwrap_or(command.len()));
            format!("  {command} \\e\n     {words}")
        }
    }
}

fn synopsis(command: &clap::Command) -> String {
    let bold = |text: &str| format!("\\fB{}\\fR", text.replace('-', "\\-"));
    let mut text = bold(command.get_bin_name().unwrap_or(command.get_name()));
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let names = argument.get_value_names().unwrap_or_default();
        let values: Vec<String> = names.iter().map(|name| format!("\\fI{name}\\fR")).collect();
        let values = values.join(" ");
        let word = match (argument.get_long(), argument.get_short()) {
            (Some(long), _) if argument.get_action().takes_values() => {
                format!("{} {values}", bold(&format!("--{long}")))
            }
            (Some(long), _) => bold(&format!("--{long}")),
            (None, Some(short)) => bold(&format!("-{short}")),
            (None, None) => values,
        };
        text.push_str(&if argument.is_required_set() {
            format!(" {word}")
        } else {
            format!(" [{word}]")
        });
    }
    if command.has_subcommands() {
        text.push_str(" \\fIVERB\\fR");
    }
    text
}

/// Returns related pages.
fn see_also(name: &str) -> String {
    let page = |name: &str, section: u8| format!("\\fB{}\\fR({section})", escaped(name));
    let pages = match name {
        "adit" => return String::new(),
        _ if name.starts_with("adit-server") => vec![page("server.toml", 5), page("adit", 1)],
        "adit-bridge" => vec![page("adit-bridge.toml", 5), page("adit", 1)],
        _ if name.starts_with("adit-filter") => vec![page("adit-filter", 7), page("adit", 1)],
        _ => vec![page("adit", 1)],
    };
    format!(".SH \"SEE ALSO\"\n{}\n", pages.join(", "))
}

/// Returns the directory for pages of another section, such as `man5` next to `man1`. If the directory has another
/// name, returns the same one.
fn section_folder(dir: &Path, section: u8) -> PathBuf {
    if dir.file_name().is_some_and(|name| name == "man1") {
        dir.with_file_name(format!("man{section}"))
    } else {
        dir.to_owned()
    }
}

/// Escapes text for roff, so that no hyphen becomes a dash and no line begins with a request.
fn escaped(text: &str) -> String {
    const SPECIAL: [(char, &str); 6] = [
        ('\\', "\\e"),
        ('-', "\\-"),
        ('\'', "\\(aq"),
        ('`', "\\(ga"),
        ('^', "\\(ha"),
        ('~', "\\(ti"),
    ];
    SPECIAL.iter().fold(text.to_owned(), |text, (c, name)| text.replace(*c, name))
}

/// Generates adit-bridge.toml(5) from the table of its keys.
#[cfg(feature = "bridge")]
fn bridge_page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".TH adit-bridge.toml 5 \"\" \"adit {version}\" \"adit manual\"\n\
         .SH NAME\n\
         adit-bridge.toml \\- settings of a bridge of adit\n\
         .SH SYNOPSIS\n\
         \\fI/etc/adit/bridge/NAME.toml\\fR\n\
         .SH DESCRIPTION\n\
         The file of \\fBadit bridge \\-\\-settings\\fR \\fIFILE\\fR and of the service \\fBadit\\-bridge@\\fR\\fINAME\\fR, in TOML: one \
         \\fIKEY = VALUE\\fR a line, and comments behind #. The bridge has the file's name. Unknown keys are refused, with file and line.\n\
         .SH KEYS\n"
    );
    BRIDGE_KEYS.iter().for_each(|key| page.push_str(&paragraph(key)));
    page.push_str(
        ".SH EXAMPLE\n.nf\nports = [\"eth1\", \"eth2\"]\nrules = \"fw.nft\"\n.fi\n.SH \"SEE ALSO\"\n\
         \\fBadit\\-bridge\\fR(1), \\fBadit\\-filter\\fR(1)\n",
    );
    page
}

/// Generates server.toml(5) from the same table as the file itself.
fn settings_page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".TH server.toml 5 \"\" \"adit {version}\" \"adit manual\"\n\
         .SH NAME\n\
         server.toml \\- settings of a VPN server of adit\n\
         .SH SYNOPSIS\n\
         \\fI/etc/adit/server.toml\\fR, or \\fIDIR/server.toml\\fR with \\fB\\-\\-dir\\fR \\fIDIR\\fR\n\
         .SH DESCRIPTION\n\
         The file is in TOML: one \\fIKEY = VALUE\\fR per line, and comments after #. \\fBadit server up\\fR and \\fBadit server \
         init\\fR write it with every key and a comment for each. Unknown keys are refused, with file and line.\n\
         .PP\n\
         \\fBadit reload\\fR reads it again without dropping a tunnel. It prints which changes took effect, and which \
         keys need a restart.\n\
         .SH KEYS\n"
    );
    KEYS.iter().for_each(|key| page.push_str(&paragraph(key)));
    page.push_str(
        ".SH WEBHOOK\nThe keys of the section \\fB[events]\\fR, which comes after all other lines: the webhook that \
         gets each event.\n",
    );
    EVENT_KEYS.iter().for_each(|key| page.push_str(&paragraph(key)));
    page.push_str(
        ".SH \"SINGLE SIGN\\-ON\"\nThe keys of the section \\fB[oidc]\\fR: the provider with which users log in in \
         a browser.\n",
    );
    OIDC_KEYS.iter().for_each(|key| page.push_str(&paragraph(key)));
    page.push_str(
        ".SH EXAMPLE\n.nf\nhost = \"vpn.example.net\"\nnetwork = \"10.87.31.0/24\"\nfull\\-tunnel = true\n\
         dns = [\"9.9.9.9\"]\n.fi\n.SH \"SEE ALSO\"\n\
         \\fBadit\\-server\\fR(1), \\fBadit\\-server\\-up\\fR(1), \\fBadit\\-reload\\fR(1), \\fBadit\\-filter\\fR(1)\n",
    );
    page
}

/// Generates adit-filter(7) from docs/filter.md.
fn filter_page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".TH adit-filter 7 \"\" \"adit {version}\" \"adit manual\"\n.SH NAME\nadit-filter \\- the language of \
         adit's packet filter\n.SH DESCRIPTION\n"
    );
    page.push_str(&markdown::roff(FILTER));
    page.push_str(
        ".SH \"SEE ALSO\"\n\\fBadit\\-filter\\fR(1), \\fBserver.toml\\fR(5), \\fBnft\\fR(8)\n",
    );
    page
}

fn paragraph(key: &Key) -> String {
    // Code is between backticks in the file, and in bold print here.
    let mut comment = String::new();
    for (at, part) in key.comment.replace('\n', " ").split('`').enumerate() {
        let part = escaped(part);
        comment.push_str(&if at % 2 == 1 { format!("\\fB{part}\\fR") } else { part });
    }
    let default = match key.default {
        Some(default) => format!("Default: {}.", escaped(default)),
        None => "There is no default: the key is required.".to_owned(),
    };
    let restart = match (key.restart, key.name) {
        (false, _) => "",
        (true, "filter") => {
            " Another file, and other rules, take effect at once; the first one needs a restart."
        }
        (true, _) => " A new value takes effect at the next start.",
    };
    format!(
        ".TP\n\\fB{}\\fR = {}\n{comment}\n.br\n{default}{restart}\n",
        escaped(key.name),
        escaped(key.example)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_man_page() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        for page in ["adit.1", "adit-server-client-add.1", "adit-demo.1", "adit-openvpn.1"] {
            assert!(dir.path().join(page).exists(), "{page}");
        }
        let read = |page: &str| std::fs::read_to_string(dir.path().join(page)).unwrap();
        let up = read("adit-server-up.1");
        assert!(up.contains(".TH adit-server-up 1 \"\" \"adit "), "{up}");
        assert!(up.contains("[\\fB\\-\\-client\\fR \\fINAME\\fR]"), "{up}");
        assert!(up.contains("[\\fB\\-\\-full\\-tunnel\\fR]"), "{up}");
        assert!(read("adit-connect.1").contains("\\fBadit connect\\fR [\\fIPROFILE\\fR]"));
        let add = read("adit-server-client-add.1");
        assert!(
            add.contains(".SH EXAMPLES\n.PP\n.nf\n  sudo adit server client add laptop"),
            "{add}"
        );
        assert!(add.contains("\\fBserver.toml\\fR(5), \\fBadit\\fR(1)"), "{add}");
        let check =
            "  sudo adit connect \\-\\-check laptop.ovpn\n      try every stage, name what fails\n";
        assert!(read("adit-connect.1").contains(check), "{}", read("adit-connect.1"));
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            // Pages of other sections have other line lengths.
            if path.extension().is_none_or(|section| section != "1") {
                continue;
            }
            let page = std::fs::read_to_string(path).unwrap();
            for line in page.split(".nf\n").skip(1).filter_map(|part| part.split(".fi").next()) {
                let shown = line.replace("\\-", "-").replace("\\*(Aq", "'");
                assert!(shown.lines().all(|line| line.chars().count() <= COLUMNS), "{line}");
            }
        }
        let openvpn = read("adit-openvpn.1");
        assert!(
            openvpn.contains("\"adit manual\"") && !openvpn.contains("\"openvpn \""),
            "{openvpn}"
        );
    }

    /// Checks the pages of a command and of those below it. Returns their number.
    fn check_pages(command: &clap::Command, dir: &Path) -> usize {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let page = std::fs::read_to_string(dir.join(format!("{name}.1"))).expect(name);
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let word = match (argument.get_long(), argument.get_value_names()) {
                (Some(long), _) => format!("\\-\\-{}\\fR", escaped(long)),
                (None, Some([value, ..])) => format!("\\fI{value}\\fR"),
                (None, _) => continue,
            };
            let description = page.split_once(".SH OPTIONS\n").expect(name).1;
            assert!(description.contains(&word), "{name}.1 does not explain {word}: {page}");
        }
        let mut pages = 1;
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let entry = escaped(verb.get_display_name().unwrap_or(verb.get_name()));
            assert!(page.contains(&format!("{entry}(1)\n")), "{name}.1 does not name {entry}");
            pages += check_pages(verb, dir);
        }
        pages
    }

    /// The parser itself is the list with which the pages are compared.
    #[test]
    fn every_command_and_option_is_in_the_pages() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("man1");
        write(&folder).unwrap();
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let pages = check_pages(&command, &folder);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), pages);
    }

    #[test]
    fn the_filters_language_has_a_page_with_every_part_of_its_reference() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("man1")).unwrap();
        let page = std::fs::read_to_string(dir.path().join("man7/adit-filter.7")).unwrap();
        assert!(page.starts_with(".TH adit-filter 7 "), "{page}");
        for heading in FILTER.lines().filter_map(|line| line.strip_prefix("## ")) {
            let heading = format!(".SH \"{}\"\n", escaped(heading).to_uppercase());
            assert!(page.contains(&heading), "{heading} is missing in {page}");
        }
        for heading in FILTER.lines().filter_map(|line| line.strip_prefix("### ")) {
            assert!(page.contains(&format!(".SS \"{}\"\n", escaped(heading))), "{heading}");
        }
        // A row of the reference, and a rule in its syntax.
        assert!(page.contains(".TP\n\\fBtcp\\fR\n\\fBsport\\fR, \\fBdport\\fR, "), "{page}");
        assert!(page.contains("\n#!/usr/sbin/nft \\-f\n"), "{page}");
        for markup in ["`", "](", "|---", "\n|", "\n#\n", "**"] {
            assert!(!page.contains(markup), "{markup:?} in {page}");
        }
        // Code is not filled. In a terminal of 80 columns, a page has 71 columns for it.
        let code = page.split(".nf\n").skip(1).filter_map(|block| block.split(".fi\n").next());
        for line in code.flat_map(str::lines) {
            let shown = ["\\(aq", "\\(ga", "\\(ha", "\\(ti", "\\-", "\\e", "\\&"];
            let shown = shown.iter().fold(line.to_owned(), |line, name| line.replace(name, "x"));
            assert!(shown.chars().count() <= 71, "{line}");
        }
        assert!(page.contains("\nadit filter flush           ends all connections\n"), "{page}");
        let filter = std::fs::read_to_string(dir.path().join("man1/adit-filter.1")).unwrap();
        assert!(filter.contains("\\fBadit\\-filter\\fR(7), \\fBadit\\fR(1)"), "{filter}");
    }

    #[test]
    fn the_settings_have_a_page_with_every_key() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("man1")).unwrap();
        let page = std::fs::read_to_string(dir.path().join("man5/server.toml.5")).unwrap();
        assert!(page.starts_with(".TH server.toml 5 "), "{page}");
        for key in KEYS.iter().chain(&EVENT_KEYS).chain(&OIDC_KEYS) {
            let head = format!(".TP\n\\fB{}\\fR = ", escaped(key.name));
            assert!(page.contains(&head), "{} is missing in {page}", key.name);
        }
        assert!(page.contains("Default: 250."), "{page}");
        // `adit connect --check` recommends this key if the tunnel's packets are too large.
        assert!(KEYS.iter().any(|key| key.name == "mtu"));
        assert!(!page.contains('`'), "{page}");
        // In any other directory they are written next to each other.
        write(&dir.path().join("all")).unwrap();
        assert!(dir.path().join("all/server.toml.5").exists());
    }

    #[cfg(feature = "bridge")]
    #[test]
    fn the_settings_of_a_bridge_have_a_page_with_every_key() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        let page = std::fs::read_to_string(dir.path().join("adit-bridge.toml.5")).unwrap();
        for key in &BRIDGE_KEYS {
            let head = format!(".TP\n\\fB{}\\fR = ", escaped(key.name));
            assert!(page.contains(&head), "{} is missing in {page}", key.name);
        }
        assert!(!page.contains('`'), "{page}");
    }
}
