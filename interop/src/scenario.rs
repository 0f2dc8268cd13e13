//! Tests that are no combination of the matrix.
