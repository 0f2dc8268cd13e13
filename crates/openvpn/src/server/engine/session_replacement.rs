//! Sessions that a newer session of the same name replaced.
//!
//! The previous session may belong to a device that is gone (it roamed, crashed or was restarted),
//! or to a second device with the same profile. Only a second device still acknowledges the
//! server's messages. So the previous session keeps its control channel briefly, and the server
//! sends an INFO on it. If a device acknowledges the INFO, the server tells it why its session
//! ended and how long to stay away. Without this, two devices with one profile would end each
//! other's sessions forever.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, PeerId};

use super::control::report_control_message;
use super::{EndedSession, Out, ServerEngine};
use crate::data_format::Command;
use crate::negotiate::{AdvanceTo, AuthFailed, ControlMessage, IvProto, PeerInfo};
use crate::reason::Reason;
use crate::server::client::{ReplacedClient, Stage};
use crate::server::event::{ServerEvent, UsedElsewhere};

/// The time that a replaced client has to acknowledge each of the two messages.
const NOTICE_PATIENCE: Duration = Duration::from_secs(5);

/// The maximum number of replaced clients that are notified at a time. Beyond this number, clients
/// are removed without notice and counted.
pub(super) const MAX_REPLACED: usize = 64;

/// The maximum number of names whose disputes are recorded. Beyond this number, the back-off of
/// further names does not grow.
pub(super) const MAX_DISPUTES: usize = 1024;

/// The time after which a dispute starts over with the first back-off.
const DISPUTE_MEMORY: Duration = Duration::from_secs(6 * 3600);

/// The first back-off of a replaced device. Each further dispute doubles it.
const FIRST_BACKOFF: Duration = Duration::from_secs(60);

/// The number of times that the first back-off can double, up to 16 minutes.
const DOUBLINGS: u32 = 4;

/// The number of times that a name was used from two addresses.
#[derive(Debug)]
struct NameConflict {
    count: u32,
    last: Instant,
}

/// The names that two devices use.
#[derive(Debug, Default)]
pub(super) struct NameConflicts {
    by_name: HashMap<String, NameConflict>,
    /// The number of clients in [`Stage::Replaced`].
    notifying: usize,
}

impl NameConflicts {
    /// Returns the number of clients that have lost their session and are not gone yet.
    pub(super) fn notifying(&self) -> usize {
        self.notifying
    }

    /// Records that one of these clients is gone.
    pub(super) fn notified(&mut self) {
        self.notifying = self.notifying.saturating_sub(1);
    }

    /// Counts a dispute, and returns the number of this name's disputes including this one.
    fn count(&mut self, now: Instant, name: &str) -> u32 {
        let recent = |dispute: &NameConflict| now.since(dispute.last) < DISPUTE_MEMORY;
        if let Some(dispute) = self.by_name.get_mut(name) {
            let before = if recent(dispute) { dispute.count } else { 0 };
            *dispute = NameConflict { count: before.saturating_add(1), last: now };
            return dispute.count;
        }
        if self.by_name.len() >= MAX_DISPUTES {
            self.by_name.retain(|_, dispute| recent(dispute));
        }
        if self.by_name.len() < MAX_DISPUTES {
            self.by_name.insert(name.to_owned(), NameConflict { count: 1, last: now });
        }
        1
    }

    pub(super) fn release_memory(&mut self, now: Instant) {
        self.by_name.retain(|_, dispute| now.since(dispute.last) < DISPUTE_MEMORY);
        self.by_name.shrink_to_fit();
    }
}

fn backoff(count: u32) -> Duration {
    FIRST_BACKOFF * (1 << count.saturating_sub(1).min(DOUBLINGS))
}

impl ServerEngine {
    /// Ends the previous session of the same name, and notifies its device if it has another
    /// address.
    pub(super) fn replace(&mut self, now: Instant, newcomer: PeerId, name: &str, out: &mut Out) {
        let Some(&former) = self.by_name.get(name).filter(|former| **former != newcomer) else {
            return;
        };
        let address = |peer: &PeerId| Some(self.clients.get(peer)?.control_channel.link.remote());
        let (Some(from), Some(to)) = (address(&former), address(&newcomer)) else { return };
        let full = self.disputes.notifying >= MAX_REPLACED;
        self.counters.replaced_unnotified += u64::from(full && from != to);
        if from == to || full {
            return self.remove(former, Reason::Replaced, out);
        }
        self.retire(now, former, to, out);
    }

