/// What the server dropped or refused, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Resets answered.
    pub resets_answered: u64,
    /// Resets not answered: their network had too many.
    pub resets_limited: u64,
    /// Packets of strangers that were malformed or not authentic.
    pub strangers_bad: u64,
    /// Packets of strangers that were dropped unchecked: their network had sent too many bad ones.
    pub strangers_unchecked: u64,
    /// Packets of strangers under a tls-crypt-v2 key that `tls-crypt-v2-max-age` refuses.
    pub keys_expired: u64,
    /// Packets of strangers without a valid cookie.
    pub cookies_bad: u64,
    /// Packets of strangers whose cookie had started a handshake before.
    pub cookies_used: u64,
    /// Used cookies that a full table forgot before they expired.
    pub cookies_forgotten: u64,
    /// Handshakes refused because too many had started, of their network or in all.
    pub starts_limited: u64,
    /// Clients older than 2.6 with tls-crypt-v2 that the half-open table or `force-cookie` refused.
    pub half_open_refused: u64,
    /// Keys of such clients that a full table forgot for newer ones.
    pub half_open_forgotten: u64,
    /// Handshakes refused because too many were under way.
    pub handshakes_refused: u64,
    /// Streams refused because too many without a session were open, in all or from their network.
    pub streams_refused: u64,
    /// Streams ended because their first packet did not come in time.
    pub streams_silent: u64,
    /// Streams ended because they did not begin with an authentic reset.
    pub streams_bad: u64,
    /// Packets within a session that were malformed, not authentic or replayed.
    pub session_bad: u64,
    /// Renegotiations, moves and push replies that were delayed, because their client had used up its budget.
    pub delayed: u64,
    /// Control messages that were not read: more in one record, or more records, than a client's budget has.
    pub messages_excess: u64,
    /// Replaced sessions whose clients were not told, because too many were being told already.
    pub replaced_unnotified: u64,
}
