#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use adit_crypto::Digest;
use adit_engine::UnixTime;
use proptest::prelude::*;

use super::*;
use crate::keys::vectors::*;
use crate::keys::{Metadata, unhex};
use crate::packet::{Acks, Control, Opcode, SessionId};

const NOW: UnixTime = UnixTime(1_700_000_000);

fn unit_key() -> StaticKey {
    StaticKey::parse(UNIT_STATIC).unwrap()
}

fn stock_key() -> StaticKey {
    StaticKey::parse(STOCK_STATIC).unwrap()
}

fn auth(key: StaticKey, direction: Option<Direction>, digest: Digest) -> WrapConfig {
    WrapConfig::TlsAuth { key, direction, digest }
}

/// Returns matching client and server configurations, one pair of each kind.
fn pairs() -> Vec<(WrapConfig, WrapConfig)> {
    use Direction::{Inverse, Normal};
    let crypt = || WrapConfig::TlsCrypt { key: unit_key() };
    vec![
        (WrapConfig::None, WrapConfig::None),
        (
            auth(unit_key(), Some(Inverse), Digest::Sha1),
            auth(unit_key(), Some(Normal), Digest::Sha1),
        ),
        (
            auth(unit_key(), Some(Normal), Digest::Sha512),
            auth(unit_key(), Some(Inverse), Digest::Sha512),
        ),
        (auth(unit_key(), None, Digest::Md5), auth(unit_key(), None, Digest::Md5)),
        (crypt(), crypt()),
        v2_pair(),
    ]
}

fn v2_pair() -> (WrapConfig, WrapConfig) {
    (
        WrapConfig::TlsCryptV2Client { key: ClientKey::parse(UNIT_CLIENT_USER).unwrap() },
        WrapConfig::tls_crypt_v2_server(ServerKey::parse(UNIT_SERVER).unwrap()),
    )
}

fn is_v2(config: &WrapConfig) -> bool {
    matches!(config, WrapConfig::TlsCryptV2Client { .. } | WrapConfig::TlsCryptV2Server { .. })
}

fn reset(config: &WrapConfig) -> Control<'static> {
    Control {
        opcode: if is_v2(config) { Opcode::HardResetClientV3 } else { Opcode::HardResetClientV2 },
        key_id: 0,
        session: SessionId(*b"client01"),
        acks: Acks::NONE,
        remote: None,
        message: Some(0),
        payload: &[],
    }
}

fn message(opcode: Opcode, session: &[u8; 8]) -> Control<'static> {
    Control {
        opcode,
        key_id: 0,
        session: SessionId(*session),
        acks: Acks::from_slice(&[0]).unwrap(),
        remote: Some(SessionId(*b"theother")),
        message: (opcode != Opcode::AckV1).then_some(1),
        payload: if opcode == Opcode::AckV1 { &[] } else { b"some TLS" },
    }
}

fn seal(wrapper: &mut Wrapper, control: &Control<'_>) -> Vec<u8> {
    let mut out = vec![0xee; 3];
    wrapper.seal(control, NOW, &mut out).unwrap();
    out
}

/// Returns a client that has sent its reset, and the server's wrapper for it.
fn introduce(client: &WrapConfig, server: &WrapConfig) -> (Wrapper, Wrapper) {
    let mut wrapper = Wrapper::client(client).unwrap();
    let mut packet = seal(&mut wrapper, &reset(client));
    let first = WrapServer::new(server).unwrap().open_first(&mut packet).unwrap();
    (wrapper, first.wrapper)
}

mod captures {
    use super::*;

    fn open_first(config: &WrapConfig, hex: &str) -> Result<(u32, bool), WrapError> {
        let mut packet = unhex(hex);
        let server = WrapServer::new(config).unwrap();
        let first = server.open_first(&mut packet)?;
        assert!(first.control.acks.is_empty());
        Ok((first.control.message.unwrap(), first.early_negotiation))
    }

    /// From test_pkt.c.
    const RESET_AUTH: &str = "38de694c5c7bfba27493537c1ded4e781529ae7cfe4b8c6d6b2b51f05a\
        0000000161d3bf6c0000000000";
    const RESET_CRYPT: &str = "38f419cb12d1f9e48f0000000161d3f8e1330206f56802be44fbed9050\
        64e3db43416bec5e526719462b7eb90c96defc9b05c44879f7";

    #[test]
    fn resets_of_the_unit_tests() {
        let normal = auth(unit_key(), Some(Direction::Normal), Digest::Sha1);
        let inverse = auth(unit_key(), Some(Direction::Inverse), Digest::Sha1);
        let crypt = WrapConfig::TlsCrypt { key: unit_key() };
        assert_eq!(open_first(&normal, RESET_AUTH), Ok((0, false)));
        assert_eq!(open_first(&inverse, RESET_AUTH), Err(WrapError::BadMac));
        assert_eq!(open_first(&crypt, RESET_CRYPT), Ok((0, false)));
        assert!(open_first(&normal, RESET_CRYPT).is_err());
        assert!(open_first(&crypt, RESET_AUTH).is_err());
        assert_eq!(open_first(&WrapConfig::None, "386891923fa310343700 00000000"), Ok((0, false)));
    }

    /// As in test_pkt.c, byte 0x23 replaces each byte in turn.
    #[test]
    fn resets_with_one_byte_replaced() {
        let crypt = WrapConfig::TlsCrypt { key: unit_key() };
        let server = WrapServer::new(&crypt).unwrap();
        let whole = unhex(RESET_CRYPT);
        for index in 0..whole.len() {
            let mut packet = whole.clone();
            packet[index] = 0x23;
            assert!(server.open_first(&mut packet).is_err(), "byte {index}");
        }
    }

