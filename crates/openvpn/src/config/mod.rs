//! Command line and config files of the reference implementation, parsed into types.
