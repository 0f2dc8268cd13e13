//! Splits wide tables into several narrower ones, so that lines neither wrap on a terminal nor extend beyond the page.

use super::document::{Table, Text};

/// The maximum number of letters in a line. In the page's type this is as wide as a window of 1,200 pixels.
const WIDEST: usize = 120;

/// Splits the table into parts with a width of at most [`WIDEST`]; each begins with the columns that name the row.
pub(super) fn fit(table: Table) -> Vec<Table> {
    let widths: Vec<usize> = (0..table.head.len()).map(|column| width(&table, column)).collect();
    let (stubs, columns) = widths.split_at(table.stubs.min(widths.len()));
    let named: usize = stubs.iter().sum();
    let parts = packed(columns, WIDEST.saturating_sub(named));
    if parts.len() < 2 {
        return vec![table];
    }
    let part = |(i, range): (usize, &std::ops::Range<usize>)| {
        let (from, to) = (table.stubs + range.start, table.stubs + range.end);
        let title = if i == 0 { "" } else { ", continued" };
        // A row with a gap is shorter, and only the first part contains it.
        let rows = table.rows.iter().filter(|row| i == 0 || row.len() > from);
        Table {
            title: format!("{}{title}", table.title),
            stubs: table.stubs,
            head: of(&table.head, table.stubs, from, to),
            rows: rows.map(|row| of(row, table.stubs, from, to)).collect(),
        }
    };
    parts.iter().enumerate().map(part).collect()
}

/// Returns the naming columns, and the columns of a part.
fn of<T: Clone>(row: &[T], stubs: usize, from: usize, to: usize) -> Vec<T> {
    let kept = row.iter().enumerate().filter(|(i, _)| *i < stubs || (from..to).contains(i));
    kept.map(|(_, cell)| cell.clone()).collect()
}

/// Returns the width of a column with its border and a space on each side.
fn width(table: &Table, column: usize) -> usize {
    // The text of a gap may use the rest of the row.
    let own = |row: &&Vec<Text>| row.len() == table.head.len() || column + 1 < row.len();
    let cells = table.rows.iter().filter(own).filter_map(|row| row.get(column));
    let cells = cells.map(|cell| cell.text.chars().count());
    let head = table.head.get(column).map(|name| name.chars().count());
    cells.chain(head).max().unwrap_or(0) + 3
}

/// Distributes columns over as few parts as possible, and makes these about equally wide.
fn packed(widths: &[usize], room: usize) -> Vec<std::ops::Range<usize>> {
    let greedy = |room: usize| {
        let mut parts: Vec<std::ops::Range<usize>> = Vec::new();
        let mut left = 0;
        for (i, width) in widths.iter().enumerate() {
            match parts.last_mut() {
                Some(part) if *width <= left => {
                    part.end = i + 1;
                    left -= width;
                }
                _ => {
                    parts.push(i..i + 1);
                    left = room.saturating_sub(*width);
                }
            }
        }
        parts
    };
    let fewest = greedy(room);
    let mean = widths.iter().sum::<usize>() / fewest.len().max(1);
    let even = (mean..room).map(greedy).find(|parts| parts.len() == fewest.len());
    even.unwrap_or(fewest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_becomes_two_and_a_gap_stands_once() {
        let wide = "x".repeat(40);
        let row = |name: &str| [name, &wide, &wide, &wide, "1"].map(Text::from).to_vec();
        let table = Table {
            title: "T".into(),
            stubs: 1,
            head: ["who", "a", "b", "c", "d"].map(str::to_owned).to_vec(),
            rows: vec![row("adit"), vec!["tinc".into(), "not measured".into()]],
        };
        let parts = fit(table);
        let heads: Vec<String> = parts.iter().map(|part| part.head.join(" ")).collect();
        assert_eq!(heads, ["who a b", "who c d"]);
        assert_eq!(parts.iter().map(|part| part.rows.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(parts[1].title, "T, continued");
    }

    #[test]
    fn what_fits_stays_and_one_wide_column_is_no_reason_to_stop() {
        assert_eq!(packed(&[10, 10, 10], 30), vec![0..3]);
        assert_eq!(packed(&[10, 10, 10, 10], 30), vec![0..2, 2..4]);
        assert_eq!(packed(&[50, 10], 30), vec![0..1, 1..2]);
        assert_eq!(packed(&[], 30), Vec::<std::ops::Range<usize>>::new());
    }
}
