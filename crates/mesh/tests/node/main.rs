//! Whole nodes on a simulated internet with NAT boxes, on virtual time.

mod admin;
mod approval;
mod directory;
mod freshness;
mod many;
mod mesh;
mod policy;
mod streams;
mod world;
