use std::fmt;
use std::time::Duration;

use adit_crypto::sha256;
use adit_engine::UnixTime;

use super::mode::{Mode, Stamp};
use super::wrapper::WrappedKey;
use super::{WrapConfig, WrapError, Wrapper};
use crate::keys::{Metadata, Role, ServerKey, UnwrapError, split_wkc};
use crate::packet::{Control, Header, Opcode, PacketError, split_front};

/// Unwraps a server's packets from unauthenticated senders, without keeping state about them.
pub struct WrapServer {
    /// The wrapping for all clients, possibly none; absent if every client must bring its own key.
    shared: Option<Mode>,
    /// Unwraps the keys of clients that bring their own.
    wrapped: Option<TlsCryptV2Server>,
}

struct TlsCryptV2Server {
    key: ServerKey,
    max_age: Option<Duration>,
}

/// The unwrapped packet of an unauthenticated sender.
#[derive(Debug)]
pub struct FirstPacket<'a> {
    /// The packet.
    pub control: Control<'a>,
    /// Whether the client can resend its wrapped key and so take part in the stateless handshake
    /// (opcode 10 of tls-crypt-v2 clients of version 2.6 and later).
    pub early_negotiation: bool,
    /// The wrapper for this client. It contains the client's key and has recorded this packet as seen.
    pub wrapper: Wrapper,
    /// The metadata of the wrapped key.
    pub metadata: Option<Metadata>,
}

impl WrapServer {
    /// Prepares the keys.
    ///
    /// # Errors
    /// Fails if the configuration is a client's or the cryptographic library failed.
    pub fn new(config: &WrapConfig) -> Result<Self, WrapError> {
        let mode = |shared: &WrapConfig| match shared {
            WrapConfig::None => Ok(Mode::None),
            WrapConfig::TlsAuth { key, direction, digest } => {
                Ok(Mode::auth(key, *direction, *digest)?)
            }
            WrapConfig::TlsCrypt { key } => Ok(Mode::crypt(key, Role::Server)?),
            WrapConfig::TlsCryptV2Server { .. } | WrapConfig::TlsCryptV2Client { .. } => {
                Err(WrapError::WrongRole)
            }
        };
        Ok(match config {
            WrapConfig::TlsCryptV2Server { key, max_age, shared } => Self {
                shared: shared.as_deref().map(mode).transpose()?,
                wrapped: Some(TlsCryptV2Server { key: key.clone(), max_age: *max_age }),
            },
            config => Self { shared: Some(mode(config)?), wrapped: None },
        })
    }

    /// Checks the age of the key that a client brought.
    ///
    /// # Errors
    /// [`WrapError::KeyTooOld`] or [`WrapError::KeyWithoutTime`].
    pub fn check_age(&self, first: &FirstPacket<'_>, now: UnixTime) -> Result<(), WrapError> {
        let Some(max_age) = self.wrapped.as_ref().and_then(|wrapped| wrapped.max_age) else {
            return Ok(());
        };
        match first.metadata {
            _ if !first.wrapper.has_key_of_its_own() => Ok(()),
            // A time in the future counts as age zero. OpenVPN accepts such keys too.
            Some(Metadata::Timestamp(made)) if now.0.saturating_sub(made) <= max_age.as_secs() => {
                Ok(())
            }
            Some(Metadata::Timestamp(_)) => Err(WrapError::KeyTooOld),
            Some(Metadata::User(_)) | None => Err(WrapError::KeyWithoutTime),
        }
    }

    /// Unwraps a packet that belongs to no session: a client's reset, or the packet that returns
    /// the cookie.
    ///
    /// # Errors
    /// See [`WrapError`]; the caller drops and counts the packet.
    pub fn open_first<'a>(&self, packet: &'a mut [u8]) -> Result<FirstPacket<'a>, WrapError> {
        let (header, session, _) = split_front(packet)?;
        self.check_header(header)?;
        let brings_key = header.opcode.carries_wrapped_key();
        let (packet, mode, wrapped_key, metadata) = match (&self.shared, &self.wrapped) {
            (Some(mode), _) if !brings_key => (packet, mode.clone(), WrappedKey::None, None),
            (_, Some(server)) if brings_key => {
                let (before, wkc) = split_wkc(packet).ok_or(UnwrapError::BadLength)?;
                let unwrapped = server.key.unwrap(wkc)?;
                let expect = WrappedKey::Expect(sha256(&[wkc]));
                let mode = Mode::crypt(&unwrapped.kc, Role::Server)?;
                let len = before.len();
                let packet = packet.get_mut(..len).ok_or(PacketError::TooShort)?;
                (packet, mode, expect, unwrapped.metadata)
            }
            _ => return Err(PacketError::BadOpcode(header.opcode.number()).into()),
        };
        let (rest, stamp) = mode.open(packet)?;
        let control = Control::parse_rest(header, session, rest)?;
        let early_negotiation = matches!(wrapped_key, WrappedKey::Expect(_))
            && stamp.is_some_and(announces_early_negotiation);
        let mut wrapper = Wrapper::new(Role::Server, mode, wrapped_key);
        if let Some(stamp) = stamp {
            wrapper.accept(stamp)?;
        }
        wrapper.metadata = metadata.clone().map(Box::new);
        Ok(FirstPacket { control, early_negotiation, wrapper, metadata })
    }

    /// Accepts only the opcodes of the stateless handshake.
    fn check_header(&self, header: Header) -> Result<(), PacketError> {
        let fits = match header.opcode {
            Opcode::HardResetClientV2 | Opcode::ControlV1 | Opcode::AckV1 => self.shared.is_some(),
            opcode => opcode.carries_wrapped_key() && self.wrapped.is_some(),
        };
        if !fits {
            return Err(PacketError::BadOpcode(header.opcode.number()));
        }
        if header.key_id != 0 {
            return Err(PacketError::BadKeyId(header.key_id));
        }
        Ok(())
    }
}

/// Returns whether a packet id announces early negotiation. OpenVPN sends 0x0f in the top byte and
/// examines only its lower four bits.
fn announces_early_negotiation(stamp: Stamp) -> bool {
    stamp.id >> 24 & 0x0f == 0x0f
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for WrapServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (&self.shared, &self.wrapped) {
            (_, None) => "shared",
            (None, Some(_)) => "tls-crypt-v2",
            (Some(_), Some(_)) => "tls-crypt-v2 and shared",
        };
        write!(f, "WrapServer({kind})")
    }
}
