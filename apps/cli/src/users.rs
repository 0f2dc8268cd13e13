//! `adit server user ...`.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;

use adit_app_server::users::{self, Enrolment, UserOverview, UserRequest};
use adit_pki::UserState;
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use adit_runtime::terminal;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use zeroize::Zeroizing;

use crate::args::{
    ClientList, User, UserAdd, UserBind, UserGroup, UserPassword, UserProfile, UserTotp,
};
use crate::clients::{ended, target};
use crate::text::{WIDTH, date, pair, row, span, table, table_of_names, wrapped};
use crate::{note, paths, print, print_json};

/// The maximum length of a line with a password on stdin, in bytes.
const MAX_LINE: u64 = 4096;

pub(crate) fn run(verb: User) -> Result<ExitCode, Fault> {
    match verb {
        User::Add(options) => add(&options),
        User::List(options) => list(&options),
        User::Show(options) => show(&paths(&options.location)?, &options.name, options.json),
        User::Passwd(options) => passwd(&options),
        User::Totp(options) => totp(&options),
        User::Group(options) => group(&options),
        User::Bind(options) => bind(&options),
        User::Profile(options) => profile(options),
        User::Disable(who) => {
            let count = users::disable(&paths(&who.location)?, &who.name)?;
            ended(&who.name, "may not log in until enabled", count)
        }
        User::Enable(who) => {
            users::enable(&paths(&who.location)?, &who.name)?;
            ended(&who.name, "may log in again", 0)
        }
        User::Delete(who) => {
            let count = users::delete(&paths(&who.location)?, &who.name)?;
            ended(&who.name, "is deleted", count)
        }
    }
}

fn add(options: &UserAdd) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    users::check_new(&paths, &options.name)?;
    let wanted = UserRequest {
        name: options.name.clone(),
        groups: options.group.clone(),
        clients: options.client.clone(),
    };
    let user = if options.no_password {
        users::add_without_password(&paths, &wanted)?
    } else {
        users::add(&paths, &wanted, &password(&options.name, options.password_stdin)?)?
    };
    print(&format!("{} is added\n", user.name));
    if options.totp {
        let (enrolment, _) = users::set_codes(&paths, &options.name)?;
        enrol(&options.name, &enrolment)?;
    }
    if let Some(hint) = users::note_on_login(&paths)? {
        note(&wrapped("note: ", &hint));
    }
    Ok(ExitCode::SUCCESS)
}

fn passwd(options: &UserPassword) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    users::show(&paths, &options.name)?;
    let password = password(&options.name, options.password_stdin)?;
    let count = users::set_password(&paths, &options.name, &password)?;
    ended(&options.name, "has a new password", count)
}

fn totp(options: &UserTotp) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    if options.off {
        let count = users::remove_codes(&paths, &options.name)?;
        return ended(&options.name, "logs in without one-time codes", count);
    }
    let (enrolment, count) = users::set_codes(&paths, &options.name)?;
    enrol(&options.name, &enrolment)?;
    ended(&options.name, "needs one-time codes", count)
}

fn group(options: &UserGroup) -> Result<ExitCode, Fault> {
    let user = users::set_groups(&paths(&options.location)?, &options.name, &options.groups)?;
    let groups: Vec<&str> = user.groups.iter().map(|group| group.as_str()).collect();
    print(&match groups.as_slice() {
        [] => format!("{} is in no group\n", user.name),
        groups => wrapped(&format!("{} is in: ", user.name), &groups.join(", ")),
    });
    Ok(ExitCode::SUCCESS)
}

fn bind(options: &UserBind) -> Result<ExitCode, Fault> {
    let (user, count) = users::bind(&paths(&options.location)?, &options.name, &options.clients)?;
    let clients: Vec<&str> = user.clients.iter().map(|client| client.as_str()).collect();
    let what = match clients.as_slice() {
        [] => "may log in with the certificate of any client".to_owned(),
        clients => format!("may log in with the certificate of: {}", clients.join(", ")),
    };
    ended(&options.name, &what, count)
}

