//! The state of the full-screen view, without a terminal.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adit_app_server::Overview;
use adit_runtime::control::{MeshPeer, PeerReport, PortReport, StatusReport, TincNode};
use adit_runtime::log::clean;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use super::super::{HARMLESS, name, since};
use crate::args::SortKey;
use crate::text::span;

/// The number of rates kept for each row, and the width of the longest sparkline.
pub(super) const HISTORY: usize = 60;
/// The maximum number of rows with a history of their own.
const MAX_HISTORIES: usize = 20_000;
/// The maximum length of a filter, in characters.
const MAX_FILTER: usize = 64;

/// What is running at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// A line for each instance.
    pub(crate) instances: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl From<&Overview> for Seen {
    fn from(machine: &Overview) -> Self {
        Self {
            instances: machine.reports.iter().map(summary).collect(),
            rows: machine.reports.iter().flat_map(rows).collect(),
        }
    }
}

/// The effect of a key.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Continue,
    Quit,
}

/// The part of the view that has the keyboard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    List,
    Filter,
    Details,
    Help,
}

/// Identifies a row across updates: the process, and a name or number in it.
pub(crate) type Key = (u32, String);

/// A session, a member of a mesh, a node or a port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) key: Key,
    /// The instance, such as `server` or `mesh home`.
    pub(crate) instance: String,
    pub(crate) name: String,
    pub(crate) inside: String,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// The seconds since the session began.
    pub(crate) connected: Option<u64>,
    /// Names and values for the view of a single row.
    pub(crate) details: Vec<(&'static str, String)>,
}

/// The rates of a row in bits per second, the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    bytes: (u64, u64),
    seen: bool,
    pub(super) received: VecDeque<u64>,
    pub(super) sent: VecDeque<u64>,
}

impl History {
    /// Adds the rates since the last call.
    fn advance(&mut self, received: u64, sent: u64, passed: Duration) {
        // A new session counts from zero again.
        let rate = |before: u64, after: u64| {
            let bits = u128::from(after.saturating_sub(before)) * 8_000;
            u64::try_from(bits / passed.as_millis().max(1)).unwrap_or(u64::MAX)
        };
        if self.seen && !passed.is_zero() {
            self.push(rate(self.bytes.0, received), rate(self.bytes.1, sent));
        }
        (self.bytes, self.seen) = ((received, sent), true);
    }

    fn push(&mut self, received: u64, sent: u64) {
        for (rates, value) in [(&mut self.received, received), (&mut self.sent, sent)] {
            if rates.len() >= HISTORY {
                rates.pop_front();
            }
            rates.push_back(value);
        }
    }

    /// Returns the newest rates.
    pub(super) fn now(&self) -> (u64, u64) {
        let last = |rates: &VecDeque<u64>| rates.back().copied().unwrap_or(0);
        (last(&self.received), last(&self.sent))
    }
}

/// The whole view.
#[derive(Debug)]
pub(super) struct View {
    pub(super) mode: Mode,
    pub(super) sort: SortKey,
    pub(super) filter: String,
    pub(super) colored: bool,
    /// A line for each instance.
    pub(super) instances: Vec<String>,
    pub(super) total: History,
    rows: Vec<Row>,
    histories: BTreeMap<Key, History>,
    /// The selected row. It stays selected when the order changes.
    selected: Option<Key>,
}

impl View {
    pub(super) fn new(sort: SortKey, colored: bool) -> Self {
        Self {
            mode: Mode::List,
            sort,
            filter: String::new(),
            colored,
            instances: Vec::new(),
            total: History::default(),
            rows: Vec::new(),
            histories: BTreeMap::new(),
            selected: None,
        }
    }

    /// Takes a new status; `passed` is the time since the last one.
    pub(super) fn update(&mut self, seen: impl Into<Seen>, passed: Duration) {
        let seen = seen.into();
        (self.instances, self.rows) = (seen.instances, seen.rows);
        let mut former = std::mem::take(&mut self.histories);
        for row in self.rows.iter().take(MAX_HISTORIES) {
            let mut history = former.remove(&row.key).unwrap_or_default();
            history.advance(row.received, row.sent, passed);
            self.histories.insert(row.key.clone(), history);
        }
        // The rates are added, not the counters: the counters of a session that ends would be missing.
        let total = self.histories.values().map(History::now).fold((0_u64, 0_u64), |sum, rates| {
            (sum.0.saturating_add(rates.0), sum.1.saturating_add(rates.1))
        });
        if !passed.is_zero() {
            self.total.push(total.0, total.1);
        }
        if self.mode == Mode::Details && self.selected().is_none() {
            self.mode = Mode::List;
        }
    }

