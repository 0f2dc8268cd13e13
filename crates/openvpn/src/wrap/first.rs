use std::fmt;

use adit_crypto::sha256;

use super::mode::{Mode, Stamp};
use super::wrapper::WrappedKey;
use super::{WrapConfig, WrapError, Wrapper};
use crate::keys::{Metadata, Role, ServerKey, UnwrapError, split_wkc};
use crate::packet::{Control, Header, Opcode, PacketError, split_front};

/// A server's side of the wrapping for packets from strangers; holds no state about them.
pub struct WrapServer(Kind);

enum Kind {
    /// One key for all clients, or none.
    Shared(Mode),
    /// Each client brings its own.
    Wrapped(ServerKey),
}

/// A stranger's packet, unwrapped.
#[derive(Debug)]
pub struct First<'a> {
    /// The packet.
    pub control: Control<'a>,
    /// The client can resend its wrapped key and so take part in the stateless handshake (opcode
    /// 10 of tls-crypt-v2 clients from 2.6 on).
    pub early_negotiation: bool,
    /// Ready to talk to this client: knows its key, and that this packet was seen.
    pub wrapper: Wrapper,
    /// What came with the wrapped key.
    pub metadata: Option<Metadata>,
}

impl WrapServer {
    /// Prepares the keys.
    ///
    /// # Errors
    /// The configuration is a client's, or the cryptographic library failed.
    pub fn new(config: &WrapConfig) -> Result<Self, WrapError> {
        let kind = match config {
            WrapConfig::None => Kind::Shared(Mode::None),
            WrapConfig::TlsAuth { key, direction, digest } => {
                Kind::Shared(Mode::auth(key, *direction, *digest)?)
            }
            WrapConfig::TlsCrypt { key } => Kind::Shared(Mode::crypt(key, Role::Server)?),
            WrapConfig::TlsCryptV2Server { key } => Kind::Wrapped(key.clone()),
            WrapConfig::TlsCryptV2Client { .. } => return Err(WrapError::WrongRole),
        };
        Ok(Self(kind))
    }

    /// Unwraps a packet that belongs to no session: a client's reset, or the packet that brings
    /// the cookie back.
    ///
    /// # Errors
    /// See [`WrapError`]; the packet is to be dropped and counted.
    pub fn open_first<'a>(&self, packet: &'a mut [u8]) -> Result<First<'a>, WrapError> {
        let (header, session, _) = split_front(packet)?;
        self.check_header(header)?;
        let (packet, mode, wrapped_key, metadata) = match &self.0 {
            Kind::Shared(mode) => (packet, mode.clone(), WrappedKey::None, None),
            Kind::Wrapped(server) => {
                let (before, wkc) = split_wkc(packet).ok_or(UnwrapError::BadLength)?;
                let unwrapped = server.unwrap(wkc)?;
                let expect = WrappedKey::Expect(sha256(&[wkc]));
                let mode = Mode::crypt(&unwrapped.kc, Role::Server)?;
                let len = before.len();
                let packet = packet.get_mut(..len).ok_or(PacketError::TooShort)?;
                (packet, mode, expect, unwrapped.metadata)
            }
        };
        let (rest, stamp) = mode.open(packet)?;
        let control = Control::parse_rest(header, session, rest)?;
        let early_negotiation = matches!(wrapped_key, WrappedKey::Expect(_))
            && stamp.is_some_and(announces_early_negotiation);
        let mut wrapper = Wrapper::new(Role::Server, mode, wrapped_key);
        if let Some(stamp) = stamp {
            wrapper.accept(stamp)?;
        }
        Ok(First { control, early_negotiation, wrapper, metadata })
    }

    /// Strangers may send the packets that the stateless handshake consists of, and no others.
    fn check_header(&self, header: Header) -> Result<(), PacketError> {
        let fits = match self.0 {
            Kind::Shared(_) => matches!(
                header.opcode,
                Opcode::HardResetClientV2 | Opcode::ControlV1 | Opcode::AckV1
            ),
            Kind::Wrapped(_) => header.opcode.carries_wrapped_key(),
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

/// Stock sends 0x0f in the top byte and looks at its lower four bits only.
fn announces_early_negotiation(stamp: Stamp) -> bool {
    stamp.id >> 24 & 0x0f == 0x0f
}

// By hand: keys never reach a log.
impl fmt::Debug for WrapServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Kind::Shared(_) => "shared",
            Kind::Wrapped(_) => "tls-crypt-v2",
        };
        write!(f, "WrapServer({kind})")
    }
}
