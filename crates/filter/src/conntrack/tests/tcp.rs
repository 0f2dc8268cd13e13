use super::*;

#[test]
fn a_connection_from_syn_to_its_end() {
    for v6 in [false, true] {
        let mut world = World::new();
        let go = |world: &World, segment: Seg| {
            let view = world.tcp(Seg { v6, ..segment });
            (view, world.only().state)
        };
        assert_eq!(go(&world, seg(SYN, 1000, 0)), (NEW, FlowState::SynSent));
        assert_eq!(go(&world, seg(SYN, 1000, 0)), (NEW, FlowState::SynSent), "again");
        assert_eq!(go(&world, seg(SYN | ACK, 5000, 1001).back()), (COMES, FlowState::SynRecv));
        assert_eq!(go(&world, seg(ACK, 1001, 5001)), (GOES, FlowState::Established));
        assert!(world.only().assured);
        assert_eq!(go(&world, seg(ACK, 1001, 5001).len(100)), (GOES, FlowState::Established));
        assert_eq!(go(&world, seg(ACK, 5001, 1101).back().len(300)).0, COMES);
        assert_eq!(go(&world, seg(FIN | ACK, 1101, 5301)), (GOES, FlowState::FinWait));
        assert_eq!(go(&world, seg(ACK, 5301, 1102).back()), (COMES, FlowState::CloseWait));
        assert_eq!(go(&world, seg(FIN | ACK, 5301, 1102).back()), (COMES, FlowState::LastAck));
        assert_eq!(go(&world, seg(ACK, 1102, 5302)), (GOES, FlowState::TimeWait));
        let flow = world.only();
        assert_eq!((flow.source, flow.destination), ((host(v6, A), 4000), (host(v6, B), 80)));
        assert_eq!(flow.packets, [6, 4]);
        world.wait(Duration::from_secs(120));
        assert_eq!(world.flows(), []);
    }
}

#[test]
fn what_is_dropped_leaves_no_state() {
    let world = World::new();
    assert_eq!(world.look(&seg(SYN, 1000, 0).bytes()).state, CtState::NEW);
    assert_eq!(world.flows(), []);
    assert_eq!(world.look(&seg(SYN | ACK, 5000, 1001).back().bytes()).state, CtState::INVALID);
}

#[test]
fn flags_that_never_go_together_are_invalid() {
    let world = World::connected();
    let good: Vec<u8> = (0..=255)
        .filter(|flags| {
            let plain = flags & !(8 | 0x40 | 0x80);
            [2, 0x22, 0x12, 4, 0x14, 0x11, 0x31, 0x10, 0x30].contains(&plain)
        })
        .collect();
    for flags in 0..=255u8 {
        let before = world.invalid(Invalid::Flags);
        world.look(&seg(flags, 1001, 5001).bytes());
        let refused = world.invalid(Invalid::Flags) > before;
        assert_eq!(refused, !good.contains(&flags), "flags {flags:#x}");
    }
}

#[test]
fn a_wrong_checksum_or_a_piece_is_invalid() {
    let world = World::connected();
    let mut bytes = seg(ACK, 1001, 5001).len(10).bytes();
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(world.pass(&bytes), BAD);
    assert_eq!(world.invalid(Invalid::Checksum), 1);
    let piece = &crate::testing::pieces(&seg(ACK, 1001, 5001).len(100).bytes(), 1, &[40])[0];
    assert_eq!(world.pass(piece), BAD);
    assert_eq!(world.invalid(Invalid::Headers), 1);
    assert_eq!(world.only().packets, [2, 1], "neither counts");
}

#[test]
fn only_a_syn_or_an_acknowledgement_from_the_middle_starts_a_connection() {
    for flags in [SYN | ACK, FIN | ACK, RST, RST | ACK] {
        assert_eq!(World::new().tcp(seg(flags, 1000, 5000)), BAD, "flags {flags}");
    }
    let world = World::new();
    assert_eq!(world.tcp(seg(ACK, 1000, 5000)), NEW);
    assert_eq!(world.only().state, FlowState::PickedUp);
    assert_eq!(world.tcp(seg(ACK, 5000, 1000).back().len(100)), COMES);
    assert_eq!(world.tcp(seg(ACK, 1000, 5100)), GOES);
    assert_eq!(world.only().state, FlowState::Established);
    let strict = World::with(Limits { loose: false, ..Limits::default() });
    assert_eq!(strict.tcp(seg(ACK, 1000, 5000)), BAD);
}

#[test]
fn a_connection_taken_up_in_the_middle_is_not_held_to_windows() {
    // Its window scale is unknown: half a megabyte is in flight beyond what the window fields
    // allow.
    let world = World::new();
    assert_eq!(world.tcp(seg(ACK, 1000, 5000).len(1000)), NEW);
    assert_eq!(world.tcp(seg(ACK, 5000, 2000).back()), COMES);
    for at in 0..50 {
        assert_eq!(world.tcp(seg(ACK, 2000 + at * 10_000, 5000).len(10_000)), GOES);
    }
}

