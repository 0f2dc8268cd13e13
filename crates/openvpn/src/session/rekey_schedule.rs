//! The life cycle of data keys: installed, used, replaced and erased.
//!
//! Both ends decrypt with two keys at a time. A new key is installed as the secondary one. It is
//! used for encryption once the peer has sent a packet under it, which shows that the peer has the
//! key, or else after the same time as in OpenVPN (`min(hand-window, reneg/2)`). So no packet is
//! sent under a key that the peer cannot have yet.

use std::time::Duration;

use adit_engine::command::KeySlot;
use adit_engine::{Instant, PeerId, Random};
use serde::{Deserialize, Serialize};

use super::ControlChannel;
use super::settings::{Renegotiation, Settings};
use crate::data_format::{Command, DataKey, KeyLimits, Outbox, Protection, SavedProtection};
use crate::keys::DataKeys;
use crate::negotiate::DataCipher;

#[derive(Debug)]
pub(crate) struct RekeySchedule {
    peer: PeerId,
    protection: Protection,
    renegotiation: Renegotiation,
    hand_window: Duration,
    tran_window: Duration,
    primary: u8,
    /// The newer key, installed but not yet used for sending, and the time when its use begins.
    coming: Option<(u8, Instant)>,
    /// The time when the previous key is erased.
    retire: Option<Instant>,
    /// The time of the next negotiation.
    rekey: Option<Instant>,
}

/// The state of a [`RekeySchedule`], for another process. The data plane has the keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedSchedule {
    protection: SavedProtection,
    primary: u8,
    coming: Option<(u8, Instant)>,
    retire: Option<Instant>,
}

impl RekeySchedule {
    /// Returns the state.
    pub(crate) fn save(&self) -> SavedSchedule {
        SavedSchedule {
            protection: SavedProtection::of(self.protection),
            primary: self.primary,
            coming: self.coming,
            retire: self.retire,
        }
    }

    /// Continues a session whose keys the data plane gets from the same process. Returns `None` if its cipher is
    /// unknown.
    pub(crate) fn restore(
        peer: PeerId,
        saved: &SavedSchedule,
        settings: &Settings,
    ) -> Option<Self> {
        Some(Self {
            peer,
            protection: saved.protection.protection()?,
            renegotiation: settings.renegotiation,
            hand_window: settings.hand_window,
            tran_window: settings.tran_window,
            primary: saved.primary,
            coming: saved.coming,
            retire: saved.retire,
            // The control channel needs a negotiation soon anyway.
            rekey: None,
        })
    }

    /// Installs a session's first key.
    pub(crate) fn start<E>(
        now: Instant,
        peer: PeerId,
        protection: Protection,
        settings: &Settings,
        random: &mut Random,
        keys: DataKeys,
        out: &mut Outbox<E>,
    ) -> Self {
        let mut schedule = Self {
            peer,
            protection,
            renegotiation: settings.renegotiation,
            hand_window: settings.hand_window,
            tran_window: settings.tran_window,
            primary: 0,
            coming: None,
            retire: None,
            rekey: None,
        };
        schedule.plan(now, random);
        schedule.install(KeySlot::Primary, 0, keys, out);
        schedule
    }

    /// Installs the key of a renegotiation, which is used for decryption at once and for encryption
    /// later.
    pub(crate) fn install_next<E>(
        &mut self,
        now: Instant,
        key_id: u8,
        random: &mut Random,
        keys: DataKeys,
        out: &mut Outbox<E>,
    ) {
        // There are only two slots, so a key that is not used for sending yet must be used now.
        self.switch(now, out);
        self.install(KeySlot::Secondary, key_id, keys, out);
        self.retire = None;
        self.coming = Some((key_id, now + self.grace()));
        self.plan(now, random);
    }

    fn install<E>(&self, slot: KeySlot, key_id: u8, keys: DataKeys, out: &mut Outbox<E>) {
        let limits =
            KeyLimits { bytes: self.renegotiation.bytes, packets: self.renegotiation.packets };
        let DataKeys { seal, open } = keys;
        let key = DataKey { key_id, protection: self.protection, seal, open, limits };
        out.plane(Command::InstallKey(self.peer, slot, Box::new(key)));
    }

    /// Processes the peer's first use of a key.
    pub(crate) fn first_use<E>(&mut self, now: Instant, key_id: u8, out: &mut Outbox<E>) {
        if self.coming.is_some_and(|(coming, _)| coming == key_id) {
            self.switch(now, out);
        }
    }

    fn switch<E>(&mut self, now: Instant, out: &mut Outbox<E>) {
        if let Some((key_id, _)) = self.coming.take() {
            out.plane(Command::SwapKeys(self.peer));
            self.primary = key_id;
            self.retire = Some(now + self.tran_window);
        }
    }

    /// Performs the steps that are due. Returns true if a new negotiation should begin.
    fn tick<E>(&mut self, now: Instant, out: &mut Outbox<E>) -> bool {
        if self.coming.is_some_and(|(_, at)| at <= now) {
            self.switch(now, out);
        }
        if self.retire.is_some_and(|at| at <= now) {
            self.retire = None;
            out.plane(Command::DelKey(self.peer, KeySlot::Secondary));
        }
        self.coming.is_none() && self.rekey.is_some_and(|at| at <= now)
    }

    /// Schedules a negotiation as soon as possible, because a key is close to a limit.
    pub(crate) fn near_limit(&mut self, now: Instant, key_id: u8) {
        let newest = self.coming.map_or(self.primary, |(coming, _)| coming);
        if key_id == newest {
            self.rekey = Some(now);
        }
    }

