//! Converts pages of the documentation to roff. It supports the Markdown of docs/: headings, paragraphs, lists, tables, code blocks, and
//! code, bold print and links within a line.

use super::escaped;

/// The kind of block whose lines are being gathered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    None,
    Paragraph,
    Item,
    /// A block between lines with three backticks.
    Code,
    /// Lines that begin with four spaces.
    Indented,
    /// The head of a table. A line of dashes and the rows follow.
    TableHead,
    TableRows,
}

/// Converts the page without its title and its table of contents.
pub(super) fn roff(markdown: &str) -> String {
    const BEGIN: &str = ".PP\n.RS 2\n.nf\n";
    const END: &str = ".fi\n.RE\n";
    let mut text = String::new();
    let mut block = Block::None;
    // The number of empty lines after indented lines. They belong to the block only if another indented line follows.
    let mut empty = 0;
    for line in markdown.lines() {
        let indented = line.strip_prefix("    ");
        if block == Block::Indented {
            if line.is_empty() {
                empty += 1;
                continue;
            }
            if let Some(line) = indented {
                text.push_str(&"\n".repeat(std::mem::take(&mut empty)));
                text.push_str(&literal(line));
                text.push('\n');
                continue;
            }
            text.push_str(END);
            (block, empty) = (Block::None, 0);
        }
        if line.starts_with("```") {
            let ends = block == Block::Code;
            text.push_str(if ends { END } else { BEGIN });
            block = if ends { Block::None } else { Block::Code };
        } else if block == Block::Code {
            text.push_str(&literal(line));
            text.push('\n');
        } else if let (Some(line), Block::None) = (indented, block) {
            text.push_str(&format!("{BEGIN}{}\n", literal(line)));
            block = Block::Indented;
        } else if line.is_empty() {
            block = Block::None;
        } else if let Some(heading) = line.strip_prefix("### ") {
            text.push_str(&format!(".SS \"{}\"\n", escaped(heading)));
            block = Block::None;
        } else if let Some(heading) = line.strip_prefix("## ") {
            text.push_str(&format!(".SH \"{}\"\n", escaped(heading).to_uppercase()));
            block = Block::None;
        } else if line.starts_with("# ") || line.starts_with("- [") || line.starts_with("  [") {
            // Skip the title, and the links to the page's own parts.
            block = Block::None;
        } else if line.starts_with('|') {
            block = row(&mut text, block, line);
        } else if let Some(item) = line.strip_prefix("- ") {
            text.push_str(&format!(".IP \\(bu 2\n{}\n", inline(item)));
            block = Block::Item;
        } else {
            if block == Block::None {
                text.push_str(".PP\n");
                block = Block::Paragraph;
            }
            text.push_str(&inline(line.trim_start()));
            text.push('\n');
        }
    }
    if block == Block::Indented {
        text.push_str(END);
    }
    text
}

/// Converts a row of a table, with its first cell in bold print and the others below it.
fn row(text: &mut String, block: Block, line: &str) -> Block {
    if block != Block::TableHead && block != Block::TableRows {
        return Block::TableHead;
    }
    if line.starts_with("|---") {
        return Block::TableRows;
    }
    let mut cells = cells(line).into_iter();
    let first = cells.next().unwrap_or_default();
    let rest: Vec<String> =
        cells.map(|cell| inline(&cell)).filter(|cell| !cell.is_empty()).collect();
    text.push_str(&format!(".TP\n{}\n{}\n", inline(&first), rest.join("\n.br\n")));
    Block::TableRows
}

/// Returns the cells of a row. A bar within code is escaped with a backslash.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for c in line.trim().trim_start_matches('|').trim_end_matches('|').chars() {
        match (c, cells.last_mut()) {
            ('|', Some(last)) if escaped => {
                last.pop();
                last.push('|');
            }
            ('|', _) => cells.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
        escaped = c == '\\';
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

/// Escapes a literal line, so that a period or a quote at its beginning does not become a request.
fn literal(line: &str) -> String {
    let line = escaped(line);
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

/// Converts code and bold print to bold print, and links to their texts.
fn inline(line: &str) -> String {
    let mut text = String::new();
    for (at, part) in line.split('`').enumerate() {
        if at % 2 == 1 {
            text.push_str(&format!("\\fB{}\\fR", escaped(part)));
        } else {
            text.push_str(&bold(&escaped(&without_links(part))));
        }
    }
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

fn bold(text: &str) -> String {
    let parts = text.split("**").enumerate();
    parts
        .map(|(at, part)| if at % 2 == 1 { format!("\\fB{part}\\fR") } else { part.into() })
        .collect()
}

/// Replaces `[words](target)` with `words`.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let link = after.split_once("](").and_then(|(words, after)| {
            let (_, after) = after.split_once(')')?;
            (!words.contains('[')).then_some((words, after))
        });
        plain.push_str(before);
        rest = match link {
            Some((words, after)) => {
                plain.push_str(words);
                after
            }
            None => {
                plain.push('[');
                after
            }
        };
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_block_becomes_roff() {
        let page = "# Title\n\n- [A part](#a-part)\n  [another](#another)\n\nOne `-f` line,\n.two **lines** with \
                    [a link](x.md).\n\n## A part\n\n- an item\n  that goes on\n\n| Form | Meaning |\n|---|---|\n\
                    | `a \\| b` | one |\n| `c` | two | three |\n\n```text\n.x 'y'\n  z\n```\n\n### Small\n";
        assert_eq!(
            roff(page),
            ".PP\nOne \\fB\\-f\\fR line,\n\\&.two \\fBlines\\fR with a link.\n.SH \"A PART\"\n.IP \\(bu 2\nan item\n\
             that goes on\n.TP\n\\fBa | b\\fR\none\n.TP\n\\fBc\\fR\ntwo\n.br\nthree\n.PP\n.RS 2\n.nf\n\\&.x \
             \\(aqy\\(aq\n  z\n.fi\n.RE\n.SS \"Small\"\n"
        );
    }

    #[test]
    fn indented_lines_stay_as_they_are_typed() {
        let page = "Words:\n\n    adit a   one\n    .b\n\n      c\n\n\nWords `x`\n    that go on\n\n    $ d\n";
        assert_eq!(
            roff(page),
            ".PP\nWords:\n.PP\n.RS 2\n.nf\nadit a   one\n\\&.b\n\n  c\n.fi\n.RE\n.PP\nWords \\fBx\\fR\nthat go \
             on\n.PP\n.RS 2\n.nf\n$ d\n.fi\n.RE\n"
        );
    }

    #[test]
    fn brackets_that_are_no_link_stay() {
        assert_eq!(without_links("a [b] and [c](d) [e"), "a [b] and c [e");
    }
}
