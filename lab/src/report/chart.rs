//! Two kinds of charts: horizontal bars with intervals, and lines over an axis.

use super::number::short;
use super::svg::{Anchor, Svg};
use crate::stats::Interval;

const WIDTH: f64 = 520.0;

/// A bar of a chart.
pub(super) struct Bar {
    pub label: String,
    pub style: usize,
    pub value: f64,
    pub interval: Option<Interval>,
    /// The value as text, printed at the end of the bar.
    pub text: String,
    /// Whether the result is valid; the bar is hollow if not.
    pub valid: bool,
}

/// Draws bars in groups, each under its heading. Returns the SVG; `label` describes it in words.
pub(super) fn bars(label: &str, groups: &[(String, Vec<Bar>)]) -> String {
    const LETTER: f64 = 8.6; // of the larger type of narrow screens
    const LABEL: usize = 14;
    const LABEL_LETTERS: f64 = 14.0;
    const ROW: f64 = 21.0;
    const HEADING: f64 = 25.0;
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let top = |bar: &Bar| bar.interval.map_or(bar.value, |i| i.high.max(bar.value));
    let most = all().map(top).filter(|x| x.is_finite()).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let longest = |text: fn(&Bar) -> &String| {
        let lengths = all().map(|bar| text(bar).chars().count());
        LETTER * f64::from(u32::try_from(lengths.max().unwrap_or(0)).unwrap_or(0))
    };
    let left = longest(|bar| &bar.label).min(LETTER * LABEL_LETTERS) + 8.0;
    let right = longest(|bar| &bar.text) + 8.0;
    let place = |value: f64| left + value.max(0.0) / most * (WIDTH - left - right).max(80.0);
    let rows = groups.iter().map(|(heading, bars)| {
        let heading = if heading.is_empty() { 4.0 } else { HEADING };
        heading + ROW * f64::from(u32::try_from(bars.len()).unwrap_or(0)) + 4.0
    });
    let mut svg = Svg::new(WIDTH, rows.sum::<f64>() + 2.0);
    let mut y = 0.0;
    for (heading, bars) in groups {
        if heading.is_empty() {
            y += 4.0;
        } else {
            svg.text("heading", (0.0, y + 17.0), Anchor::Start, heading);
            y += HEADING;
        }
        for bar in bars {
            let middle = y + ROW / 2.0;
            let class = format!("bar c{}{}", bar.style, if bar.valid { "" } else { " hollow" });
            svg.text("label", (left - 8.0, middle + 4.5), Anchor::End, &shorten(&bar.label, LABEL));
            let tip = format!("{}: {}", bar.label, bar.text);
            let width = (place(bar.value) - left).max(1.0);
            svg.bar(&class, (left, y + 3.0), (width, ROW - 6.0), &tip);
            if let Some(i) = bar.interval.filter(|i| i.high > i.low) {
                let (low, high) = (place(i.low), place(i.high));
                svg.line("whisker", (low, middle), (high, middle));
                for x in [low, high] {
                    svg.line("whisker", (x, middle - 3.5), (x, middle + 3.5));
                }
            }
            let end = place(top(bar)) + 6.0;
            svg.text("value", (end, middle + 4.5), Anchor::Start, &bar.text);
            y += ROW;
        }
        y += 4.0;
    }
    svg.finish(label)
}

fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// The scale of an axis.
#[derive(Clone)]
pub(super) enum Scale {
    /// Linear, from 0 or the minimum to the maximum.
    Linear,
    /// Linear, from 0 to exactly the maximum, for times after which there is no data.
    Span,
    /// Logarithmic, by powers of ten.
    Log,
    /// Shares below 1, by nines: 0.9, 0.99, 0.999 at equal distances, which makes a tail visible.
    Nines,
    /// Named positions at equal distances: 0, 1, 2...
    Named(Vec<String>),
}

/// One axis.
pub(super) struct Axis {
    pub title: String,
    pub scale: Scale,
}

impl Axis {
    pub(super) fn new(title: impl Into<String>, scale: Scale) -> Self {
        Self { title: title.into(), scale }
    }
}

/// One line.
pub(super) struct Line {
    pub name: String,
    pub style: usize,
    pub points: Vec<(f64, f64)>,
    /// The interval of each point, if any.
    pub intervals: Vec<Option<Interval>>,
    pub dashed: bool,
    pub marks: Marks,
}

/// The points that get a mark.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    All,
    None,
    /// Marks only, no line.
    Alone,
    /// Marks at the round shares of a distribution.
    Shares,
}

/// An axis with the positions of its ends, in its own unit of length.
struct Ruler {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
}

