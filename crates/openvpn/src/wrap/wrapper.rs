use std::fmt;
use std::sync::Arc;

use adit_crypto::{CryptoError, constant_time_eq, sha256};
use adit_engine::{SecretBytes, UnixTime};
use serde::{Deserialize, Serialize};

use super::mode::{Mode, Stamp};
use super::{ReplayWindow, WrapConfig, WrapError};
use crate::keys::{EXPORTED_LEN, Metadata, Role, StaticKey, UnwrapError, split_wkc};
use crate::packet::{Control, Header, Opcode, PacketError, split_front};

/// The first packet id of a tls-crypt-v2 client; its top byte announces early negotiation.
const EARLY_NEGOTIATION_START: u32 = 0x0f00_0000;

/// Wraps and unwraps the control packets of one session.
///
/// A client creates its own; a server gets one from [`super::WrapServer`] with the first packet.
///
/// ```
/// use adit_engine::UnixTime;
/// use adit_openvpn::keys::StaticKey;
/// use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
/// use adit_openvpn::wrap::{WrapConfig, WrapError, WrapServer, Wrapper};
///
/// // The content of the file that `tls-crypt` names.
/// let config = WrapConfig::TlsCrypt { key: StaticKey::new([7; StaticKey::LEN]) };
/// let reset = Control {
///     opcode: Opcode::HardResetClientV2,
///     key_id: 0,
///     session: SessionId(*b"client01"),
///     acks: Acks::NONE,
///     remote: None,
///     message: Some(0),
///     payload: &[],
/// };
/// let mut packet = Vec::new();
/// Wrapper::client(&config)?.seal(&reset, UnixTime(1_700_000_000), &mut packet)?;
///
/// let server = WrapServer::new(&config)?;
/// let mut repeated = packet.clone();
/// let mut first = server.open_first(&mut packet)?;
/// assert_eq!(first.control.session, reset.session);
/// assert_eq!(first.wrapper.open(&mut repeated).unwrap_err(), WrapError::Replayed);
/// # Ok::<(), WrapError>(())
/// ```
pub struct Wrapper {
    role: Role,
    mode: Mode,
    wrapped_key: WrappedKey,
    next_id: Option<u32>,
    /// The time stamp of all packets: that of the first one.
    time: Option<u32>,
    replay: ReplayWindow,
    /// The metadata of the key that the client brought.
    pub(crate) metadata: Option<Box<Metadata>>,
}

/// The wrapped key after packets with opcode 10 or 11.
pub(super) enum WrappedKey {
    /// There is no wrapped key, and such packets are refused.
    None,
    /// A client appends this key.
    Append(Arc<[u8]>),
    /// A server checks that the key with this SHA-256 does not change.
    Expect([u8; 32]),
}

impl Wrapper {
    /// Creates a client's wrapper for a new session.
    ///
    /// # Errors
    /// Fails if the configuration is a server's or the cryptographic library failed.
    pub fn client(config: &WrapConfig) -> Result<Self, WrapError> {
        let mut wrapped_key = WrappedKey::None;
        let mode = match config {
            WrapConfig::None => Mode::None,
            WrapConfig::TlsAuth { key, direction, digest } => Mode::auth(key, *direction, *digest)?,
            WrapConfig::TlsCrypt { key } => Mode::crypt(key, Role::Client)?,
            WrapConfig::TlsCryptV2Client { key } => {
                wrapped_key = WrappedKey::Append(key.wkc.as_slice().into());
                Mode::crypt(&key.kc, Role::Client)?
            }
            WrapConfig::TlsCryptV2Server { .. } => return Err(WrapError::WrongRole),
        };
        let early = matches!(wrapped_key, WrappedKey::Append(_));
        let mut wrapper = Self::new(Role::Client, mode, wrapped_key);
        if early {
            wrapper.next_id = EARLY_NEGOTIATION_START.checked_add(1);
        }
        Ok(wrapper)
    }

    /// Creates the wrapper of a point-to-point end that is the server and sends the first packet.
    /// Returns `None` with tls-crypt-v2, because the client's key is unknown until the client has
    /// sent a packet.
    ///
    /// # Errors
    /// Fails if the configuration is a client's or the cryptographic library failed.
    pub(crate) fn inviting(config: &WrapConfig) -> Result<Option<Self>, WrapError> {
        let mode = match config {
            WrapConfig::None => Mode::None,
            WrapConfig::TlsAuth { key, direction, digest } => Mode::auth(key, *direction, *digest)?,
            WrapConfig::TlsCrypt { key } => Mode::crypt(key, Role::Server)?,
            WrapConfig::TlsCryptV2Server { .. } => return Ok(None),
            WrapConfig::TlsCryptV2Client { .. } => return Err(WrapError::WrongRole),
        };
        Ok(Some(Self::new(Role::Server, mode, WrappedKey::None)))
    }