    /// The client side of test_pkt.c's first TLS packet, under tls-auth.
    #[test]
    fn a_client_hello_under_tls_auth() {
        let packet = "2014014ebc80c6142b7bc876fbc52e27b1c507355bb6006bae71ba4e38\
            0000000361d3ff530000000001160301010c0100010803038caaac3a1a07bde7b750069b940c344b5a35\
            cac479bdc909b07bd9eebb7de725203938e2183336149f34f04459968d0ed24776648859e93803979698\
            45fbf5ff230032130213031301c02cc030009fcca9cca8ccaac02bc02f009ec024c028006bc023c02700\
            67c00ac0140039c009c013003300ff0100008d000b000403000102000a000c000a001d0017001e001900\
            180016000000170000000d0030002e040305030603080708080809080a080b0804080508060401050106\
            0103030203030102010302020204020502060200 2b00050403040303002d00020101003300260024001d\
            00200ec97aff58db56f640d1eddb9181d6ef83868ab23d88923fd8519cd62656336b";
        let config = auth(unit_key(), Some(Direction::Normal), Digest::Sha1);
        let server = WrapServer::new(&config).unwrap();
        let mut packet = unhex(packet);
        let first = server.open_first(&mut packet).unwrap();
        assert_eq!((first.control.opcode, first.control.message), (Opcode::ControlV1, Some(1)));
        assert_eq!(first.control.payload[..5], [0x16, 3, 1, 1, 0x0c]);
        assert_eq!(first.control.payload.len(), 0x10c + 5);
    }

    /// Resets that openvpn 2.6.14 sent, twice each.
    #[test]
    fn resets_of_openvpn_under_each_wrapping() {
        let cases = [
            (
                WrapConfig::TlsCrypt { key: stock_key() },
                "38b6e986a7d163cad3000000016b00137a893c24e7c0b4f8e84de453a95940e81929b306186887a0\
                 2a29786542dbbb035e78261aa428",
                "38b6e986a7d163cad3000000026b00137aa98c0c7a9e8ec6b2ff5e50ca4144fb7013d7cd314c45e6\
                 c715a447a5d7c13630547551f157",
            ),
            (
                // The client uses direction 1.
                auth(stock_key(), Some(Direction::Normal), Digest::Sha512),
                "38e0216ce78f6c9894ef35edf5a054a5b63e413e23bd7511d496f39581697a03535d1d7ac1a31a8e\
                 4e5afaea75c6eb370b1310bb4e90a3c7d2a8ed054e0cbc28fe1583239cbde78b9c000000016b0013\
                 7c0000000000",
                "38e0216ce78f6c9894b2109a807c9cf1603c8f2f23aa1e91f9f017fb4843d9245b31b21be42ed7dc\
                 f78ccd13476c72b18bd0ad46aaa04fe33fa53f2d1a3644a7d4c06a3625eb309ae9000000026b0013\
                 7c0000000000",
            ),
            (
                auth(stock_key(), None, Digest::Sha256),
                "38bbe02ba6514cec0eda403d32673a6e059afdfd61d27e5db91e29862199ff3b9eb51012bc294e6c\
                 51000000016b00137e0000000000",
                "38bbe02ba6514cec0ebe0defb330519239eefa9d5b49bbfd7ef9381851e12d8a02df16ab6c9db882\
                 7b000000026b00137e0000000000",
            ),
            (
                // The client uses direction 0.
                auth(stock_key(), Some(Direction::Inverse), Digest::Md5),
                "382d292fcbf1d0669d21153cd58eed27febe72d7b21287e85e000000016b0013800000000000",
                "382d292fcbf1d0669d0c9af251290ebd086939d990cfea9761000000026b0013800000000000",
            ),
        ];
        for (config, one, two) in cases {
            let server = WrapServer::new(&config).unwrap();
            let mut packet = unhex(one);
            let mut first = server.open_first(&mut packet).unwrap();
            assert_eq!((first.control.message, first.early_negotiation), (Some(0), false));
            let again = first.wrapper.open(&mut unhex(two)).map(|control| control.opcode);
            assert_eq!(again, Ok(Opcode::HardResetClientV2));
            for hex in [one, two] {
                let replay = first.wrapper.open(&mut unhex(hex)).map(|_| ());
                assert_eq!(replay, Err(WrapError::Replayed));
            }
        }
    }

    /// Under tls-crypt-v2 the packet ends with the client's wrapped key.
    #[test]
    fn resets_of_openvpn_under_tls_crypt_v2() {
        let client = ClientKey::parse(STOCK_CLIENT).unwrap();
        let fronts = [
            "50fac62db2f8eba6380f0000016b00137857b2eb852ae9c40f0569e6ec0c65c8208a14702aa5a9703f\
             c4475b528d6265e1b05cf6151a",
            "50fac62db2f8eba6380f0000026b0013788e4e2038b485883579e8bc5a90c66505937545faab19368c\
             2e945f78966ecdfab3b5c57195",
        ];
        let [one, two] = fronts.map(|front| [unhex(front), client.wkc.clone()].concat());
        let server = WrapServer::new(&WrapConfig::tls_crypt_v2_server(
            ServerKey::parse(STOCK_SERVER).unwrap(),
        ))
        .unwrap();
        let mut packet = one.clone();
        let mut first = server.open_first(&mut packet).unwrap();
        assert_eq!(first.control.opcode, Opcode::HardResetClientV3);
        assert_eq!((first.control.message, first.control.payload), (Some(0), &[][..]));
        assert!(first.early_negotiation);
        assert_eq!(first.metadata, Some(Metadata::Timestamp(1_795_167_079)));
        assert!(first.wrapper.open(&mut two.clone()).is_ok());
        assert_eq!(first.wrapper.open(&mut one.clone()).unwrap_err(), WrapError::Replayed);
    }

