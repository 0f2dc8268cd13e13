//! The data channel of a session. It is the same for a client, a server and a point-to-point end once the ends have
//! agreed on its parameters.

use std::time::Duration;

use adit_engine::auth::Inactive;
use adit_engine::command::{Float, Keepalive, PeerRates};
use adit_engine::{Instant, Link, PeerId, Random, VlanId};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::common::{fragment_size, inner_mtu};
use super::idle::session_end;
use super::rekey_schedule::SavedSchedule;
use super::{ControlChannel, Idle, PacketSizes, PathReport, RekeySchedule, Settings};
use crate::data_format::{Command, Framing, Notice, Outbox, PacketLayout, PeerSpec, Protection};
use crate::keys::{DataKeys, Role};
use crate::reason::Reason;

/// The parameters of a session for its peer in the data plane, in addition to the settings.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PeerTerms {
    pub(crate) peer: PeerId,
    pub(crate) link: Link,
    /// The peer id in data packets; `None` for the format without one.
    pub(crate) wire_id: Option<u32>,
    pub(crate) float: Float,
    pub(crate) framing: Framing,
    pub(crate) protection: Protection,
    /// The first channel of the session, if this is another one: they take the same path.
    pub(crate) channel_of: Option<PeerId>,
    /// The VLAN of the peer's frames.
    pub(crate) vlan: Option<VlanId>,
}

impl PeerTerms {
    /// Adds the peer with its routes to the data plane.
    pub(crate) fn add_peer<E>(&self, settings: &Settings, routes: Vec<IpNet>, out: &mut Outbox<E>) {
        let Self { peer, link, wire_id, float, framing, protection, channel_of, vlan } = *self;
        // The first channel's packets show that the path works.
        let keepalive =
            if channel_of.is_some() { Keepalive::default() } else { settings.keepalive };
        let spec = PeerSpec {
            link,
            layout: PacketLayout {
                wire_id,
                framing,
                decompress: settings.longest_decompressed(framing),
                fragment: fragment_size(settings, link),
            },
            float,
            keepalive,
            mtu: inner_mtu(settings, link, protection),
            rates: PeerRates::default(),
            replay_window: settings.replay_window,
            channel_of,
            vlan,
        };
        out.plane(Command::AddPeer(peer, spec));
        out.plane(Command::SetRoutes(peer, routes));
    }
}

/// Returns the routes of a peer that receives everything.
pub(crate) fn all_routes() -> Vec<IpNet> {
    vec![IpNet::V4(Default::default()), IpNet::V6(Default::default())]
}

/// The parameters on which the ends of a session have agreed.
pub(crate) struct Agreement {
    pub(crate) terms: PeerTerms,
    pub(crate) routes: Vec<IpNet>,
    pub(crate) keys: DataKeys,
    /// Whether data keys come from the TLS exporter.
    pub(crate) exporter: bool,
    /// `inactive`.
    pub(crate) inactive: Option<Inactive>,
    /// `session-timeout`.
    pub(crate) timeout: Option<Duration>,
}

/// The data channel of an established session, with its keys, its path and its limits.
#[derive(Debug)]
pub(crate) struct DataChannel {
    pub(crate) peer: PeerId,
    pub(crate) schedule: RekeySchedule,
    sizes: PacketSizes,
    exporter: bool,
    idle: Option<Idle>,
    ends: Option<Instant>,
}

/// The state of a [`DataChannel`], for another process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedDataChannel {
    schedule: SavedSchedule,
    exporter: bool,
    ends: Option<Instant>,
}

/// The effect of a notice about a data channel, for its engine.
pub(crate) enum NoticeOutcome {
    /// The engine has nothing to do.
    Nothing,
    /// A key is close to its limit. The next tick negotiates another key.
    KeyNearLimit,
    /// The path to the peer, and the sizes derived from it, have changed.
    Path(PathReport),
    /// Too little has passed through the tunnel for `inactive`.
    Inactive,
}

impl DataChannel {
    /// Adds the peer to the data plane, with its routes and its first key.
    pub(crate) fn establish<E>(
        now: Instant,
        agreement: Agreement,
        settings: &Settings,
        random: &mut Random,
        out: &mut Outbox<E>,
    ) -> Self {
        let Agreement { terms, routes, keys, exporter, inactive, timeout } = agreement;
        let PeerTerms { peer, link, protection, .. } = terms;
        terms.add_peer(settings, routes, out);
        Self {
            peer,
            schedule: RekeySchedule::start(now, peer, protection, settings, random, keys, out),
            sizes: PacketSizes::new(now, peer, link, protection, settings),
            exporter,
            idle: Idle::watch(now, inactive, peer, (link, protection, settings)),
            ends: session_end(now, timeout),
        }
    }

