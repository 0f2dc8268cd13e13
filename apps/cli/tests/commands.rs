//! Tests of the program as a user sees it: its output and exit codes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const ADIT: &str = env!("CARGO_BIN_EXE_adit");

fn adit(dir: &Path, line: &str) -> Output {
    let mut command = Command::new(ADIT);
    command.args(line.split_whitespace()).current_dir(dir);
    command.output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Creates a directory with a server in `vpn`.
fn server() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let made = adit(dir.path(), "server init --host vpn.example.net --dir vpn");
    assert_eq!(code(&made), 0, "{}", err(&made));
    dir
}

#[test]
fn exit_codes_tell_usage_from_failure() {
    let dir = tempfile::tempdir().unwrap();
    for (line, wanted) in [
        ("--version", 0),
        ("server init --help", 0),
        ("", 2),
        ("no-such-verb", 2),
        ("server init --listen sctp/443 --dir vpn", 2),
        ("server init --network 10.0.0.0/31 --host h --dir vpn", 2),
        ("server client list --dir vpn", 2),
        ("server run --dir vpn", 2),
        ("status --dir vpn", 1),
        ("reload --dir vpn", 1),
        // The commands of tinc have tinc's codes.
        ("tinc no-such-verb", 1),
        ("tinc --no-such-option", 1),
        ("tinc dump", 1),
        ("tinc debug x", 1),
        ("tinc help", 0),
        ("tinc --help", 0),
    ] {
        let output = adit(dir.path(), line);
        assert_eq!(code(&output), wanted, "adit {line}: {}{}", out(&output), err(&output));
    }
    assert!(!dir.path().join("vpn/server.toml").exists());
}

#[test]
fn a_server_is_created_once() {
    let dir = server();
    let file = dir.path().join("vpn/server.toml");
    let before = fs::read(&file).unwrap();
    let again = adit(dir.path(), "server init --dir vpn");
    assert_eq!(code(&again), 0);
    assert!(out(&again).contains("(kept)"), "{}", out(&again));
    assert_eq!(fs::read(&file).unwrap(), before);
    let other = adit(dir.path(), "server init --dir vpn --host elsewhere");
    assert_eq!(code(&other), 2);
    assert!(err(&other).contains("adit reload"), "{}", err(&other));
}

#[test]
fn a_profile_goes_down_the_pipe_or_into_a_private_file() {
    let dir = server();
    let piped = adit(dir.path(), "server client add phone --dir vpn");
    assert_eq!(code(&piped), 0, "{}", err(&piped));
    assert!(out(&piped).starts_with("client\n"));
    assert!(out(&piped).contains("-----BEGIN PRIVATE KEY-----"));
    assert!(!dir.path().join("phone.ovpn").exists());

    let filed = adit(dir.path(), "server client add laptop --dir vpn -o laptop.ovpn");
    assert_eq!(code(&filed), 0, "{}", err(&filed));
    assert!(!out(&filed).contains("PRIVATE KEY"));
    let file = dir.path().join("laptop.ovpn");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // The file already exists, so no certificate is issued, because its key would be lost.
    let blocked = adit(dir.path(), "server client add other --dir vpn -o laptop.ovpn");
    assert_eq!(code(&blocked), 2);
    let list = out(&adit(dir.path(), "server client list --dir vpn --json"));
    assert!(list.contains("\"laptop\"") && !list.contains("\"other\""), "{list}");
    // No private key is left behind.
    let kept = Command::new("grep").args(["-rl", "laptop", "vpn"]).current_dir(&dir).output();
    let mut kept: Vec<String> = out(&kept.unwrap()).lines().map(str::to_owned).collect();
    kept.sort();
    assert_eq!(kept, ["vpn/data/audit.log", "vpn/data/pki/clients.json"]);
    // The failed command is recorded too.
    let acts = out(&adit(dir.path(), "server audit --dir vpn --json"));
    assert!(acts.contains("\"other\"") && acts.contains("\"ok\": false"), "{acts}");
    assert!(!acts.contains("KEY"), "{acts}");
}