    /// Our packet under the same key, id and time is identical byte for byte, so our sealed packets
    /// are those that OpenVPN would send.
    #[test]
    fn we_seal_as_openvpn_does() {
        let cases = [
            (
                WrapConfig::TlsCrypt { key: stock_key() },
                "38b6e986a7d163cad3000000016b00137a893c24e7c0b4f8e84de453a95940e81929b306186887a0\
                 2a29786542dbbb035e78261aa428",
            ),
            (
                auth(stock_key(), Some(Direction::Inverse), Digest::Sha512),
                "38e0216ce78f6c9894ef35edf5a054a5b63e413e23bd7511d496f39581697a03535d1d7ac1a31a8e\
                 4e5afaea75c6eb370b1310bb4e90a3c7d2a8ed054e0cbc28fe1583239cbde78b9c000000016b0013\
                 7c0000000000",
            ),
            (
                auth(stock_key(), None, Digest::Sha256),
                "38bbe02ba6514cec0eda403d32673a6e059afdfd61d27e5db91e29862199ff3b9eb51012bc294e6c\
                 51000000016b00137e0000000000",
            ),
        ];
        for (config, hex) in cases {
            let expected = unhex(hex);
            let session = SessionId(expected[1..9].try_into().unwrap());
            let time = match config {
                WrapConfig::TlsCrypt { .. } => &expected[13..17],
                _ => &expected[expected.len() - 9..expected.len() - 5],
            };
            let time = u32::from_be_bytes(time.try_into().unwrap());
            let control = Control { session, ..reset(&config) };
            let mut out = Vec::new();
            let mut wrapper = Wrapper::client(&config).unwrap();
            wrapper.seal(&control, UnixTime(time.into()), &mut out).unwrap();
            assert_eq!(out, expected);
        }
    }
}

mod sessions {
    use super::*;

    #[test]
    fn a_handshake_and_a_rekey_under_each_wrapping() {
        for (client, server) in pairs() {
            let (mut c, mut s) = introduce(&client, &server);
            let hello = Control {
                opcode: Opcode::HardResetServerV2,
                payload: &[0, 1, 0, 2, 0, 1],
                ..message(Opcode::ControlV1, b"server01")
            };
            let third = if is_v2(&client) { Opcode::ControlWkcV1 } else { Opcode::ControlV1 };
            assert_eq!(c.open(&mut seal(&mut s, &hello)), Ok(hello));
            for control in [
                message(third, b"client01"),
                message(Opcode::AckV1, b"client01"),
                Control { key_id: 3, ..message(Opcode::SoftResetV1, b"client01") },
            ] {
                let overhead = c.overhead(control.opcode, control.acks.len());
                let mut packet = seal(&mut c, &control);
                assert_eq!(packet.len(), overhead + control.payload.len(), "{client:?}");
                assert_eq!(s.open(&mut packet), Ok(control));
            }
            let answer = message(Opcode::ControlV1, b"server01");
            assert_eq!(c.open(&mut seal(&mut s, &answer)), Ok(answer));
        }
    }

    #[test]
    fn a_reflected_packet_does_not_authenticate() {
        for (client, server) in pairs() {
            let (mut c, mut s) = introduce(&client, &server);
            let control = message(Opcode::ControlV1, b"client01");
            let from_client = c.open(&mut seal(&mut c_clone(&client), &control)).map(|_| ());
            let from_server =
                s.open(&mut seal(&mut s_clone(&client, &server), &control)).map(|_| ());
            // If both ends use the same half, or no key, the directions are indistinguishable.
            let told =
                !matches!(client, WrapConfig::None | WrapConfig::TlsAuth { direction: None, .. });
            assert_eq!(from_client == Err(WrapError::BadMac), told, "{client:?}");
            assert_eq!(from_server == Err(WrapError::BadMac), told, "{client:?}");
        }
    }

    fn c_clone(client: &WrapConfig) -> Wrapper {
        Wrapper::client(client).unwrap()
    }

    fn s_clone(client: &WrapConfig, server: &WrapConfig) -> Wrapper {
        let mut s = introduce(client, server).1;
        s.set_next_id(0x0fff_ffff);
        s
    }

    #[test]
    fn key_directions_that_do_not_fit() {
        use Direction::{Inverse, Normal};
        let all = [None, Some(Normal), Some(Inverse)];
        for client in all {
            for server in all {
                let mut wrapper = Wrapper::client(&auth(unit_key(), client, Digest::Sha1)).unwrap();
                let control = reset(&WrapConfig::None);
                let mut packet = seal(&mut wrapper, &control);
                let server_config = auth(unit_key(), server, Digest::Sha1);
                let opened =
                    WrapServer::new(&server_config).unwrap().open_first(&mut packet).map(|_| ());
                let fits = matches!(
                    (client, server),
                    (None, None) | (Some(Normal), Some(Inverse)) | (Some(Inverse), Some(Normal))
                    // Without a direction, a client sends with the half that an inverse server
                    // expects.
                    | (None, Some(Inverse)) | (Some(Normal), None)
                );
                let expected = if fits { Ok(()) } else { Err(WrapError::BadMac) };
                assert_eq!(opened, expected, "client {client:?}, server {server:?}");
            }
        }
    }