#[test]
fn data_beyond_the_window_is_invalid_and_changes_nothing() {
    let world = World::connected();
    assert_eq!(world.tcp(seg(ACK, 1001 + 1000, 5001).len(1)), GOES, "its start is inside");
    let before = world.only();
    assert_eq!(world.tcp(seg(ACK, 2001 + 1000, 5001).len(1)), BAD);
    assert_eq!(world.tcp(seg(ACK, 2002, 5001).len(1000)), BAD, "it ends too far beyond");
    assert_eq!(world.tcp(seg(ACK, 1001 + 0x4000_0000, 5001).len(1)), BAD);
    assert_eq!(world.invalid(Invalid::Sequence), 3);
    assert_eq!(world.only(), before);
}

#[test]
fn a_little_beyond_the_window_passes_and_may_be_acknowledged() {
    let mut world = World::connected();
    world.wait(Duration::from_secs(100));
    let left = world.only().left;
    assert_eq!(world.tcp(seg(ACK, 2002, 5001).len(998)), GOES);
    assert_eq!(world.only().left, left, "nothing else is believed");
    assert_eq!(world.tcp(seg(ACK, 2002, 5001).len(999)), BAD, "the bound has not moved");
    assert_eq!(world.tcp(seg(ACK, 5001, 3000).back()), COMES);
    assert_eq!(world.tcp(seg(ACK, 5001, 3001).back()), BAD);
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_is_invalid() {
    let world = World::connected();
    assert_eq!(world.tcp(seg(ACK, 1001, 5002)), BAD);
    assert_eq!(world.invalid(Invalid::Acknowledgement), 1);
    assert_eq!(world.tcp(seg(ACK, 5001, 1001).back().len(1)), COMES);
    assert_eq!(world.tcp(seg(ACK, 1001, 5002)), GOES);
}

#[test]
fn late_repetitions_pass_but_do_not_keep_a_connection() {
    let mut world = World::connected();
    assert_eq!(world.tcp(seg(ACK, 1001, 5001).len(1000)), GOES);
    assert_eq!(world.tcp(seg(ACK, 5001, 2001).back()), COMES);
    assert_eq!(world.tcp(seg(ACK, 2001, 5001).len(1000)), GOES);
    assert_eq!(world.tcp(seg(ACK, 5001, 3001).back()), COMES);
    world.wait(Duration::from_secs(100));
    let left = world.only().left;
    assert_eq!(world.tcp(seg(ACK, 1001, 5001).len(999)), GOES, "below the window");
    assert_eq!(
        world.tcp(seg(ACK, 3001, 5001u32.wrapping_sub(66_001))),
        GOES,
        "an ancient acknowledgement"
    );
    assert_eq!(world.only().left, left);
    assert_eq!(world.tcp(seg(ACK, 3001, 5001)), GOES);
    assert!(world.only().left > left);
}

#[test]
fn windows_are_scaled_if_both_ends_offer_it() {
    let scale = |shift| [1, 3, 3, shift];
    for (theirs, reach) in [(Some(4u8), 16_000), (None, 1000)] {
        let world = World::new();
        world.tcp(seg(SYN, 1000, 0).options(&scale(2)));
        let answer = seg(SYN | ACK, 5000, 1001).back();
        world.tcp(match theirs {
            Some(shift) => answer.options(&scale(shift)),
            None => answer,
        });
        world.tcp(seg(ACK, 1001, 5001));
        // B repeats its window, now scaled.
        world.tcp(seg(ACK, 5001, 1001).back());
        assert_eq!(world.tcp(seg(ACK, 1001 + reach, 5001).len(1)), GOES, "{theirs:?}");
        assert_eq!(world.tcp(seg(ACK, 1003 + 2 * reach, 5001).len(1)), BAD, "{theirs:?}");
    }
}

#[test]
fn a_repeated_syn_may_begin_elsewhere_and_keeps_its_scale() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0).options(&[1, 3, 3, 7]));
    assert_eq!(world.tcp(seg(SYN, 900_000, 0).options(&[1, 3, 3, 7])), NEW);
    assert_eq!(world.tcp(seg(SYN | ACK, 5000, 900_001).back().options(&[1, 3, 3, 7])), COMES);
    assert_eq!(world.tcp(seg(ACK, 900_001, 5001)), GOES);
    assert_eq!(world.tcp(seg(ACK, 5001, 900_001).back()), COMES);
    assert_eq!(world.tcp(seg(ACK, 900_001 + 100_000, 5001).len(1)), GOES);
}

#[test]
fn a_selective_acknowledgement_opens_the_window_as_far_as_it_reaches() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0).options(&[4, 2, 1, 1]));
    world.tcp(seg(SYN | ACK, 5000, 1001).back().options(&[4, 2, 1, 1]));
    world.tcp(seg(ACK, 1001, 5001));
    world.tcp(seg(ACK, 1101, 5001).len(900));
    let block = |left: u32, right: u32| {
        let mut options = vec![1, 1, 5, 10];
        options.extend(left.to_be_bytes());
        options.extend(right.to_be_bytes());
        options
    };
    assert_eq!(world.tcp(seg(ACK, 5001, 1001).back().options(&block(1101, 2001))), COMES);
    assert_eq!(world.tcp(seg(ACK, 3001, 5001).len(1)), GOES, "2001 and its window");
    assert_eq!(world.tcp(seg(ACK, 5001, 1001).back().options(&block(1101, 3003))), BAD);
    assert_eq!(world.invalid(Invalid::Acknowledgement), 1, "a block that was never sent");
}

