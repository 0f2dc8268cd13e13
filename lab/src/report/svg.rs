//! Hand-written SVG, with classes instead of colours so that the page's light and dark themes apply to the plots, and
//! with a tooltip at each mark.

use std::fmt::Write;

/// A drawing under construction.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The position of a text relative to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    /// Draws a rectangle with a tooltip.
    pub(super) fn bar(&mut self, class: &str, corner: (f64, f64), size: (f64, f64), tip: &str) {
        let ((x, y), (w, h), tip) = (corner, size, escape(tip));
        self.put(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" rx="1.5"><title>{tip}</title></rect>"#
        ));
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let ((x, y), text) = (at, escape(text));
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.put(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// Draws a line through points; nothing if there are fewer than two.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.len() < 2 {
            return;
        }
        let mut d = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(d, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
        }
        self.put(format_args!(r#"<path class="{class}" d="{d}"/>"#));
    }

    /// Draws a mark whose shape corresponds to the colour, for readers who cannot distinguish the colours.
    pub(super) fn mark(&mut self, style: usize, at: (f64, f64), tip: &str) {
        let tip = escape(tip);
        let d = shape(style, at);
        self.put(format_args!(
            r#"<path class="mark c{style}" d="{d}"><title>{tip}</title></path>"#
        ));
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    /// Returns the whole element for the page, with `label` as its description in words.
    pub(super) fn finish(self, label: &str) -> String {
        let Self { width, height, body } = self;
        let label = escape(label);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">\n{body}</svg>\n"
        )
    }
}

/// Returns the outline of a mark: disc, square, triangle, diamond.
fn shape(style: usize, (x, y): (f64, f64)) -> String {
    let r = 4.0;
    match style % 4 {
        2 => format!(
            "M{:.1} {y:.1}a{r} {r} 0 1 0 {} 0a{r} {r} 0 1 0 -{} 0z",
            x - r,
            2.0 * r,
            2.0 * r
        ),
        0 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        3 => format!("M{x:.1} {:.1}l4.5 8h-9z", y - 5.0),
        _ => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
    }
}

/// Returns only the mark, for a legend.
pub(super) fn swatch(style: usize) -> String {
    let d = shape(style, (7.0, 7.0));
    format!(
        r#"<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true"><path class="mark c{style}" d="{d}"/></svg>"#
    )
}

/// Escapes text from data for HTML, SVG and attribute values.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_data_becomes_markup() {
        assert_eq!(escape(r#"<a b="c">&'"#), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
        let mut svg = Svg::new(10.0, 10.0);
        svg.text("t", (1.0, 2.0), Anchor::End, "<script>");
        svg.bar("b", (0.0, 0.0), (1.0, 1.0), "</title><script>");
        let svg = svg.finish("\"><script>");
        assert!(!svg.contains("<script"), "{svg}");
        assert!(svg.contains(
            r#"<text class="t" x="1.0" y="2.0" text-anchor="end">&lt;script&gt;</text>"#
        ));
    }
}
