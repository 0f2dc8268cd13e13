#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use proptest::prelude::*;

use super::*;
use crate::keys::unhex;

fn session(bytes: &str) -> SessionId {
    SessionId(unhex(bytes).try_into().unwrap())
}

/// A control packet with one acknowledgement, as captured (test_pkt.c).
const WITH_ACK: &str = "207819bf2ebcd19a45 01 00000000 eafebfa4418ae31b 00000001 160301";

#[test]
fn captured_packets_parse_and_are_written_back() {
    let bytes = unhex("386891923fa3103437 00 00000000");
    let reset = Control::parse(&bytes).unwrap();
    assert_eq!(reset.header(), Header { opcode: Opcode::HardResetClientV2, key_id: 0 });
    assert_eq!(reset.session, session("6891923fa3103437"));
    assert!(reset.acks.is_empty());
    assert_eq!((reset.remote, reset.message, reset.payload), (None, Some(0), &[][..]));

    let bytes = unhex(WITH_ACK);
    let control = Control::parse(&bytes).unwrap();
    assert_eq!(control.opcode, Opcode::ControlV1);
    assert_eq!(control.acks.iter().collect::<Vec<_>>(), [0]);
    assert_eq!(control.remote, Some(session("eafebfa4418ae31b")));
    assert_eq!((control.message, control.payload), (Some(1), &[0x16, 3, 1][..]));

    let bytes = unhex("28aeb9afe1f01d79c8 03 00000000 00000001 00000002 dd85db535623b02e");
    let ack = Control::parse(&bytes).unwrap();
    assert_eq!(ack.opcode, Opcode::AckV1);
    assert_eq!(ack.acks.iter().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(ack.remote, Some(session("dd85db535623b02e")));
    assert_eq!((ack.message, ack.payload), (None, &[][..]));

    for packet in [
        "386891923fa3103437 00 00000000",
        WITH_ACK,
        "28aeb9afe1f01d79c8 03 00000000 00000001 00000002 dd85db535623b02e",
    ] {
        let bytes = unhex(packet);
        let mut again = Vec::new();
        let control = Control::parse(&bytes).unwrap();
        control.encode(&mut again);
        assert_eq!(again, bytes);
        let overhead = Control::overhead(control.opcode, control.acks.len());
        assert_eq!(overhead + control.payload.len(), bytes.len());
    }
}

/// Includes a packet of test_pkt.c whose message id is cut off.
#[test]
fn truncated_at_every_length_is_too_short() {
    let whole = unhex(WITH_ACK);
    for len in 0..whole.len() - 3 {
        assert_eq!(Control::parse(&whole[..len]), Err(PacketError::TooShort), "{len}");
    }
    let cut = unhex("20aeb9afe1f01d79c8 01 00000000 02");
    assert_eq!(Control::parse(&cut), Err(PacketError::TooShort));
}

/// OpenVPN does not check the bytes that follow, and neither do we.
#[test]
fn an_acknowledgement_has_no_message_and_no_payload() {
    let bytes = unhex("28aeb9afe1f01d79c8 01 00000000 dd85db535623b02e 00000007 160301");
    let ack = Control::parse(&bytes).unwrap();
    assert_eq!((ack.message, ack.payload), (None, &[][..]));
    let mut again = Vec::new();
    Control { message: Some(7), payload: &[1], ..ack }.encode(&mut again);
    assert_eq!(again, bytes[..22]);
}

#[test]
fn old_unknown_and_data_opcodes_are_refused() {
    let mut packet = unhex(WITH_ACK);
    for number in 0..32 {
        packet[0] = number << 3;
        let expected = match number {
            3 | 4 | 5 | 7 | 8 | 10 | 11 => Ok(number),
            _ => Err(PacketError::BadOpcode(number)),
        };
        assert_eq!(Control::parse(&packet).map(|control| control.opcode.number()), expected);
    }
    for number in [0, 1, 2, 12, 31] {
        assert_eq!(Header::parse(number << 3), Err(PacketError::BadOpcode(number)));
    }
    assert_eq!(Header::parse(9 << 3 | 5).map(|header| header.key_id), Ok(5));
}

#[test]
fn a_hard_reset_has_key_id_0() {
    for opcode in [7, 8, 10] {
        for key_id in 1..8 {
            let byte = opcode << 3 | key_id;
            assert_eq!(Header::parse(byte), Err(PacketError::BadKeyId(key_id)));
        }
    }
    for opcode in [3, 4, 5, 11] {
        let header = Header::parse(opcode << 3 | 7).unwrap();
        assert_eq!((header.key_id, header.byte()), (7, opcode << 3 | 7));
    }
}

#[test]
fn a_session_id_of_zeros_is_refused() {
    let mut packet = unhex(WITH_ACK);
    packet[1..9].fill(0);
    assert_eq!(Control::parse(&packet), Err(PacketError::ZeroSession));
    packet[8] = 1;
    assert!(Control::parse(&packet).is_ok());
}

#[test]
fn eight_acknowledgements_and_no_more() {
    for count in [8_u8, 9, 255] {
        let mut packet = unhex("28aeb9afe1f01d79c8");
        packet.push(count);
        packet.extend((0..u32::from(count)).flat_map(u32::to_be_bytes));
        packet.extend([1; 8]);
        match Control::parse(&packet) {
            Ok(control) => {
                assert_eq!(count, 8);
                assert_eq!(control.acks.iter().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
            }
            Err(error) => {
                assert!(count > 8);
                assert_eq!(error, PacketError::TooManyAcks(count));
            }
        }
    }
    assert!(Acks::from_slice(&[0; 8]).is_some());
    assert!(Acks::from_slice(&[0; 9]).is_none());
}

fn control() -> impl Strategy<Value = (Control<'static>, Vec<u8>)> {
    let opcode = prop::sample::select(
        Opcode::ALL.into_iter().filter(|opcode| !opcode.is_data()).collect::<Vec<_>>(),
    );
    let ids = prop::collection::vec(any::<u32>(), 0..=8);
    let session = (1..u64::MAX).prop_map(|id| SessionId(id.to_be_bytes()));
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    (opcode, 0..8_u8, session, ids, any::<[u8; 8]>(), any::<u32>(), payload).prop_map(
        |(opcode, key_id, session, ids, remote, message, payload)| {
            let acks = Acks::from_slice(&ids).unwrap();
            let ack = opcode == Opcode::AckV1;
            let control = Control {
                opcode,
                key_id: if opcode.is_hard_reset() { 0 } else { key_id },
                session,
                acks,
                remote: (!acks.is_empty()).then_some(SessionId(remote)),
                message: (!ack).then_some(message),
                payload: &[],
            };
            (control, if ack { Vec::new() } else { payload })
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read((control, payload) in control()) {
        let control = Control { payload: &payload, ..control };
        let mut bytes = Vec::new();
        control.encode(&mut bytes);
        prop_assert_eq!(Control::parse(&bytes), Ok(control));
        let overhead = Control::overhead(control.opcode, control.acks.len());
        prop_assert_eq!(overhead + payload.len(), bytes.len());
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        fuzz(&bytes);
    }

    /// With a valid front, arbitrary bytes exercise more of the parser.
    #[test]
    fn nearly_packets_do_not_panic(
        number in 3..12_u8,
        count in 0..10_u8,
        bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        fuzz(&[&[number << 3, 1, 1, 1, 1, 1, 1, 1, 1, count], bytes.as_slice()].concat());
    }
}
