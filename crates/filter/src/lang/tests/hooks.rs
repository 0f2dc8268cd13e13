//! Rules that no packet reaches are not put in force by accident.

use super::*;

fn hooked(text: &str) -> Result<Ruleset, String> {
    let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
    parse_hooked("fw.nft", text, &mut none).map_err(|wrong| wrong.to_string())
}

const BASE: &str = "chain b { type filter hook forward priority 0; policy drop; ";

#[test]
fn a_file_without_a_base_chain_is_refused() {
    for text in [
        "",
        "flush ruleset\n",
        "table inet t { }\n",
        // The line with the hook is missing.
        "table inet t { chain forward { tcp dport 22 accept; drop; } }\n",
        "table inet t { chain a { jump c; }; chain c { drop; } }\n",
    ] {
        let wrong = hooked(text).unwrap_err();
        assert!(wrong.contains("no chain has a hook: every packet would pass"), "{wrong}");
        assert!(wrong.contains("define adit_allow_unhooked = 1"), "{wrong}");
        assert_eq!(wrong.matches("instead:").count(), 1, "{wrong}");
    }
    // A truncated file is treated the same, wherever it ends.
    let whole = format!("table inet t {{\n {BASE}\n tcp dport 22 accept\n }}\n}}\n");
    let cut = (0..whole.len()).filter(|at| whole.is_char_boundary(*at));
    for at in cut {
        let part = whole.get(..at).unwrap();
        if let Ok(ruleset) = hooked(part) {
            assert_eq!(ruleset, good(&whole), "{part}");
        }
    }
}

#[test]
fn a_chain_to_which_no_hook_leads_is_refused_with_its_place() {
    let text = format!("table inet t {{\n {BASE} }}\n chain lost {{ tcp dport 22 drop; }}\n}}\n");
    let wrong = hooked(&text).unwrap_err();
    assert!(wrong.starts_with("fw.nft:3:8: no hook leads to chain `lost` of table `t`"), "{wrong}");
    // Chains to which only unreached chains jump are unreached, too; each table is checked
    // separately.
    let other = format!(
        "table inet t {{ chain c {{ }}; {BASE} }}; chain a {{ jump c; }} }}\ntable ip t {{ {BASE} }}; chain c {{ }} }}\n"
    );
    let wrong = hooked(&other).unwrap_err();
    assert_eq!(wrong.matches("no hook leads to").count(), 3, "{wrong}");
    // Another mistake is reported first.
    let wrong = hooked(&text.replace("dport", "dprot")).unwrap_err();
    assert!(!wrong.contains("hook"), "{wrong}");
}

#[test]
fn jumps_gotos_and_verdict_maps_lead_to_chains() {
    for way in [
        "jump c",
        "goto c",
        "tcp dport vmap { 22 : jump c, 23 : accept }",
        "tcp dport vmap @m",
        "jump d; }; chain d { ip saddr 10.0.0.1 goto c",
    ] {
        let map = "map m { type inet_service : verdict; elements = { 22 : goto c }; }";
        let text = format!("table inet t {{ {map}; chain c {{ drop; }}; {BASE} {way}; }} }}\n");
        assert!(hooked(&text).is_ok(), "{way}: {}", hooked(&text).unwrap_err());
    }
    // A map that no rule uses leads to no chain.
    let unused = "table inet t { map m { type inet_service : verdict; elements = { 22 : goto c }; }; chain c { drop; }; ";
    assert!(hooked(&format!("{unused}{BASE} }} }}\n")).is_err());
}

#[test]
fn a_file_may_ask_for_it() {
    for text in ["", "table inet t { chain c { drop; } }\n"] {
        let asking = format!("define adit_allow_unhooked = 1\n{text}");
        let ruleset = hooked(&asking).unwrap();
        assert!(ruleset.allow_unhooked);
        let printed = good(&ruleset.to_string());
        assert_eq!(without_lines(printed), without_lines(ruleset), "it is printed, too");
        assert!(hooked(&asking.replace("= 1", "= 0")).is_err());
        let wrong = hooked(&asking.replace("= 1", "= yes")).unwrap_err();
        assert!(wrong.starts_with("fw.nft:1:30: `adit_allow_unhooked` is 1 or 0"), "{wrong}");
    }
    // Inside a block, the definition applies to the block only.
    assert!(
        hooked("table inet t { define adit_allow_unhooked = 1\n chain c { drop; } }\n").is_err()
    );
}

#[test]
fn a_file_sets_the_bounds_of_the_table_of_connections() {
    let text = format!(
        "define adit_flows = 500000\ndefine adit_flows_per_source = 2000\n\
         define adit_unanswered_per_source = 100\ntable inet t {{ {BASE} }} }}\n"
    );
    let ruleset = hooked(&text).unwrap();
    let limits = crate::ruleset::FlowLimits {
        flows: Some(500_000),
        per_source: Some(2000),
        unanswered_per_source: Some(100),
    };
    assert_eq!(ruleset.limits, limits);
    assert_eq!(without_lines(good(&ruleset.to_string())), without_lines(ruleset));
    for (from, to, why) in [
        ("500000", "0", "fw.nft:1:21: `adit_flows` is a number from 1 to 16777216"),
        ("500000", "16777217", "fw.nft:1:21: `adit_flows` is a number from 1 to 16777216"),
        ("500000", "{ 1, 2 }", "fw.nft:1:21: `adit_flows` is a number"),
        ("adit_flows =", "adit_flaws =", "fw.nft:1:21: `adit_flaws` is not a setting of adit's"),
    ] {
        let wrong = hooked(&text.replacen(from, to, 1)).unwrap_err();
        assert!(wrong.starts_with(why), "{wrong}");
    }
}

#[test]
fn the_summary_says_what_passes() {
    let said = |text: &str| Summary::of(&good(text)).to_string();
    assert_eq!(
        said(&format!("table inet t {{ {BASE} tcp dport {{ 1, 2 }} accept; }} }}\n")),
        "1 table, 1 chain, 1 rule, 1 set with 2 elements; what no rule accepts is dropped"
    );
    assert_eq!(
        said(&format!("table ip6 t {{ {BASE} }} }}\n")),
        "1 table, 1 chain, 0 rules; what no rule accepts is dropped; IPv4 passes: no chain sees it"
    );
    let accepts = BASE.replace("drop", "accept");
    assert_eq!(
        said(&format!("table bridge t {{ {accepts} }} }}\n")),
        "1 table, 1 chain, 0 rules; what no rule drops passes"
    );
    assert_eq!(
        said("table inet t { chain c { drop; } }\n"),
        "1 table, 1 chain, 1 rule; no chain has a hook: every packet passes"
    );
}
