//! Logs traffic as one line a second at `verb 5` and above, where OpenVPN prints a letter for each packet.

use adit_dataplane::format::Format;
use adit_dataplane::{DropReason, Plane, Totals};
use adit_engine::Instant;

use super::wanted;
use crate::say;

/// The lowest verbosity at which traffic is logged.
const TRAFFIC: u8 = 5;

/// The counters at the last call.
#[derive(Debug, Default)]
pub struct Traffic {
    seen: Option<(Instant, Totals)>,
}

impl Traffic {
    /// Logs the traffic since the last call. Reads the data plane's totals only if the line is needed.
    pub fn tick<F: Format>(&mut self, now: Instant, plane: &Plane<F>) {
        if !wanted(TRAFFIC.into()) {
            self.seen = None;
            return;
        }
        let totals = plane.totals();
        if let Some((then, before)) = &self.seen
            && let Some(passed) = passed(before, &totals)
        {
            say!(TRAFFIC, "{passed} in {:.1} s", now.since(*then).as_secs_f64());
        }
        self.seen = Some((now, totals));
    }
}

/// Formats the numbers of packets by openvpn's letters, and the drops by reason. Returns `None` if there was no
/// traffic.
fn passed(before: &Totals, now: &Totals) -> Option<String> {
    let since = |then: u64, now: u64| now.saturating_sub(then);
    let [r_upper, w_upper, r_lower, w_lower] = [
        since(before.received.packets, now.received.packets),
        since(before.sent.packets, now.sent.packets),
        since(before.tun_read.packets, now.tun_read.packets),
        since(before.tun_written.packets, now.tun_written.packets),
    ];
    let before = |reason: DropReason| {
        let found = before.drops.iter().find(|(other, _)| *other == reason);
        found.map_or(0, |(_, count)| *count)
    };
    let dropped: Vec<String> = now
        .drops
        .iter()
        .map(|(reason, count)| (reason, since(before(*reason), *count)))
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    if r_upper | w_upper | r_lower | w_lower == 0 && dropped.is_empty() {
        return None;
    }
    let mut text = format!("packets: R {r_upper}, W {w_upper}, r {r_lower}, w {w_lower}");
    if !dropped.is_empty() {
        text.push_str(&format!(", dropped: {}", dropped.join(", ")));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use adit_dataplane::Histogram;

    use super::*;

    #[test]
    fn a_line_has_what_came_since_the_last_one_and_silence_has_none() {
        let packets = |packets| Histogram { packets, ..Histogram::default() };
        let before = Totals {
            drops: vec![(DropReason::Replayed, 2), (DropReason::NoRoute, 5)],
            received: packets(10),
            ..Totals::default()
        };
        let now = Totals {
            drops: vec![(DropReason::Replayed, 5), (DropReason::NoRoute, 5)],
            received: packets(17),
            sent: packets(4),
            tun_read: packets(3),
            tun_written: packets(6),
            ..Totals::default()
        };
        assert_eq!(
            passed(&before, &now).unwrap(),
            "packets: R 7, W 4, r 3, w 6, dropped: replayed 3"
        );
        assert_eq!(passed(&now, &now), None);
    }
}
