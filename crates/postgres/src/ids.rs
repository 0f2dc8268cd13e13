//! Identifiers, each with its own type so that the compiler rejects mix-ups.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// The number of a node: positive, and an `integer` in the database.
    NodeId(i32)
}
id! {
    /// The number of a stream: the packets from one node to another. It is positive and contains the sender's number and, in the lower 16
    /// bits, the receiver's.
    StreamId(i32)
}
id! {
    /// The number of an epoch in its stream, counted from 1.
    EpochNo(i32)
}
id! {
    /// The number of a sender's leaf table, counted from 1.
    LeafNo(i32)
}
id! {
    /// The generation of a network's key, counted from 1.
    Generation(i32)
}
id! {
    /// The number of a packet in its stream, counted from 1 and never assigned twice.
    Seq(i64)
}

impl StreamId {
    /// Returns the stream from one node to another. Returns `None` if a number is not positive or has too many bits.
    pub fn between(sender: NodeId, receiver: NodeId) -> Option<Self> {
        let sender = u16::try_from(sender.0).ok().filter(|sender| (1..0x8000).contains(sender))?;
        let receiver = u16::try_from(receiver.0).ok().filter(|receiver| *receiver > 0)?;
        Some(Self((i32::from(sender) << 16) | i32::from(receiver)))
    }

    /// Returns the node that sends the stream.
    pub fn sender(self) -> NodeId {
        NodeId(self.0 >> 16)
    }
}

impl Generation {
    /// The generation of the key that `init` creates.
    pub const FIRST: Self = Self(1);

    /// Returns the generation of the next key, or `None` after the last number.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }

    /// Returns the generation of the previous key.
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl NodeId {
    /// The auditor as a reader, in the wraps of an epoch's secret.
    pub const AUDITOR: Self = Self(0);

    /// The node that created the network. Only its signature is valid for the network's keys and settings.
    pub const OWNER: Self = Self(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streams_number_is_made_of_its_ends() {
        let stream = StreamId::between(NodeId(3), NodeId(65_535)).unwrap();
        assert_eq!((stream, stream.sender()), (StreamId(262_143), NodeId(3)));
        assert!(StreamId::between(NodeId(32_767), NodeId(1)).is_some_and(|stream| stream.0 > 0));
        for (sender, receiver) in [(0, 1), (-1, 1), (32_768, 1), (1, 0), (1, 65_536), (1, -1)] {
            assert_eq!(StreamId::between(NodeId(sender), NodeId(receiver)), None);
        }
    }
}