    #[test]
    fn another_key_or_digest_does_not_authenticate() {
        let other = StaticKey::new([9; 256]);
        let normal = Some(Direction::Normal);
        let cases = [
            (
                auth(unit_key(), normal, Digest::Sha1),
                auth(other.clone(), Some(Direction::Inverse), Digest::Sha1),
            ),
            (WrapConfig::TlsCrypt { key: unit_key() }, WrapConfig::TlsCrypt { key: other }),
        ];
        for (client, server) in cases {
            let mut packet = seal(&mut Wrapper::client(&client).unwrap(), &reset(&client));
            let opened = WrapServer::new(&server).unwrap().open_first(&mut packet).map(|_| ());
            assert_eq!(opened, Err(WrapError::BadMac));
        }
        let client = auth(unit_key(), normal, Digest::Sha256);
        let server = auth(unit_key(), Some(Direction::Inverse), Digest::Sha1);
        let mut packet = seal(&mut Wrapper::client(&client).unwrap(), &reset(&client));
        let opened = WrapServer::new(&server).unwrap().open_first(&mut packet).map(|_| ());
        assert_eq!(opened, Err(WrapError::BadMac));
    }

    #[test]
    fn every_altered_byte_is_refused() {
        for (client, server) in pairs().into_iter().skip(1) {
            let (mut c, mut s) = introduce(&client, &server);
            let whole = seal(&mut c, &message(Opcode::ControlV1, b"client01"));
            for index in 0..whole.len() {
                for bit in 0..8 {
                    let mut packet = whole.clone();
                    packet[index] ^= 1 << bit;
                    let opened = s.open(&mut packet).map(|_| ());
                    // Byte 0 may also become another opcode; everything else fails authentication.
                    match opened {
                        Err(WrapError::Malformed(_)) => assert_eq!(index, 0),
                        _ => assert_eq!(opened, Err(WrapError::BadMac), "{client:?} byte {index}"),
                    }
                }
            }
            // None of those packets was recorded as seen.
            assert!(s.open(&mut whole.clone()).is_ok());
        }
    }

    #[test]
    fn truncated_at_every_length_is_refused() {
        for (client, server) in pairs() {
            let (mut c, mut s) = introduce(&client, &server);
            let ack = seal(&mut c, &message(Opcode::AckV1, b"client01"));
            for len in 0..ack.len() {
                assert!(s.open(&mut ack[..len].to_vec()).is_err(), "{client:?} {len}");
            }
            let whole = seal(&mut Wrapper::client(&client).unwrap(), &reset(&client));
            let server = WrapServer::new(&server).unwrap();
            for len in 0..whole.len() {
                assert!(server.open_first(&mut whole[..len].to_vec()).is_err(), "{client:?} {len}");
            }
            assert!(s.open(&mut ack.clone()).is_ok());
        }
    }

    /// Builds a client's tls-crypt packet manually, because our own code does not produce malformed
    /// ones.
    fn crypt_by_hand(rest: &[u8]) -> Vec<u8> {
        let [_, half] = unit_key().halves();
        let mut front = vec![Opcode::ControlV1.number() << 3];
        front.extend(b"client01");
        front.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        let tag = adit_crypto::hmac(Digest::Sha256, &half.hmac[..32], &[&front, rest]).unwrap();
        let iv = tag.as_bytes()[..16].try_into().unwrap();
        let mut rest = rest.to_vec();
        adit_crypto::aes256_ctr(half.cipher[..32].try_into().unwrap(), &iv, &mut rest).unwrap();
        [&front, tag.as_bytes(), &rest].concat()
    }

    /// CVE-2026-35058: such a packet under a valid key terminated the server.
    #[test]
    fn authentic_but_malformed_is_refused() {
        let server = WrapServer::new(&WrapConfig::TlsCrypt { key: unit_key() }).unwrap();
        let open = |rest: &[u8]| server.open_first(&mut crypt_by_hand(rest)).map(|_| ());
        assert_eq!(open(&[0, 0, 0, 0, 9]), Ok(()));
        let eight = [&[8][..], &[0; 44]].concat();
        assert_eq!(open(&eight), Ok(()));
        let nine = [&[9][..], &[0; 48]].concat();
        assert_eq!(open(&nine), Err(PacketError::TooManyAcks(9).into()));
        assert_eq!(open(&[]), Err(PacketError::TooShort.into()));
        assert_eq!(open(&[0, 0, 0, 0]), Err(PacketError::TooShort.into()));
        assert_eq!(open(&eight[..44]), Err(PacketError::TooShort.into()));
    }

    #[test]
    fn only_the_other_ends_opcodes() {
        for (client, server) in pairs() {
            let (mut c, mut s) = introduce(&client, &server);
            for opcode in Opcode::ALL {
                // The correct end seals the packet, so that only its opcode can be at fault.
                let control = Control { key_id: 0, ..message(opcode, b"whatever") };
                let mut to_client = Vec::new();
                let mut to_server = Vec::new();
                s.seal(&control, NOW, &mut to_client).unwrap();
                c.seal(&control, NOW, &mut to_server).unwrap();
                let refused = Err(WrapError::Malformed(PacketError::BadOpcode(opcode.number())));
                let v2 = is_v2(&client);
                let (from_server, from_client) = match opcode {
                    Opcode::SoftResetV1 | Opcode::ControlV1 | Opcode::AckV1 => (true, true),
                    Opcode::HardResetServerV2 => (true, false),
                    Opcode::HardResetClientV2 => (false, !v2),
                    Opcode::HardResetClientV3 | Opcode::ControlWkcV1 => (false, v2),
                    Opcode::DataV1 | Opcode::DataV2 => (false, false),
                };
                let opened = c.open(&mut to_client).map(|_| ());
                assert_eq!(opened, if from_server { Ok(()) } else { refused }, "{opcode}");
                let opened = s.open(&mut to_server).map(|_| ());
                assert_eq!(opened, if from_client { Ok(()) } else { refused }, "{opcode}");
            }
        }
    }

