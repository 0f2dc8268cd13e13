//! Tests of paths between two nodes on a simulated internet, in virtual time.

mod nat_matrix;
mod scenarios;
mod world;
