//! Tests that the kernel's nftables accepts the printed rules. They run in a separate network namespace.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::ruleset::Members;

/// Returns nftables' reason for refusing a text; `None` if it accepts it.
fn refusal(text: &str) -> Option<String> {
    let mut child = Command::new("unshare")
        .args(["-n", "nft", "-c", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(told)
}

/// Returns whether nft can be called here: it exists and namespaces can be created.
fn can_ask(test: &str) -> bool {
    let asked = Command::new("unshare").args(["-n", "nft", "--version"]).output();
    let can = asked.is_ok_and(|output| output.status.success());
    if !can {
        adit_testbed::skip::skip(test, "needs nft and the right to make a network namespace");
    }
    can
}

#[test]
fn nft_takes_the_forms_and_what_is_printed_of_them() {
    if !can_ask("nft_takes_the_forms_and_what_is_printed_of_them") {
        return;
    }
    // Only adit has clients and groups.
    let written = FORMS.replace("\\\n", "");
    let mut lines = written.lines().filter(|l| !l.contains("@client:") && !l.contains("@group:"));
    let foreign: String = lines.by_ref().flat_map(|l| [l, "\n"]).collect();
    assert_eq!(refusal(&foreign), None);
    let printed = good(&foreign).to_string();
    assert_eq!(refusal(&printed), None, "{printed}");
}

#[test]
fn nft_takes_any_rule_set_that_is_printed() {
    if !can_ask("nft_takes_any_rule_set_that_is_printed") {
        return;
    }
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&random::rulesets(true), |ruleset| {
            let printed = ruleset.to_string();
            prop_assert_eq!(refusal(&printed), None, "{}", printed);
            Ok(())
        })
        .unwrap();
}

/// Returns a rule set with each list of elements sorted and without markers of ranges, as nftables keeps them.
fn sorted(mut ruleset: Ruleset) -> Ruleset {
    for set in ruleset.tables.iter_mut().flat_map(|t| &mut t.sets) {
        if let Members::Fixed(list) = &mut set.members {
            list.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }
    without_lines(ruleset)
}

#[test]
fn what_nft_lists_reads_as_what_it_was_given() {
    if !can_ask("what_nft_lists_reads_as_what_it_was_given") {
        return;
    }
    let listed = |text: &str| {
        let script = "nft -f - && nft list ruleset";
        let mut child = Command::new("unshare")
            .args(["-n", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let given = "table inet t {
\tcounter n { packets 0 bytes 0; }
\tset s { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 80-90 }; }
\tmap m { type inet_service : verdict; elements = { 22 : accept, 80 : jump d }; }
\tchain d { icmpv6 type nd-neighbor-solicit accept; }
\tchain c {
\t\ttype filter hook forward priority filter + 5; policy drop;
\t\tct state established,related accept
\t\tct state vmap { invalid : drop, new : continue }
\t\tip saddr . tcp dport @s counter packets 3 bytes 4 accept
\t\ttcp dport vmap @m
\t\ttcp flags & (fin | syn | rst) == syn limit rate over 10/minute burst 7 packets drop
\t\ttcp flags syn,ack tcp flags ! rst tcp flags != syn counter name \"n\"
\t\tiifname { \"eth*\", wg0 } oifname != \"lan0\" ip6 saddr fd00::/8 ip6 daddr != fd00::1-fd00::9 drop
\t\tip daddr & 255.255.0.255 == 10.0.0.1 ip ttl < 5 ip dscp ef meta length >= 100 continue
\t\tether saddr 00:11:22:33:44:55 meta pkttype multicast log prefix \"x \" group 2 snaplen 64 return
\t\tmeta l4proto { icmp, ipv6-icmp, 99 } th sport 1-9 limit rate 5 kbytes/second burst 2 kbytes accept
\t\ttcp dport { 1-9, 22 } reject with tcp reset
\t\treject with icmp admin-prohibited comment \"no\"
\t\treject with icmpx no-route
\t}
}
";
    let printed = listed(given);
    assert_eq!(sorted(good(&printed)), sorted(good(given)), "{printed}");
}
