//! `report.md`, also readable on a terminal.

use super::document::{Document, Headline, Table, Text};

/// Returns the whole file.
pub(super) fn render(document: &Document) -> String {
    let mut text = format!("# {}\n\n", escape(&document.title));
    for notice in &document.notices {
        text += &format!("> **{}**\n\n", escape(notice));
    }
    text += &summary_table(&document.headline).map_or_else(String::new, |glance| table(&glance, 2));
    for line in &document.headline {
        if !line.caveat.is_empty() {
            text += &format!("- {}: {}\n", escape(&line.place), escape(line.caveat));
        }
        for sentence in &line.sentences {
            text += &format!("- {}\n", escape(sentence));
        }
    }
    if !document.headline.is_empty() {
        text.push('\n');
    }
    text += "## What was run, and on what\n\n";
    for (name, value) in &document.facts {
        text += &format!("- {name}: {}\n", escape(value));
    }
    text.push('\n');
    text += &table(&document.subjects, 3);
    text += &format!(
        "The exact configurations are in manifest.json and in report.html. To repeat:\n\n{}",
        code(&document.command)
    );
    text += &format!("## Whether the figures count\n\n{}\n\n", escape(&document.validity.verdict));
    for warning in &document.validity.warnings {
        text += &format!("- {}\n", escape(warning));
    }
    if !document.validity.warnings.is_empty() {
        text.push('\n');
    }
    for one in &document.validity.tables {
        text += &table(one, 3);
    }
    for section in &document.sections {
        text += &format!("## {}\n\n{}\n\n", escape(&section.name), section.intro);
        if !section.same.is_empty() {
            text += &format!("Everywhere here: {}.\n\n", escape(&section.same.join(", ")));
        }
        for one in &section.tables {
            text += &table(one, 3);
        }
        for note in &section.notes {
            text += &format!("- {}\n", escape(note));
        }
        if !section.notes.is_empty() {
            text.push('\n');
        }
        text += &code(&document.command);
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Returns adit's result, with a line for each link mode.
fn summary_table(lines: &[Headline]) -> Option<Table> {
    let first = lines.iter().max_by_key(|line| line.bars.len())?;
    let names = first.bars.iter().map(|stand| stand.subject.as_str());
    let of = |line: &Headline, subject: &str| {
        let stand = line.bars.iter().find(|stand| stand.subject == subject);
        stand.map_or_else(|| "–".into(), |stand| Text::from(stand.text.as_str()))
    };
    let row = |line: &Headline| {
        let doubt = if line.valid { "" } else { " (not valid)" };
        let mut cells = vec![Text::from(format!("{}{doubt}", line.place))];
        cells.extend(names.clone().map(|subject| of(line, subject)));
        let figures = line.figures.iter().map(|(figure, of)| format!("{figure} {of}"));
        cells.push(figures.collect::<Vec<_>>().join(", ").into());
        cells
    };
    Some(Table {
        title: "In one glance: a single stream".into(),
        stubs: 1,
        head: ["where"]
            .into_iter()
            .chain(names.clone())
            .chain(["adit is at"])
            .map(str::to_owned)
            .collect(),
        rows: lines.iter().map(row).collect(),
    })
}

fn code(command: &str) -> String {
    if command.is_empty() { String::new() } else { format!("    {}\n\n", one_line(command)) }
}

/// Returns a table with aligned columns: names are aligned to the left, figures to the right.
fn table(table: &Table, level: usize) -> String {
    let head: Vec<String> = table.head.iter().map(|name| escape(name)).collect();
    // The reason for a gap does not fit into a column; it is printed below the tables.
    let short = |row: &[Text], cell: &Text| match cell.text.split_once(": ") {
        Some((gap, _)) if row.len() < table.head.len() => escape(gap),
        _ => escape(&cell.text),
    };
    let cells = |row: &Vec<Text>| row.iter().map(|cell| short(row, cell)).collect();
    let rows: Vec<Vec<String>> = table.rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row: &Vec<String>| row.get(column));
        let cells = cells.chain(head.get(column)).map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(3)
    };
    let line = |cells: &[String]| {
        // A row with a gap ends early.
        let gaps = (cells.len()..head.len()).map(|_| "");
        let padded = cells.iter().map(String::as_str).chain(gaps).enumerate().map(|(i, cell)| {
            let gap = " ".repeat(width(i) - cell.chars().count());
            if i < table.stubs { format!(" {cell}{gap} ") } else { format!(" {gap}{cell} ") }
        });
        format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<String> = (0..head.len())
        .map(|i| "-".repeat(width(i) - 1) + if i < table.stubs { "-" } else { ":" })
        .collect();
    let mut text = format!("{} {}\n\n", "#".repeat(level), escape(&table.title));
    text += &line(&head);
    text += &line(&rule);
    for row in &rows {
        text += &line(row);
    }
    text + "\n"
}

/// Escapes text from data, so that it cannot end a cell, start a tag or begin a new line.
fn escape(text: &str) -> String {
    one_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('|', "\\|")
}

fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_data_cannot_break_out() {
        let example = Table {
            title: "A".into(),
            stubs: 1,
            head: vec!["who".into(), "Mb/s".into()],
            rows: vec![vec!["a|<b>\nc".into(), "1,000".into()], vec!["b".into(), "7".into()]],
        };
        let lines = "### A\n\n\
                     | who         |  Mb/s |\n\
                     | ----------- | ----: |\n\
                     | a\\|&lt;b> c | 1,000 |\n\
                     | b           |     7 |\n\n";
        assert_eq!(table(&example, 3), lines);
    }
}
