//! Medians and tables.

/// The median of some figures; with an even count the mean of the two in the middle. None of none.
pub fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    let upper = figures.get(figures.len() / 2)?;
    if figures.len() % 2 == 1 {
        return Some(*upper);
    }
    let lower = figures.get((figures.len() / 2).checked_sub(1)?)?;
    Some(f64::midpoint(*lower, *upper))
}

/// A Markdown table with columns of equal width, so that it reads well on a terminal too.
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
    fn the_median_of_odd_and_even_counts() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn a_table_lines_up() {
        let text = table(&["who", "Mb/s"], &[vec!["adit".into(), "9000".into()]]);
        assert_eq!(text, "| who  | Mb/s |\n| ---- | ---: |\n| adit | 9000 |\n");
    }
}