    #[test]
    fn strangers_send_resets_and_the_third_packet_and_nothing_else() {
        for (client, server) in pairs() {
            let server = WrapServer::new(&server).unwrap();
            let v2 = is_v2(&client);
            for opcode in Opcode::ALL {
                let mut c = Wrapper::client(&client).unwrap();
                let mut packet = seal(&mut c, &message(opcode, b"client01"));
                let opened = server.open_first(&mut packet).map(|_| ());
                let allowed = match opcode {
                    Opcode::HardResetClientV3 | Opcode::ControlWkcV1 => v2,
                    Opcode::HardResetClientV2 | Opcode::ControlV1 | Opcode::AckV1 => !v2,
                    _ => false,
                };
                let number = opcode.number();
                let refused = Err(WrapError::Malformed(PacketError::BadOpcode(number)));
                assert_eq!(opened, if allowed { Ok(()) } else { refused }, "{opcode}");
            }
            let mut c = Wrapper::client(&client).unwrap();
            let third = if v2 { Opcode::ControlWkcV1 } else { Opcode::ControlV1 };
            let mut packet = seal(&mut c, &Control { key_id: 1, ..message(third, b"client01") });
            let refused = Err(WrapError::Malformed(PacketError::BadKeyId(1)));
            assert_eq!(server.open_first(&mut packet).map(|_| ()), refused);
        }
    }

    #[test]
    fn configurations_of_the_wrong_end_are_refused() {
        let (client, server) = v2_pair();
        assert_eq!(Wrapper::client(&server).unwrap_err(), WrapError::WrongRole);
        assert_eq!(WrapServer::new(&client).unwrap_err(), WrapError::WrongRole);
    }

    #[test]
    fn nothing_secret_is_printed() {
        for (client, server) in pairs() {
            let text = format!("{client:?}{server:?}{:?}", introduce(&client, &server));
            assert!(!text.contains("37,") && !text.contains('['), "{text}");
        }
    }
}

mod crypt_v2 {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    fn server_key() -> ServerKey {
        ServerKey::parse(UNIT_SERVER).unwrap()
    }

    fn limited(days: u64, shared: Option<WrapConfig>) -> WrapConfig {
        WrapConfig::TlsCryptV2Server {
            key: server_key(),
            max_age: Some(Duration::from_secs(days * DAY)),
            shared: shared.map(Box::new),
        }
    }

    /// Returns a client whose key has this metadata.
    fn client_of(metadata: Option<&Metadata>) -> WrapConfig {
        WrapConfig::TlsCryptV2Client { key: server_key().client_key(unit_key(), metadata).unwrap() }
    }

    fn judge(server: &WrapConfig, client: &WrapConfig, now: u64) -> Result<(), WrapError> {
        let server = WrapServer::new(server).unwrap();
        for opcode in [reset(client).opcode, third_of(client)] {
            let mut c = Wrapper::client(client).unwrap();
            let mut packet = seal(&mut c, &message(opcode, b"client01"));
            let first = server.open_first(&mut packet).unwrap();
            server.check_age(&first, UnixTime(now))?;
        }
        Ok(())
    }

    fn third_of(client: &WrapConfig) -> Opcode {
        if is_v2(client) { Opcode::ControlWkcV1 } else { Opcode::ControlV1 }
    }

    #[test]
    fn the_age_of_a_clients_key_is_judged_by_its_time_stamp() {
        let made = 1_700_000_000;
        let client = client_of(Some(&Metadata::Timestamp(made)));
        for (days, now, outcome) in [
            (90, made, Ok(())),
            (90, made + 90 * DAY, Ok(())),
            (90, made + 90 * DAY + 1, Err(WrapError::KeyTooOld)),
            (1, made + DAY + 1, Err(WrapError::KeyTooOld)),
            (90, u64::MAX, Err(WrapError::KeyTooOld)),
            // OpenVPN accepts a time in the future.
            (90, made - 1000 * DAY, Ok(())),
            (90, 0, Ok(())),
        ] {
            assert_eq!(judge(&limited(days, None), &client, now), outcome, "{days} {now}");
        }
        for other in [None, Some(Metadata::User(made.to_be_bytes().to_vec()))] {
            let client = client_of(other.as_ref());
            let refused = Err(WrapError::KeyWithoutTime);
            assert_eq!(judge(&limited(90, None), &client, made), refused);
            assert_eq!(
                judge(&WrapConfig::tls_crypt_v2_server(server_key()), &client, made),
                Ok(())
            );
        }
        // A key shared by many clients has no age.
        let crypt = WrapConfig::TlsCrypt { key: stock_key() };
        assert_eq!(judge(&limited(1, Some(crypt.clone())), &crypt, u64::MAX), Ok(()));
    }