#[test]
fn clients_are_listed_shown_and_revoked() {
    let dir = server();
    assert!(out(&adit(dir.path(), "server client list --dir vpn")).contains("No clients yet"));
    adit(dir.path(), "server client add laptop --dir vpn -o l.ovpn");
    let shown = out(&adit(dir.path(), "server client show laptop --dir vpn"));
    assert!(shown.contains("active") && shown.contains("serial"), "{shown}");
    let revoked = out(&adit(dir.path(), "server client revoke laptop --dir vpn"));
    assert_eq!(revoked, "laptop is revoked permanently\n");
    assert!(out(&adit(dir.path(), "server client list --dir vpn")).contains("revoked"));
    let unknown = adit(dir.path(), "server client revoke nobody --dir vpn");
    assert_eq!(code(&unknown), 2);
    assert!(err(&unknown).contains("client list"), "{}", err(&unknown));
}

#[test]
fn a_broken_file_names_its_line() {
    let dir = server();
    let file = dir.path().join("vpn/server.toml");
    // The port is not 1194 if that is in use, for example while another test checks it.
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"udp/"), "{text}");
    let text = text.replace("\"udp/", "\"sctp/");
    fs::write(&file, &text).unwrap();
    let line = 1 + text.lines().position(|line| line.starts_with("listen")).unwrap();
    let failed = adit(dir.path(), "server run --dir vpn");
    assert_eq!(code(&failed), 2);
    assert!(err(&failed).contains(&format!("server.toml line {line}:")), "{}", err(&failed));
    assert!(err(&failed).contains("write udp/"), "{}", err(&failed));
}

#[test]
fn called_as_openvpn_it_takes_openvpns_options() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join("openvpn");
    symlink(ADIT, &name).unwrap();
    let ours = adit(dir.path(), "openvpn --no-such-directive");
    let named = Command::new(&name).arg("--no-such-directive").output().unwrap();
    assert_eq!(ours.status, named.status);
    // Clap's usage text would contain this.
    assert!(!err(&named).contains("Usage: adit"), "{}", err(&named));
}

#[test]
fn completions_and_man_pages_are_made() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = adit(dir.path(), &format!("completions {shell}"));
        assert_eq!(code(&script), 0);
        assert!(out(&script).contains("ADIT_COMPLETE"), "{shell}: {}", out(&script));
    }
    assert_eq!(code(&adit(dir.path(), "man pages")), 0);
    assert!(dir.path().join("pages/adit-server-up.1").exists());
    assert!(dir.path().join("pages/server.toml.5").exists());
}

/// Returns the completions of bash, zsh and fish for the last word of a line, with the protocol of
/// their scripts.
fn completed(dir: &Path, shell: &str, line: &[&str]) -> Vec<String> {
    let output = Command::new(ADIT)
        .arg("--")
        .args(line)
        .current_dir(dir)
        .env("ADIT_COMPLETE", shell)
        .env("_CLAP_COMPLETE_INDEX", (line.len() - 1).to_string())
        .env("_CLAP_IFS", "\n")
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {}", err(&output));
    // Explanations follow a tab or a colon.
    let words = out(&output);
    words.lines().map(|word| word.split(['\t', ':']).next().unwrap().to_owned()).collect()
}

#[test]
fn the_shell_completes_verbs_options_files_and_names() {
    let dir = server();
    for name in ["laptop", "lena", "phone", "old"] {
        adit(
            dir.path(),
            &format!("server client add {name} --group staff --dir vpn -o {name}.ovpn"),
        );
    }
    adit(dir.path(), "server client disable lena --dir vpn");
    adit(dir.path(), "server client revoke old --dir vpn");
    let client = ["adit", "server", "client"];
    for shell in ["bash", "zsh", "fish"] {
        for (line, offered) in [
            (&["revoke", "--dir", "vpn", "l"][..], &["laptop", "lena"][..]),
            (&["kick", "--dir=vpn", "p"], &["phone"]),
            (&["renew", "--dir", "vpn", "o"], &[]),
            (&["show", "--dir", "vpn", "o"], &["old"]),
            (&["enable", "--dir", "vpn", "l"], &["lena"]),
            (&["remotes", "--dir", "vpn", "--done", "ph"], &["phone"]),
            (&["group", "--dir", "vpn", "phone", "st"], &["staff"]),
            (&["list", "--js"], &["--json"]),
            // Without a server there are no completions and no error message.
            (&["revoke", "--dir", "elsewhere", "l"], &[]),
        ] {
            let line = [&client, line].concat();
            assert_eq!(completed(dir.path(), shell, &line), offered, "{shell}: {line:?}");
        }
        assert_eq!(completed(dir.path(), shell, &["adit", "ser"]), ["server"]);
        assert_eq!(completed(dir.path(), shell, &["adit", "connect", "lap"]), ["laptop.ovpn"]);
    }
}

