//! RFC 5961: segments of an attacker who cannot see the connection.

use super::*;

/// Creates an established connection in which each end has acknowledged: resets are expected at
/// 1001 from A, 5001 from B.
fn world() -> World {
    let world = World::connected();
    world.tcp(seg(ACK, 5001, 1001).back());
    world
}

fn state(world: &World) -> FlowState {
    world.only().state
}

#[test]
fn a_reset_where_the_next_byte_is_expected_ends_it() {
    let world = world();
    assert_eq!(world.tcp(seg(RST, 5001, 0).back()), COMES);
    assert_eq!(state(&world), FlowState::Close);
    assert!(world.only().left <= Duration::from_secs(10));
}

#[test]
fn a_reset_elsewhere_in_the_window_passes_and_ends_nothing() {
    // Section 3.2: the receiver answers with a challenge, and the real sender answers that with an
    // exact reset.
    let world = world();
    assert_eq!(world.tcp(seg(RST, 5002, 0).back()), COMES);
    assert_eq!(world.tcp(seg(RST, 5001 + 1000, 0).back()), COMES);
    assert_eq!(state(&world), FlowState::Established);
    assert_eq!(world.tcp(seg(ACK, 1001, 5001)), GOES, "the challenge");
    assert_eq!(world.tcp(seg(RST, 5001, 0).back()), COMES);
    assert_eq!(state(&world), FlowState::Close);
}

#[test]
fn a_reset_before_or_beyond_the_window_is_invalid() {
    let world = world();
    for seq in
        [5000, 5001 - 500, 5001 + 1001, 5001 + 0x7000_0000, 5001u32.wrapping_sub(0x7000_0000)]
    {
        assert_eq!(world.tcp(seg(RST, seq, 0).back()), BAD, "at {seq}");
    }
    assert_eq!(world.invalid(Invalid::Reset), 3);
    assert_eq!(world.invalid(Invalid::Sequence), 2);
    assert_eq!(state(&world), FlowState::Established);
}

#[test]
fn a_reset_behind_the_last_segment_of_its_sender_ends_it() {
    // Data, then a reset, before anything was acknowledged.
    let world = world();
    world.tcp(seg(ACK, 5001, 1001).back().len(300));
    assert_eq!(world.tcp(seg(RST, 5301, 0).back()), COMES);
    assert_eq!(state(&world), FlowState::Close);
}

#[test]
fn a_syn_in_an_open_connection_changes_nothing() {
    // Section 4.2: the receiver answers with a challenge.
    let world = world();
    for seq in [1001, 1500, 0x9000_0000] {
        assert_eq!(world.tcp(seg(SYN, seq, 0)), GOES);
        assert_eq!(state(&world), FlowState::Established);
        assert_eq!(world.tcp(seg(ACK, 5001, 1001).back()), COMES, "the challenge");
    }
    assert_eq!(world.tcp(seg(SYN, 5001, 0).back()), BAD, "against the first SYN");
    assert_eq!(world.tcp(seg(ACK, 1001, 5001).len(10)), GOES);
    assert_eq!(state(&world), FlowState::Established);
}

#[test]
fn an_owner_that_lost_the_connection_ends_it_after_the_challenge() {
    let world = world();
    world.tcp(seg(SYN, 800_000, 0));
    world.tcp(seg(ACK, 5001, 1001).back());
    assert_eq!(world.tcp(seg(RST, 1001, 0)), GOES, "at the number of the challenge");
    assert_eq!(state(&world), FlowState::Close);
    assert_eq!(world.tcp(seg(SYN, 800_000, 0)), NEW);
}

#[test]
fn a_forged_syn_does_not_open_the_way_to_a_forged_reset() {
    let world = world();
    world.tcp(seg(SYN, 900, 0));
    assert_eq!(world.tcp(seg(RST, 5500, 0).back()), COMES);
    assert_eq!(state(&world), FlowState::Established);
}

