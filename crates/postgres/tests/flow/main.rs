//! A sender, a receiver, and a model of the database between them, in memory and in virtual time. The tests simulate
//! hours of outages in milliseconds, and a malicious database.

mod hostile_database;
mod model;
mod outages;
mod property;
mod rekeys;
mod sending;
mod world;
