//! What a flow's record remembers of how it was judged.

/// A judgement of one direction of a flow, remembered in the flow's record. It holds for one
/// generation of one filter only; whoever keeps it needs not clear it when rules change.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Memo {
    /// The filter's generation for which it holds; 0 for none.
    pub(crate) generation: u32,
    /// The interned judgement.
    pub(crate) trace: u32,
    /// The pair of interfaces for which it holds.
    pub(crate) ports: u16,
    /// The connection state for which it holds.
    pub(crate) state: u8,
}