    pub(super) fn new(role: Role, mode: Mode, wrapped_key: WrappedKey) -> Self {
        let replay = ReplayWindow::default();
        Self { role, mode, wrapped_key, next_id: Some(1), time: None, replay, metadata: None }
    }

    /// Creates the wrapper of this session's renegotiations under dynamic tls-crypt (IV_PROTO bit
    /// 9), for all packets with a key id other than 0. `exported` is exported from the first TLS
    /// session with [`crate::keys::DYNAMIC_TLS_CRYPT_LABEL`]. Packet ids start over.
    ///
    /// # Errors
    /// Fails if the cryptographic library failed.
    pub fn renegotiation(&self, exported: &[u8; EXPORTED_LEN]) -> Result<Self, CryptoError> {
        let mut key = StaticKey::new(*exported);
        if let Some(base) = self.mode.base() {
            key = key.xor(base);
        }
        Ok(Self::new(self.role, Mode::crypt(&key, self.role)?, WrappedKey::None))
    }

    /// Returns whether the client brought the key.
    pub(super) fn has_key_of_its_own(&self) -> bool {
        matches!(self.wrapped_key, WrappedKey::Expect(_))
    }

    /// Returns whether packets are authenticated. Without a wrapping, anyone who can read the
    /// traffic can forge it.
    pub(crate) fn authenticates(&self) -> bool {
        !matches!(self.mode, Mode::None)
    }

    /// Sets the packet id of the next sealed packet. A server whose stateless answer used id 1
    /// continues with 2.
    pub fn set_next_id(&mut self, id: u32) {
        self.next_id = Some(id);
    }

    /// Returns the length of a wrapped packet without its payload, for this opcode and number of
    /// acknowledgements.
    pub fn overhead(&self, opcode: Opcode, acks: usize) -> usize {
        let wkc = match &self.wrapped_key {
            WrappedKey::Append(wkc) if opcode.carries_wrapped_key() => wkc.len(),
            _ => 0,
        };
        Control::overhead(opcode, acks).saturating_add(self.mode.overhead()).saturating_add(wkc)
    }

    /// Wraps a packet under the next id. `out` is cleared first.
    ///
    /// # Errors
    /// Fails if all ids are used or the cryptographic library failed. In both cases the session
    /// cannot continue.
    pub fn seal(
        &mut self,
        control: &Control<'_>,
        now: UnixTime,
        out: &mut Vec<u8>,
    ) -> Result<(), WrapError> {
        out.clear();
        // Time stamps have 32 bits. The only requirement is that they do not go backwards within a
        // few hours.
        let now = u32::try_from(now.0 & u64::from(u32::MAX)).unwrap_or_default();
        let time = *self.time.get_or_insert(now);
        let id = self.next_id.ok_or(WrapError::IdsExhausted)?;
        self.next_id = id.checked_add(1);
        self.mode.seal(control, Stamp { id, time }, out)?;
        if let WrappedKey::Append(wkc) = &self.wrapped_key
            && control.opcode.carries_wrapped_key()
        {
            out.extend_from_slice(wkc);
        }
        Ok(())
    }

