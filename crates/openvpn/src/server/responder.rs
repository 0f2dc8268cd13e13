//! The stateless part of a handshake over datagrams: it answers resets and checks returned cookies. A server has a responder, and so does
//! the end of a point-to-point tunnel that waits for handshakes.
//!
//! There are three budgets. Each is charged according to what a packet has proven, so that no
//! forged packet uses up what a client needs:
//!
//! 1. A packet that is not authentic, or does not return one of our cookies, charges the bad-packet
//!    budget of the network it claims to come from. This budget is large. Once it is used up, most
//!    packets of that network are dropped unchecked, but not all, so a client whose address is
//!    forged is delayed but not locked out.
//! 2. An authentic reset charges the budget of answers. Without a wrapping every well-formed reset
//!    is authentic, so a forger can delay the answer to a reset.
//! 3. A valid cookie proves the address, and charges the budget of starts. A forged packet never does.

use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{Instant, Link, Random, Rate, TokenBucket, UnixTime};
use zeroize::Zeroizing;

use super::address_limiter::AddressLimiter;
use super::cookie::Cookies;
use super::half_open::HalfOpen;
use super::start_budget::{StartBudget, UsedCookies};
use crate::packet::{Acks, Control, Opcode, SessionId};
use crate::session::{Frequency, RESEND_WRAPPED_KEY, Settings};
use crate::wrap::{FirstPacket, WrapError, WrapServer, Wrapper};

/// The number of bad packets from one network that are checked in a burst, and in 10 s.
const BAD_PACKETS: u32 = 50_000;
/// Beyond that budget, one in this many packets is checked.
const CHECKED_BEYOND: u32 = 4;
/// The number of answers to resets from one network in a burst, and in 10 s. Answers that lead to a
/// session are refunded.
const ANSWERS: u32 = 500;

/// The reason why an unauthenticated sender's packet is refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its network sent too many bad packets; it is dropped unchecked.
    Unchecked,
    /// The packet is malformed or not authentic.
    Unauthentic,
    /// The packet is authentic, but the client's key has an age that is not accepted.
    KeyAge(WrapError),
    /// The packet is authentic, but does not begin a handshake.
    NoReset,
    /// Too many resets from its network were answered.
    AnswersUsedUp,
    /// The packet is from an old client whose key is not kept.
    KeyNotKept,
    /// The packet does not return one of our cookies.
    BadCookie,
    /// The cookie has started a handshake already.
    UsedCookie,
    /// Too many handshakes have started, from its network or in total.
    StartsUsedUp,
    /// Too many handshakes are in progress.
    NoRoom,
    /// The cryptographic library failed.
    Failed,
}

pub(crate) struct Responder {
    wrap: WrapServer,
    cookies: Cookies,
    force_cookie: bool,
    half_open: HalfOpen,
    bad_packets: AddressLimiter,
    /// The number of packets beyond the budget of bad ones.
    beyond: u32,
    answers: AddressLimiter,
    starts: StartBudget,
    /// `connect-freq`: a limit to all starts together, which the operator may set in addition.
    frequency: Option<(TokenBucket, Rate)>,
    used: UsedCookies,
}

fn rate(frequency: Frequency) -> Rate {
    Rate::new(frequency.count.into(), frequency.period)
}

impl Responder {
    pub(crate) fn new(
        settings: &Settings,
        force_cookie: bool,
        random: &mut Random,
    ) -> Result<Self, WrapError> {
        let cookies = Cookies::new(random.bytes(), settings.hand_window)?;
        Ok(Self {
            wrap: WrapServer::new(&settings.wrap)?,
            used: UsedCookies::new(cookies.lifetime()),
            cookies,
            force_cookie,
            half_open: HalfOpen::new(settings.hand_window),
            bad_packets: AddressLimiter::new(BAD_PACKETS),
            beyond: 0,
            answers: match settings.connect_freq_initial {
                Some(frequency) => AddressLimiter::with_rate(rate(frequency)),
                None => AddressLimiter::new(ANSWERS),
            },
            starts: StartBudget::new(),
            frequency: settings.connect_freq.map(|frequency| (TokenBucket::new(), rate(frequency))),
        })
    }

    /// Returns the secret of the cookies, with which another process recognizes them.
    pub(crate) fn cookie_secret(&self) -> &Zeroizing<[u8; 32]> {
        self.cookies.secret()
    }