impl Ruler {
    fn over(scale: &Scale, values: impl Iterator<Item = f64>) -> Self {
        let log = matches!(scale, Scale::Log);
        let fits = |x: &f64| x.is_finite() && (!log || *x > 0.0);
        let (mut low, mut high) = values
            .filter(fits)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => linear(low.min(0.0), high),
            Scale::Span => span(high),
            Scale::Log => logarithmic(low, high),
            Scale::Nines => nines(high),
            Scale::Named(names) => named(names),
        }
    }

    /// Returns the position of a value: 0 at the beginning of the axis, 1 at its end.
    fn place(&self, value: f64) -> f64 {
        (unit(&self.scale, value) - self.from) / (self.to - self.from)
    }
}

fn unit(scale: &Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear | Scale::Span | Scale::Named(_) => value,
        Scale::Log => value.max(f64::MIN_POSITIVE).log10(),
        Scale::Nines => -(1.0 - value).max(1e-9).log10(),
    }
}

fn linear(low: f64, high: f64) -> Ruler {
    let span = if high > low { high - low } else { high.abs().max(1.0) };
    let rough = span / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power);
    let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let from = (low / step).floor() * step;
    let count = ((low + span - from) / step - 1e-9).ceil().max(1.0);
    let to = from + count * step;
    let mut ticks = Vec::new();
    let mut at = from;
    while at <= to + step / 2.0 {
        ticks.push((at, short(if at.abs() < step / 1e6 { 0.0 } else { at })));
        at += step;
    }
    Ruler { scale: Scale::Linear, from, to, ticks }
}

fn span(high: f64) -> Ruler {
    let mut ruler = linear(0.0, high);
    ruler.ticks.retain(|(at, _)| *at <= high);
    Ruler { to: high.max(f64::MIN_POSITIVE), ..ruler }
}

