//! Packets that wait for a commit: whole super-packets, a queue per stream, bounded together.

/// Packets that were not sent, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The queues were full: the oldest of the longest queue went.
    pub full: u64,
    /// By CoDel (RFC 8289): the queue stood too long.
    pub codel: u64,
    /// Waited longer than a receiver would deliver it ([`crate::limits::EXPIRED_MS`]).
    pub old: u64,
    /// Its destination is nobody's.
    pub no_route: u64,
    /// No IP packet, longer than the packet size, or not to be cut as the device says.
    pub malformed: u64,
    /// Of a stream that was removed, or refused by the seal.
    pub closed: u64,
}