    /// Recognizes the cookies of another process. If the library fails, their handshakes begin again.
    pub(crate) fn set_cookie_secret(&mut self, secret: Zeroizing<[u8; 32]>, hand_window: Duration) {
        if let Ok(cookies) = Cookies::new(*secret, hand_window) {
            self.cookies = cookies;
        }
    }

    /// Returns the answer to an unauthenticated sender's reset, and keeps no state about it.
    pub(crate) fn reset(
        &mut self,
        now: Instant,
        unix: UnixTime,
        link: Link,
        opcode: Opcode,
        packet: &mut [u8],
    ) -> Result<Vec<u8>, Refused> {
        let address = link.remote().ip();
        let (control, mut wrapper, early) = self.open_reset(now, unix, address, packet)?;
        if !self.answers.allow(now, address) {
            return Err(Refused::AnswersUsedUp);
        }
        let client = control.session;
        let answer = Control {
            opcode: Opcode::HardResetServerV2,
            key_id: 0,
            session: self.cookies.create_cookie(now, link.remote(), client),
            acks: Acks::from_slice(&[0]).unwrap_or_default(),
            remote: Some(client),
            message: Some(0),
            payload: if early { &RESEND_WRAPPED_KEY } else { &[] },
        };
        let mut frame = Vec::new();
        wrapper.seal(&answer, unix, &mut frame).map_err(|_| Refused::Failed)?;
        if opcode == Opcode::HardResetClientV3 && !early {
            // The client cannot send its key again, so the key must be kept.
            let kept =
                !self.force_cookie && self.half_open.insert(now, (link.remote(), client), wrapper);
            if !kept {
                return Err(Refused::KeyNotKept);
            }
        }
        Ok(frame)
    }

