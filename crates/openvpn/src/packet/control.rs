use super::{Header, Opcode, PacketError, SessionId};

/// The ids of up to [`Acks::MAX`] acknowledged messages.
#[derive(Copy, Clone, Default, Eq, PartialEq)]
pub struct Acks {
    ids: [u32; Self::MAX],
    len: u8,
}

impl Acks {
    /// The number of acknowledgements that fit into one packet.
    pub const MAX: usize = 8;

    /// An empty list of acknowledgements.
    pub const NONE: Self = Self { ids: [0; Self::MAX], len: 0 };

    /// Creates a list of up to [`Self::MAX`] ids. Returns `None` if there are more.
    pub fn from_slice(ids: &[u32]) -> Option<Self> {
        let mut acks = Self::NONE;
        ids.iter().all(|&id| acks.push(id)).then_some(acks)
    }

    /// Appends an id. Returns false if the list is full.
    #[must_use]
    pub fn push(&mut self, id: u32) -> bool {
        match self.ids.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = id;
                self.len = self.len.saturating_add(1);
                true
            }
            None => false,
        }
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the ids in the order of the packet.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        self.ids.into_iter().take(self.len())
    }

    /// Returns the length on the wire of `count` acknowledgements and their accompanying fields, in
    /// bytes.
    const fn wire_len(count: usize) -> usize {
        let ids = count.saturating_mul(4).saturating_add(1);
        if count == 0 { ids } else { ids.saturating_add(SessionId::LEN) }
    }
}

impl std::fmt::Debug for Acks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A control packet without its wrapping.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Control<'a> {
    /// The kind of packet; never one of the data opcodes.
    pub opcode: Opcode,
    /// The id of the key that the packet concerns.
    pub key_id: u8,
    /// The sender's session id.
    pub session: SessionId,
    /// The messages that the sender acknowledges.
    pub acks: Acks,
    /// The receiver's session id. It is written and read only if there are acknowledgements.
    pub remote: Option<SessionId>,
    /// The packet's number among the sender's messages; absent only in ACK_V1.
    pub message: Option<u32>,
    /// The TLS bytes or, in a hard reset, the early-negotiation TLVs.
    pub payload: &'a [u8],
}

impl<'a> Control<'a> {
    /// The length of the opcode, key id and session id, which every wrapping leaves in clear at the
    /// front.
    pub(crate) const FRONT_LEN: usize = 1 + SessionId::LEN;

    /// Parses an unwrapped packet.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn parse(packet: &'a [u8]) -> Result<Self, PacketError> {
        let (header, session, rest) = split_front(packet)?;
        Self::parse_rest(header, session, rest)
    }

    /// Parses the unwrapped bytes that follow the session id.
    pub(crate) fn parse_rest(
        header: Header,
        session: SessionId,
        rest: &'a [u8],
    ) -> Result<Self, PacketError> {
        let (&count, mut rest) = rest.split_first().ok_or(PacketError::TooShort)?;
        if usize::from(count) > Acks::MAX {
            return Err(PacketError::TooManyAcks(count));
        }
        let mut acks = Acks::NONE;
        for _ in 0..count {
            if !acks.push(take_u32(&mut rest)?) {
                return Err(PacketError::TooManyAcks(count));
            }
        }
        let remote = if acks.is_empty() { None } else { Some(take_session(&mut rest)?) };
        let (message, payload) = match header.opcode {
            // No bytes should follow, but OpenVPN does not check that.
            Opcode::AckV1 => (None, &[][..]),
            _ => (Some(take_u32(&mut rest)?), rest),
        };
        let Header { opcode, key_id } = header;
        Ok(Self { opcode, key_id, session, acks, remote, message, payload })
    }

    /// Returns the first byte, parsed.
    pub fn header(&self) -> Header {
        Header { opcode: self.opcode, key_id: self.key_id }
    }

    /// Appends the unwrapped packet to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_front(out);
        self.encode_rest(out);
    }

    pub(crate) fn encode_front(&self, out: &mut Vec<u8>) {
        out.push(self.header().byte());
        out.extend_from_slice(&self.session.0);
    }

    pub(crate) fn encode_rest(&self, out: &mut Vec<u8>) {
        out.push(self.acks.len);
        for id in self.acks.iter() {
            out.extend_from_slice(&id.to_be_bytes());
        }
        if !self.acks.is_empty() {
            out.extend_from_slice(&self.remote.unwrap_or_default().0);
        }
        if self.opcode != Opcode::AckV1 {
            out.extend_from_slice(&self.message.unwrap_or_default().to_be_bytes());
            out.extend_from_slice(self.payload);
        }
    }

    /// Returns the length of an unwrapped packet without its payload, in bytes.
    pub const fn overhead(opcode: Opcode, acks: usize) -> usize {
        let message = if matches!(opcode, Opcode::AckV1) { 0 } else { 4 };
        Self::FRONT_LEN.saturating_add(Acks::wire_len(acks)).saturating_add(message)
    }
}

/// Splits a control packet after its session id, and checks the opcode and the id.
pub(crate) fn split_front(packet: &[u8]) -> Result<(Header, SessionId, &[u8]), PacketError> {
    let (&first, mut rest) = packet.split_first().ok_or(PacketError::TooShort)?;
    let header = Header::parse(first)?;
    if header.opcode.is_data() {
        return Err(PacketError::BadOpcode(header.opcode.number()));
    }
    let session = take_session(&mut rest)?;
    if session.is_zero() {
        return Err(PacketError::ZeroSession);
    }
    Ok((header, session, rest))
}

fn take_u32(bytes: &mut &[u8]) -> Result<u32, PacketError> {
    let (value, rest) = bytes.split_first_chunk().ok_or(PacketError::TooShort)?;
    *bytes = rest;
    Ok(u32::from_be_bytes(*value))
}

fn take_session(bytes: &mut &[u8]) -> Result<SessionId, PacketError> {
    let (value, rest) = bytes.split_first_chunk().ok_or(PacketError::TooShort)?;
    *bytes = rest;
    Ok(SessionId(*value))
}
