//! Makes perf's text readable: shortens names, and restores the order of inlined functions.

use std::borrow::Cow;
use std::collections::HashMap;

/// Prepares the output of `perf script -F comm,pid,tid,time,event,ip,sym,dso` for folding.
pub(super) fn tidy(script: &str) -> String {
    let mut out = String::with_capacity(script.len());
    let lines: Vec<Line<'_>> = script.lines().map(Line::parse).collect();
    let long_names = long_names(&lines);
    for group in lines.chunk_by(Line::is_at_address_of) {
        // perf names the function itself and the functions inlined into it, innermost first. The function itself comes
        // first or last, and more than once: by its short name, or as if it had been inlined into itself.
        let Some(function) = group.iter().find(|line| !line.is_inlined()) else {
            // The outermost is then the function itself.
            let last = group.last().and_then(|line| line.renamed(&long_names));
            let others = group.len() - usize::from(last.is_some());
            group.iter().take(others).chain(&last).for_each(|line| line.write(&mut out));
            continue;
        };
        let inside: Vec<&Line<'_>> = group.iter().filter(|line| line.is_inlined()).collect();
        let last = inside.iter().rposition(|frame| !function.has_short_name_of(frame));
        inside.iter().take(last.map_or(0, |last| last + 1)).for_each(|frame| frame.write(&mut out));
        function.write(&mut out);
    }
    out
}

/// The only function with this short name, for names that perf shortens inconsistently; `None` if there are several.
type LongNames<'a> = HashMap<&'a str, Option<&'a str>>;

