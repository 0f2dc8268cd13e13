//! Every bound of this crate, by name.

/// Bytes of rows in one batch, about: a commit each 64 KiB would be a thousand a second.
pub const BATCH_BYTES: usize = 1 << 20;

/// Rows up to which a batch goes as one INSERT instead of COPY.
pub const FEW_ROWS: usize = 8;

/// Longest IP packet in a row by default: the row with all its columns fills one page of 8 KiB.
pub const DEFAULT_PACKET: usize = 7900;

/// Shortest and longest that may be configured. Beyond, a row would not fit into a page.
pub const PACKET_RANGE: std::ops::RangeInclusive<usize> = 1280..=7900;

/// How far ahead of the last packet a reader believes a number within one epoch.
pub const SEQ_WINDOW: i64 = 1 << 20;

/// How old a row may be to be delivered, in milliseconds by the database's clock.
pub const EXPIRED_MS: u64 = 2000;

/// Padding of packets under [`crate::Audit::None`], bytes.
pub const PADDING: usize = 256;

/// Packets sealed under one epoch's key, at most. A leaf, and with it the epoch, ends long before.
pub const EPOCH_PACKETS: u64 = 1 << 32;
