//! The stateless part of the handshake, in which a server session id proves the client's address.
//!
//! The id is a MAC over the time slot, the client's address and its session id. The third packet
//! returns the id, so a server that answers a reset keeps no state about it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_crypto::{CryptoError, Digest, HmacKey};
use adit_engine::Instant;
use zeroize::Zeroizing;

use crate::packet::{Control, SessionId};

/// The number of past time slots whose cookies are still valid, in addition to the current one.
const FORMER_SLOTS: u64 = 2;
/// The highest message id and acknowledged id of a client's packet that may return a cookie. The
/// client's reset is message 0, and its first TLS bytes are message 1.
const HIGHEST_ID: u32 = 1;

pub(crate) struct Cookies {
    key: HmacKey,
    /// The bytes of the key, for another process.
    secret: Zeroizing<[u8; 32]>,
    slot: Duration,
}

impl Cookies {
    pub(crate) fn new(key: [u8; 32], hand_window: Duration) -> Result<Self, CryptoError> {
        let secret = Zeroizing::new(key);
        let key = HmacKey::new(Digest::Sha256, secret.as_slice())?;
        Ok(Self { key, secret, slot: (hand_window / 2).max(Duration::from_secs(1)) })
    }

    /// Returns the bytes of the key.
    pub(crate) fn secret(&self) -> &Zeroizing<[u8; 32]> {
        &self.secret
    }

    /// Returns the maximum time for which a cookie is valid.
    pub(crate) fn lifetime(&self) -> Duration {
        let slots = u32::try_from(FORMER_SLOTS).unwrap_or(u32::MAX).saturating_add(1);
        self.slot.saturating_mul(slots)
    }

    /// Computes the session id for an answer to a reset.
    pub(crate) fn create_cookie(
        &self,
        now: Instant,
        address: SocketAddr,
        client: SessionId,
    ) -> SessionId {
        self.cookie(self.slot_at(now), address, client)
    }

    /// Returns whether a packet returns a cookie that we recently sent to this client at this
    /// address.
    pub(crate) fn returned(&self, now: Instant, address: SocketAddr, packet: &Control<'_>) -> bool {
        let Some(returned) = packet.remote else { return false };
        if packet.key_id != 0
            || packet.message.is_some_and(|id| id > HIGHEST_ID)
            || packet.acks.iter().any(|id| id > HIGHEST_ID)
        {
            return false;
        }
        let slot = self.slot_at(now);
        (0..=FORMER_SLOTS).any(|age| {
            let expected = self.cookie(slot.wrapping_sub(age), address, packet.session);
            adit_crypto::constant_time_eq(&expected.0, &returned.0)
        })
    }

    fn slot_at(&self, now: Instant) -> u64 {
        now.as_nanos() / u64::try_from(self.slot.as_nanos()).unwrap_or(u64::MAX)
    }

    fn cookie(&self, slot: u64, address: SocketAddr, client: SessionId) -> SessionId {
        let ip = match address.ip().to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let parts: [&[u8]; 4] =
            [&slot.to_be_bytes(), &ip, &address.port().to_be_bytes(), &client.0];
        self.key
            .sign(&parts)
            .as_bytes()
            .first_chunk()
            .map_or(SessionId::default(), |id| SessionId(*id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Acks, Opcode};

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const CLIENT: SessionId = SessionId(*b"client's");

    fn cookies() -> Cookies {
        Cookies::new([5; 32], Duration::from_secs(60)).expect("a key")
    }

    fn address() -> SocketAddr {
        "192.0.2.1:5000".parse().expect("an address")
    }

    fn answer(cookie: SessionId) -> Control<'static> {
        let acks = Acks::from_slice(&[0]).expect("one fits");
        Control {
            opcode: Opcode::ControlV1,
            key_id: 0,
            session: CLIENT,
            acks,
            remote: Some(cookie),
            message: Some(1),
            payload: &[],
        }
    }

    fn good() -> Control<'static> {
        answer(cookies().create_cookie(NOW, address(), CLIENT))
    }

    #[test]
    fn comes_back_within_its_time() {
        let c = cookies();
        assert!(c.returned(NOW, address(), &good()));
        assert!(c.returned(NOW + Duration::from_secs(60), address(), &good()));
        assert!(!c.returned(NOW + Duration::from_secs(91), address(), &good()));
        assert!(!c.returned(NOW - Duration::from_secs(31), address(), &good()), "from the future");
        assert!(!c.returned(NOW + c.lifetime(), address(), &good()));
        let bare = Control { message: None, opcode: Opcode::AckV1, ..good() };
        assert!(c.returned(NOW, address(), &bare));
    }

    // Tests each wrong field separately. In CVE-2025-13086 the comparison was inverted.
    #[test]
    fn is_bound_to_address_port_and_session() {
        let c = cookies();
        assert!(!c.returned(NOW, "192.0.2.2:5000".parse().expect("address"), &good()));
        assert!(!c.returned(NOW, "192.0.2.1:5001".parse().expect("address"), &good()));
        let other_session = Control { session: SessionId(*b"another!"), ..good() };
        assert!(!c.returned(NOW, address(), &other_session));
        let other_server = Cookies::new([6; 32], Duration::from_secs(60)).expect("a key");
        assert!(!other_server.returned(NOW, address(), &good()));
    }

    #[test]
    fn every_bit_of_the_cookie_counts() {
        let cookie = cookies().create_cookie(NOW, address(), CLIENT);
        for bit in 0..64 {
            let mut wrong = cookie;
            if let Some(byte) = wrong.0.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            assert!(!cookies().returned(NOW, address(), &answer(wrong)), "bit {bit}");
        }
        assert!(!cookies().returned(NOW, address(), &Control { remote: None, ..good() }));
    }

    #[test]
    fn comes_only_with_a_clients_first_packets() {
        let c = cookies();
        assert!(!c.returned(NOW, address(), &Control { message: Some(2), ..good() }));
        assert!(!c.returned(NOW, address(), &Control { key_id: 1, ..good() }));
        let acks = Acks::from_slice(&[0, 2]).expect("two fit");
        assert!(!c.returned(NOW, address(), &Control { acks, ..good() }));
    }
}
