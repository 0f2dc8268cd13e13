//! What things are called by, one type each so that they are not mistaken for another.

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
    /// What one node sends to another; positive.
    StreamId(i32)
}
id! {
    /// A stream's time under one key, counted from 1.
    EpochNo(i32)
}
id! {
    /// A stream's leaf table, counted from 1.
    LeafNo(i32)
}
id! {
    /// A packet's place in its stream, counted from 1 and never given twice.
    Seq(i64)
}

impl NodeId {
    /// Who reads as the auditor, in the wraps of an epoch's secret.
    pub const AUDITOR: Self = Self(0);
}
