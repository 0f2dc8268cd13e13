//! Views of packet headers, checksums, splitting super-packets into segments and merging segments into super-packets.
//! No I/O.
//!
//! A *super-packet* is the unit that a TUN device with offloads reads and writes: one IP packet of up to 64 KiB with a
//! [`VnetHeader`] that describes how to split it. [`split::Segments`] splits it in place; [`merge::Merger`] collects
//! neighbouring packets of a flow into one.
//!
//! The super-packets of a TAP device are frames. Functions that handle both take the number of bytes before the IP
//! header, which is zero for a TUN device.
//!
//! Entry points for fuzzing, none of which may panic on any input: [`ethernet::Ethernet::parse`], [`ip::Ip::parse`],
//! [`transport::Tcp::parse`], [`transport::Udp::parse`], [`transport::Icmp::parse`], [`mss::clamp`],
//! [`neighbour::claimed`], [`neighbour::wanted`], [`split::Segments::new`] followed by `next` to the end,
//! [`merge::Merger::push`], [`too_big::answer`], [`vlan::remove`], [`vlan::Tagged::new`].

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

pub mod checksum;
pub mod ethernet;
mod field;
pub mod icmp_error;
pub mod ip;
pub mod merge;
pub mod mss;
pub mod neighbour;
pub mod split;
pub mod too_big;
pub mod transport;
pub mod vlan;
mod vnet;

#[cfg(test)]
mod testing;

pub use vnet::{Gso, VnetHeader};
