//! Log lines: one event, one line, nothing that a peer sent unescaped.