#[test]
fn a_super_packet_counts_whole() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0));
    world.tcp(seg(SYN | ACK, 5000, 1001).back().window(65_535));
    world.tcp(seg(ACK, 1001, 5001));
    world.tcp(seg(ACK, 5001, 1001).back().window(65_535));
    let bytes = seg(ACK | FIN, 1001, 5001).len(60_000).bytes();
    let vnet = VnetHeader { gso: Gso::TcpV4, gso_size: 1000, hdr_len: 40, ..VnetHeader::default() };
    let packet = Packet::parse(&bytes, Layer::Ip, None, &vnet).unwrap();
    let tracked = world.tracker.burst(world.now).look(&packet, Crossing::Nowhere.into());
    assert_eq!(tracked.state, CtState::ESTABLISHED);
    assert_eq!(world.only().state, FlowState::FinWait, "its FIN is that of its last segment");
    assert_eq!(world.only().packets[0], 2 + 60);
    assert_eq!(world.tcp(seg(ACK, 5001, 61_002).back()), COMES, "60,000 bytes and the FIN");
    assert_eq!(world.tcp(seg(ACK, 5001, 61_003).back()), BAD);
}

#[test]
fn both_ends_may_open_at_once() {
    let world = World::new();
    assert_eq!(world.tcp(seg(SYN, 1000, 0)), NEW);
    assert_eq!(world.tcp(seg(SYN, 5000, 0).back()), COMES);
    assert_eq!(world.tcp(seg(SYN | ACK, 1000, 5001)), GOES);
    assert_eq!(world.tcp(seg(SYN | ACK, 5000, 1001).back()), COMES);
    assert_eq!(world.tcp(seg(ACK, 5001, 1001).back()), COMES);
    assert_eq!(world.only().state, FlowState::Established);
    assert_eq!(world.tcp(seg(ACK, 1001, 5001).len(10)), GOES);
}

#[test]
fn a_syn_reopens_what_was_closed() {
    let world = World::connected();
    world.tcp(seg(FIN | ACK, 1001, 5001));
    world.tcp(seg(FIN | ACK, 5001, 1002).back());
    world.tcp(seg(ACK, 1002, 5002));
    assert_eq!(world.only().state, FlowState::TimeWait);
    assert_eq!(world.tcp(seg(SYN, 700_000, 0)), NEW);
    assert_eq!(world.only().state, FlowState::SynSent);
    assert_eq!(world.tcp(seg(SYN | ACK, 9000, 700_001).back()), COMES);
    // The same from the other end, which is then the original direction.
    let world = World::connected();
    world.tcp(seg(FIN | ACK, 1001, 5001));
    world.tcp(seg(FIN | ACK, 5001, 1002).back());
    world.tcp(seg(ACK, 1002, 5002));
    assert_eq!(world.tcp(seg(SYN, 70_000, 0).back()), NEW);
    assert_eq!(world.only().source, (host(false, B), 80));
}

#[test]
fn half_a_handshake_that_is_refused_leaves_nothing() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0));
    assert_eq!(world.tcp(seg(RST | ACK, 0, 1001).back()), COMES);
    assert_eq!(world.flows(), []);
}

#[test]
fn both_ends_may_have_started_again_where_we_have_not() {
    // Both ends lost the connection; the SYN is unexpected, and the answer to it shows that it is
    // valid.
    let world = World::connected();
    assert_eq!(world.tcp(seg(SYN, 800_000, 0)), GOES);
    assert_eq!(world.only().state, FlowState::Established);
    assert_eq!(world.tcp(seg(SYN | ACK, 90_000, 800_001).back()), COMES);
    assert_eq!(world.only().state, FlowState::SynRecv);
    assert_eq!(world.tcp(seg(ACK, 800_001, 90_001)), GOES);
    assert_eq!(world.tcp(seg(ACK, 800_001, 90_001).len(500)), GOES);
    assert_eq!(world.tcp(seg(ACK, 802_602, 90_001).len(1)), BAD, "the new window holds");
}

#[test]
fn a_shut_window_may_be_probed_with_one_byte() {
    let world = World::new();
    world.tcp(seg(SYN, 1000, 0));
    world.tcp(seg(SYN | ACK, 5000, 1001).back().window(0));
    assert_eq!(world.tcp(seg(ACK, 1001, 5001).len(1)), GOES);
    assert_eq!(world.tcp(seg(ACK, 1002, 5001).len(1)), GOES);
    assert_eq!(world.tcp(seg(ACK, 1003, 5001).len(1)), BAD, "whose window is shut");
}
