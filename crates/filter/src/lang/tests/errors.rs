use super::*;

/// Returns the errors of a text, as `line:column message | hint`.
fn errors(text: &str) -> Vec<String> {
    let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
    let Err(found) = parse("test.nft", text, &mut none) else {
        return Vec::new();
    };
    let hint = |d: &Diagnostic| d.hint.as_ref().map_or_else(String::new, |h| format!(" | {h}"));
    found.list.iter().map(|d| format!("{}:{} {}{}", d.line, d.column, d.message, hint(d))).collect()
}

/// Returns the only error of a rule in a table in which some names exist.
fn rule(family: &str, text: &str) -> String {
    let file = format!(
        "table {family} t {{
set addresses {{ type ipv4_addr; }}
map verdicts {{ type ipv4_addr : verdict; }}
chain base {{ type filter hook forward priority filter; policy accept; }}
chain other {{ }}
chain c {{
{text}
}}
}}
"
    );
    let all = errors(&file);
    assert!(all.len() <= 1, "{text}: {all:?}");
    let Some(one) = all.first() else { return "good".into() };
    one.strip_prefix("7:").unwrap_or(one).to_owned()
}

#[test]
fn what_is_wrong_in_a_rule_is_told_with_its_place_and_a_way_out() {
    for (text, told) in [
        (
            "tcp dport 10.0.0.1",
            "11 this takes a port (0 to 65535) or a service, like 443 or https; `10.0.0.1` is an IPv4 address",
        ),
        (
            "tcp dport 70000",
            "11 70000 is out of range: this takes a port (0 to 65535) or a service, like 443 or https",
        ),
        (
            "tcp dport htpps",
            "11 this takes a port (0 to 65535) or a service, like 443 or https; `htpps` is none | did you mean `https`?",
        ),
        (
            "tcp dport 022",
            "11 022 might be meant as octal | without the leading 0, or in hex with 0x",
        ),
        ("tcp dport 90-80", "11 a range that ends before it starts | the smaller value first"),
        ("tcp dport 22,80", "13 several values need braces | tcp dport { A, B }"),
        (
            "tcp dport 22 80",
            "14 `80` belongs to no field | a field before it, or braces around several: { 22, 80 }",
        ),
        ("tcp dport < 0", "13 no value is beyond this one | leave the rule out"),
        ("tcp dport > 65535", "13 no value is beyond this one | leave the rule out"),
        ("tcp dport { }", "11 an empty set in a rule"),
        (
            "tcp dport { 22 : accept }",
            "16 a set's elements have no values | `vmap { KEY : VERDICT }`",
        ),
        ("tcp dport vmap { 22 }", "21 expected `:` and a verdict, found `}`"),
        (
            "tcp dport vmap { 22 : accept, 22 : drop }",
            "31 this key has another verdict already | one verdict for each key",
        ),
        (
            "tcp dport vmap { 1-9 : accept, 5 : drop }",
            "32 this overlaps with the element in line 7 | ranges that do not overlap",
        ),
        (
            "tcp dport { 22, * }",
            "17 `*` for all other values is not supported | a rule behind the one that looks up",
        ),
        ("tcp dprot 22", "5 `dprot` is not a field of `tcp` | did you mean `dport`?"),
        ("tpc dport 22", "1 `tpc` is not a field or statement | did you mean `tcp`?"),
        ("acept", "1 `acept` is not a field or statement | did you mean `accept`?"),
        (
            "tcp",
            "4 expected a field of `tcp`, found the end of the line | one of: sport, dport, sequence, ackseq, doff, flags, window, checksum, urgptr",
        ),
        (
            "ip saddr fd00::1",
            "10 this takes an IPv4 address, like 10.0.0.1 or 10.0.0.0/8; `fd00::1` is an IPv6 address",
        ),
        (
            "ip6 saddr 10.0.0.1",
            "11 this takes an IPv6 address, like fd00::1 or fd00::/8; `10.0.0.1` is an IPv4 address",
        ),
        ("ip saddr 10.0.0.0/33", "19 a prefix has at most 32 bits here"),
        (
            "ip saddr 10.0.0.0/255.0.0.0",
            "19 expected the length of a prefix, found `255.0.0.0` | 10.0.0.0/8, or `& 255.0.0.255 ==`",
        ),
        (
            "ip saddr @addreses drop",
            "10 there is no set `addreses` in this table | did you mean `addresses`?",
        ),
        (
            "tcp dport @addresses",
            "11 `addresses` has keys of type ipv4_addr; this looks up inet_service | a set of that type",
        ),
        ("ip saddr @verdicts", "10 `verdicts` is a map | vmap @verdicts"),
        ("ip saddr vmap @addresses", "15 `addresses` is a set | @addresses, without `vmap`"),
        (
            "ip saddr . tcp dport 10.0.0.1 . 22",
            "22 expected a set, as a concatenation is compared with sets only, found `10.0.0.1` | `{ VALUE . VALUE }`, or `@NAME`",
        ),
        (
            "ip saddr . tcp dport { 10.0.0.1 }",
            "33 expected `.` and the next part of the key, found `}`",
        ),
        (
            "tcp dport @client:alice",
            "11 clients, nodes and groups are sets of addresses, and `tcp dport` is none | ip saddr @client:NAME",
        ),
        ("jump othr", "6 there is no chain `othr` in this table | did you mean `other`?"),
        ("jump base", "6 `base` is a base chain | a chain without `type filter hook forward`"),
        ("jump c", "6 a jump in a circle: `c` comes back to `c` | a chain further on, or `return`"),
        ("counter name none", "14 there is no counter `none` in this table | counter none { }"),
        (
            "accept counter",
            "8 nothing is done behind a verdict | the verdict as the last word of the rule",
        ),
        (
            "reject drop",
            "8 nothing is done behind a verdict | the verdict as the last word of the rule",
        ),
        (
            "ct state != established,related",
            "13 a packet has one state: this always matches | ct state != { A, B }",
        ),
        (
            "ct state == established,related",
            "13 a packet has one state: this never matches | ct state A,B",
        ),
        (
            "ct state estblished",
            "10 this takes a state: new, established, related, invalid or untracked; `estblished` is none | did you mean `established`?",
        ),
        (
            "ct mark 1",
            "1 `ct mark` is not supported | there are no marks; a named chain can carry the decision: `jump NAME`",
        ),
        (
            "meta mark set 1",
            "1 `meta mark` is not supported | there are no marks; `jump NAME` can carry the decision",
        ),
        (
            "ip dscp set ef",
            "9 `set` is not supported here | fields are compared, never changed: leave `set VALUE` out",
        ),
        ("tcp flags syn & ack", "15 expected a field to compare, or a statement, found `&`"),
        ("tcp flags & syn | ack == syn", "17 more than one mask | FIELD & (A | B) == VALUE"),
        ("tcp flags 0", "11 no bit to look for | == 0x0, for none set"),
        ("tcp dport ! 22", "13 `!` is for bits | !="),
        ("iifname & 1 == 1", "9 a name has no bits | \"eth*\""),
        (
            "iifname \"*\"",
            "9 `*` is not the name of an interface | 1 to 15 characters; `*` only at the end, for any ending",
        ),
        (
            "iifname abcdefghijklmnop",
            "9 `abcdefghijklmnop` is not the name of an interface | 1 to 15 characters; `*` only at the end, for any ending",
        ),
        (
            "limit rate 0/second",
            "12 a rate is from 1 to 2^64 - 1 | limit rate 10/second burst 5 packets",
        ),
        (
            "limit rate 5/fortnight",
            "14 `fortnight` is not a period | one of: second, minute, hour, day, week",
        ),
        (
            "limit rate 5/second burst 5 bytes",
            "27 this burst is counted in packets, as the rate, and at least 1 | burst 5 packets",
        ),
        (
            "limit rate 5/second burst 0 packets",
            "27 this burst is counted in packets, as the rate, and at least 1 | burst 5 packets",
        ),
        (
            "limit name x",
            "7 named limits are not supported | the limit in the rule: limit rate 10/second burst 5 packets",
        ),
        (
            "log level warn",
            "5 `level` is not supported: all lines have the same | log prefix \"...\"",
        ),
        ("log snaplen 5", "5 `snaplen` without a group | log group 1 snaplen 128"),
        ("log group 70000", "11 a group is from 0 to 65535"),
        ("log prefix x", "12 expected a prefix in quotes, found `x`"),
        ("log prefix \"x", "12 a quoted text that does not end on its line | close it with `\"`"),
        (
            "dnat to 10.0.0.1",
            "1 `dnat` is not supported | addresses are never changed; route to the target, or use another tool for NAT",
        ),
        (
            "queue num 1",
            "1 `queue` is not supported | `log group N` hands packets to `adit filter capture`",
        ),
        (
            "fib saddr oif 0",
            "1 `fib` is not supported | `iifname \"eth1\" ip saddr != 10.0.0.0/8 drop`",
        ),
        (
            "quota over 5 mbytes",
            "1 `quota` is not supported | `limit rate over 10 mbytes/hour drop`",
        ),
        ("sctp dport 5", "1 `sctp` is not supported | `meta l4proto sctp th dport 5060`"),
        (
            "add @addresses { ip saddr }",
            "1 `add` is not supported | a named set with its elements in the file",
        ),
        (
            "@th,0,16 22",
            "1 raw payload and set updates are not supported | a named field, like `tcp dport`, and then the set",
        ),
        (
            "jump { accept }",
            "6 chains within a rule are not supported | chain NAME { ... } in the table, and `jump NAME`",
        ),
        (
            "reject with icmp no-route",
            "18 this takes an ICMP code, like port-unreachable or 3; `no-route` is none",
        ),
        (
            "reject with icmpx net",
            "19 `net` is not a reason | one of: no-route, port-unreachable, host-unreachable, admin-prohibited",
        ),
        (
            "arp saddr ip 10.0.0.1",
            "1 packets of this table have no `arp saddr ip` | `table bridge`, which sees ARP",
        ),
        ("arp saddr 10.0.0.1", "11 expected `ip` or `ether`, found `10.0.0.1`"),
        ("comment \"x\" drop", "13 expected the end of the line or `;`, found `drop`"),
        (
            "counter packets 5",
            "18 expected `bytes`, found the end of the line | counter packets 0 bytes 0",
        ),
        (
            "ip saddr $nobody",
            "10 `$nobody` is not defined | define nobody = VALUE on a line before",
        ),
        ("ip saddr 10.0.0.1 €", "19 '€' means nothing in a rule file"),
        (
            "policy accept",
            "1 a policy in a chain that is no base chain | type filter hook forward priority filter; policy accept;  or a last rule `accept`",
        ),
        (
            "type nat hook forward priority 0",
            "6 chains of type `nat` are not supported: addresses are never changed | type filter hook forward priority filter; policy drop;",
        ),
        (
            "type filter hook output priority 0",
            "18 there is no hook `output`: only what passes through is seen | type filter hook forward priority filter; policy drop;",
        ),
        (
            "type filter hook forward priority filtr",
            "35 `filtr` is not a priority in this family | did you mean `filter`?",
        ),
        (
            "type filter hook forward device eth0 priority 0",
            "26 a chain cannot be bound to a device | `iifname \"eth1\"` in its rules",
        ),
    ] {
        assert_eq!(rule("inet", text), told, "{text}");
    }
    for (family, text, told) in [
        (
            "ip",
            "ip6 saddr ::1",
            "1 packets of this table have no `ip6 saddr` | `ip saddr`, or `table inet`, which sees both",
        ),
        (
            "ip6",
            "ip saddr 10.0.0.1",
            "1 packets of this table have no `ip saddr` | `ip6 saddr`, or `table inet`, which sees both",
        ),
        (
            "ip",
            "meta nfproto ipv4",
            "1 packets of this table have no `meta nfproto` | leave it out: the table's family says it, or use `table inet`",
        ),
        (
            "ip",
            "reject with icmpv6 no-route",
            "13 `reject with icmpv6` does not fit this table's family | reject with icmp port-unreachable",
        ),
        (
            "ip6",
            "reject with icmpx no-route",
            "13 `reject with icmpx` does not fit this table's family | reject with icmpv6 port-unreachable",
        ),
    ] {
        assert_eq!(rule(family, text), told, "{text}");
    }
}

