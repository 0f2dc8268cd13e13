//! The parts of the Linux kernel's interface that adit uses: TUN devices and UDP sockets with their offloads, epoll,
//! clocks, namespaces, interfaces and routes, privileges.
//!
//! This is the only crate of the workspace with `unsafe`, which is confined to a few files: [`tun`] (including flow
//! queues), [`ethtool`], [`packet`] (sockets and bursts), [`udp`] (sending, receiving, paths and steering: system calls
//! that no crate wraps), [`netns`] (between fork and exec), [`descriptors`], [`fd_store`], [`clock`] (the time zone), [`memory`]
//! (releasing it), [`plugin`] (shared objects with openvpn's plugin interface) and [`pam`]. The crate implements no protocol.

pub mod channel;
pub mod clock;
pub mod descriptors;
pub mod ethtool;
pub mod fd_store;
pub mod file;
pub mod memory;
pub mod net;
pub mod netns;
pub mod notify;
pub mod packet;
pub mod pam;
pub mod plugin;
pub mod poll;
pub mod privileges;
pub mod process;
pub mod socket_opts;
pub mod tcp;
pub mod terminal;
pub mod tun;
pub mod udp;
pub mod zeroizing_alloc;