    /// Performs the steps that are due, like [`RekeySchedule::tick`]. Returns true only if this end must begin a negotiation on
    /// `control_channel` now: the peer has not begun one already and the budget for renegotiations allows another one.
    pub(crate) fn wants_key<E>(
        &mut self,
        now: Instant,
        control_channel: &ControlChannel,
        out: &mut Outbox<E>,
    ) -> bool {
        let wanted = self.tick(now, out);
        if let Some(at) = control_channel.recovers_at() {
            return at <= now;
        }
        if !wanted {
            return false;
        }
        if let (true, Err(at)) = (control_channel.is_idle(), control_channel.may_renegotiate(now)) {
            self.rekey = Some(at);
            return false;
        }
        self.negotiating();
        control_channel.is_idle()
    }

    /// Records that either end has begun a negotiation.
    pub(crate) fn negotiating(&mut self) {
        self.rekey = None;
    }

    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let rekey = self.rekey.filter(|_| self.coming.is_none());
        [
            self.coming.map(|(_, at)| (at, "use the new key")),
            self.retire.map(|at| (at, "forget the former key")),
            rekey.map(|at| (at, "renegotiate")),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the cipher of the session.
    pub(crate) fn cipher(&self) -> DataCipher {
        self.protection.into()
    }

    /// Returns how the packets of the session are protected.
    pub(crate) fn protection(&self) -> Protection {
        self.protection
    }

    fn plan(&mut self, now: Instant, random: &mut Random) {
        let Renegotiation { after, earliest, .. } = self.renegotiation;
        self.rekey = (!after.is_zero()).then(|| {
            let spread = after.saturating_sub(earliest);
            let jitter_ms = random
                .below(u32::try_from(spread.as_millis()).unwrap_or(u32::MAX).saturating_add(1));
            now + after.saturating_sub(Duration::from_millis(jitter_ms.into()))
        });
    }

    fn grace(&self) -> Duration {
        match self.renegotiation.after {
            Duration::ZERO => self.hand_window,
            after => self.hand_window.min(after / 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_crypto::DirectionKey;

    use crate::data_format::Output;

    const NOW: Instant = Instant::from_nanos(0);

    fn keys() -> DataKeys {
        let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
        DataKeys { seal: half.clone(), open: half }
    }

    fn at(seconds: u64) -> Instant {
        NOW + Duration::from_secs(seconds)
    }

    fn verbs(out: &mut Outbox<()>) -> Vec<String> {
        std::iter::from_fn(|| out.pop())
            .map(|output| match output {
                Output::Plane(Command::InstallKey(_, slot, key)) => {
                    format!("install {slot:?} {}", key.key_id)
                }
                Output::Plane(Command::SwapKeys(_)) => "swap".into(),
                Output::Plane(Command::DelKey(_, slot)) => format!("delete {slot:?}"),
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn schedule(out: &mut Outbox<()>) -> (RekeySchedule, Random) {
        let mut random = Random::new([7; 32]);
        let protection = Protection::Aead(adit_crypto::Cipher::Aes256Gcm);
        let s = RekeySchedule::start(
            NOW,
            PeerId(3),
            protection,
            &Settings::default(),
            &mut random,
            keys(),
            out,
        );
        (s, random)
    }

    #[test]
    fn a_new_key_is_used_for_sending_only_after_the_peer_used_it_or_the_grace_time() {
        let mut out = Outbox::new();
        let (mut s, mut random) = schedule(&mut out);
        s.install_next(at(10), 1, &mut random, keys(), &mut out);
        assert_eq!(verbs(&mut out), ["install Primary 0", "install Secondary 1"]);
        s.first_use(at(11), 0, &mut out);
        s.tick(at(69), &mut out);
        assert_eq!(verbs(&mut out), [""; 0]);
        s.tick(at(70), &mut out);
        assert_eq!(verbs(&mut out), ["swap"]);
        s.install_next(at(80), 2, &mut random, keys(), &mut out);
        s.first_use(at(81), 2, &mut out);
        assert_eq!(verbs(&mut out), ["install Secondary 2", "swap"]);
    }

    #[test]
    fn the_former_key_is_forgotten_after_the_transition_window() {
        let mut out = Outbox::new();
        let (mut s, mut random) = schedule(&mut out);
        s.install_next(at(10), 1, &mut random, keys(), &mut out);
        s.first_use(at(11), 1, &mut out);
        verbs(&mut out);
        s.tick(at(11 + 3599), &mut out);
        assert_eq!(verbs(&mut out), [""; 0]);
        s.tick(at(11 + 3600), &mut out);
        assert_eq!(verbs(&mut out), ["delete Secondary"]);
    }

    #[test]
    fn a_limit_of_the_key_in_use_asks_for_another_one_and_of_an_older_key_does_not() {
        let mut out = Outbox::new();
        let (mut s, mut random) = schedule(&mut out);
        assert!(!s.tick(at(5), &mut out));
        s.near_limit(at(5), 0);
        assert!(s.tick(at(5), &mut out));
        s.negotiating();
        s.install_next(at(6), 1, &mut random, keys(), &mut out);
        s.first_use(at(6), 1, &mut out);
        s.near_limit(at(7), 0);
        assert!(!s.tick(at(7), &mut out));
    }

    #[test]
    fn two_keys_in_a_row_never_need_a_third_slot() {
        let mut out = Outbox::new();
        let (mut s, mut random) = schedule(&mut out);
        s.install_next(at(1), 1, &mut random, keys(), &mut out);
        s.install_next(at(2), 2, &mut random, keys(), &mut out);
        let expected = ["install Primary 0", "install Secondary 1", "swap", "install Secondary 2"];
        assert_eq!(verbs(&mut out), expected);
    }
}