    #[test]
    fn a_server_with_both_kinds_of_keys_takes_both_kinds_of_clients() {
        use Direction::{Inverse, Normal};
        let shared = [
            (
                auth(stock_key(), Some(Inverse), Digest::Sha256),
                auth(stock_key(), Some(Normal), Digest::Sha256),
            ),
            (WrapConfig::TlsCrypt { key: stock_key() }, WrapConfig::TlsCrypt { key: stock_key() }),
        ];
        for (with_shared, shared) in shared {
            let own = client_of(None);
            let both = WrapConfig::TlsCryptV2Server {
                key: server_key(),
                max_age: None,
                shared: Some(Box::new(shared.clone())),
            };
            for client in [&own, &with_shared] {
                let (mut c, mut s) = introduce(client, &both);
                let answer = message(Opcode::ControlV1, b"server01");
                s.set_next_id(2);
                assert_eq!(c.open(&mut seal(&mut s, &answer)), Ok(answer));
            }
            // A client's packets are accepted only with its own kind of key.
            let server = WrapServer::new(&both).unwrap();
            for (client, other) in [(&own, Opcode::ControlV1), (&with_shared, Opcode::ControlWkcV1)]
            {
                let mut c = Wrapper::client(client).unwrap();
                let mut packet = seal(&mut c, &message(other, b"client01"));
                assert!(server.open_first(&mut packet).is_err(), "{client:?}");
            }
            let mut c = Wrapper::client(&WrapConfig::None).unwrap();
            let mut packet = seal(&mut c, &reset(&WrapConfig::None));
            assert!(server.open_first(&mut packet).is_err());
            // A client has only one of the two keys, and a server's shared key cannot be a
            // client's.
            assert_eq!(Wrapper::client(&both).unwrap_err(), WrapError::WrongRole);
            let nested = WrapConfig::TlsCryptV2Server {
                key: server_key(),
                max_age: None,
                shared: Some(Box::new(both)),
            };
            assert_eq!(WrapServer::new(&nested).unwrap_err(), WrapError::WrongRole);
        }
    }

    fn third(c: &mut Wrapper) -> Vec<u8> {
        seal(c, &message(Opcode::ControlWkcV1, b"client01"))
    }

    #[test]
    fn the_third_packet_alone_makes_a_session() {
        let (client, server) = v2_pair();
        let server = WrapServer::new(&server).unwrap();
        let mut c = Wrapper::client(&client).unwrap();
        seal(&mut c, &reset(&client));
        let mut packet = third(&mut c);
        let mut first = server.open_first(&mut packet).unwrap();
        assert_eq!(first.control, message(Opcode::ControlWkcV1, b"client01"));
        assert_eq!(first.metadata, Some(Metadata::User(unhex("0000410820c3"))));
        first.wrapper.set_next_id(2);
        let answer = message(Opcode::ControlV1, b"server01");
        let mut packet = seal(&mut first.wrapper, &answer);
        assert_eq!(packet[9..13], 2_u32.to_be_bytes());
        assert_eq!(c.open(&mut packet), Ok(answer));
    }

    #[test]
    fn the_client_announces_early_negotiation_and_an_old_one_does_not() {
        let (client, server) = v2_pair();
        let server = WrapServer::new(&server).unwrap();
        let mut c = Wrapper::client(&client).unwrap();
        let mut packet = seal(&mut c, &reset(&client));
        assert_eq!(packet[9..13], [0x0f, 0, 0, 1]);
        assert!(server.open_first(&mut packet).unwrap().early_negotiation);
        // Version 2.5 starts at 1.
        for (id, early) in
            [(1, false), (0x0f00_0000, true), (0x1f00_0001, true), (0x0e00_0001, false)]
        {
            c.set_next_id(id);
            let mut packet = seal(&mut c, &reset(&client));
            let first = server.open_first(&mut packet).unwrap();
            assert_eq!(first.early_negotiation, early, "{id:x}");
        }
    }

    #[test]
    fn a_missing_or_foreign_wrapped_key_is_refused() {
        let (client, server) = v2_pair();
        let server = WrapServer::new(&server).unwrap();
        let mut c = Wrapper::client(&client).unwrap();
        let whole = seal(&mut c, &reset(&client));
        let WrapConfig::TlsCryptV2Client { key } = &client else { unreachable!() };
        let body = whole.len() - key.wkc.len();

        let open = |mut packet: Vec<u8>| server.open_first(&mut packet).map(|_| ());
        assert_eq!(open(whole[..body].to_vec()), Err(UnwrapError::BadLength.into()));
        // Every byte of the wrapped key matters.
        for index in body..whole.len() {
            let mut packet = whole.clone();
            packet[index] ^= 1;
            let opened = open(packet);
            assert!(matches!(opened, Err(WrapError::BadWkc(_))), "byte {index}: {opened:?}");
        }
        // Wrong length fields.
        for len in [0, 1, 289, 1025, u16::MAX, u16::try_from(whole.len()).unwrap() + 1] {
            let mut packet = whole.clone();
            packet.truncate(whole.len() - 2);
            packet.extend(len.to_be_bytes());
            assert_eq!(open(packet), Err(UnwrapError::BadLength.into()), "{len}");
        }
        // A valid wrapped key appended to another client's packet.
        let other = ServerKey::parse(UNIT_SERVER)
            .unwrap()
            .client_key(StaticKey::new([5; 256]), None)
            .unwrap();
        let swapped = [&whole[..body], &other.wkc].concat();
        assert_eq!(open(swapped), Err(WrapError::BadMac));
        // The wrapped key directly after an opcode and a session id.
        let bare = [&whole[..9], &key.wkc[..]].concat();
        assert_eq!(open(bare), Err(PacketError::TooShort.into()));
    }

    #[test]
    fn within_a_session_the_wrapped_key_must_not_change() {
        let (client, server) = v2_pair();
        let (mut c, mut s) = introduce(&client, &server);
        let whole = third(&mut c);
        let WrapConfig::TlsCryptV2Client { key } = &client else { unreachable!() };
        let body = whole.len() - key.wkc.len();
        for index in body..whole.len() - 2 {
            let mut packet = whole.clone();
            packet[index] ^= 1;
            assert_eq!(s.open(&mut packet).unwrap_err(), WrapError::WkcChanged, "byte {index}");
        }
        // A different wrapped key from the same server with the same Kc.
        let server_key = ServerKey::parse(UNIT_SERVER).unwrap();
        let rewrapped = server_key.wrap(&key.kc, Some(&Metadata::Timestamp(1))).unwrap();
        let mut packet = [&whole[..body], &rewrapped].concat();
        assert_eq!(s.open(&mut packet).unwrap_err(), WrapError::WkcChanged);
        let mut packet = whole[..body].to_vec();
        assert_eq!(s.open(&mut packet).unwrap_err(), UnwrapError::BadLength.into());
        assert!(s.open(&mut whole.clone()).is_ok());
    }

