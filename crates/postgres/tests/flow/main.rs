//! A sender and a receiver with a database between them that is modelled in memory, on virtual time: hours of outages in
//! milliseconds, and a malicious database.

mod hostile_database;
mod model;
mod outages;
mod property;
mod rekeys;
mod sending;
mod world;
