//! Paths between two nodes on a simulated internet, on virtual time.

mod nat_matrix;
mod scenarios;
mod world;