    /// Returns the rows that match the filter, in order.
    pub(super) fn visible(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let fits = |row: &&Row| {
            [&row.name, &row.inside, &row.instance]
                .iter()
                .any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<&Row> = self.rows.iter().filter(fits).collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.key.cmp(&b.key)));
        match self.sort {
            SortKey::Name => {}
            SortKey::Rate => rows.sort_by_key(|row| {
                let (received, sent) = self.rates(row);
                Reverse(received.saturating_add(sent))
            }),
            SortKey::Traffic => {
                rows.sort_by_key(|row| Reverse(row.received.saturating_add(row.sent)));
            }
            SortKey::Received => {
                rows.sort_by_key(|row| Reverse((self.rates(row).0, row.received)));
            }
            SortKey::Sent => rows.sort_by_key(|row| Reverse((self.rates(row).1, row.sent))),
            SortKey::Connected => rows.sort_by_key(|row| Reverse(row.connected)),
        }
        rows
    }

    pub(super) fn history(&self, row: &Row) -> Option<&History> {
        self.histories.get(&row.key)
    }

    /// Returns the newest rates of a row, received and sent.
    pub(super) fn rates(&self, row: &Row) -> (u64, u64) {
        self.history(row).map(History::now).unwrap_or_default()
    }

    /// Returns the selected row.
    pub(super) fn selected(&self) -> Option<&Row> {
        let key = self.selected.as_ref()?;
        self.rows.iter().find(|row| row.key == *key)
    }

    /// Returns the position of the selected row among the visible ones.
    pub(super) fn position(&self) -> Option<usize> {
        let key = self.selected.as_ref()?;
        self.visible().iter().position(|row| row.key == *key)
    }

    /// Handles a key.
    pub(super) fn key(&mut self, code: KeyCode, modifiers: KeyModifiers) -> Step {
        if code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL) {
            return Step::Quit;
        }
        if modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            return Step::Continue;
        }
        match (self.mode, code) {
            (Mode::Filter, KeyCode::Esc) => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            (Mode::Filter, KeyCode::Enter) => self.mode = Mode::List,
            (Mode::Filter, KeyCode::Backspace) => drop(self.filter.pop()),
            (Mode::Filter, KeyCode::Char(c))
                if self.filter.chars().count() < MAX_FILTER && !c.is_control() =>
            {
                self.filter.push(c);
            }
            (Mode::Filter, _) => {}
            (_, KeyCode::Char('q')) => return Step::Quit,
            (Mode::Details | Mode::Help, KeyCode::Esc | KeyCode::Enter | KeyCode::Left) => {
                self.mode = Mode::List;
            }
            (Mode::List, KeyCode::Esc) if !self.filter.is_empty() => self.filter.clear(),
            (Mode::List, KeyCode::Esc) => return Step::Quit,
            (_, KeyCode::Char('?' | 'h')) => self.mode = Mode::Help,
            (_, KeyCode::Down | KeyCode::Char('j')) => self.move_by(1),
            (_, KeyCode::Up | KeyCode::Char('k')) => self.move_by(-1),
            (_, KeyCode::PageDown) => self.move_by(10),
            (_, KeyCode::PageUp) => self.move_by(-10),
            (_, KeyCode::Home) => self.move_by(isize::MIN),
            (_, KeyCode::End) => self.move_by(isize::MAX),
            (Mode::List, KeyCode::Enter | KeyCode::Right) => {
                if self.selected().is_none() {
                    self.move_by(0);
                }
                if self.selected().is_some() {
                    self.mode = Mode::Details;
                }
            }
            (Mode::List, KeyCode::Char('/')) => self.mode = Mode::Filter,
            (Mode::List, KeyCode::Char('n')) => self.sort = SortKey::Name,
            (Mode::List, KeyCode::Char('i')) => self.sort = SortKey::Received,
            (Mode::List, KeyCode::Char('o')) => self.sort = SortKey::Sent,
            (Mode::List, KeyCode::Char('t')) => self.sort = SortKey::Rate,
            (Mode::List, KeyCode::Char('T')) => self.sort = SortKey::Traffic,
            (Mode::List, KeyCode::Char('s')) => {
                self.sort = match self.sort {
                    SortKey::Rate => SortKey::Traffic,
                    SortKey::Traffic => SortKey::Received,
                    SortKey::Received => SortKey::Sent,
                    SortKey::Sent => SortKey::Connected,
                    SortKey::Connected => SortKey::Name,
                    SortKey::Name => SortKey::Rate,
                };
            }
            _ => {}
        }
        Step::Continue
    }

    /// Selects another row. Without a selection, the first row is selected.
    fn move_by(&mut self, rows: isize) {
        let visible = self.visible();
        let last = visible.len().saturating_sub(1);
        let at = match self.position() {
            Some(at) => at.saturating_add_signed(rows).min(last),
            None if rows == isize::MAX => last,
            None => 0,
        };
        self.selected = visible.get(at).map(|row| row.key.clone());
    }
}

/// Returns the line of an instance.
fn summary(report: &StatusReport) -> String {
    let name = clean(&name(report));
    if let Some(problem) = &report.problem {
        return format!("{name}: {}", clean(problem));
    }
    let lossy = report.drops.iter().filter(|(reason, _)| *reason != HARMLESS);
    let dropped = match lossy.map(|(_, packets)| *packets).fold(0, u64::saturating_add) {
        0 => String::new(),
        packets => format!(", {packets} packets dropped"),
    };
    format!("{name}: {}, up {}{dropped}", clean(&report.state), span(report.uptime_s))
}

