//! Identifiers, each a type of its own so that the compiler rejects mix-ups.

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
    /// A node; positive. The database's `integer`.
    NodeId(i32)
}
id! {
    /// A stream: the packets from one node to another. Positive: the sender's number, then 16 bits of the receiver's.
    StreamId(i32)
}
id! {
    /// A stream's time under one key, counted from 1.
    EpochNo(i32)
}
id! {
    /// A sender's leaf table, counted from 1.
    LeafNo(i32)
}
id! {
    /// A network key's place among the keys that the network has had, counted from 1.
    Generation(i32)
}
id! {
    /// A packet's place in its stream, counted from 1 and never given twice.
    Seq(i64)
}

impl StreamId {
    /// Returns the stream from one node to another; `None` if a number is not positive or takes too many bits.
    pub fn between(sender: NodeId, receiver: NodeId) -> Option<Self> {
        let sender = u16::try_from(sender.0).ok().filter(|sender| (1..0x8000).contains(sender))?;
        let receiver = u16::try_from(receiver.0).ok().filter(|receiver| *receiver > 0)?;
        Some(Self((i32::from(sender) << 16) | i32::from(receiver)))
    }

    /// Returns the node that sends it.
    pub fn sender(self) -> NodeId {
        NodeId(self.0 >> 16)
    }
}

impl Generation {
    /// The key that `init` makes.
    pub const FIRST: Self = Self(1);

    /// Returns the generation of the next key; `None` after the last number.
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

    /// The node that made the network. Its signature alone counts on the network's keys and settings.
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