    /// Returns the state.
    pub(crate) fn save(&self) -> SavedDataChannel {
        SavedDataChannel {
            schedule: self.schedule.save(),
            exporter: self.exporter,
            ends: self.ends,
        }
    }

    /// Adds the peer of another process's session to the data plane, with its routes. Its keys follow from that
    /// process. The path MTU search and the idle timer start again. `terms` makes the terms for the session's
    /// protection. Returns `None` if its cipher is unknown.
    pub(crate) fn restore<E>(
        now: Instant,
        saved: &SavedDataChannel,
        terms: impl FnOnce(Protection) -> PeerTerms,
        (routes, inactive): (Vec<IpNet>, Option<Inactive>),
        (peer, settings): (PeerId, &Settings),
        out: &mut Outbox<E>,
    ) -> Option<Self> {
        let schedule = RekeySchedule::restore(peer, &saved.schedule, settings)?;
        let protection = schedule.protection();
        let terms = terms(protection);
        let link = terms.link;
        terms.add_peer(settings, routes, out);
        Some(Self {
            peer,
            schedule,
            sizes: PacketSizes::new(now, peer, link, protection, settings),
            exporter: saved.exporter,
            idle: Idle::watch(now, inactive, peer, (link, protection, settings)),
            ends: saved.ends,
        })
    }

    /// Also applies the path MTU to another channel of the session, because it takes the same path.
    pub(crate) fn search_for(&mut self, other: &mut Self) {
        self.sizes.search_for(&mut other.sizes);
    }

    /// Returns whether `session-timeout` has expired.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|at| at <= now)
    }

    /// Handles a notice from the data plane about this peer.
    pub(crate) fn notice<E>(
        &mut self,
        now: Instant,
        notice: &Notice,
        settings: &Settings,
        out: &mut Outbox<E>,
    ) -> NoticeOutcome {
        match *notice {
            Notice::KeyFirstUse(_, key_id) => self.schedule.first_use(now, key_id, out),
            Notice::KeyNearLimit(_, key_id) => {
                self.schedule.near_limit(now, key_id);
                return NoticeOutcome::KeyNearLimit;
            }
            Notice::Traffic(_, traffic)
                if self.idle.as_mut().is_some_and(|idle| idle.record_traffic(now, traffic)) =>
            {
                return NoticeOutcome::Inactive;
            }
            Notice::InBand(..) | Notice::ProbeResult(..) | Notice::Traffic(..) => {
                let report = self.sizes.notice(now, notice, settings, out);
                return report.map_or(NoticeOutcome::Nothing, NoticeOutcome::Path);
            }
            _ => {}
        }
        NoticeOutcome::Nothing
    }

    /// Performs the work that is due. Returns the findings about the path, and whether this end must negotiate the next
    /// key now.
    pub(crate) fn tick<E>(
        &mut self,
        now: Instant,
        control_channel: &ControlChannel,
        settings: &Settings,
        out: &mut Outbox<E>,
    ) -> (Option<PathReport>, bool) {
        if let Some(idle) = &mut self.idle {
            idle.tick(now, out);
        }
        let report = self.sizes.tick(now, settings, out);
        (report, self.schedule.wants_key(now, control_channel, out))
    }

    /// Installs the key of a complete renegotiation. Returns its id.
    ///
    /// # Errors
    /// The keys cannot be derived.
    pub(crate) fn rekey<E>(
        &mut self,
        now: Instant,
        role: Role,
        control_channel: &mut ControlChannel,
        random: &mut Random,
        out: &mut Outbox<E>,
    ) -> Result<u8, Reason> {
        let keys = control_channel.data_keys(self.exporter)?;
        let key_id = control_channel.negotiation().key_id;
        self.install_next(now, key_id, keys, random, out);
        if role == Role::Client && control_channel.is_recovering() {
            self.schedule.first_use(now, key_id, out);
        }
        Ok(key_id)
    }

    /// Installs the next key, which is used for sending as soon as the peer has shown that it has the key.
    pub(crate) fn install_next<E>(
        &mut self,
        now: Instant,
        key_id: u8,
        keys: DataKeys,
        random: &mut Random,
        out: &mut Outbox<E>,
    ) {
        self.schedule.install_next(now, key_id, random, keys, out);
    }

    /// Restarts the path MTU search on a new path to the peer.
    pub(crate) fn moved(&mut self, now: Instant, link: Link) {
        self.sizes.moved(now, link);
    }

    /// Returns when work is due next, and its name.
    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let ends = self.ends.map(|at| (at, "session-timeout"));
        let idle = self.idle.as_ref().map(Idle::deadline);
        [self.schedule.deadline(), self.sizes.deadline(), idle, ends].into_iter().flatten().min()
    }
}