/// Returns the rows of an instance. Names come from peers, so their control characters are escaped.
fn rows(report: &StatusReport) -> Vec<Row> {
    let instance = clean(&name(report));
    let mut rows: Vec<Row> = report.peers.iter().map(session).collect();
    rows.extend(report.mesh.iter().flat_map(|mesh| &mesh.peers).map(member));
    rows.extend(report.bridge.iter().flat_map(|bridge| &bridge.ports).map(port));
    rows.extend(report.postgres.iter().flat_map(|postgres| &postgres.nodes).map(|node| Row {
        key: (0, node.name.clone()),
        name: clean(&node.name),
        inside: clean(&node.addresses.join(" ")),
        received: node.received.bytes,
        sent: node.sent.bytes,
        details: vec![
            ("networks behind it", clean(&node.subnets.join(" "))),
            ("packets received", node.received.packets.to_string()),
            ("not contacted because", clean(node.refused.as_deref().unwrap_or_default())),
        ],
        ..Row::default()
    }));
    rows.extend(report.tinc.iter().flat_map(|tinc| &tinc.nodes).map(tinc_node));
    for row in &mut rows {
        row.key.0 = report.pid;
        row.instance.clone_from(&instance);
        row.details.retain(|(_, value)| !value.is_empty());
    }
    rows
}

fn session(peer: &PeerReport) -> Row {
    Row {
        key: (0, format!("{} {}", peer.id, peer.name)),
        name: clean(&peer.name),
        inside: clean(&peer.tunnel.join(" ")),
        received: peer.rx_bytes,
        sent: peer.tx_bytes,
        connected: Some(since(peer)),
        details: vec![
            ("from", format!("{} by {}", clean(&peer.address), clean(&peer.transport))),
            ("user", clean(peer.username.as_deref().unwrap_or_default())),
            ("cipher", format!("{}, key {} old", clean(&peer.cipher), span(peer.key_age_s))),
            ("TLS", clean(&peer.tls)),
            ("program", clean(peer.program.as_deref().unwrap_or_default())),
            ("path MTU", peer.path_mtu.map(|mtu| mtu.to_string()).unwrap_or_default()),
            ("packets", format!("{} received, {} sent", peer.rx_packets, peer.tx_packets)),
        ],
        ..Row::default()
    }
}

fn member(peer: &MeshPeer) -> Row {
    let list = |items: Vec<String>| clean(&items.join(" "));
    let via = peer.via.as_deref().map(|via| format!(" {}", clean(via))).unwrap_or_default();
    Row {
        key: (0, peer.key.clone()),
        name: clean(peer.name.as_deref().unwrap_or(&peer.key)),
        inside: peer.addresses.first().map(ToString::to_string).unwrap_or_default(),
        received: peer.rx_bytes,
        sent: peer.tx_bytes,
        connected: peer.connected_s,
        details: vec![
            (
                "path",
                format!("{}{via}{}", clean(&peer.route), if peer.tcp { " over TCP" } else { "" }),
            ),
            ("round trip", peer.rtt_ms.map(|rtt| format!("{rtt} ms")).unwrap_or_default()),
            ("addresses", list(peer.addresses.iter().map(ToString::to_string).collect())),
            ("networks behind it", list(peer.subnets.iter().map(ToString::to_string).collect())),
            ("groups", list(peer.groups.clone())),
        ],
        ..Row::default()
    }
}

fn tinc_node(node: &TincNode) -> Row {
    let via = node.via.as_deref().map(|via| format!(" through {}", clean(via)));
    Row {
        key: (0, node.name.clone()),
        name: clean(&node.name),
        inside: clean(&node.subnets.join(" ")),
        received: node.rx_bytes,
        sent: node.tx_bytes,
        connected: node.reachable.then(|| crate::text::now().saturating_sub(node.since)),
        details: vec![
            ("path", clean(&node.path) + &via.unwrap_or_default()),
            ("address", clean(node.address.as_deref().unwrap_or_default())),
            ("cipher", clean(node.cipher.as_deref().unwrap_or_default())),
            ("round trip", node.rtt_us.map(|rtt| format!("{rtt} µs")).unwrap_or_default()),
            ("packets", format!("{} received, {} sent", node.rx_packets, node.tx_packets)),
        ],
        ..Row::default()
    }
}

fn port(port: &PortReport) -> Row {
    let drops: Vec<String> =
        port.drops.iter().map(|(reason, count)| format!("{} {count}", clean(reason))).collect();
    Row {
        key: (0, port.name.clone()),
        name: clean(&port.name),
        inside: clean(&port.kind),
        received: port.bytes,
        details: vec![
            ("state", if port.present { "present" } else { "gone" }.into()),
            ("frames", format!("{}, {} forwarded", port.frames, port.forwarded)),
            ("dropped", drops.join(", ")),
        ],
        ..Row::default()
    }
}
