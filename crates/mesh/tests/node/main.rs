//! Whole nodes on a simulated internet with NAT boxes, on virtual time.

mod admin;
mod directory;
mod many;
mod mesh;
mod policy;
mod streams;
mod world;