fn logarithmic(low: f64, high: f64) -> Ruler {
    // Leave at least half a decade of room, and end at 1, 2 or 5.
    let step_down = |x: f64| {
        let power = 10_f64.powf(x.log10().floor());
        [5.0, 2.0, 1.0].map(|m| m * power).into_iter().find(|s| *s <= x * 1.0001).unwrap_or(power)
    };
    let step_up = |x: f64| {
        let power = 10_f64.powf(x.log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= x * 0.9999).unwrap_or(x)
    };
    let (low, mut high) = (step_down(low), step_up(high));
    if high < low * 3.0 {
        high = step_up(low * 3.0);
    }
    let decades = (high / low).log10();
    let multiples: &[f64] = match decades {
        d if d <= 2.1 => &[1.0, 2.0, 5.0],
        d if d <= 3.1 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let mut ticks = Vec::new();
    let mut power = 10_f64.powf(low.log10().floor());
    while power <= high * 1.001 {
        for at in multiples.iter().map(|m| m * power) {
            if at >= low * 0.999 && at <= high * 1.001 {
                ticks.push((at, short(at)));
            }
        }
        power *= 10.0;
    }
    Ruler { scale: Scale::Log, from: low.log10(), to: high.log10(), ticks }
}

fn nines(most: f64) -> Ruler {
    let ends = [0.9, 0.99, 0.999, 0.9999];
    let end = ends.into_iter().find(|end| *end >= most - 1e-9).unwrap_or(0.9999);
    let all = [
        (0.0, "0 %"),
        (0.5, "50 %"),
        (0.9, "90 %"),
        (0.99, "99 %"),
        (0.999, "99.9 %"),
        (0.9999, "99.99 %"),
    ];
    let ticks = all.into_iter().filter(|(at, _)| *at <= end);
    Ruler {
        from: 0.0,
        to: unit(&Scale::Nines, end),
        ticks: ticks.map(|(at, text)| (at, text.to_owned())).collect(),
        scale: Scale::Nines,
    }
}

fn named(names: &[String]) -> Ruler {
    let places = (0_u32..).map(f64::from).zip(names.iter().cloned());
    let last = f64::from(u32::try_from(names.len().saturating_sub(1)).unwrap_or(0));
    Ruler { scale: Scale::Named(Vec::new()), from: -0.3, to: last + 0.3, ticks: places.collect() }
}

/// Draws lines over an axis.
pub(super) fn lines(label: &str, x: &Axis, y: &Axis, series: &[Line]) -> String {
    const LEFT: f64 = 64.0;
    const RIGHT: f64 = 16.0;
    const TOP: f64 = 26.0;
    const BOTTOM: f64 = 44.0;
    const HEIGHT: f64 = 300.0;
    let points = || series.iter().flat_map(|line| &line.points);
    let ends = series.iter().flat_map(|line| line.intervals.iter().flatten());
    let ends = ends.flat_map(|i| [i.low, i.high]);
    let across = Ruler::over(&x.scale, points().map(|p| p.0));
    let up = Ruler::over(&y.scale, points().map(|p| p.1).chain(ends));
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let place_x = |value: f64| LEFT + across.place(value).clamp(0.0, 1.0) * (right - LEFT);
    let place_y = |value: f64| bottom - up.place(value).clamp(0.0, 1.0) * (bottom - TOP);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    for (at, text) in &up.ticks {
        svg.line("grid", (LEFT, place_y(*at)), (right, place_y(*at)));
        svg.text("tick", (LEFT - 6.0, place_y(*at) + 4.0), Anchor::End, text);
    }
    for (at, text) in &across.ticks {
        svg.line("grid", (place_x(*at), TOP), (place_x(*at), bottom));
        svg.text("tick", (place_x(*at), bottom + 16.0), Anchor::Middle, text);
    }
    svg.line("axis", (LEFT, bottom), (right, bottom));
    svg.text("title", (0.0, 12.0), Anchor::Start, &y.title);
    svg.text("title", (right, HEIGHT - 6.0), Anchor::End, &x.title);
    for line in series {
        let at = |p: &(f64, f64)| (place_x(p.0), place_y(p.1));
        for (point, interval) in line.points.iter().zip(&line.intervals) {
            if let Some(i) = interval {
                let x = place_x(point.0);
                svg.line(
                    &format!("error c{}", line.style),
                    (x, place_y(i.low)),
                    (x, place_y(i.high)),
                );
            }
        }
        if line.marks != Marks::Alone {
            let dashed = if line.dashed { " dashed" } else { "" };
            let path: Vec<_> = line.points.iter().map(at).collect();
            svg.path(&format!("line c{}{dashed}", line.style), &path);
        }
        for point in line.points.iter().filter(|point| marked(line.marks, point.1)) {
            let (x, y) = (tip_value(&across, point.0), tip_value(&up, point.1));
            svg.mark(line.style, at(point), &format!("{}: {x}, {y}", line.name));
        }
    }
    svg.finish(label)
}

fn marked(marks: Marks, share: f64) -> bool {
    match marks {
        Marks::All | Marks::Alone => true,
        Marks::None => false,
        Marks::Shares => [0.5, 0.9, 0.99, 0.999].iter().any(|round| (share - round).abs() < 1e-9),
    }
}

fn tip_value(ruler: &Ruler, value: f64) -> String {
    match ruler.scale {
        Scale::Named(_) => ruler
            .ticks
            .get(value.round().max(0.0) as usize)
            .map(|t| t.1.clone())
            .unwrap_or_default(),
        Scale::Nines => format!("{} %", short(100.0 * value)),
        Scale::Linear | Scale::Span | Scale::Log => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(ruler: &Ruler) -> Vec<&str> {
        ruler.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_enclose_the_figures() {
        let values = |all: &'static [f64]| all.iter().copied();
        let plain = Ruler::over(&Scale::Linear, values(&[3.0, 9430.0]));
        assert_eq!(ticks(&plain), ["0", "2,500", "5,000", "7,500", "10k"]);
        let times = Ruler::over(&Scale::Span, values(&[0.4, 6.3]));
        assert_eq!(ticks(&times), ["0", "2", "4", "6"]);
        assert!((times.place(6.3) - 1.0).abs() < 1e-9);
        let small = Ruler::over(&Scale::Linear, values(&[0.31]));
        assert_eq!(ticks(&small), ["0", "0.1", "0.2", "0.3", "0.4"]);
        let log = Ruler::over(&Scale::Log, values(&[0.06, 11.0]));
        assert_eq!(ticks(&log), ["0.1", "0.3", "1", "3", "10"]);
        assert!((log.place(0.05)).abs() < 1e-9 && (log.place(20.0) - 1.0).abs() < 1e-9);
        let flat = Ruler::over(&Scale::Linear, values(&[0.0, 0.0]));
        assert_eq!(flat.ticks.len(), 5);
        let none = Ruler::over(&Scale::Log, values(&[f64::NAN, 0.0]));
        assert_eq!(ticks(&none), ["1", "2", "5", "10"]);
        let tail = Ruler::over(&Scale::Nines, values(&[0.5, 0.999]));
        assert_eq!(ticks(&tail), ["0 %", "50 %", "90 %", "99 %", "99.9 %"]);
        assert!((tail.place(0.9) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_bar_says_what_it_shows_and_stays_inside() {
        let bar = Bar {
            label: "a-very-long-subject-name".into(),
            style: 2,
            value: 5.0,
            interval: Some(Interval { low: 4.0, high: 10.0 }),
            text: "5 [4, 10]".into(),
            valid: false,
        };
        let svg = bars("what", &[("link=wire".into(), vec![bar])]);
        assert!(svg.contains(r#"aria-label="what""#) && svg.contains("bar c2 hollow"));
        assert!(
            svg.contains("a-very-long-s…") && svg.contains("a-very-long-subject-name: 5 [4, 10]")
        );
        // The end of the interval is the end of the scale: 520 minus the room for the 9 letters of the value.
        assert!(svg.contains(r#"x2="434.6""#), "{svg}");
    }
}
