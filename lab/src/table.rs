//! Tables in Markdown.

/// Returns a Markdown table with columns of equal width, so that it is readable on a terminal too. The first column is
/// aligned to the left, the others to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |c| c.chars().count());
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(i, name)| {
            rows.iter().map(|row| cells(row, i)).chain([name.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: Vec<&str>| -> String {
        let padded = cells.iter().zip(&widths).enumerate();
        let padded = padded.map(|(i, (cell, width))| match i {
            0 => format!(" {cell:<width$} "),
            _ => format!(" {cell:>width$} "),
        });
        format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(i, width)| match i {
            0 => "-".repeat(*width),
            _ => "-".repeat(width.saturating_sub(1)) + ":",
        })
        .collect();
    let mut text = line(head.to_vec()) + &line(rule.iter().map(String::as_str).collect());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up() {
        let text = table(&["who", "Mb/s"], &[vec!["adit".into(), "9000".into()]]);
        assert_eq!(text, "| who  | Mb/s |\n| ---- | ---: |\n| adit | 9000 |\n");
    }
}
