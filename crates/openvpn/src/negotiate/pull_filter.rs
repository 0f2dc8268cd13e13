use super::PushedOption;
use crate::config::{is_space, words};

/// One `pull-filter` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullFilter {
    /// The action for options that begin with the text.
    pub action: FilterAction,
    /// The text, normalized like an option in [`PushedOption::text`].
    prefix: String,
}

impl PullFilter {
    /// Makes a filter of options that begin with `prefix`. Quotes, escapes and repeated white space
    /// in the prefix are resolved as in options; a space at its end is significant.
    pub fn new(action: FilterAction, prefix: &str) -> Self {
        Self { action, prefix: plain(prefix) }
    }

    /// Returns whether the filter applies to this option.
    fn matches(&self, text: &str) -> bool {
        text.starts_with(&self.prefix)
    }
}

/// Normalizes a prefix of an option's text to single spaces and no quotes. A quote may be left open
/// at its end.
fn plain(prefix: &str) -> String {
    let mut lexed = None;
    if prefix.contains(['"', '\'', '\\']) {
        let endings = ["", "\"", "'"].map(|end| format!("{prefix}{end}"));
        lexed = endings.iter().find_map(|whole| words(whole).ok());
    }
    let lexed = lexed.unwrap_or_else(|| vec![prefix.to_owned()]);
    let words = lexed.iter().flat_map(|word| word.split(is_space));
    let mut text = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if prefix.ends_with(is_space) && !text.is_empty() {
        text.push(' ');
    }
    text
}

/// The action of a `pull-filter`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// Accept the option; later filters are skipped.
    Accept,
    /// Leave the option out and add a note.
    Ignore,
    /// Restart the connection.
    Reject,
}

/// The `pull-filter` lines and `route-nopull`, applied to each pushed option before it is parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullFilters {
    /// The filters in the order of the configuration; the first that matches decides.
    pub filters: Vec<PullFilter>,
    /// `route-nopull`: accept no routes and no DNS.
    pub route_nopull: bool,
}

impl PullFilters {
    /// Returns the action for an option; [`FilterAction::Accept`] if no filter matches.
    pub fn decide(&self, option: &PushedOption) -> FilterAction {
        if self.route_nopull && ROUTES_AND_DNS.contains(&option.name()) {
            return FilterAction::Ignore;
        }
        if self.filters.is_empty() {
            return FilterAction::Accept;
        }
        let text = option.text();
        let filter = self.filters.iter().find(|filter| filter.matches(&text));
        filter.map_or(FilterAction::Accept, |filter| filter.action)
    }
}

/// The options that `route-nopull` leaves out. The gateways are kept for the routes in our own
/// configuration.
const ROUTES_AND_DNS: [&str; 7] = [
    "route",
    "route-ipv6",
    "redirect-gateway",
    "redirect-private",
    "block-ipv6",
    "dhcp-option",
    "dns",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_spelt_as_options_are() {
        for (prefix, text) in [
            ("route ", "route "),
            ("  route   10.", "route 10."),
            ("route\t", "route "),
            ("\"route\" ", "route "),
            ("dhcp-option DOMAIN \"a b", "dhcp-option DOMAIN a b"),
            ("setenv 'x", "setenv x"),
            ("c:\\k", "c:\\k"),
            (" ", ""),
        ] {
            assert_eq!(PullFilter::new(FilterAction::Ignore, prefix).prefix, text, "{prefix:?}");
        }
    }
}
