//! The limits of this crate.

use std::time::Duration;

/// The approximate number of bytes in a batch. With 64 KiB there would be a thousand commits a second.
pub const BATCH_BYTES: usize = 1 << 20;

/// The maximum number of rows in a batch, given that no row takes fewer than 64 bytes of a COPY.
pub const BATCH_ROWS: i64 = (BATCH_BYTES / 64) as i64;

/// The largest number of rows that a batch sends as one INSERT instead of a COPY.
pub const FEW_ROWS: usize = 8;

/// The default maximum length of an IP packet in a row. A row of this length with all its columns fills one page of 8
/// KiB.
pub const DEFAULT_PACKET: usize = 7900;

/// The range of the configurable maximum length. A longer row would not fit into a page.
pub const PACKET_RANGE: std::ops::RangeInclusive<usize> = 1280..=7900;

/// The maximum distance ahead of the last packet at which a reader accepts a number within one epoch.
pub const SEQ_WINDOW: i64 = 1 << 20;

/// The maximum age of a row that is delivered, in milliseconds by the database's clock.
pub const EXPIRED_MS: u64 = 2000;

/// The unit of padding: under [`crate::Audit::None`], packets are padded to a multiple of this many bytes.
pub const PADDING: usize = 256;

/// The maximum number of packets sealed under one epoch's key. A leaf, and with it the epoch, ends long before this.
pub const EPOCH_PACKETS: u64 = 1 << 32;

/// The maximum number of bytes of packets that wait to be sealed, over all streams, including buffers kept for later
/// packets.
pub const QUEUE_BYTES: usize = 8 << 20;

/// The maximum length of a super-packet in a queue. IPv4's length field determines it.
pub const SUPER_PACKET: usize = 65535;

/// The maximum number of other nodes that a node knows at the same time.
pub const PEERS: usize = 1024;

/// The maximum number of routed prefixes of all nodes together.
pub const PREFIXES: usize = 65536;

/// The minimum size in bytes at which a leaf is closed.
pub const LEAF_BYTES_MIN: u64 = 8 << 20;

/// The number of leaves into which the retention, by size and by age, is divided.
pub const LEAVES: u64 = 16;

/// The minimum and maximum number of rows in a page. Within this range, a page has about [`PAGE_BYTES`].
pub const PAGE_ROWS: std::ops::RangeInclusive<u32> = 64..=1024;

/// The approximate number of bytes in a page.
pub const PAGE_BYTES: usize = 1 << 20;

/// The number of epochs that a receiver keeps ahead of the one that it reads. Further ones displace the oldest.
pub const EPOCHS_AHEAD: usize = 16;

/// The number of pages without an authentic row that a receiver reads before it waits for the next wake-up or poll.
pub const FORGED_PAGES: u32 = 16;

/// The number of the network's keys that a node keeps for reading old rows. The database has the same limit for their
/// records.
pub const GENERATIONS: usize = 256;

/// How long a running node still accepts new rows under the network's former key.
pub const KEY_GRACE: Duration = Duration::from_secs(120);

/// The delay between a new key and the first epoch under it. By then every running node has the key.
pub const KEY_DELAY: Duration = Duration::from_secs(3);