/// The script in a real shell finds the program by its name and uses its answer.
#[test]
fn bash_completes_by_the_script() {
    let dir = server();
    adit(dir.path(), "server client add laptop --dir vpn -o laptop.ovpn");
    let script = "source <(adit completions bash)
        COMP_WORDS=(adit server client revoke --dir vpn la) COMP_CWORD=6 COMP_TYPE=9
        _clap_complete_adit adit la vpn
        echo \"${COMPREPLY[*]}\"";
    let folder = Path::new(ADIT).parent().unwrap().to_str().unwrap();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["--norc", "-c", script])
        .current_dir(dir.path())
        .env("PATH", path)
        .output()
        .unwrap();
    assert_eq!((out(&output).as_str(), err(&output).as_str()), ("laptop\n", ""));
}

#[test]
fn a_rule_file_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("good.nft"),
        "table inet filter {
\tchain forward {
\t\ttype filter hook forward priority filter; policy drop;
\t\tmeta l4proto { icmp, ipv6-icmp } accept
\t\ttcp dport 7070 accept
\t}
}
",
    )
    .unwrap();
    let good = adit(dir.path(), "filter check good.nft");
    assert_eq!(code(&good), 0, "{}", err(&good));
    assert_eq!(
        out(&good),
        "good.nft: 1 table, 1 chain, 2 rules, 1 set with 2 elements; what no rule accepts is \
         dropped\n"
    );

    fs::write(
        dir.path().join("bad.nft"),
        "table inet filter {
\tchain forward {
\t\ttype filter hook input priority filter;
\t\ttcp dprot 7070 accept
\t}
}
",
    )
    .unwrap();
    let bad = adit(dir.path(), "filter check bad.nft");
    assert_eq!(code(&bad), 2);
    assert_eq!(out(&bad), "");
    assert_eq!(
        err(&bad),
        "bad.nft:3:20: there is no hook `input`: only what passes through is seen
      type filter hook input priority filter;
                       ^^^^^
    instead: type filter hook forward priority filter; policy drop;
bad.nft:4:7: `dprot` is not a field of `tcp`
      tcp dprot 7070 accept
          ^^^^^
    instead: did you mean `dport`?
"
    );
    // Rules that no packet can reach are refused, as at startup.
    fs::write(dir.path().join("open.nft"), "table inet f { chain c { drop; } }\n").unwrap();
    let open = adit(dir.path(), "filter check open.nft");
    assert_eq!((code(&open), out(&open)), (2, String::new()));
    assert!(err(&open).starts_with("open.nft:1:22: no chain has a hook: every packet would pass"));
    let json = adit(dir.path(), "filter check --json open.nft");
    assert!(code(&json) == 2 && out(&json).contains("no chain has a hook"), "{}", out(&json));
    let json = adit(dir.path(), "filter check --json bad.nft");
    assert_eq!(code(&json), 2);
    assert!(out(&json).contains("\"line\": 4"), "{}", out(&json));
    let missing = adit(dir.path(), "filter check none.nft");
    assert_eq!(code(&missing), 2, "{}", err(&missing));
}

