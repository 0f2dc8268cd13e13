//! What adit asks of the Linux kernel: TUN devices and UDP sockets with their offloads, epoll,
//! clocks, namespaces, interfaces and routes, privileges.
//!
//! This is the only crate of the workspace with `unsafe`, and it keeps it in few files: [`tun`] and
//! [`udp`] (system calls that no crate wraps), [`netns`], [`daemonize`] and [`privileges`] (what
//! must happen between fork and exec). Nothing here knows a protocol.

pub mod clock;
pub mod net;
pub mod netns;
pub mod poll;
pub mod tun;
pub mod udp;
