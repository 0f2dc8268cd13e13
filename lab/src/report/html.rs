//! `report.html`: one self-contained page.

use std::fmt::Write;

use adit_testbed::failure::Result;

use super::document::{
    Document, Headline, HeadlineBar, Section, Table, Text, Tone, Validity, capital,
};
use super::figures::{self, Figure, Styles};
use super::svg::{escape, swatch};
use super::{Run, order};

/// Returns the whole page.
///
/// # Errors
/// The manifest cannot be written as JSON.
pub(super) fn render(document: &Document, run: &Run) -> Result<String> {
    let mut names: Vec<String> = run.summary.rows.iter().map(|row| row.subject.clone()).collect();
    names.sort_by(|a, b| order::subjects(a, b));
    names.dedup();
    let styles = order::styles(&names);
    let title = escape(&document.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n",
        include_str!("page.css")
    );
    for notice in &document.notices {
        put(&mut page, format_args!("<p class=\"notice\" role=\"note\">{}</p>", escape(notice)));
    }
    page += &headline(&document.headline, &styles);
    page += &contents(document);
    page += "</header>\n<main>\n";
    page += &validity(&document.validity);
    page += &facts(document);
    for (i, section) in document.sections.iter().enumerate() {
        page += &scenario(i, section, run, &styles, &document.command);
    }
    page += &appendix(run)?;
    page += "</main>\n</body>\n</html>\n";
    Ok(page)
}

fn put(page: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(line);
    page.push('\n');
}

fn headline(lines: &[Headline], styles: &Styles) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut html = String::from("<section class=\"cards\" aria-label=\"In short\">\n");
    for Headline { place, figures, valid, bars, sentences, caveat } in lines {
        let (class, doubt) =
            if *valid { ("card", "") } else { ("card doubt", " <b>(not valid)</b>") };
        let place_named = escape(place);
        put(&mut html, format_args!("<div class=\"{class}\">\n<h2>{place_named}{doubt}</h2>"));
        html += "<dl>\n";
        for (figure, of) in figures {
            put(&mut html, format_args!("<div><dd>{}</dd><dt>{of}</dt></div>", escape(figure)));
        }
        html += "</dl>\n";
        html += &meters(bars, styles);
        if !caveat.is_empty() {
            put(&mut html, format_args!("<p class=\"caveat\">{}</p>", escape(caveat)));
        }
        for sentence in sentences {
            // The heading of the card names the point.
            let text = sentence.strip_prefix(&format!("{place}: ")).unwrap_or(sentence);
            put(&mut html, format_args!("<p>{}</p>", escape(&capital(text))));
        }
        html += "</div>\n";
    }
    html + "</section>\n"
}

/// Returns a bar for each subject, whose length is its share of the longest.
fn meters(bars: &[HeadlineBar], styles: &Styles) -> String {
    let most = bars.iter().map(|stand| stand.value).fold(f64::MIN_POSITIVE, f64::max);
    let mut html = String::from("<ul class=\"meters\">\n");
    for HeadlineBar { subject, value, text } in bars {
        let style = styles.get(subject).copied().unwrap_or_default();
        let share = (100.0 * value / most).clamp(0.0, 100.0);
        put(
            &mut html,
            format_args!(
                "<li><span>{}</span><i class=\"c{style}\" style=\"--w:{share:.1}%\"></i><b>{}</b></li>",
                escape(subject),
                escape(text)
            ),
        );
    }
    html + "</ul>\n"
}

fn contents(document: &Document) -> String {
    let mut html = String::from("<nav aria-label=\"Contents\"><ul>\n");
    let fixed = [("validity", "Whether the figures count"), ("run", "What was run, and on what")];
    for (id, name) in fixed {
        put(&mut html, format_args!("<li><a href=\"#{id}\">{name}</a></li>"));
    }
    for (i, section) in document.sections.iter().enumerate() {
        put(&mut html, format_args!("<li><a href=\"#s{i}\">{}</a></li>", escape(&section.name)));
    }
    html + "<li><a href=\"#exactly\">Exactly how</a></li>\n</ul></nav>\n"
}