    /// Removes the session from the tunnel and keeps its control channel for the notice.
    fn retire(&mut self, now: Instant, former: PeerId, by: SocketAddr, out: &mut Out) {
        let Some(client) = self.clients.get_mut(&former) else { return };
        let until = now + NOTICE_PATIENCE;
        let connected = match std::mem::replace(&mut client.stage, Stage::Negotiating) {
            Stage::Connected(connected) => connected,
            other => {
                client.stage = other;
                return;
            }
        };
        let entries = &connected.info.peer_info;
        let knows_backoff = PeerInfo::from_entries(entries).proto().has(IvProto::AUTH_FAIL_TEMP);
        let name = connected.info.identity.common_name.clone();
        client.stage = Stage::Replaced(Box::new(ReplacedClient {
            until,
            name,
            by,
            knows_backoff,
            asked: true,
        }));
        if self.config.checks.connect {
            out.event(ServerEvent::Ending(client.number));
        }
        let departing =
            EndedSession { reason: Reason::Replaced, control: client.control_channel.traffic };
        self.disputes.notifying += 1;
        self.end_session(former, *connected, departing, out);
        let text = format!("this profile is in use at {} now", by.ip().to_canonical());
        self.notify(now, former, &ControlMessage::Info(text), out);
    }

    /// Continues with a replaced client that has acknowledged a message or whose time is up.
    pub(super) fn tick_replaced(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let (link, acknowledged) =
            (client.control_channel.link, client.control_channel.all_acknowledged());
        let Stage::Replaced(notified) = &mut client.stage else { return };
        if !acknowledged && notified.until > now {
            return;
        }
        if !(acknowledged && std::mem::take(&mut notified.asked)) {
            return self.remove(peer, Reason::Replaced, out);
        }
        notified.until = now + NOTICE_PATIENCE;
        let (name, by, knows_backoff) =
            (notified.name.clone(), notified.by, notified.knows_backoff);
        let count = self.disputes.count(now, &name);
        let used = UsedElsewhere { name, former: link.remote(), newer: by, count };
        out.event(ServerEvent::UsedElsewhere(Box::new(used)));
        // Send nothing to an older client, which would end or reconnect at once. Its ping-restart
        // makes it reconnect later.
        if knows_backoff {
            let reason = format!(
                "this profile is in use at {}; every device needs a profile of its own",
                by.ip().to_canonical()
            );
            let failed = AuthFailed {
                temporary: true,
                backoff: Some(backoff(count)),
                advance: AdvanceTo::Stay,
                reason,
                ..AuthFailed::default()
            };
            self.notify(now, peer, &ControlMessage::AuthFailed(failed), out);
        } else {
            self.remove(peer, Reason::Replaced, out);
        }
    }

    fn notify(&mut self, now: Instant, peer: PeerId, message: &ControlMessage, out: &mut Out) {
        let unix = self.clock.at(now);
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let sent = client.control_channel.send_message(message.encode()).is_ok()
            && client.control_channel.flush(now, unix, out).is_ok();
        if !sent {
            return self.remove(peer, Reason::Replaced, out);
        }
        report_control_message(peer, client, message.to_string(), out);
        self.schedule(peer);
    }
}

/// The maximum duration of a check.
pub(super) const CHECK_LASTS: Duration = Duration::from_secs(60);

impl ServerEngine {
    /// Ends the previous check of a name. A name can have one check in addition to its session.
    pub(super) fn replace_check(&mut self, newcomer: PeerId, name: &str, out: &mut Out) {
        if let Some(former) = self.checks.insert(name.to_owned(), newcomer)
            && former != newcomer
        {
            self.remove(former, Reason::CheckReplaced, out);
        }
    }

    /// Removes a check that is over.
    pub(super) fn end_check(&mut self, name: &str, peer: PeerId) {
        if self.checks.get(name) == Some(&peer) {
            self.checks.remove(name);
        }
    }

    /// Removes a session from the tunnel, with its name, addresses and keys.
    pub(super) fn end_session(
        &mut self,
        peer: PeerId,
        connected: crate::server::client::ConnectedClient,
        departing: EndedSession,
        out: &mut Out,
    ) {
        if let Some(again) = &connected.reauthorization {
            self.by_ticket.remove(&again.request);
        }
        for request in connected.stations.keys() {
            self.by_ticket.remove(request);
        }
        let name = &connected.info.identity.common_name;
        if self.by_name.get(name) == Some(&peer) {
            self.by_name.remove(name);
        }
        self.end_check(name, peer);
        self.pool.release(peer, connected.lease);
        self.release_prefixes(peer, &connected.prefixes);
        out.plane(Command::DelPeer(peer));
        self.departing.insert(peer, departing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_doubles_up_to_sixteen_minutes_and_begins_again_after_hours() {
        let mut disputes = NameConflicts::default();
        let at = |minutes: u64| Instant::from_nanos(minutes * 60 * 1_000_000_000);
        let minutes: Vec<u64> =
            (0..7).map(|n| backoff(disputes.count(at(n), "a")).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(disputes.count(at(8), "b"), 1, "names are separate");
        assert_eq!(disputes.count(at(6 + 6 * 60), "a"), 1);
    }

    #[test]
    fn the_table_of_disputes_is_bounded() {
        let mut disputes = NameConflicts::default();
        for n in 0..2 * MAX_DISPUTES {
            disputes.count(Instant::default(), &n.to_string());
        }
        assert_eq!(disputes.by_name.len(), MAX_DISPUTES);
    }
}