fn long_names<'a>(lines: &'a [Line<'_>]) -> LongNames<'a> {
    let mut names = LongNames::new();
    for line in lines.iter().filter(|line| !line.is_inlined()) {
        let Line::Frame { symbol, .. } = line else { continue };
        let Some((_, short)) = symbol.rsplit_once("::") else { continue };
        let known = names.entry(short).or_insert(Some(symbol));
        if known.is_some_and(|known| known != symbol) {
            *known = None;
        }
    }
    names
}

enum Line<'a> {
    Frame { address: &'a str, symbol: Cow<'a, str>, module: &'a str },
    Other(&'a str),
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let parts = || {
            let (address, rest) =
                line.strip_prefix(char::is_whitespace)?.trim_start().split_once(' ')?;
            let (symbol, module) = rest.rsplit_once(" (")?;
            Some((address, symbol, module.strip_suffix(')')?))
        };
        match parts() {
            Some((address, symbol, module)) => {
                Line::Frame { address, symbol: simplify(symbol), module }
            }
            None => Line::Other(line),
        }
    }

    fn is_inlined(&self) -> bool {
        matches!(self, Line::Frame { module: "inlined", .. })
    }

    /// Returns whether both frames are at the same address.
    fn is_at_address_of(&self, other: &Line<'_>) -> bool {
        match (self, other) {
            (Line::Frame { address: a, .. }, Line::Frame { address: b, .. }) => a == b,
            _ => false,
        }
    }

    /// Returns the same frame under the function's long name, if it has one.
    fn renamed<'n>(&'n self, names: &LongNames<'n>) -> Option<Line<'n>> {
        let Line::Frame { address, symbol, module } = self else { return None };
        let long = (*names.get(&**symbol)?)?;
        Some(Line::Frame { address, symbol: Cow::Borrowed(long), module })
    }

    fn has_short_name_of(&self, other: &Line<'_>) -> bool {
        match (self, other) {
            (Line::Frame { symbol: long, .. }, Line::Frame { symbol: short, .. }) => {
                long == short
                    || long.strip_suffix(&**short).is_some_and(|path| path.ends_with("::"))
            }
            _ => false,
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Line::Frame { address, symbol, module } => {
                out.extend(["\t", address, " ", symbol, " (", module, ")\n"]);
            }
            Line::Other(line) => out.extend([*line, "\n"]),
        }
    }
}

/// Returns a symbol without its generic arguments, which make one function look like many.
fn simplify(symbol: &str) -> Cow<'_, str> {
    if !symbol.contains('<') {
        return Cow::Borrowed(symbol);
    }
    let (mut out, mut depth, mut before) = (String::new(), 0_u32, ' ');
    // `<Type as Trait>::method` keeps its first pair of brackets.
    let kept = u32::from(symbol.starts_with('<'));
    let mut kept_open = false;
    for (at, c) in symbol.char_indices() {
        match c {
            '<' if at == 0 => (kept_open, depth) = (true, kept),
            '<' => depth += 1,
            '>' if before != '-' && depth > 0 => {
                depth -= 1;
                kept_open &= depth > 0;
            }
            _ if depth == u32::from(kept_open) => out.push(c),
            _ => {}
        }
        before = c;
    }
    if depth == 0 { Cow::Owned(out.replace("::::", "::")) } else { Cow::Borrowed(symbol) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_generic_arguments() {
        let cases = [
            ("open<adit::{impl#0}::{closure_env#0}<a::b>>", "open"),
            ("call<fn() -> std::process::ExitCode, u8>", "call"),
            ("core::iter::map::<u8, u16>::next", "core::iter::map::next"),
            (
                "<alloc::vec::Vec<u8> as core::clone::Clone>::clone",
                "alloc::vec::Vec as core::clone::Clone::clone",
            ),
            ("__memmove_avx512_unaligned_erms", "__memmove_avx512_unaligned_erms"),
            ("operator<", "operator<"),
        ];
        for (symbol, short) in cases {
            assert_eq!(simplify(symbol), short);
        }
    }

    #[test]
    fn inlined_functions_stand_inside_the_one_that_took_them_in() {
        let script = "\
lab 1/1 5.0: cpu-clock: 
\t  10 asm (/bin/lab)
\t  20 lab::carry (/bin/lab)
\t  20 seal<u8> (inlined)
\t  20 egress (inlined)
\t  20 carry (inlined)
\t  30 lab::main (/bin/lab)
\t  40 memcpy (inlined)
\t  40 c_function (/bin/lab)
\t  50 leaf (inlined)
\t  50 function (inlined)
\t  50 rust::function (/bin/lab)
";
        let frames: Vec<String> = tidy(script)
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().nth(1).unwrap().to_owned())
            .collect();
        assert_eq!(
            frames,
            [
                "asm",
                "seal",
                "egress",
                "lab::carry",
                "lab::main",
                "memcpy",
                "c_function",
                "leaf",
                "rust::function"
            ]
        );
    }

    #[test]
    fn a_function_that_is_named_again_and_again_stands_once() {
        let script = "\
\t  20 lab::Worker::run (/bin/lab)
\t  20 dispatch (inlined)
\t  20 lab::Worker::run (inlined)
\t  20 run (inlined)
\t  20 lab::Worker::run (/bin/lab)
";
        let names = tidy(script);
        assert_eq!(names, "\t20 dispatch (inlined)\n\t20 lab::Worker::run (/bin/lab)\n");
    }

    #[test]
    fn a_function_that_is_named_by_its_short_name_only_is_the_one_known() {
        let named = "\t  20 lab::Worker::run (/bin/lab)\n\n";
        let short = "\t  30 dispatch (inlined)\n\t  30 run (inlined)\n";
        let names = tidy(&format!("{named}{short}"));
        assert!(
            names.ends_with("\t30 dispatch (inlined)\n\t30 lab::Worker::run (inlined)\n"),
            "{names}"
        );
        let other = "\t  40 lab::Other::run (/bin/lab)\n\n";
        let names = tidy(&format!("{named}{other}{short}"));
        assert!(names.ends_with("\t30 run (inlined)\n"), "one of two: {names}");
    }

    #[test]
    fn a_function_under_another_name_keeps_all_that_was_inlined() {
        let script = "\t  20 renamed (/bin/lab)\n\t  20 seal (inlined)\n\t  20 carry (inlined)\n";
        let names = tidy(script);
        assert_eq!(names, "\t20 seal (inlined)\n\t20 carry (inlined)\n\t20 renamed (/bin/lab)\n");
    }
}