#[test]
fn a_server_is_not_set_up_with_rules_that_it_would_not_start_with() {
    let dir = tempfile::tempdir().unwrap();
    let init = || adit(dir.path(), "server init --dir vpn --host vpn.example.net --filter fw.nft");
    for bad in [
        "table inet f { chain c { tcp dprot 22 accept; } }\n",
        "",
        "table inet t { chain c { drop; } }\n",
    ] {
        fs::write(dir.path().join("fw.nft"), bad).unwrap();
        let refused = init();
        assert_eq!(code(&refused), 2, "{bad:?}: {}", out(&refused));
        assert!(err(&refused).contains("fw.nft:1:"), "{}", err(&refused));
        assert!(!dir.path().join("vpn/server.toml").exists(), "nothing was created");
    }
    fs::remove_file(dir.path().join("fw.nft")).unwrap();
    let made = init();
    assert_eq!(code(&made), 0, "{}", err(&made));
    let said = err(&made).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("the server does not start without it"), "{said}");
}

/// Checks a page's blocks of commands, which are files (`$ cat FILE`) and the output of `adit`.
#[test]
fn the_transcripts_of_the_filters_page_are_what_it_prints() {
    let dir = tempfile::tempdir().unwrap();
    let page = include_str!("../../../docs/filter.md");
    let mut sessions: Vec<(&str, String)> = Vec::new();
    for line in page.lines() {
        let Some(line) = line.strip_prefix("    ") else {
            if !line.is_empty() {
                sessions.push(("", String::new()));
            }
            continue;
        };
        match (line.strip_prefix("$ "), sessions.last_mut()) {
            (Some(command), _) => sessions.push((command, String::new())),
            (None, Some((_, text))) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    let mut run = 0;
    for (command, text) in sessions {
        if let Some(file) = command.strip_prefix("cat ") {
            fs::write(dir.path().join(file), text).unwrap();
        } else if let Some(words) = command.strip_prefix("adit ") {
            let done = adit(dir.path(), &words.replace('\'', ""));
            assert_eq!(out(&done) + &err(&done), text, "$ {command}");
            run += 1;
        }
    }
    assert_eq!(run, 2, "each transcript of the page");
}

#[test]
fn a_packet_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("fw.nft"),
        "table inet filter {
    set offices { type ipv4_addr; flags interval; elements = { 10.1.0.0/16, 10.2.0.0/16 }; }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        meta l4proto { icmp, ipv6-icmp } accept
        ip saddr @offices jump office
        ip saddr @client:alice tcp dport 22 accept
        udp dport 53 limit rate 10/second counter accept comment \"names\"
    }
    chain office {
        tcp dport vmap { 22 : accept, 23 : drop }
        tcp dport 80 reject with tcp reset
    }
}
",
    )
    .unwrap();
    let explain = |packet: &str| adit(dir.path(), &format!("filter explain fw.nft {packet}"));

    let rejected = explain("tcp 10.1.2.3:4000 > 10.9.0.1:80 syn in eth1 out eth2");
    assert_eq!(code(&rejected), 1, "{}", err(&rejected));
    assert_eq!(
        out(&rejected),
        "base chain forward of table inet filter, priority filter
  line 5: ct state established,related accept
      no: `ct state established,related`, but ct state is new
  line 6: meta l4proto { icmp, ipv6-icmp } accept
      no: `meta l4proto { icmp, ipv6-icmp }`, but meta l4proto is tcp
  line 7: ip saddr @offices jump office
      yes: jump office
    chain office
      line 12: tcp dport vmap { 22 : accept, 23 : drop }
          no: `tcp dport vmap { 22 : accept, 23 : drop }` has no element: tcp dport is 80
      line 13: tcp dport 80 reject with tcp reset
          yes: reject with tcp reset
=> rejected (reject with tcp reset) by line 13, in chain office
"
    );

    let accepted = explain("udp 10.8.0.1:4000 > 10.9.0.1:53");
    assert_eq!(code(&accepted), 0, "{}", err(&accepted));
    assert!(out(&accepted).ends_with(
        "  line 9: udp dport 53 limit rate 10/second burst 5 packets counter accept comment \"names\"
      yes: accept
=> accepted by line 9, in chain forward
"
    ));

    let back = explain("tcp 10.1.2.3:4000 > 10.9.0.1:81");
    assert_eq!(code(&back), 1);
    assert!(out(&back).ends_with(
        "  back in chain forward
  line 8: ip saddr @client:alice tcp dport 22 accept
      no: `ip saddr @client:alice`, but ip saddr is 10.1.2.3
  line 9: udp dport 53 limit rate 10/second burst 5 packets counter accept comment \"names\"
      no: `udp dport 53`, but the packet has no udp dport
  no rule decides: policy drop
=> dropped by the policy of chain forward
"
    ));

    let alice = explain("tcp 10.8.0.2:4000 > 10.9.0.1:22 --client alice=10.8.0.2");
    assert_eq!(code(&alice), 0, "{}{}", out(&alice), err(&alice));
    let nobody = explain("tcp 10.8.0.2:4000 > 10.9.0.1:22 --client bob=10.8.0.2");
    assert_eq!((code(&nobody), err(&nobody)), (2, "adit: no rule refers to @client:bob\n".into()));

    let wrong = explain("tcp 10.8.0.2:4000 > 10.9.0.1:22 sny");
    assert_eq!(code(&wrong), 2);
    assert!(
        err(&wrong).starts_with("column 33: `sny` is not a part of a packet\n"),
        "{}",
        err(&wrong)
    );
}

