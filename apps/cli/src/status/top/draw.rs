//! Draws the full-screen view.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap};

use super::view::{HISTORY, History, Mode, Row, View};
use crate::args::SortKey;
use crate::text::{bytes, count, rate, span, wrapped};

/// The maximum number of lines for instances. The others are counted.
const MAX_INSTANCES: usize = 4;

const LIST_KEYS: &[(&str, &str)] = &[
    ("↑↓", "select"),
    ("Enter", "details"),
    ("/", "filter"),
    ("s", "sort"),
    ("?", "help"),
    ("q", "quit"),
];
const DETAILS_KEYS: &[(&str, &str)] =
    &[("↑↓", "other rows"), ("Esc", "back"), ("?", "help"), ("q", "quit")];
const HELP_KEYS: &[(&str, &str)] = &[("Esc", "back"), ("q", "quit")];

/// Draws the view.
pub(super) fn draw(view: &View, frame: &mut Frame<'_>) {
    let instances = instance_lines(view);
    let height = u16::try_from(instances.len()).unwrap_or(1);
    let [top, rates, middle, bottom] = Layout::vertical([
        Constraint::Length(height),
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(instances), top);
    draw_rates(view, &view.total, "all", frame, rates);
    match (view.mode, view.selected()) {
        (Mode::Help, _) => frame.render_widget(Paragraph::new(help()), middle),
        (Mode::Details, Some(row)) => draw_details(view, row, frame, middle),
        _ => draw_list(view, frame, middle),
    }
    frame.render_widget(Paragraph::new(keys(view)), bottom);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// The style of what should stand out. Without colour, it is bold.
fn accent(view: &View) -> Style {
    if view.colored { Style::new().fg(Color::Cyan) } else { bold() }
}

fn instance_lines(view: &View) -> Vec<Line<'_>> {
    if view.instances.is_empty() {
        return vec![Line::from("Nothing is running here")];
    }
    let shown = view.instances.iter().take(MAX_INSTANCES);
    let mut lines: Vec<Line<'_>> = shown.map(|line| Line::styled(line.as_str(), bold())).collect();
    let rest = view.instances.len().saturating_sub(MAX_INSTANCES);
    if rest > 0 {
        lines.push(Line::from(format!("and {}", count(rest, "other instance"))));
    }
    lines
}

/// Draws the rates in both directions as figures and sparklines, one line each.
fn draw_rates(view: &View, history: &History, what: &str, frame: &mut Frame<'_>, area: Rect) {
    let (received, sent) = history.now();
    let lines = Layout::vertical([Constraint::Length(1); 2]).split(area);
    for ((word, now, rates), line) in
        [("received", received, &history.received), ("sent", sent, &history.sent)]
            .into_iter()
            .zip(lines.iter())
    {
        let label = format!("{what}: {word:<9} {:>9}  ", rate(now));
        let width = u16::try_from(label.chars().count()).unwrap_or(30);
        let [text, graph] =
            Layout::horizontal([Constraint::Length(width), Constraint::Min(0)]).areas(*line);
        frame.render_widget(Paragraph::new(label), text);
        let room = usize::from(graph.width).min(HISTORY);
        let skip = rates.len().saturating_sub(room);
        let data: Vec<u64> = rates.iter().skip(skip).copied().collect();
        frame.render_widget(Sparkline::default().data(&data).style(accent(view)), graph);
    }
}

fn draw_list(view: &View, frame: &mut Frame<'_>, area: Rect) {
    let rows = view.visible();
    let marked = |keys: &[SortKey], text: &str| {
        if keys.contains(&view.sort) { format!("{text} ▾") } else { text.to_owned() }
    };
    let head = [
        marked(&[SortKey::Name], "NAME"),
        "INSIDE".into(),
        marked(&[SortKey::Traffic], "RECEIVED"),
        marked(&[SortKey::Rate, SortKey::Received], "RATE"),
        "SENT".into(),
        marked(&[SortKey::Sent], "RATE"),
        marked(&[SortKey::Connected], "CONNECTED"),
    ];
    // Only the rows of the page with the selected row are formatted.
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = view.position();
    let first = selected.map_or(0, |at| at.saturating_sub(at % height));
    let shown = rows.get(first..).unwrap_or_default();
    let shown = shown.get(..height).unwrap_or(shown);
    // A wide terminal has room for IPv6 addresses.
    let most = 15_u16.saturating_add(area.width.saturating_sub(80)).min(39);
    let addresses = |row: &Row| first_if_long(&row.inside, most).to_owned();
    let longest = shown.iter().map(|row| addresses(row).chars().count()).max().unwrap_or(0);
    let inside = u16::try_from(longest).unwrap_or(most).clamp(6, most);
    let lines = shown.iter().map(|row| {
        let (received, sent) = view.rates(row);
        TableRow::new([
            Cell::from(row.name.as_str()),
            Cell::from(addresses(row)),
            Cell::from(bytes(row.received)),
            Cell::from(rate(received)),
            Cell::from(bytes(row.sent)),
            Cell::from(rate(sent)),
            Cell::from(row.connected.map(span).unwrap_or_default()),
        ])
    });
    let widths = [
        Constraint::Min(8),
        Constraint::Length(inside),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(11),
    ];
    let table = Table::new(lines, widths)
        .header(TableRow::new(head).style(accent(view).add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state =
        TableState::default().with_selected(selected.map(|at| at.saturating_sub(first)));
    frame.render_stateful_widget(table, area, &mut state);
    if rows.is_empty() {
        let below = Rect { y: area.y.saturating_add(1), height: 1, ..area };
        let none = if view.filter.is_empty() { "no session" } else { "nothing matches the filter" };
        frame.render_widget(Paragraph::new(none), below);
    }
}

/// Returns the first of several words if they do not fit.
fn first_if_long(words: &str, width: u16) -> &str {
    let fits = words.chars().count() <= usize::from(width);
    if fits { words } else { words.split(' ').next().unwrap_or(words) }
}

fn draw_details(view: &View, row: &Row, frame: &mut Frame<'_>, area: Rect) {
    let [text, rates] = Layout::vertical([Constraint::Min(1), Constraint::Length(2)]).areas(area);
    let mut lines = vec![Line::styled(row.name.as_str(), bold())];
    let connected = row.connected.map(span).unwrap_or_default();
    let traffic = format!("{} received, {} sent", bytes(row.received), bytes(row.sent));
    let own = [
        ("instance", row.instance.as_str()),
        ("inside", &row.inside),
        ("connected", &connected),
        ("traffic", &traffic),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    for (what, value) in own.chain(row.details.iter().map(|(what, value)| (*what, value.as_str())))
    {
        let wrapped = wrapped(&format!("  {what:<22}"), value);
        lines.extend(wrapped.lines().map(|line| Line::from(line.to_owned())));
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), text);
    if let Some(history) = view.history(row) {
        draw_rates(view, history, "this", frame, rates);
    }
}

fn help() -> Vec<Line<'static>> {
    [
        "Up, Down, j, k       select a row; also Page Up, Page Down, Home, End",
        "Enter, Right         show the selected row; Esc, Left: back",
        "/                    show only rows whose name, address or instance contains a",
        "                     text; Enter keeps the filter, Esc clears it",
        "s                    sort by rate, traffic, rate received, rate sent, time",
        "                     connected or name; t, T, i, o, n: at once by rate, traffic,",
        "                     rate received, rate sent or name",
        "q, Ctrl-C            quit; Esc quits too if nothing else is open",
    ]
    .map(Line::from)
    .to_vec()
}

/// Returns the line with the keys, or the filter while it is entered.
fn keys(view: &View) -> Line<'_> {
    if view.mode == Mode::Filter {
        return Line::from(vec![
            Span::styled("filter: ", bold()),
            Span::raw(format!("{}_", view.filter)),
        ]);
    }
    let shown = match view.mode {
        Mode::Details => DETAILS_KEYS,
        Mode::Help => HELP_KEYS,
        Mode::List | Mode::Filter => LIST_KEYS,
    };
    let mut spans = Vec::new();
    for (key, what) in shown {
        spans.push(Span::styled(*key, bold()));
        spans.push(Span::raw(format!(" {what}  ")));
    }
    if !view.filter.is_empty() {
        spans.push(Span::styled(format!("filter: {}", view.filter), accent(view)));
    }
    Line::from(spans)
}
