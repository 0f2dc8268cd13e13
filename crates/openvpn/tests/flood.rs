//! Tests of the memory that floods of unauthenticated packets leave allocated. They run alone in their process, because they measure the
//! memory of all threads.

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::session::Settings;
use support::{World, server_config};

/// The tolerance in bytes of heap, because of block headers and because block sizes differ from the
/// requested sizes.
const MARGIN: usize = 4096;
/// The bytes that an unauthenticated handshake may hold, as stated in docs/security.md: 4096 of
/// them are 400 MiB.
const PER_HANDSHAKE: usize = 100 << 10;

fn address(n: u32) -> SocketAddr {
    let [a, b, c, d] = (0x0b00_0000 + n).to_be_bytes();
    SocketAddr::from(([a, b, c, d], 5000))
}

fn packet(opcode: Opcode, remote: Option<SessionId>, id: Option<u32>, payload: &[u8]) -> Vec<u8> {
    let acks = match remote {
        Some(_) => Acks::from_slice(&[0]).expect("one fits"),
        None => Acks::default(),
    };
    let session = SessionId([7; 8]);
    let control = Control { opcode, key_id: 0, session, acks, remote, message: id, payload };
    let mut bytes = Vec::new();
    control.encode(&mut bytes);
    bytes
}

/// Returns the number of resets: a million, or the value of `ADIT_RESETS`. Ten million take a minute or two.
fn resets() -> u32 {
    match std::env::var("ADIT_RESETS") {
        Ok(count) => count.parse().expect("ADIT_RESETS is a number of resets"),
        Err(_) => 1_000_000,
    }
}

#[test]
fn a_million_resets_leave_no_byte_and_handshakes_a_bounded_number() {
    let count = resets();
    let mut w = World::new(server_config(Settings::default()), 1);
    let reset = packet(Opcode::HardResetClientV2, None, Some(0), &[]);
    let flood = |w: &mut World, from: u32, count: u32| {
        for n in from..from + count {
            w.stranger(address(n), &reset);
            if n % 1000 == 0 {
                w.now = w.now + Duration::from_millis(10);
            }
        }
    };
    // After this, the buckets of all networks have been used.
    flood(&mut w, 0, 200_000);
    let Some(before) = adit_linux::memory::in_use() else { return };
    flood(&mut w, 200_000, count);
    let after = adit_linux::memory::in_use().expect("it was known before");
    assert!(after <= before + MARGIN, "{before} bytes before, {after} bytes after");
    assert!(w.server.counters().resets_answered > u64::from(count), "{:?}", w.server.counters());

    // Handshakes whose messages never arrive in order, with the maximum number of kept messages of
    // the maximum size.
    const HANDSHAKES: u32 = 200;
    for n in 0..HANDSHAKES {
        let answer = w.stranger(address(n), &reset);
        let cookie = SessionId(answer[0][1..9].try_into().expect("eight bytes"));
        w.stranger(address(n), &packet(Opcode::AckV1, Some(cookie), None, &[]));
        for id in 2..40 {
            w.stranger(address(n), &packet(Opcode::ControlV1, None, Some(id), &[0x16; 4000]));
        }
    }
    assert_eq!(w.server.handshakes(), HANDSHAKES as usize);
    let held = adit_linux::memory::in_use().expect("known").saturating_sub(after);
    let each = held / HANDSHAKES as usize;
    assert!((10_000..PER_HANDSHAKE).contains(&each), "{each} bytes for a handshake");
}