fn validity(validity: &Validity) -> String {
    let class = if validity.good { "box" } else { "box doubt" };
    let mut html = format!(
        "<section class=\"{class}\" id=\"validity\">\n<h2>Whether the figures count</h2>\n<p>{}</p>\n",
        escape(&validity.verdict)
    );
    if !validity.warnings.is_empty() {
        html += "<ul>\n";
        for warning in &validity.warnings {
            put(&mut html, format_args!("<li>{}</li>", escape(warning)));
        }
        html += "</ul>\n";
    }
    for one in &validity.tables {
        let open = if one.rows.len() <= 8 { " open" } else { "" };
        put(
            &mut html,
            format_args!(
                "<details{open}><summary>{} ({} lines)</summary>\n{}</details>",
                escape(&one.title),
                one.rows.len(),
                table(one, false)
            ),
        );
    }
    html + "</section>\n"
}

fn facts(document: &Document) -> String {
    let mut html = String::from("<section id=\"run\">\n<h2>What was run, and on what</h2>\n<dl>\n");
    for (name, value) in &document.facts {
        put(&mut html, format_args!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value)));
    }
    html += "</dl>\n";
    if !document.subjects.rows.is_empty() {
        html += &table(&document.subjects, true);
    }
    html + &repeat(&document.command) + "</section>\n"
}

fn repeat(command: &str) -> String {
    if command.is_empty() {
        return String::new();
    }
    format!("<p class=\"repeat\">To repeat:</p>\n<pre>{}</pre>\n", escape(command))
}

fn scenario(i: usize, section: &Section, run: &Run, styles: &Styles, command: &str) -> String {
    let mut html = format!(
        "<section id=\"s{i}\">\n<h2>{}<span class=\"kind\">{}</span></h2>\n<p>{}</p>\n",
        escape(&section.name),
        escape(&section.kind),
        section.intro
    );
    if !section.same.is_empty() {
        let same = escape(&section.same.join(", "));
        put(&mut html, format_args!("<p class=\"same\">Everywhere here: {same}.</p>"));
    }
    let (first, more) = figures::of(run, &section.name, styles);
    html += &plots(&first);
    if !more.is_empty() {
        put(
            &mut html,
            format_args!(
                "<details><summary>{} more plots</summary>\n{}</details>",
                more.len(),
                plots(&more)
            ),
        );
    }
    for one in &section.tables {
        html += &table(one, true);
    }
    if !section.notes.is_empty() {
        html += "<ul>\n";
        for note in &section.notes {
            put(&mut html, format_args!("<li>{}</li>", escape(note)));
        }
        html += "</ul>\n";
    }
    html + &repeat(command) + "</section>\n"
}

fn plots(figures: &[Figure]) -> String {
    if figures.is_empty() {
        return String::new();
    }
    let mut html = String::from("<div class=\"figures\">\n");
    for Figure { title, caption, svg, legend } in figures {
        put(&mut html, format_args!("<figure>\n<h3>{}</h3>", escape(title)));
        if !legend.is_empty() {
            html += "<ul class=\"legend\">";
            for (style, name) in legend {
                let _ = write!(html, "<li>{}{}</li>", swatch(*style), escape(name));
            }
            html += "</ul>\n";
        }
        html += svg;
        put(&mut html, format_args!("<figcaption>{}</figcaption>\n</figure>", escape(caption)));
    }
    html + "</div>\n"
}

