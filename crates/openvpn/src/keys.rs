//! Key method 2, the key derivations, static key files.
