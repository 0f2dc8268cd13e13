//! Strangers at a `tls-server` between two points: resets, and the cookies that come back. As on a
//! server nothing is remembered of anybody who has not proved their address, and the same limits hold.

use adit_engine::{Instant, Link, Random, UnixTime};

use super::config::PeerConfig;
use crate::packet::{Acks, Control, Opcode, SessionId};
use crate::server::{Cookies, HalfOpen, Limiter};
use crate::session::RESEND_WRAPPED_KEY;
use crate::wrap::{First, WrapError, WrapServer, Wrapper};

pub(super) struct Door {
    wrap: WrapServer,
    cookies: Cookies,
    limiter: Limiter,
    half_open: HalfOpen,
    force_cookie: bool,
}

impl Door {
    pub(super) fn new(config: &PeerConfig, random: &mut Random) -> Result<Self, WrapError> {
        let window = config.settings.hand_window;
        Ok(Self {
            wrap: WrapServer::new(&config.settings.wrap)?,
            cookies: Cookies::new(random.bytes(), window)?,
            limiter: Limiter::new(),
            half_open: HalfOpen::new(window),
            force_cookie: config.force_cookie,
        })
    }

    /// The one answer to a stranger's reset; `None`: none.
    pub(super) fn reset(
        &mut self,
        now: Instant,
        unix: UnixTime,
        link: Link,
        opcode: Opcode,
        packet: &mut [u8],
    ) -> Option<Vec<u8>> {
        if !self.limiter.allow(now, link.remote().ip()) {
            return None;
        }
        let First { control, early_negotiation, mut wrapper, .. } =
            self.wrap.open_first(packet).ok()?;
        if control.message != Some(0) || control.key_id != 0 {
            return None;
        }
        let client = control.session;
        let answer = Control {
            opcode: Opcode::HardResetServerV2,
            key_id: 0,
            session: self.cookies.bake(now, link.remote(), client),
            acks: Acks::from_slice(&[0]).unwrap_or_default(),
            remote: Some(client),
            message: Some(0),
            payload: if early_negotiation { &RESEND_WRAPPED_KEY } else { &[] },
        };
        let mut frame = Vec::new();
        wrapper.seal(&answer, unix, &mut frame).ok()?;
        if opcode == Opcode::HardResetClientV3 && !early_negotiation {
            // It cannot send its key again, so the key has to be remembered.
            let kept =
                !self.force_cookie && self.half_open.insert(now, (link.remote(), client), wrapper);
            return kept.then_some(frame);
        }
        Some(frame)
    }

    /// A packet that may bring a cookie back: with what to go on with if it does.
    pub(super) fn third_packet<'p>(
        &mut self,
        now: Instant,
        link: Link,
        (opcode, session): (Opcode, SessionId),
        packet: &'p mut [u8],
    ) -> Option<(Control<'p>, Wrapper)> {
        // Unwrapping a client's key costs more than the other wrappings' checks: it is limited too.
        if opcode == Opcode::ControlWkcV1 && !self.limiter.allow(now, link.remote().ip()) {
            return None;
        }
        let key = (link.remote(), session);
        let (control, wrapper) = match self.half_open.get_mut(now, &key) {
            Some(wrapper) => (wrapper.open(packet).ok()?, None),
            None => {
                let first = self.wrap.open_first(packet).ok()?;
                (first.control, Some(first.wrapper))
            }
        };
        if !self.cookies.returned(now, link.remote(), &control) {
            return None;
        }
        let mut wrapper = wrapper.or_else(|| self.half_open.remove(&key))?;
        // Packet id 1 went out with the answer to the reset.
        wrapper.set_next_id(2);
        Some((control, wrapper))
    }

    /// A handshake ended well: its reset does not count.
    pub(super) fn refund(&mut self, link: Link) {
        self.limiter.refund(link.remote().ip());
    }
}
