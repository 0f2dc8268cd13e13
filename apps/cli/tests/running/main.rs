//! Tests of servers, clients and bridges as a user runs them. They are one program, because each test program is linked with all crates.

mod background;
mod bad_state;
mod bridge;
mod client;
mod demo;
mod events;
mod filter;
mod helper;
mod openvpn;
mod pam;
mod presence;
mod privileges;
mod server;
mod single_sign_on;
mod top;
mod users;
mod versions;
mod world;