/// Returns a table in which a name that several consecutive rows share is printed once.
fn table(table: &Table, captioned: bool) -> String {
    let title = escape(&table.title);
    let words = if table.stubs == table.head.len() { " class=\"words\"" } else { "" };
    let mut html = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\n<table{words}>\n"
    );
    if captioned {
        put(&mut html, format_args!("<caption>{title}</caption>"));
    }
    html += "<thead><tr>";
    for (i, name) in table.head.iter().enumerate() {
        let class = if i < table.stubs { " class=\"stub\"" } else { "" };
        // "CPU-s" must not be broken at its hyphen.
        let name = escape(name).replace('-', "\u{2011}");
        let _ = write!(html, "<th scope=\"col\"{class}>{name}</th>");
    }
    html += "</tr></thead>\n<tbody>\n";
    for (i, row) in table.rows.iter().enumerate() {
        let first = if table.stubs < 2 || !repeats(table, i, 0) { " class=\"first\"" } else { "" };
        let _ = write!(html, "<tr{first}>");
        for (column, cell) in row.iter().enumerate() {
            let gap = table.head.len().saturating_sub(column);
            if column + 1 == row.len() && gap > 1 {
                let text = escape(&cell.text);
                let _ = write!(html, "<td class=\"weak gap\" colspan=\"{gap}\">{text}</td>");
            } else {
                html += &cell_of(table, i, column, cell);
            }
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table>\n</div>\n"
}

/// Returns whether this cell and all cells to its left equal those of the row above.
fn repeats(table: &Table, row: usize, column: usize) -> bool {
    let texts = |row: usize| {
        let cells = table.rows.get(row).into_iter().flatten();
        cells.take(column + 1).map(|cell| cell.text.as_str()).collect::<Vec<_>>()
    };
    row > 0 && row < table.rows.len() && texts(row) == texts(row - 1)
}

fn cell_of(table: &Table, row: usize, column: usize, cell: &Text) -> String {
    let tone = match cell.tone {
        Tone::Plain => "",
        Tone::Good => "good ",
        Tone::Bad => "bad ",
        Tone::Weak => "weak ",
    };
    let text = escape(&cell.text);
    if column >= table.stubs {
        return match tone.trim() {
            "" => format!("<td>{text}</td>"),
            tone => format!("<td class=\"{tone}\">{text}</td>"),
        };
    }
    // The last of the naming columns distinguishes the rows, so it is always printed.
    let last = column + 1 == table.stubs;
    if !last && repeats(table, row, column) {
        return String::new();
    }
    let below =
        (row + 1..table.rows.len()).take_while(|next| repeats(table, *next, column)).count();
    let span = match below {
        n if n > 0 && !last => format!(" scope=\"rowgroup\" rowspan=\"{}\"", n + 1),
        _ => " scope=\"row\"".to_owned(),
    };
    if cell.text.chars().count() > 48 {
        return format!("<td class=\"{tone}stub long\">{text}</td>");
    }
    format!("<th{span} class=\"{tone}stub\">{text}</th>")
}

/// Returns the exact configurations, the plan and the manifest.
fn appendix(run: &Run) -> Result<String> {
    let mut html = String::from("<section id=\"exactly\">\n<h2>Exactly how</h2>\n");
    let mut subjects: Vec<_> = run.manifest.subjects.iter().collect();
    subjects.sort_by(|(a, _), (b, _)| order::subjects(a, b));
    for (name, entry) in subjects {
        for (file, text) in &entry.configs {
            fold(&mut html, &format!("{name}: {file}"), text);
        }
    }
    for (mode, flags) in &run.manifest.links {
        fold(&mut html, &format!("Link mode {mode}: ethtool -k"), flags);
    }
    fold(&mut html, &format!("The plan {}", run.manifest.plan.name), &run.manifest.plan.text);
    let mut bare = run.manifest.clone();
    bare.plan.text.clear();
    bare.subjects.values_mut().for_each(|entry| entry.configs.clear());
    let json = serde_json::to_string_pretty(&bare).map_err(|error| error.to_string())?;
    fold(&mut html, "The rest of the manifest", &json);
    Ok(html + "</section>\n")
}

fn fold(html: &mut String, summary: &str, text: &str) {
    if !text.is_empty() {
        put(
            html,
            format_args!(
                "<details><summary>{}</summary><pre>{}</pre></details>",
                escape(summary),
                escape(text)
            ),
        );
    }
}
