//! Fuzzes rule files, and packets in textual form: input that parses is printed so that it parses
//! to the same value again.
#![cfg_attr(fuzzing, no_main)]

use adit_filter::lang;
use adit_filter::ruleset::Ruleset;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(described) = lang::describe(text) {
        assert!(!described.bytes.is_empty());
    }
    let ruleset = match lang::parse("rules", text, &mut include) {
        Ok(ruleset) => ruleset,
        Err(diagnostics) => {
            assert!(!diagnostics.list.is_empty());
            let lines = text.matches('\n').count() + 1;
            assert!(diagnostics.list.iter().all(|d| d.file != "rules" || d.line as usize <= lines));
            assert!(!diagnostics.to_string().is_empty());
            return;
        }
    };
    let printed = ruleset.to_string();
    match lang::parse("printed", &printed, &mut include) {
        Ok(again) => assert_eq!(without_lines(ruleset), without_lines(again), "{printed}"),
        Err(diagnostics) => panic!("{diagnostics}\n{printed}"),
    }
}

fn include(path: &str) -> std::io::Result<String> {
    match path {
        "x.nft" => Ok("table ip x { chain c { }; }".into()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

fn without_lines(mut ruleset: Ruleset) -> Ruleset {
    for rule in ruleset.tables.iter_mut().flat_map(|t| &mut t.chains).flat_map(|c| &mut c.rules) {
        rule.line = 0;
    }
    ruleset
}
