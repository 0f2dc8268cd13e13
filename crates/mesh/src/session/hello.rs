//! The hello of a node:
//!
//! ```text
//! number of channels 1 | id 3 * number
//! ```

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

/// The maximum number of data channels of a session.
pub const MAX_CHANNELS: usize = adit_engine::command::MAX_CHANNELS;
/// The maximum id of a channel. Ids have 24 bits, and all ones means none.
pub(super) const MAX_ID: u32 = 0x00ff_fffe;

/// The ids of a node's data channels. The other end writes them into its packets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hello {
    /// The ids in the order of the channels, at most [`MAX_CHANNELS`]; none in a joining session.
    pub ids: Vec<u32>,
}

/// The reason why bytes are not a hello.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HelloError {
    /// The length does not match the number of channels.
    #[error("the hello has another length than its channels need")]
    Length,
    /// There are more than [`MAX_CHANNELS`] channels.
    #[error("the hello has {0} channels")]
    TooMany(u8),
    /// An id is not a valid channel id.
    #[error("the hello has a channel without an id")]
    BadId,
}

impl Hello {
    /// Parses a hello.
    ///
    /// # Errors
    /// See [`HelloError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, HelloError> {
        let (&count, rest) = bytes.split_first().ok_or(HelloError::Length)?;
        if usize::from(count) > MAX_CHANNELS {
            return Err(HelloError::TooMany(count));
        }
        let (ids, after) = rest.as_chunks::<3>();
        if ids.len() != usize::from(count) || !after.is_empty() {
            return Err(HelloError::Length);
        }
        let ids: Vec<u32> =
            ids.iter().map(|[a, b, c]| u32::from_be_bytes([0, *a, *b, *c])).collect();
        if ids.iter().any(|id| *id > MAX_ID) {
            return Err(HelloError::BadId);
        }
        Ok(Self { ids })
    }

    /// Returns the bytes of the hello.
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.ids.len() <= MAX_CHANNELS, "more channels than a session can have");
        let mut bytes = vec![u8::try_from(self.ids.len()).unwrap_or(u8::MAX)];
        for id in &self.ids {
            let [_, id @ ..] = id.to_be_bytes();
            bytes.extend_from_slice(&id);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_that_are_a_hello_are_written_back_as_they_were(
            bytes in prop::collection::vec(0..20_u8, 0..60),
        ) {
            if let Ok(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(hello.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_hello_is_read_as_it_is_written() {
        for ids in [vec![], vec![0], vec![1, MAX_ID], vec![7; MAX_CHANNELS]] {
            let hello = Hello { ids };
            assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
        }
    }

    #[test]
    fn each_fault_is_found() {
        assert_eq!(Hello::parse(&[]), Err(HelloError::Length));
        assert_eq!(Hello::parse(&[1, 0, 0]), Err(HelloError::Length));
        assert_eq!(Hello::parse(&[1, 0, 0, 1, 0]), Err(HelloError::Length));
        assert_eq!(Hello::parse(&[1, 0, 0, 1, 0, 0, 2]), Err(HelloError::Length));
        assert_eq!(Hello::parse(&[1, 0xff, 0xff, 0xff]), Err(HelloError::BadId));
        let many = [&[17][..], &[1; 51]].concat();
        assert_eq!(Hello::parse(&many), Err(HelloError::TooMany(17)));
    }
}