    /// Unwraps a packet of this session. Authenticates it, decrypts it in place, refuses replays,
    /// and parses it.
    ///
    /// # Errors
    /// See [`WrapError`]; the caller drops and counts the packet.
    pub fn open<'a>(&mut self, packet: &'a mut [u8]) -> Result<Control<'a>, WrapError> {
        let (header, session, _) = split_front(packet)?;
        self.check_opcode(header)?;
        let packet = match &self.wrapped_key {
            WrappedKey::Expect(hash) if header.opcode.carries_wrapped_key() => {
                let (before, wkc) = split_wkc(packet).ok_or(UnwrapError::BadLength)?;
                if !constant_time_eq(&sha256(&[wkc]), hash) {
                    return Err(WrapError::WkcChanged);
                }
                let len = before.len();
                packet.get_mut(..len).ok_or(PacketError::TooShort)?
            }
            _ => packet,
        };
        let (rest, stamp) = self.mode.open(packet)?;
        if let Some(stamp) = stamp {
            self.accept(stamp)?;
        }
        Ok(Control::parse_rest(header, session, rest)?)
    }

    /// Alters one byte of the expected hash of the client's key.
    #[cfg(test)]
    pub(crate) fn spoil_expected(&mut self, at: usize) {
        if let WrappedKey::Expect(hash) = &mut self.wrapped_key
            && let Some(byte) = hash.get_mut(at)
        {
            *byte ^= 0x41;
        }
    }

    pub(super) fn accept(&mut self, stamp: Stamp) -> Result<(), WrapError> {
        self.replay.accept(stamp.id, stamp.time).map_err(|_| WrapError::Replayed)
    }

    /// Refuses opcodes that the other end never sends.
    fn check_opcode(&self, header: Header) -> Result<(), PacketError> {
        let fits = match header.opcode {
            Opcode::HardResetServerV2 => self.role == Role::Client,
            Opcode::HardResetClientV2 => {
                self.role == Role::Server && !matches!(self.wrapped_key, WrappedKey::Expect(_))
            }
            Opcode::HardResetClientV3 | Opcode::ControlWkcV1 => {
                matches!(self.wrapped_key, WrappedKey::Expect(_))
            }
            _ => true,
        };
        if fits { Ok(()) } else { Err(PacketError::BadOpcode(header.opcode.number())) }
    }
}

/// The state of a server's [`Wrapper`], for another process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedWrapper {
    mode: SavedMode,
    /// The SHA-256 of the key that the client brought.
    expects: Option<[u8; 32]>,
    next_id: Option<u32>,
    time: Option<u32>,
    replay: ReplayWindow,
    metadata: Option<Metadata>,
}

/// A [`Mode`] of a server.
#[derive(Debug, Serialize, Deserialize)]
enum SavedMode {
    None,
    /// tls-auth, whose direction and digest are in the configuration.
    Auth(SecretBytes),
    Crypt(SecretBytes),
}

impl Wrapper {
    /// Returns the state. From now on, only another process may seal packets of this session.
    pub(crate) fn save(&self) -> SavedWrapper {
        let key = |key: &StaticKey| SecretBytes::of(key.as_bytes());
        let mode = match (&self.mode, self.mode.base()) {
            (Mode::Auth(_), Some(base)) => SavedMode::Auth(key(base)),
            (Mode::Crypt(_), Some(base)) => SavedMode::Crypt(key(base)),
            _ => SavedMode::None,
        };
        let expects = match self.wrapped_key {
            WrappedKey::Expect(hash) => Some(hash),
            WrappedKey::None | WrappedKey::Append(_) => None,
        };
        SavedWrapper {
            mode,
            expects,
            next_id: self.next_id,
            time: self.time,
            replay: self.replay.clone(),
            metadata: self.metadata.as_deref().cloned(),
        }
    }

    /// Continues a server's session.
    ///
    /// # Errors
    /// Fails if the configuration has no such wrapping any more.
    pub(crate) fn restore(saved: SavedWrapper, config: &WrapConfig) -> Result<Self, WrapError> {
        let SavedWrapper { mode, expects, next_id, time, replay, metadata } = saved;
        let mode = match mode {
            SavedMode::None if matches!(config, WrapConfig::None) => Mode::None,
            SavedMode::None => return Err(WrapError::WrongRole),
            SavedMode::Auth(saved) => match config.shared() {
                Some(WrapConfig::TlsAuth { key, direction, digest })
                    if constant_time_eq(&saved.0, key.as_bytes()) =>
                {
                    Mode::auth(key, *direction, *digest)?
                }
                _ => return Err(WrapError::WrongRole),
            },
            SavedMode::Crypt(saved) => {
                let bytes = saved.array().ok_or(WrapError::WrongRole)?;
                Mode::crypt(&StaticKey::new(*bytes), Role::Server)?
            }
        };
        let wrapped_key = expects.map_or(WrappedKey::None, WrappedKey::Expect);
        let metadata = metadata.map(Box::new);
        Ok(Self { next_id, time, replay, metadata, ..Self::new(Role::Server, mode, wrapped_key) })
    }
}

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for Wrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match &self.mode {
            Mode::None => "none",
            Mode::Auth(_) => "tls-auth",
            Mode::Crypt(_) => "tls-crypt",
        };
        f.debug_struct("Wrapper")
            .field("role", &self.role)
            .field("mode", &mode)
            .finish_non_exhaustive()
    }
}