    /// Unwraps the reset at the beginning of a stream. TCP has proven the client's address, so the
    /// reset may start a handshake. `room` reserves a place among the handshakes in progress.
    pub(crate) fn stream_reset<'p>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        link: Link,
        packet: &'p mut [u8],
        room: impl FnOnce() -> bool,
    ) -> Result<(Control<'p>, Wrapper), Refused> {
        let address = link.remote().ip();
        let (control, wrapper, _) = self.open_reset(now, unix, address, packet)?;
        self.start(now, address, room)?;
        Ok((control, wrapper))
    }

    /// Charges the budget for a start, and reserves a place if there is one.
    fn start(
        &mut self,
        now: Instant,
        address: IpAddr,
        room: impl FnOnce() -> bool,
    ) -> Result<(), Refused> {
        if !self.starts.start(now, address) {
            return Err(Refused::StartsUsedUp);
        }
        if let Some((bucket, rate)) = &self.frequency
            && bucket.take_whole(now, *rate).is_err()
        {
            self.starts.refund(address);
            return Err(Refused::StartsUsedUp);
        }
        if !room() {
            self.starts.refund(address);
            if let Some((bucket, rate)) = &self.frequency {
                bucket.refund(*rate);
            }
            return Err(Refused::NoRoom);
        }
        Ok(())
    }

    fn open_reset<'p>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        address: IpAddr,
        packet: &'p mut [u8],
    ) -> Result<(Control<'p>, Wrapper, bool), Refused> {
        self.check(now, address)?;
        let Ok(first) = self.wrap.open_first(packet) else {
            return Err(self.bad(now, address, Refused::Unauthentic));
        };
        if let Err(error) = self.wrap.check_age(&first, unix) {
            return Err(self.bad(now, address, Refused::KeyAge(error)));
        }
        let FirstPacket { control, early_negotiation, wrapper, .. } = first;
        debug_assert_eq!(
            control.key_id, 0,
            "the header's parser refuses a hard reset with another"
        );
        if control.message != Some(0) || !control.acks.is_empty() {
            return Err(self.bad(now, address, Refused::NoReset));
        }
        Ok((control, wrapper, early_negotiation))
    }

    /// Unwraps a packet that may return a cookie. If it does, and if `room` reserves a place among
    /// the handshakes in progress, it starts a handshake.
    pub(crate) fn third_packet<'p>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        link: Link,
        session: SessionId,
        packet: &'p mut [u8],
        room: impl FnOnce() -> bool,
    ) -> Result<(Control<'p>, Wrapper), Refused> {
        let address = link.remote().ip();
        self.check(now, address)?;
        let key = (link.remote(), session);
        let opened = match self.half_open.get_mut(now, &key) {
            Some(wrapper) => wrapper.open(packet).map(|control| (control, None)),
            None => self.wrap.open_first(packet).and_then(|first| {
                self.wrap.check_age(&first, unix)?;
                Ok((first.control, Some(first.wrapper)))
            }),
        };
        let (control, wrapper) = match opened {
            Ok(opened) => opened,
            Err(error @ (WrapError::KeyTooOld | WrapError::KeyWithoutTime)) => {
                return Err(self.bad(now, address, Refused::KeyAge(error)));
            }
            Err(_) => return Err(self.bad(now, address, Refused::Unauthentic)),
        };
        let kept = wrapper.is_none();
        let cookie = control.remote.unwrap_or_default();
        if !self.cookies.returned(now, link.remote(), &control) {
            return Err(self.bad(now, address, Refused::BadCookie));
        }
        if self.used.contains(cookie) {
            return Err(Refused::UsedCookie);
        }
        let wrapper = wrapper.or_else(|| self.half_open.remove(&key));
        let mut wrapper = wrapper.ok_or(Refused::KeyNotKept)?;
        if let Err(refused) = self.start(now, address, room) {
            // The client will try again.
            if kept {
                self.half_open.insert(now, key, wrapper);
            }
            return Err(refused);
        }
        self.used.insert(now, cookie);
        // Packet id 1 was used by the answer to the reset.
        wrapper.set_next_id(2);
        Ok((control, wrapper))
    }

    /// Refuses a packet whose network has sent too many bad ones, except for one in
    /// [`CHECKED_BEYOND`].
    fn check(&mut self, now: Instant, address: IpAddr) -> Result<(), Refused> {
        if !self.bad_packets.is_used_up(now, address) {
            return Ok(());
        }
        self.beyond = self.beyond.wrapping_add(1);
        match self.beyond % CHECKED_BEYOND {
            0 => Ok(()),
            _ => Err(Refused::Unchecked),
        }
    }

    fn bad(&mut self, now: Instant, address: IpAddr, refused: Refused) -> Refused {
        // If the budget is used up, there is nothing left to charge.
        let _ = self.bad_packets.allow(now, address);
        refused
    }

    /// Refunds the reset and the start of a handshake that led to a session.
    pub(crate) fn refund(&mut self, link: Link) {
        if !link.is_stream() {
            self.answers.refund(link.remote().ip());
        }
        self.starts.refund(link.remote().ip());
    }

    /// Returns how many keys of old clients and used cookies full tables evicted.
    pub(crate) fn forgotten(&self) -> (u64, u64) {
        (self.half_open.forgotten(), self.used.forgotten())
    }

    /// Shrinks the tables to their contents.
    pub(crate) fn release_memory(&mut self, now: Instant) {
        self.bad_packets.release_memory(now);
        self.answers.release_memory(now);
        self.half_open.release_memory(now);
        self.starts.release_memory(now);
        self.used.release_memory(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::keys::StaticKey;
    use crate::wrap::WrapConfig;

    fn crypt() -> WrapConfig {
        WrapConfig::TlsCrypt { key: StaticKey::new([3; StaticKey::LEN]) }
    }

    fn responder(wrap: WrapConfig) -> Responder {
        let settings = Settings { wrap, ..Settings::default() };
        Responder::new(&settings, false, &mut Random::new([1; 32])).expect("a responder")
    }

    /// Builds a well-formed reset.
    fn control(session: u64) -> Control<'static> {
        Control {
            opcode: Opcode::HardResetClientV2,
            key_id: 0,
            session: SessionId(session.to_be_bytes()),
            acks: Acks::default(),
            remote: None,
            message: Some(0),
            payload: &[],
        }
    }

    fn seal(wrap: &WrapConfig, control: &Control<'_>) -> Vec<u8> {
        let mut packet = Vec::new();
        let mut wrapper = Wrapper::client(wrap).expect("a wrapper");
        wrapper.seal(control, UnixTime(1), &mut packet).expect("a packet");
        packet
    }

    fn reset(wrap: &WrapConfig, session: u64) -> Vec<u8> {
        seal(wrap, &control(session))
    }

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    fn link(n: u8) -> Link {
        Link::datagram(Default::default(), None, ([192, 0, 2, n], 5000).into())
    }

    fn answer(r: &mut Responder, n: u8, packet: &[u8]) -> Result<Vec<u8>, Refused> {
        r.reset(NOW, UnixTime(1), link(n), Opcode::HardResetClientV2, &mut packet.to_vec())
    }

    #[test]
    fn beyond_the_budget_of_bad_packets_some_are_checked() {
        let mut r = responder(crypt());
        let good = reset(&crypt(), 7);
        let mut bad = good.clone();
        bad[20] ^= 1;
        for n in 0..BAD_PACKETS {
            assert_eq!(answer(&mut r, 1, &bad), Err(Refused::Unauthentic), "{n}");
        }
        let outcomes: Vec<_> = (0..400).map(|_| answer(&mut r, 1, &good)).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 100);
        let unchecked = |o: &&Result<_, _>| **o == Err(Refused::Unchecked);
        assert_eq!(outcomes.iter().filter(unchecked).count(), 300);
        assert!((0..100).all(|_| answer(&mut r, 2, &good).is_ok()), "another network");
    }

    /// Tests separately each field that prevents a packet from being a reset, over datagrams and
    /// over streams.
    #[test]
    fn a_reset_with_another_message_key_or_acknowledgement_is_refused() {
        let acks = Acks::from_slice(&[0]).expect("one fits");
        let remote = Some(SessionId([9; 8]));
        let wrong = [
            ("another message", Control { message: Some(1), ..control(7) }, Refused::NoReset),
            ("another key", Control { key_id: 1, ..control(7) }, Refused::Unauthentic),
            ("an acknowledgement", Control { acks, remote, ..control(7) }, Refused::NoReset),
        ];
        for wrap in [WrapConfig::None, crypt()] {
            let mut r = responder(wrap.clone());
            for (name, control, refused) in &wrong {
                let packet = seal(&wrap, control);
                assert_eq!(answer(&mut r, 1, &packet), Err(*refused), "{name}");
                let stream =
                    r.stream_reset(NOW, UnixTime(1), link(1), &mut packet.clone(), || true).err();
                assert_eq!(stream, Some(*refused), "{name}");
            }
            assert!(answer(&mut r, 1, &reset(&wrap, 7)).is_ok());
        }
    }

    #[test]
    fn a_stream_without_room_costs_no_start() {
        let mut r = responder(WrapConfig::None);
        let packet = reset(&WrapConfig::None, 7);
        let mut begin =
            |room| r.stream_reset(NOW, UnixTime(1), link(1), &mut packet.clone(), || room).err();
        assert!((0..1000).all(|_| begin(false) == Some(Refused::NoRoom)));
        assert!((0..500).all(|_| begin(true).is_none()));
        assert_eq!(begin(true), Some(Refused::StartsUsedUp));
    }

    fn limited(settings: Settings) -> Responder {
        Responder::new(&settings, false, &mut Random::new([1; 32])).expect("a responder")
    }

    #[test]
    fn the_operators_frequency_is_for_all_networks_together() {
        let frequency = Frequency { count: 3, period: Duration::from_secs(30) };
        let mut r = limited(Settings { connect_freq: Some(frequency), ..Settings::default() });
        let packet = reset(&WrapConfig::None, 7);
        let mut begin = |seconds, n, room| {
            let (now, unix) = (NOW + Duration::from_secs(seconds), UnixTime(1));
            r.stream_reset(now, unix, link(n), &mut packet.clone(), || room).err()
        };
        assert!((0..9).all(|n| begin(0, n, false) == Some(Refused::NoRoom)), "it costs nothing");
        assert!((1..4).all(|n| begin(0, n, true).is_none()));
        assert_eq!(begin(0, 4, true), Some(Refused::StartsUsedUp));
        assert_eq!(begin(10, 5, true), None, "a third of the time is a third of the starts");
        assert_eq!(begin(10, 5, true), Some(Refused::StartsUsedUp));
    }

    #[test]
    fn the_operators_frequency_of_answers_is_for_each_network() {
        let frequency = Frequency { count: 2, period: Duration::from_secs(10) };
        let settings = Settings { connect_freq_initial: Some(frequency), ..Settings::default() };
        let mut r = limited(settings);
        let packet = reset(&WrapConfig::None, 7);
        assert!((0..2).all(|_| answer(&mut r, 1, &packet).is_ok()));
        assert_eq!(answer(&mut r, 1, &packet), Err(Refused::AnswersUsedUp));
        assert!(answer(&mut r, 2, &packet).is_ok(), "another network");
    }
}