#[test]
fn what_is_wrong_around_rules_is_told() {
    for (text, told) in [
        ("tabel inet t { }", "1:1 `tabel` is not a command | did you mean `table`?"),
        (
            "table arp t { }",
            "1:7 tables of family `arp` are not supported | `table bridge` with `arp operation request`",
        ),
        (
            "table netdev t { }",
            "1:7 tables of family `netdev` are not supported | `table bridge` with `type filter hook forward priority filter`",
        ),
        ("table inte t { }", "1:7 `inte` is not a family | did you mean `inet`?"),
        ("table inet t {", "1:12 table `t` is not closed | }"),
        ("table t { chain c {\n}", "1:7 table `t` is not closed | }"),
        (
            "table t { flowtable f { } }",
            "1:11 `flowtable` is not supported in a table | leave it out: established flows are quick anyway",
        ),
        (
            "table t { chian c { } }",
            "1:11 `chian` is not a part of a table | did you mean `chain`?",
        ),
        ("table t { set s { } }", "1:15 set `s` has no type | type ipv4_addr;"),
        (
            "table t { set s { type ipv4_adr; } }",
            "1:24 `ipv4_adr` is not a type | did you mean `ipv4_addr`?",
        ),
        ("table t { set s { type mark; } }", "1:24 there are no marks"),
        (
            "table t { set s { type integer; } }",
            "1:24 type `integer` has no width | typeof FIELD, like `typeof ip ttl`",
        ),
        (
            "table t { set s { type ipv4_addr; timeout 5x; } }",
            "1:43 `5x` is not a duration | 1h30m: d, h, m, s and ms, in this order",
        ),
        (
            "table t { set s { type ipv4_addr; flags dynamic; } }",
            "1:41 sets with `flags dynamic` are not supported | `limit rate` in the rule, or `adit filter element add`",
        ),
        (
            "table t { set s { type ipv4_addr; elements = { 10.0.0.0/8 }; } }",
            "1:48 a range in a set of single values | `flags interval;` in the set",
        ),
        (
            "table t { set s { elements = { 1 }; type inet_service; } }",
            "1:30 elements before the type | `type` first",
        ),
        (
            "table t { set s { type inet_service; flags interval; elements = { 1-5, 4-9 }; } }",
            "1:72 this overlaps with the element in line 1 | `auto-merge;` in the set",
        ),
        (
            "table t { set s { type inet_service; size 1; elements = { 1, 2 }; } }",
            "1:15 2 elements in a set of size 1",
        ),
        (
            "table t { set s { type inet_service; elements = { 1 timeout 5s }; } }",
            "1:51 the elements of this set have no timeouts | `flags timeout;` in the set",
        ),
        (
            "table t { set s { type inet_service; timeout 0s; } }",
            "1:46 a timeout of nothing | 1h30m: d, h, m, s and ms, in this order",
        ),
        (
            "table t { set s { type inet_service; timeout 5s4h; } }",
            "1:46 `5s4h` is not a duration | 1h30m: d, h, m, s and ms, in this order",
        ),
        (
            "table t { set s { type inet_service; flags timeout; elements = { 1 timeout 5s timeout 4s }; } }",
            "1:79 stated twice",
        ),
        (
            "table t { set s { type ipv4_addr; flags interval, timeout; auto-merge; } }",
            "1:15 `auto-merge` in a set with timeouts: what became one would have two",
        ),
        (
            "table t { set s { type ipv4_addr; flags constant, timeout; } }",
            "1:15 a constant set has no timeouts",
        ),
        (
            "table t { map m { type ipv4_addr : verdict; timeout 1h; } }",
            "1:15 a map with timeouts is not supported",
        ),
        (
            "table t { set s { type ipv4_addr . inet_service; flags interval; timeout 1h; } }",
            "1:15 a set of ranges of several fields has no timeouts",
        ),
        (
            "table t { chain c { tcp dport { 1 timeout 5s } drop; } }",
            "1:33 elements that stand in a rule have no timeout | a named set with `flags timeout;`",
        ),
        (
            "table t { map m { type ipv4_addr : ipv4_addr; } }",
            "1:36 maps to `ipv4_addr` are not supported: only verdicts can be looked up | type KEY : verdict",
        ),
        (
            "table t { set s { type ipv4_addr : verdict; } }",
            "1:34 a set's elements have no values | map NAME { type KEY : verdict; }",
        ),
        (
            "table t { set s { type ipv4_addr; }; set s { type ipv4_addr; } }",
            "1:42 `s` is defined already",
        ),
        ("table t { counter n { }; counter n { } }", "1:34 counter `n` is defined already"),
        ("table t { chain 5 { } }", "1:17 expected the name of a chain, found `5`"),
        ("define x = 1\ndefine x = 2", "2:8 `x` is defined already | redefine x = VALUE"),
        ("define x =", "1:1 `define x =` without a value | define x = VALUE"),
        ("undefine x", "1:10 `x` is not defined"),
        ("include \"none.nft\"", "1:9 none.nft: entity not found"),
        (
            "include \"*.nft\"",
            "1:9 `include` takes one file, not a pattern | one `include` for each file",
        ),
        (
            "add rule t c position 3 accept",
            "1:14 `position` is not supported in a file | the rules in the order in which they shall be evaluated",
        ),
        (
            "add element t s { 10.0.0.1 }",
            "1:15 `s` is not defined before its elements | add set inet TABLE s { type ipv4_addr; }",
        ),
        (
            "add chain t c\nflush ruleset",
            "2:1 `flush ruleset` of what this file has defined | leave it out: a file always replaces everything, so start with nothing",
        ),
        (
            "list ruleset",
            "1:1 `list` is no part of a rule file | `adit filter show` lists; a file always replaces everything",
        ),
        (
            "chain c { }",
            "1:1 `chain` outside a table | add chain inet TABLE NAME, or in table inet TABLE { }",
        ),
    ] {
        assert_eq!(errors(text).first().map(String::as_str), Some(told), "{text}");
    }
}

