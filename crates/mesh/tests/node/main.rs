//! Tests of whole nodes on a simulated internet with NATs, in virtual time.

mod admin;
mod approval;
mod directory;
mod freshness;
mod many;
mod mesh;
mod policy;
mod streams;
mod world;
