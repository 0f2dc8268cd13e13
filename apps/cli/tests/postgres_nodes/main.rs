//! Tests of `adit postgres` as a user calls it, with and without a database.

mod commands;
mod database;
mod line;
mod rights;
mod settings;
