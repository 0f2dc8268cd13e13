//! The engines against each other, against packets of unauthenticated senders and against openvpn, in virtual time. They are one
//! program, because each test program is compiled and linked with all crates. Tests that measure the memory of the whole process
//! are programs of their own.

mod admin;
mod authorization;
mod budgets;
mod client_login;
mod endings;
mod injection;
mod key_verification;
mod limits;
mod openvpn_wrap;
mod p2p;
mod p2p_streams;
mod p2p_tls_streams;
mod push_filters;
mod records;
mod simulated;
mod stations;
mod streams;
mod takeover;
mod unauthenticated;
mod vulnerabilities;

#[path = "../support/connections.rs"]
mod connections;
#[allow(dead_code, reason = "the scripts use the rest")]
#[path = "../support/points.rs"]
mod points;
#[path = "../support/mod.rs"]
mod support;