fn profile(options: UserProfile) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let profile = users::profile(&paths, &options.name)?;
    let Some(path) = target(options.output, &options.name)? else {
        print(profile.text());
        return Ok(ExitCode::SUCCESS);
    };
    profile.save(&path).map_err(|error| Fault::environment(error.to_string()))?;
    print(&wrapped(
        "",
        &format!(
            "{} holds the profile of {}. It has no private key: the password is all that a login needs.",
            path.display(),
            options.name
        ),
    ));
    Ok(ExitCode::SUCCESS)
}

/// Asks for a new password on the terminal, or reads it from stdin.
fn password(name: &str, stdin: bool) -> Result<Zeroizing<String>, Fault> {
    if stdin {
        return first_line(std::io::stdin().lock());
    }
    let ask = |prompt: &str| {
        terminal::ask_hidden(prompt).map_err(|error| {
            Fault::operator(format!(
                "no terminal to ask for the password on ({error}); give it on stdin: --password-stdin"
            ))
        })
    };
    let password = ask(&format!("Password for {name}: "))?;
    if *ask("The same again: ")? != *password {
        return Err(Fault::operator("the two passwords differ; nothing was changed"));
    }
    Ok(password)
}

/// Reads a password from the first line, without its end.
fn first_line(input: impl BufRead) -> Result<Zeroizing<String>, Fault> {
    let mut line = Zeroizing::new(String::new());
    let read = input.take(MAX_LINE).read_line(&mut line);
    read.map_err(|error| Fault::operator(format!("--password-stdin: cannot read: {error}")))?;
    let end = line.trim_end_matches(['\n', '\r']).len();
    line.truncate(end);
    if line.is_empty() {
        return Err(Fault::operator("--password-stdin: the first line is empty"));
    }
    Ok(line)
}

/// Shows a new secret and the recovery codes.
fn enrol(name: &str, enrolment: &Enrolment) -> Result<(), Fault> {
    if std::io::stdout().is_terminal() {
        print(&qr(&enrolment.uri)?);
        print(&wrapped(
            "",
            &format!("{name} scans this with an app for one-time codes, or types:"),
        ));
    }
    print(&page(enrolment));
    Ok(())
}

fn page(enrolment: &Enrolment) -> String {
    let mut text = format!(
        "secret:  {}\nurl:     {}\n\nRecovery codes, for a lost phone. Each replaces a code once:\n",
        enrolment.secret.as_str(),
        enrolment.uri.as_str()
    );
    for codes in enrolment.recovery.chunks(2) {
        let codes: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
        text.push_str(&format!("  {}\n", codes.join("   ")));
    }
    text.push_str("They are shown only now.\n\n");
    text
}

/// Draws a QR code with half blocks, two modules per character. The colours are explicit, because readers do not accept an
/// inverted code, and a terminal may be light or dark.
pub(crate) fn qr(text: &str) -> Result<Zeroizing<String>, Fault> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L)
        .map_err(|error| Fault::ours(format!("cannot draw a QR code: {error}")))?;
    let drawn = Zeroizing::new(code.render::<Dense1x2>().quiet_zone(true).build());
    let mut lines = Zeroizing::new(String::new());
    for line in drawn.lines() {
        if line.chars().count() > WIDTH {
            return Err(Fault::ours("the QR code is wider than a terminal"));
        }
        // Black on white.
        lines.push_str("\u{1b}[38;5;16;48;5;231m");
        lines.push_str(line);
        lines.push_str("\u{1b}[0m\n");
    }
    Ok(lines)
}

fn state(user: &UserOverview) -> &'static str {
    match user.state {
        UserState::Active if user.sessions.is_empty() => "active",
        UserState::Active => "connected",
        UserState::Disabled => "disabled",
    }
}

fn codes(user: &UserOverview) -> String {
    if user.totp { format!("on, {} recovery", user.recovery_codes) } else { "off".into() }
}

