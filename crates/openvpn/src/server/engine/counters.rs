/// The numbers of packets and handshakes that the server dropped or refused, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Resets that were answered.
    pub resets_answered: u64,
    /// Resets that were not answered because their network had too many.
    pub resets_limited: u64,
    /// Unauthenticated senders' packets that were malformed or not authentic.
    pub unauthenticated_bad: u64,
    /// Unauthenticated senders' packets that were dropped unchecked because their network had sent
    /// too many bad ones.
    pub unauthenticated_unchecked: u64,
    /// Unauthenticated senders' packets under a tls-crypt-v2 key that `tls-crypt-v2-max-age`
    /// refuses.
    pub keys_expired: u64,
    /// Unauthenticated senders' packets without a valid cookie.
    pub cookies_bad: u64,
    /// Unauthenticated senders' packets whose cookie had started a handshake before.
    pub cookies_used: u64,
    /// Used cookies that a full table evicted before they expired.
    pub cookies_forgotten: u64,
    /// Handshakes refused because too many had started, from their network or in total.
    pub starts_limited: u64,
    /// Clients older than 2.6 with tls-crypt-v2 that the half-open table or `force-cookie` refused.
    pub half_open_refused: u64,
    /// Keys of such clients that a full table evicted in favour of newer ones.
    pub half_open_forgotten: u64,
    /// Handshakes refused because too many were in progress.
    pub handshakes_refused: u64,
    /// Streams refused because too many without a session were open, in total or from their
    /// network.
    pub streams_refused: u64,
    /// Streams ended because their first packet did not arrive in time.
    pub streams_silent: u64,
    /// Streams ended because they did not begin with an authentic reset.
    pub streams_bad: u64,
    /// Packets of clients whose tls-crypt-v2 key was being verified that were dropped because enough were waiting.
    pub held_excess: u64,
    /// Packets within a session that were malformed, not authentic or replayed.
    pub session_bad: u64,
    /// Renegotiations, moves and push replies that were delayed because their client had used up
    /// its budget.
    pub delayed: u64,
    /// Renegotiations that failed within a session.
    pub renegotiations_failed: u64,
    /// Control messages that were not read because a record held more messages, or a client sent
    /// more records, than the budget allows.
    pub messages_excess: u64,
    /// Sessions that were ended, and whose clients got the message about that only once because too many clients were
    /// being notified.
    pub ended_unconfirmed: u64,
    /// Replaced sessions whose clients were not notified because too many notifications were in
    /// progress.
    pub replaced_unnotified: u64,
}