#[test]
fn the_answer_to_a_forged_syn_is_not_that_to_the_last_fin() {
    let world = world();
    world.tcp(seg(FIN | ACK, 5001, 1001).back());
    world.tcp(seg(FIN | ACK, 1001, 5002));
    assert_eq!(state(&world), FlowState::LastAck);
    world.tcp(seg(SYN, 40_000, 0));
    assert_eq!(world.tcp(seg(ACK, 5002, 1001).back()), COMES, "the challenge");
    assert_eq!(state(&world), FlowState::LastAck);
    assert_eq!(world.tcp(seg(ACK, 5002, 1002).back()), COMES);
    assert_eq!(state(&world), FlowState::TimeWait);
}

#[test]
fn a_blind_reset_does_not_end_a_half_closed_connection() {
    let world = world();
    world.tcp(seg(FIN | ACK, 1001, 5001));
    world.tcp(seg(ACK, 5001, 1002).back());
    assert_eq!(state(&world), FlowState::CloseWait);
    for seq in [5000, 5002, 77, 0x9000_0000] {
        assert_eq!(world.tcp(seg(RST, seq, 0).back()), COMES, "its receiver knows better");
        assert_eq!(state(&world), FlowState::CloseWait);
    }
    assert_eq!(world.tcp(seg(RST, 5001, 0).back()), COMES);
    assert_eq!(state(&world), FlowState::Close);
}

#[test]
fn blind_data_is_invalid_or_late() {
    // Section 5: an acknowledgement must not be older than any data that was ever in flight, nor
    // newer than the data sent.
    let world = world();
    let before = world.only();
    assert_eq!(world.tcp(seg(ACK, 5001, 1001 + 5).back().len(5)), BAD);
    assert_eq!(world.tcp(seg(ACK, 5001 + 5000, 1001).back().len(5)), BAD);
    assert_eq!(
        world.tcp(seg(ACK, 5001, 1001u32.wrapping_sub(70_000)).back().len(5)),
        COMES,
        "late"
    );
    let after = world.only();
    assert_eq!((after.state, after.left), (before.state, before.left));
}

#[test]
fn a_reset_that_answers_a_syn_needs_the_right_acknowledgement() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0));
    assert_eq!(world.tcp(seg(RST | ACK, 0, 1002).back()), BAD);
    assert_eq!(world.only().state, FlowState::SynSent);
    assert_eq!(world.tcp(seg(RST | ACK, 0, 1001).back()), COMES);
    assert_eq!(world.flows(), []);
}

#[test]
fn a_forged_reset_does_not_spoil_the_handshake() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0));
    for (seq, ack) in
        [(0x8000_0000, 1002), (0, 1002), (0, 0u32.wrapping_sub(5000)), (7, 0x8000_0000)]
    {
        assert_eq!(world.tcp(seg(RST | ACK, seq, ack).back()), BAD);
    }
    assert_eq!(world.tcp(seg(RST, 0, 0).back()), BAD, "it acknowledges nothing");
    assert_eq!(world.tcp(seg(SYN | ACK, 5000, 1001).back()), COMES);
    assert_eq!(world.tcp(seg(ACK, 1001, 5001)), GOES);
    assert_eq!(state(&world), FlowState::Established);
}

#[test]
fn a_reset_may_leave_out_what_the_syn_carried() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0).len(200));
    assert_eq!(world.tcp(seg(RST | ACK, 0, 1001).back()), COMES);
    assert_eq!(world.flows(), []);
}

#[test]
fn a_forged_answer_to_a_syn_does_not_stand_for_the_true_one() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0).options(&[1, 3, 3, 7]));
    let forged = seg(SYN | ACK, 0x7000_0000, 1002).back().options(&[1, 3, 3, 0]);
    assert_eq!(world.tcp(forged), BAD);
    assert_eq!(world.tcp(seg(SYN | ACK, 5000, 1001).back().options(&[1, 3, 3, 7])), COMES);
    assert_eq!(world.tcp(seg(ACK, 1001, 5001)), GOES);
    assert_eq!(world.tcp(seg(ACK, 5001, 1001).back().len(10)), COMES);
    assert_eq!(state(&world), FlowState::Established);
}