#[test]
fn several_errors_are_told_in_one_go_and_bounded() {
    let all = errors(
        "table inet t {
    chain c {
        tcp dport { 22, foo, 80 } accept
        udp dport 53 accept
        ip saddr 10.0.0.0/99 drop
        nonsense here
    }
    chian d { }
    chain e { jump nowhere; }
}
",
    );
    let places: Vec<&str> = all.iter().map(|e| e.split(' ').next().unwrap()).collect();
    assert_eq!(places, ["3:25", "5:27", "6:9", "8:5", "9:20"]);

    let mut many = "table t { chain c {\n".to_owned();
    many.push_str(&"nonsense\n".repeat(1000));
    many.push_str("} }\n");
    let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
    let found = parse("many", &many, &mut none).unwrap_err();
    assert_eq!(found.list.len(), MAX_DIAGNOSTICS);
    assert!(found.more > 0);
    assert!(found.to_string().ends_with(&format!("and {} more", found.more)));
}

#[test]
fn jumps_have_a_depth() {
    let chain = |count: usize| {
        let mut text =
            "table t { chain c0 { type filter hook forward priority 0; jump c1; }\n".to_owned();
        for n in 1..count {
            text += &format!("chain c{n} {{ jump c{}; }}\n", n + 1);
        }
        text + &format!("chain c{count} {{ }}\n}}\n")
    };
    assert_eq!(errors(&chain(MAX_JUMPS)), Vec::<String>::new());
    assert_eq!(
        errors(&chain(MAX_JUMPS + 1)),
        ["1:17 from `c0`, jumps go 16 deep; 15 are allowed | fewer chains between"]
    );
    let circle = "table t { chain a { tcp dport vmap @m; }; chain b { jump a; }; map m { type inet_service : verdict; elements = { 1 : goto b }; } }";
    assert_eq!(
        errors(circle),
        ["1:58 a jump in a circle: `b` comes back to `a` | a chain further on, or `return`"]
    );
}