fn list(options: &ClientList) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let known = users::list(&paths)?;
    if options.json {
        print_json(&known)?;
        return Ok(ExitCode::SUCCESS);
    }
    if known.is_empty() {
        let hint = paths.command("server user add alice --totp");
        print(&format!("No users yet. Add one: {hint}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let rows = columns(&known);
    // Print complete names for programs, and lines that fit a terminal for users.
    print(&if std::io::stdout().is_terminal() { table_of_names(rows) } else { table(&rows) });
    Ok(ExitCode::SUCCESS)
}

fn columns(known: &[UserOverview]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["NAME", "STATE", "CODES", "CREATED"])];
    rows.extend(
        known
            .iter()
            .map(|user| row([user.name.as_str(), state(user), &codes(user), &date(user.created)])),
    );
    rows
}

fn show(paths: &Paths, name: &str, json: bool) -> Result<ExitCode, Fault> {
    let user = users::show(paths, name)?;
    if json {
        print_json(&user)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![
        row(["name", &user.name]),
        row(["state", state(&user)]),
        row(["created", &date(user.created)]),
        row(["one-time codes", &codes(&user)]),
    ];
    if !user.groups.is_empty() {
        rows.push(row(["groups", &user.groups.join(", ")]));
    }
    let clients = if user.clients.is_empty() { "any".into() } else { user.clients.join(", ") };
    rows.push(row(["clients", &clients]));
    for session in &user.sessions {
        let since = crate::text::now().saturating_sub(session.since);
        let text = format!("{} from {}, for {}", session.name, session.address, span(since));
        rows.push(row(["session", &text]));
    }
    rows.iter().for_each(|row| print(&pair(row)));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use adit_pki::TotpSecret;

    use super::*;

    #[test]
    fn the_longest_secret_fits_a_terminal() {
        let secret = TotpSecret::generate().unwrap();
        let uri = secret.uri(&"h".repeat(64), &"n@".repeat(32));
        let drawn = qr(&uri).unwrap();
        for line in drawn.lines() {
            let visible = line.replace("\u{1b}[38;5;16;48;5;231m", "").replace("\u{1b}[0m", "");
            assert!(visible.chars().count() <= 80, "{}", visible.chars().count());
            assert!(visible.chars().all(|c| " \u{2580}\u{2584}\u{2588}".contains(c)), "{visible}");
        }
        assert!((20..=45).contains(&drawn.lines().count()));
    }

    #[test]
    fn the_page_of_an_enrolment_names_everything_once() {
        let code = |n: usize| Zeroizing::new(format!("aaaa-bbbb-cccc-ddd{n}"));
        let enrolment = Enrolment {
            secret: Zeroizing::new("ABCD".into()),
            uri: Zeroizing::new("otpauth://totp/x".into()),
            recovery: (0..8).map(code).collect(),
        };
        let text = page(&enrolment);
        assert_eq!(text.matches("ABCD").count(), 1);
        assert!((0..8).all(|n| text.contains(code(n).as_str())), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_password_on_stdin_is_the_first_line() {
        let read = |text: &str| first_line(text.as_bytes()).map(|line| line.to_string());
        assert_eq!(read("correct horse\r\nmore\n").unwrap(), "correct horse");
        assert_eq!(read(" pässword ").unwrap(), " pässword ");
        for bad in ["", "\n", "\r\n"] {
            assert!(read(bad).unwrap_err().to_string().contains("empty"), "{bad:?}");
        }
        assert_eq!(read(&"x".repeat(10_000)).unwrap().len(), 4096);
        assert!(first_line(&b"\xff\n"[..]).is_err());
    }

    #[test]
    fn a_list_fits_a_terminal() {
        let user = UserOverview {
            name: "n".repeat(64),
            state: UserState::Active,
            created: 1_795_000_000,
            totp: true,
            recovery_codes: 8,
            groups: vec!["staff".into()],
            clients: Vec::new(),
            sessions: Vec::new(),
        };
        let text = table_of_names(columns(&[user]));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("on, 8 recovery"), "{text}");
    }
}