#[test]
fn the_verbs_of_a_running_filter_say_where_nothing_runs() {
    let dir = server();
    for verb in ["show", "reload", "capture x.pcapng"] {
        let failed = adit(dir.path(), &format!("filter {verb} --dir vpn"));
        assert_eq!(code(&failed), 1);
        assert!(err(&failed).contains("nothing with a filter runs here"), "{}", err(&failed));
    }
    let named = adit(dir.path(), "filter show nobody --dir vpn");
    assert_eq!(code(&named), 1);
    assert!(err(&named).contains("nobody.sock"), "{}", err(&named));
}

#[test]
fn a_client_is_put_into_groups() {
    let dir = server();
    adit(dir.path(), "server client add laptop --group staff --dir vpn -o l.ovpn");
    // Rules can be checked against the registry.
    let rules = "table inet t { chain c { type filter hook forward priority 0; policy drop;
        ip saddr @group:staff accept
        ip saddr @client:nobody accept
    } }\n";
    fs::write(dir.path().join("rules.nft"), rules).unwrap();
    let checked = adit(dir.path(), "filter check rules.nft --dir vpn");
    assert_eq!(code(&checked), 0);
    assert!(err(&checked).contains("@client:nobody"), "{}", err(&checked));
    assert!(!err(&checked).contains("@group:staff"), "{}", err(&checked));
    assert_eq!(err(&adit(dir.path(), "filter check rules.nft --dir elsewhere")), "");
    let shown = out(&adit(dir.path(), "server client show laptop --dir vpn"));
    assert!(shown.contains("staff"), "{shown}");
    assert_eq!(
        out(&adit(dir.path(), "server client group laptop ops staff --dir vpn")),
        "laptop is in: ops, staff\n"
    );
    let listed = out(&adit(dir.path(), "server client list --dir vpn"));
    assert!(listed.contains("GROUPS") && listed.contains("ops, staff"), "{listed}");
    assert_eq!(
        out(&adit(dir.path(), "server client group laptop --dir vpn")),
        "laptop is in no group\n"
    );
    assert!(!out(&adit(dir.path(), "server client list --dir vpn")).contains("GROUPS"));
    let odd = adit(dir.path(), "server client group laptop a/b --dir vpn");
    assert_eq!(code(&odd), 2);
}

/// Runs a command with a line on stdin.
fn with_line(dir: &Path, line: &str, stdin: &str) -> Output {
    let mut command = Command::new(ADIT);
    command.args(line.split_whitespace()).current_dir(dir).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command may end without reading it.
    let _ = writeln!(child.stdin.take().unwrap(), "{stdin}");
    child.wait_with_output().unwrap()
}