    #[test]
    fn only_packets_with_opcode_10_and_11_carry_it() {
        let (client, _) = v2_pair();
        let mut c = Wrapper::client(&client).unwrap();
        let plain = seal(&mut c, &message(Opcode::ControlV1, b"client01")).len();
        assert_eq!(third(&mut c).len(), plain + 297);
        let packet = seal(&mut c, &reset(&client));
        assert_eq!(packet.len(), 54 + 297);
    }
}

mod renegotiation {
    use super::*;

    #[test]
    fn dynamic_tls_crypt_mixes_in_the_configured_key() {
        let exported = [0xba; 256];
        for (client, server) in pairs() {
            let (c, s) = introduce(&client, &server);
            let mut rc = c.renegotiation(&exported).unwrap();
            let mut rs = s.renegotiation(&exported).unwrap();
            // The payload is long enough for every MAC.
            let payload = &[7; 80];
            let soft = Control { key_id: 1, payload, ..message(Opcode::SoftResetV1, b"client01") };
            let packet = seal(&mut rc, &soft);
            assert_eq!(packet[9..13], 1_u32.to_be_bytes(), "ids start over");
            assert_eq!(rs.open(&mut packet.clone()), Ok(soft));
            assert_eq!(rs.open(&mut packet.clone()).unwrap_err(), WrapError::Replayed);
            assert_eq!(rc.open(&mut seal(&mut rs, &soft)), Ok(soft));
            // The packet opens neither with the first key alone nor with the export alone.
            if !matches!(client, WrapConfig::None) {
                let (_, mut s) = introduce(&client, &server);
                assert_eq!(s.open(&mut packet.clone()).unwrap_err(), WrapError::BadMac);
                let plain = introduce(&WrapConfig::None, &WrapConfig::None).1;
                let mut plain = plain.renegotiation(&exported).unwrap();
                assert_eq!(plain.open(&mut packet.clone()).unwrap_err(), WrapError::BadMac);
            }
            let mut other = s.renegotiation(&[0xbb; 256]).unwrap();
            assert_eq!(other.open(&mut packet.clone()).unwrap_err(), WrapError::BadMac);
        }
    }

    /// test_tls_crypt.c: with a key of zeros, the export is the key.
    #[test]
    fn a_key_of_zeros_changes_nothing() {
        let zeros = WrapConfig::TlsCrypt { key: StaticKey::new([0; 256]) };
        let mut mixed = Wrapper::client(&zeros).unwrap().renegotiation(&[0xba; 256]).unwrap();
        let none = Wrapper::client(&WrapConfig::None).unwrap();
        let mut alone = none.renegotiation(&[0xba; 256]).unwrap();
        let control = message(Opcode::ControlV1, b"client01");
        assert_eq!(seal(&mut mixed, &control), seal(&mut alone, &control));
    }
}

mod counting {
    use super::*;

    fn stamp(packet: &[u8]) -> (u32, u32) {
        let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
        (word(9), word(13))
    }

    #[test]
    fn ids_count_up_and_the_time_stays() {
        let mut c = Wrapper::client(&WrapConfig::TlsCrypt { key: unit_key() }).unwrap();
        let control = message(Opcode::ControlV1, b"client01");
        let mut out = Vec::new();
        for (id, now) in [(1, 1000), (2, 2000), (3, 500)] {
            c.seal(&control, UnixTime(now), &mut out).unwrap();
            assert_eq!(stamp(&out), (id, 1000));
        }
    }

    #[test]
    fn ids_never_wrap() {
        for (client, _) in pairs() {
            let mut c = Wrapper::client(&client).unwrap();
            c.set_next_id(u32::MAX);
            let control = message(Opcode::ControlV1, b"client01");
            let mut out = Vec::new();
            assert_eq!(c.seal(&control, NOW, &mut out), Ok(()));
            assert_eq!(c.seal(&control, NOW, &mut out), Err(WrapError::IdsExhausted));
            assert_eq!(
                c.seal(&control, UnixTime(NOW.0 + 9), &mut out),
                Err(WrapError::IdsExhausted)
            );
            assert!(out.is_empty());
        }
    }

    #[test]
    fn replays_are_refused_and_reordering_is_not() {
        for (client, server) in pairs().into_iter().skip(1) {
            let (mut c, mut s) = introduce(&client, &server);
            let control = message(Opcode::ControlV1, b"client01");
            let packets: Vec<_> = (0..10).map(|_| seal(&mut c, &control)).collect();
            for index in [3, 9, 0, 1, 8, 2, 7, 4, 5, 6] {
                assert_eq!(s.open(&mut packets[index].clone()), Ok(control));
                let again = s.open(&mut packets[index].clone()).unwrap_err();
                assert_eq!(again, WrapError::Replayed);
            }
            for packet in &packets {
                assert_eq!(s.open(&mut packet.clone()).unwrap_err(), WrapError::Replayed);
            }
        }
    }

    /// A packet that fails to authenticate must not use up the id it claims.
    #[test]
    fn forgeries_do_not_move_the_window() {
        let crypt = WrapConfig::TlsCrypt { key: unit_key() };
        let (mut c, mut s) = introduce(&crypt, &crypt);
        let control = message(Opcode::ControlV1, b"client01");
        let packet = seal(&mut c, &control);
        let mut forged = packet.clone();
        forged[9..17].fill(0xff);
        assert_eq!(s.open(&mut forged).unwrap_err(), WrapError::BadMac);
        assert_eq!(s.open(&mut packet.clone()), Ok(control));
    }

