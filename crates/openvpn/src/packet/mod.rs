//! Packets on the wire: opcodes, session ids, control packets.