#[test]
fn files_include_each_other_within_bounds() {
    let text = "include \"sub/a.nft\"\ntable t { include \"b.nft\"\n }\n";
    let mut asked = Vec::new();
    let mut files = |path: &str| {
        asked.push(path.to_owned());
        match path {
            "etc/sub/a.nft" => Ok("include \"c.nft\"\ndefine p = { 22, $q }\n".into()),
            "etc/sub/c.nft" => Ok("define q = 80".into()),
            "etc/b.nft" => Ok("chain c {\n tcp dport $p accept\n }".into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    };
    let ruleset = parse("etc/main.nft", text, &mut files).unwrap();
    assert_eq!(asked, ["etc/sub/a.nft", "etc/sub/c.nft", "etc/b.nft"]);
    assert!(ruleset.to_string().contains("tcp dport { 22, 80 } accept"), "{ruleset}");
    assert_eq!(ruleset.tables[0].chains[0].rules[0].line, 2);

    let mut reads = 0;
    let mut itself = |_: &str| {
        reads += 1;
        Ok("include \"me.nft\"".into())
    };
    let error = parse("me.nft", "include \"me.nft\"", &mut itself).unwrap_err();
    assert!(error.list[0].message.contains("does a file include itself"), "{error}");
    assert_eq!(reads, MAX_INCLUDE_DEPTH);

    let mut wrong = |_: &str| Ok("table t {\n chain c { nonsense; }\n}".into());
    let error = parse("main.nft", "\n\ninclude \"x.nft\"", &mut wrong).unwrap_err();
    let Diagnostic { file, line, column, source, .. } = &error.list[0];
    assert_eq!((file.as_str(), *line, *column), ("x.nft", 2, 12));
    assert_eq!(source, " chain c { nonsense; }");
}

#[test]
fn definitions_have_scopes_and_cannot_grow_without_bound() {
    let text = "define p = 1\ntable t {\n define p = 2\n chain c { tcp dport $p; }\n}\nredefine p = 3\nadd rule t c tcp dport $p\n";
    let printed = good(text).to_string();
    assert!(printed.contains("tcp dport 2\n\t\ttcp dport 3\n"), "{printed}");

    let mut laughs = "define a0 = { 1, 2, 3, 4, 5, 6, 7, 8, 9 }\n".to_owned();
    for n in 1..12 {
        laughs += &format!(
            "define a{n} = {{ $a{0}, $a{0}, $a{0}, $a{0}, $a{0}, $a{0}, $a{0}, $a{0} }}\n",
            n - 1
        );
    }
    laughs += "table t { chain c { tcp dport $a11 accept; }; }\n";
    let told = errors(&laughs);
    assert!(told.iter().any(|e| e.contains("more than 1048576 words, in definitions")), "{told:?}");

    let large = format!("# {}\n", " ".repeat(MAX_FILE));
    assert_eq!(errors(&large), ["1:1 rule files of more than 16 MiB together"]);
}

#[test]
fn a_diagnostic_shows_its_line() {
    let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
    let text = "table inet t {\n\tchain c { tcp dport htpps accept; }\n}\n";
    let error = parse("fw.nft", text, &mut none).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fw.nft:2:22: this takes a port (0 to 65535) or a service, like 443 or https; `htpps` is none
     chain c { tcp dport htpps accept; }
                         ^^^^^
    instead: did you mean `https`?"
    );
}

#[test]
fn each_bound_refuses_what_is_beyond_it() {
    let chain = |rules: &str| format!("table t {{ chain c {{\n{rules}\n}}; }}\n");
    let one = |text: &str, told: &str| {
        let all = errors(text);
        assert!(all.iter().any(|e| e.contains(told)), "{told}: {all:?}");
    };
    let good = |text: &str| assert_eq!(errors(text), Vec::<String>::new());

    let statements = |n: usize| chain(&"counter ".repeat(n));
    good(&statements(MAX_STATEMENTS));
    one(&statements(MAX_STATEMENTS + 1), "more than 64 statements in a rule");

    let key = |n: usize| {
        let fields = vec!["tcp dport"; n].join(" . ");
        let values = vec!["1"; n].join(" . ");
        chain(&format!("{fields} {{ {values} }}"))
    };
    good(&key(MAX_KEY));
    one(&key(MAX_KEY + 1), "more than 5 parts in a key");
    let types = ["inet_service"; MAX_KEY + 1].join(" . ");
    one(&format!("table t {{ set s {{ type {types}; }}; }}"), "more than 5 parts in a key");

    let braces = |n: usize| chain(&format!("tcp dport {}1{}", "{".repeat(n), "}".repeat(n)));
    good(&braces(MAX_NESTING));
    one(&braces(MAX_NESTING + 1), "braces more than 16 deep");

    let name = |n: usize| format!("table t {{ chain {} {{ }}; }}", "c".repeat(n));
    good(&name(MAX_NAME));
    one(&name(MAX_NAME + 1), "at most 128 of them");

    let comment = |n: usize| chain(&format!("accept comment \"{}\"", "x".repeat(n)));
    good(&comment(MAX_COMMENT));
    one(&comment(MAX_COMMENT + 1), "a comment longer than 128 bytes");

    let prefix = |n: usize| chain(&format!("log prefix \"{}\"", "x".repeat(n)));
    good(&prefix(MAX_PREFIX));
    one(&prefix(MAX_PREFIX + 1), "a prefix longer than 127 bytes");

    let tables = |n: usize| (0..n).map(|t| format!("table t{t} {{ }}\n")).collect::<String>();
    good(&tables(MAX_TABLES));
    one(&tables(MAX_TABLES + 1), "more than 256 tables");

    let chains = |n: usize| {
        let all: String = (0..n).map(|c| format!("chain c{c} {{ }}\n")).collect();
        format!("table t {{\n{all}}}\n")
    };
    good(&chains(MAX_CHAINS));
    one(&chains(MAX_CHAINS + 1), "more than 16384 chains in a table");

    one(&chain(&"accept\n".repeat(MAX_RULES + 1)), "more than 262144 rules");
}

#[test]
fn what_terminals_would_obey_is_refused() {
    let text = "table t { chain c { log prefix \"\u{1b}[2J\"; accept comment \"\u{7}\"; }; }";
    let told = errors(text);
    assert_eq!(
        told,
        ["1:32 a control character in a quoted text", "1:55 a control character in a quoted text"]
    );
    let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
    let shown = parse("t", text, &mut none).unwrap_err().to_string();
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
}

#[test]
fn inserted_rules_come_first() {
    let text = "add table t\nadd chain t c\nadd rule t c tcp dport 1\ninsert rule t c tcp dport 2\n\
                add rule t c tcp dport 3\ninsert rule t c tcp dport 4\n";
    let printed = good(text).to_string();
    let order: Vec<&str> =
        printed.lines().filter_map(|l| l.trim().strip_prefix("tcp dport ")).collect();
    assert_eq!(order, ["4", "2", "1", "3"]);
}

#[test]
fn a_map_of_many_single_pairs_is_not_compared_pair_by_pair() {
    let pairs: Vec<String> = (1..20_000).map(|p| format!("10.0.0.1 . {p} : accept")).collect();
    let map = |more: &str| {
        format!(
            "table t {{ map m {{ type ipv4_addr . inet_service : verdict; flags interval; elements = {{ {}{more} }}; }}; }}",
            pairs.join(", ")
        )
    };
    assert_eq!(errors(&map("")), Vec::<String>::new());
    let crossing = errors(&map(", 10.0.0.0/24 . 20000-20001 : drop"));
    assert_eq!(crossing, Vec::<String>::new());
    let crossing = errors(&map(", 10.0.0.0/24 . 19000-20001 : drop"));
    assert_eq!(crossing.len(), 1);
    assert!(crossing[0].contains("this overlaps with the element in line 1"), "{crossing:?}");
}