    #[test]
    fn the_packet_that_made_the_session_counts() {
        for (client, server) in pairs().into_iter().skip(1) {
            let mut c = Wrapper::client(&client).unwrap();
            let packet = seal(&mut c, &reset(&client));
            let server = WrapServer::new(&server).unwrap();
            let mut copy = packet.clone();
            let mut first = server.open_first(&mut copy).unwrap();
            let again = first.wrapper.open(&mut packet.clone()).unwrap_err();
            assert_eq!(again, WrapError::Replayed);
        }
    }

    #[test]
    fn id_0_is_refused_also_of_strangers() {
        for (client, server) in pairs().into_iter().skip(1) {
            let mut c = Wrapper::client(&client).unwrap();
            c.set_next_id(0);
            let mut packet = seal(&mut c, &reset(&client));
            let opened = WrapServer::new(&server).unwrap().open_first(&mut packet).map(|_| ());
            assert_eq!(opened, Err(WrapError::Replayed));
        }
    }
}

mod window {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sixty_four_ids_behind_is_too_old() {
        for (behind, fits) in [(1, true), (63, true), (64, false), (65, false), (999, false)] {
            let mut window = ReplayWindow::default();
            window.accept(1000, 7).unwrap();
            assert_eq!(window.accept(1000 - behind, 7).is_ok(), fits, "{behind}");
        }
    }

    #[test]
    fn a_later_time_starts_over_and_an_earlier_one_is_refused() {
        let mut window = ReplayWindow::default();
        assert_eq!(window.accept(500, 7), Ok(()));
        assert_eq!(window.accept(1, 8), Ok(()));
        assert_eq!(window.accept(501, 7), Err(Replayed));
        assert_eq!(window.accept(1, 8), Err(Replayed));
        assert_eq!(window.accept(u32::MAX, u32::MAX), Ok(()));
        assert_eq!(window.accept(u32::MAX, u32::MAX), Err(Replayed));
        assert_eq!(window.accept(u32::MAX - 63, u32::MAX), Ok(()));
        assert_eq!(window.accept(0, u32::MAX), Err(Replayed));
    }

    proptest! {
        /// Compared with a simple set, no packet is accepted twice, and none within the window is
        /// refused the first time.
        #[test]
        fn as_a_set_remembers(
            stamps in prop::collection::vec((0..300_u32, 0..3_u32), 0..400),
        ) {
            let mut window = ReplayWindow::default();
            let mut seen = HashSet::new();
            let (mut time, mut newest) = (0, 0);
            for (id, at) in stamps {
                if id > 0 && at > time {
                    (time, newest) = (at, 0);
                    seen.clear();
                }
                let fits = id > 0 && at == time && (id > newest || newest - id < 64)
                    && !seen.contains(&id);
                prop_assert_eq!(window.accept(id, at).is_ok(), fits, "{} at {}", id, at);
                if fits {
                    seen.insert(id);
                    newest = newest.max(id);
                }
            }
        }
    }
}

mod properties {
    use super::*;

    /// The fuzzer starts with packets that pass every check.
    #[test]
    fn the_fuzzers_seeds_open() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testing/fuzz/corpus/unwrap");
        for (name, outcome) in [
            ("none", Ok(())),
            ("tls-auth", Ok(())),
            ("tls-crypt", Ok(())),
            ("tls-crypt-v2", Ok(())),
            ("tls-crypt-v2-user", Ok(())),
            ("tls-crypt-v2-third", Ok(())),
            ("tls-crypt-v2-bad-metadata", Err(UnwrapError::BadMetadata.into())),
            ("wkc-too-long", Err(UnwrapError::BadLength.into())),
        ] {
            let seed = std::fs::read(format!("{folder}/{name}")).unwrap();
            assert_eq!(fuzz(&seed), outcome, "{name}");
        }
    }

    fn config() -> impl Strategy<Value = (WrapConfig, WrapConfig)> {
        (0..pairs().len()).prop_map(|index| pairs().swap_remove(index))
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened(
            (client, server) in config(),
            ids in prop::collection::vec(any::<u32>(), 0..=8),
            payload in prop::collection::vec(any::<u8>(), 0..1300),
            key_id in 0..8_u8,
            now in any::<u64>(),
        ) {
            let (mut c, mut s) = introduce(&client, &server);
            let acks = Acks::from_slice(&ids).unwrap();
            let control = Control {
                opcode: Opcode::ControlV1,
                key_id,
                session: SessionId(*b"12345678"),
                acks,
                remote: (!acks.is_empty()).then_some(SessionId(*b"87654321")),
                message: Some(77),
                payload: &payload,
            };
            let mut out = Vec::new();
            s.seal(&control, UnixTime(now), &mut out).unwrap();
            prop_assert_eq!(out.len(), s.overhead(control.opcode, ids.len()) + payload.len());
            prop_assert_eq!(c.open(&mut out), Ok(control));
            c.seal(&control, NOW, &mut out).unwrap();
            prop_assert_eq!(s.open(&mut out), Ok(control));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = fuzz(&bytes);
        }

        /// With a valid front, arbitrary bytes exercise more of the parser.
        #[test]
        fn nearly_packets_do_not_panic(
            choice in 0..4_u8,
            number in 3..12_u8,
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let front = [choice, number << 3, 1, 1, 1, 1, 1, 1, 1, 1];
            let _ = fuzz(&[&front, bytes.as_slice()].concat());
        }
    }
}