#[test]
fn users_are_added_listed_and_deleted() {
    let dir = server();
    let path = dir.path();
    assert!(out(&adit(path, "server user list --dir vpn")).contains("No users yet"));
    let add = "server user add alice --password-stdin --totp --group staff --dir vpn";
    let added = with_line(path, add, "correct horse");
    assert_eq!(code(&added), 0, "{}", err(&added));
    let said = out(&added);
    assert!(said.starts_with("alice is added\n"), "{said}");
    assert!(said.contains("otpauth://totp/vpn.example.net:alice?secret="), "{said}");
    // Without a terminal there is no QR code.
    assert!(!said.contains('\u{2580}') && said.contains("Recovery codes"), "{said}");
    assert!(err(&added).contains("certificate+password"), "{}", err(&added));

    for (line, stdin, why) in [
        ("server user add alice --password-stdin --dir vpn", "correct horse", "user passwd"),
        ("server user add bob --password-stdin --dir vpn", "short", "fewer than 8"),
        ("server user add bob --password-stdin --dir vpn", "", "is empty"),
        ("server user passwd bob --password-stdin --dir vpn", "correct horse", "user list"),
        ("server user add a/b --password-stdin --dir vpn", "correct horse", "user name"),
    ] {
        let refused = with_line(path, line, stdin);
        assert_eq!(code(&refused), 2, "{line}");
        assert!(err(&refused).contains(why), "{line}: {}", err(&refused));
    }
    let listed = out(&adit(path, "server user list --dir vpn"));
    assert!(listed.contains("alice") && listed.contains("on, 8 recovery"), "{listed}");
    assert!(!listed.contains("bob"), "{listed}");
    let shown = out(&adit(path, "server user show alice --json --dir vpn"));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["groups"][0], "staff");
    assert!(out(&adit(path, "server user totp alice --off --dir vpn")).contains("without"));
    let passwd = "server user passwd alice --password-stdin --dir vpn";
    assert_eq!(code(&with_line(path, passwd, "battery staple")), 0);
    for (line, said) in [
        ("server user disable alice --dir vpn", "alice may not log in until enabled\n"),
        ("server user enable alice --dir vpn", "alice may log in again\n"),
        ("server user group alice --dir vpn", "alice is in no group\n"),
        ("server user group alice a b --dir vpn", "alice is in: a, b\n"),
        ("server user delete alice --dir vpn", "alice is deleted\n"),
    ] {
        assert_eq!(out(&adit(path, line)), said, "{line}");
    }
    assert!(out(&adit(path, "server user list --dir vpn")).contains("No users yet"));
}

#[test]
fn a_route_to_the_tunnels_own_network_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let line = "server init --host h --network 10.201.7.0/24 --route 10.201.7.0/24 --dir vpn";
    let refused = adit(dir.path(), line);
    assert_eq!(code(&refused), 2);
    assert!(err(&refused).contains("overlaps network 10.201.7.0/24"), "{}", err(&refused));
    assert!(!dir.path().join("vpn").exists());
}

#[test]
fn certificates_that_end_soon_are_marked_and_a_key_in_a_pipe_is_pointed_out() {
    let dir = server();
    let piped = adit(dir.path(), "server client add soon --days 9 --dir vpn");
    assert!(err(&piped).contains("private key, goes to stdout"), "{}", err(&piped));
    adit(dir.path(), "server client add later --dir vpn -o later.ovpn");
    let list = out(&adit(dir.path(), "server client list --dir vpn"));
    let line = |name: &str| list.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(
        line("soon").contains("(renew: 8 d left)") || line("soon").contains("9 d left)"),
        "{list}"
    );
    assert!(!line("later").contains("renew"), "{list}");
    assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
}

#[test]
fn what_a_server_lets_its_clients_reach_is_said_in_so_many_words() {
    let dir = tempfile::tempdir().unwrap();
    let split = out(&adit(dir.path(), "server init --host h --dir split"));
    assert!(split.contains("only the tunnel's own network (split tunnel)"), "{split}");
    assert!(split.contains("for all traffic: full-tunnel = true"), "{split}");
    let full = out(&adit(dir.path(), "server init --host h --full-tunnel --dir full"));
    assert!(full.contains("all traffic uses the tunnel") && !full.contains("split"), "{full}");
}

#[test]
fn a_reject_by_reset_is_suggested_as_nft_spells_it() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "table inet f { chain c { type filter hook forward priority 0; tcp dport 80 reject with tcp-reset } }\n";
    fs::write(dir.path().join("x.nft"), rules).unwrap();
    let bad = adit(dir.path(), "filter check x.nft");
    assert_eq!(code(&bad), 2);
    assert!(err(&bad).contains("did you mean `tcp reset`?"), "{}", err(&bad));
}
