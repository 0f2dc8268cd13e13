/// One `pull-filter` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullFilter {
    /// What happens to options that begin with the text.
    pub action: FilterAction,
    /// The text.
    pub prefix: String,
}

/// What a `pull-filter` does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// Take the option; later filters are not asked.
    Accept,
    /// Leave it out, with a note.
    Ignore,
    /// Restart the connection.
    Reject,
}

/// The `pull-filter` lines and `route-nopull`, applied to each pushed option before it is parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullFilters {
    /// In the order of the configuration; the first that matches decides.
    pub filters: Vec<PullFilter>,
    /// `route-nopull`: no routes, no DNS.
    pub route_nopull: bool,
}

impl PullFilters {
    /// What to do with an option; [`FilterAction::Accept`] where no filter matches.
    pub fn decide(&self, option: &str) -> FilterAction {
        let word = option.split_whitespace().next().unwrap_or_default();
        if self.route_nopull && ROUTES_AND_DNS.contains(&word) {
            return FilterAction::Ignore;
        }
        self.filters
            .iter()
            .find(|filter| option.starts_with(&filter.prefix))
            .map_or(FilterAction::Accept, |filter| filter.action)
    }
}

/// What `route-nopull` leaves out. The gateways stay, for routes of our own configuration.
const ROUTES_AND_DNS: [&str; 7] = [
    "route",
    "route-ipv6",
    "redirect-gateway",
    "redirect-private",
    "block-ipv6",
    "dhcp-option",
    "dns",
];
