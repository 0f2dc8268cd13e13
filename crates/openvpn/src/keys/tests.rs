#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use proptest::prelude::*;
use zeroize::Zeroizing;

use super::*;
use crate::packet::SessionId;

/// Decodes hex, skipping white space.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap())
        .collect();
    assert_eq!(digits.len() % 2, 0);
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Key files. Those in `UNIT_*` are from OpenVPN's unit tests (test_pkt.c, test_tls_crypt.c).
/// `openvpn --genkey` 2.6.14 wrote those in `STOCK_*`.
pub(crate) mod vectors {
    pub(crate) const UNIT_STATIC: &str = include_str!("vectors/unit-static.key");
    pub(crate) const UNIT_SERVER: &str = include_str!("vectors/unit-server.pem");
    pub(crate) const UNIT_CLIENT: &str = include_str!("vectors/unit-client.pem");
    pub(crate) const UNIT_CLIENT_USER: &str = include_str!("vectors/unit-client-user.pem");
    pub(crate) const STOCK_STATIC: &str = include_str!("vectors/stock-static.key");
    pub(crate) const STOCK_SERVER: &str = include_str!("vectors/stock-server.pem");
    pub(crate) const STOCK_CLIENT: &str = include_str!("vectors/stock-client-timestamp.pem");
    pub(crate) const STOCK_CLIENT_USER: &str = include_str!("vectors/stock-client-user.pem");
}
use vectors::*;

mod files {
    use super::*;

    #[test]
    fn static_keys_of_openvpn_parse_and_are_written_alike() {
        let key = StaticKey::parse(STOCK_STATIC).unwrap();
        assert_eq!(key.as_bytes()[..4], [0xc5, 0x9a, 0xc3, 0x6f]);
        assert_eq!(key.as_bytes()[252..], [0x40, 0xf6, 0xdd, 0x3d]);
        assert_eq!(key.to_text().as_str(), STOCK_STATIC);
    }

    #[test]
    fn static_keys_are_read_with_tolerance() {
        let plain = StaticKey::parse(UNIT_STATIC).unwrap();
        let loose = UNIT_STATIC.replace('\n', " \r\n\t").replacen(
            "37268ea8",
            "# a comment\n ; another\n\n37 26 8EA8",
            1,
        );
        let loose = format!("# 2048 bit\n<tls-auth>\n{loose}\n</tls-auth>\nverb 3\n");
        assert_eq!(StaticKey::parse(&loose).unwrap().as_bytes(), plain.as_bytes());
    }

    #[test]
    fn broken_static_keys_say_what_is_wrong() {
        let error = |text: &str| StaticKey::parse(text).unwrap_err();
        let message = error("").to_string();
        assert!(message.contains("BEGIN OpenVPN Static key V1"), "{message}");
        assert!(message.contains("openvpn --genkey secret"), "{message}");
        assert!(matches!(error("-----BEGIN PRIVATE KEY-----"), KeyFileError::NoBegin(_)));
        let (cut, _) = UNIT_STATIC.split_once("-----END").unwrap();
        assert!(matches!(error(cut), KeyFileError::NoEnd(_)));
        let odd = UNIT_STATIC.replacen("3726", "37g6", 1);
        assert_eq!(error(&odd), KeyFileError::NotHex('g'));
        let short = UNIT_STATIC.replacen("37268ea8f95d7f71f9fb8fc03770c460\n", "", 1);
        assert_eq!(error(&short), KeyFileError::Length { found: 240, wanted: 256 });
        let half = UNIT_STATIC.replacen("37", "3", 1);
        assert_eq!(error(&half), KeyFileError::Length { found: 255, wanted: 256 });
        let long = UNIT_STATIC.replacen("37", "3737", 1);
        assert_eq!(error(&long), KeyFileError::Length { found: 257, wanted: 256 });
    }

    #[test]
    fn the_halves_are_cipher_then_mac() {
        let key = StaticKey::new(std::array::from_fn(|i| u8::try_from(i).unwrap()));
        let [first, second] = key.halves();
        let starts = [first.cipher[0], first.hmac[0], second.cipher[0], second.hmac[0]];
        assert_eq!(starts, [0, 64, 128, 192]);
        assert_eq!(second.hmac[63], 255);
        let (send, receive) = key.directed(Direction::Normal);
        assert_eq!((send.cipher[0], receive.cipher[0]), (0, 128));
        let (send, receive) = key.directed(Direction::Inverse);
        assert_eq!((send.cipher[0], receive.cipher[0]), (128, 0));
    }

    #[test]
    fn crypt_v2_pems_are_read_and_written_alike() {
        for pem in [UNIT_SERVER, STOCK_SERVER] {
            assert_eq!(ServerKey::parse(pem).unwrap().to_pem().as_str(), pem);
        }
        for pem in [UNIT_CLIENT, UNIT_CLIENT_USER, STOCK_CLIENT, STOCK_CLIENT_USER] {
            assert_eq!(ClientKey::parse(pem).unwrap().to_pem().as_str(), pem);
            let crlf = pem.replace('\n', "\r\n");
            assert_eq!(ClientKey::parse(&crlf).unwrap().to_pem().as_str(), pem);
        }
    }

    #[test]
    fn broken_crypt_v2_pems_say_what_is_wrong() {
        let error = ServerKey::parse(UNIT_CLIENT).unwrap_err();
        assert!(error.to_string().contains("--genkey tls-crypt-v2-server"), "{error}");
        let error = ClientKey::parse(UNIT_SERVER).unwrap_err();
        assert!(error.to_string().contains("--genkey tls-crypt-v2-client"), "{error}");
        let error = ServerKey::parse(&UNIT_SERVER.replace("-----END", "---END")).unwrap_err();
        assert!(matches!(error, KeyFileError::NoEnd(_)));
        let error = ServerKey::parse(&UNIT_SERVER.replace("AAEC", "A*EC")).unwrap_err();
        assert_eq!(error, KeyFileError::NotBase64);
        let error = ServerKey::parse(&UNIT_SERVER.replace("AAECAwQF", "AAEC")).unwrap_err();
        assert_eq!(error, KeyFileError::Length { found: 125, wanted: 128 });
        // Three bytes within the wrapped key are missing, which its length field reveals.
        let error = ClientKey::parse(&UNIT_CLIENT.replace("8PHy", "")).unwrap_err();
        assert_eq!(error, KeyFileError::WrappedKey(296));
        // The length field is correct, but the bytes cannot be a wrapped key.
        let kc = [&[7; 256][..], &[0, 2]].concat();
        let pem = file::encode_pem(&kc, "OpenVPN tls-crypt-v2 client key");
        assert_eq!(ClientKey::parse(&pem).unwrap_err(), KeyFileError::WrappedKey(2));
        let short = "-----BEGIN OpenVPN tls-crypt-v2 client key-----\nAAEC\n\
            -----END OpenVPN tls-crypt-v2 client key-----\n";
        let error = ClientKey::parse(short).unwrap_err();
        assert_eq!(error, KeyFileError::Length { found: 3, wanted: 256 });
    }

    #[test]
    fn generated_keys_are_what_was_filled_in() {
        let fill = |bytes: &mut [u8]| bytes.iter_mut().zip(0_u8..).for_each(|(b, n)| *b = n);
        assert_eq!(ServerKey::generate(|b| fill(b)).to_pem().as_str(), UNIT_SERVER);
        let key = StaticKey::generate(|bytes| bytes.fill(0xab));
        assert_eq!(key.as_bytes(), &[0xab; 256]);
        assert_eq!(StaticKey::parse(&key.to_text()).unwrap().as_bytes(), key.as_bytes());
    }

    #[test]
    fn nothing_secret_is_printed() {
        let text = format!(
            "{:?} {:?} {:?}",
            StaticKey::parse(UNIT_STATIC).unwrap(),
            ServerKey::parse(UNIT_SERVER).unwrap(),
            ClientKey::parse(UNIT_CLIENT).unwrap()
        );
        assert_eq!(text, "StaticKey(..) ServerKey(..) ClientKey(..)");
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC*") {
            let _ = StaticKey::parse(&text);
            let marked = format!(
                "-----BEGIN OpenVPN tls-crypt-v2 client key-----{text}\
                -----END OpenVPN tls-crypt-v2 client key-----"
            );
            let _ = ClientKey::parse(&marked);
        }
    }
}

mod wrapped {
    use super::*;

    fn keys(server: &str, client: &str) -> (ServerKey, ClientKey) {
        (ServerKey::parse(server).unwrap(), ClientKey::parse(client).unwrap())
    }

    #[test]
    fn keys_wrapped_by_the_reference_implementation_unwrap() {
        let cases = [
            // Made with the metadata "AABBCCDD", which is decoded as base64.
            (UNIT_SERVER, UNIT_CLIENT_USER, Some(Metadata::User(unhex("0000410820c3")))),
            (STOCK_SERVER, STOCK_CLIENT, Some(Metadata::Timestamp(1_795_167_079))),
            (STOCK_SERVER, STOCK_CLIENT_USER, Some(Metadata::User(b"adit test".to_vec()))),
        ];
        for (server, client, metadata) in cases {
            let (server, client) = keys(server, client);
            let unwrapped = server.unwrap(&client.wkc).unwrap();
            assert_eq!(unwrapped.kc.as_bytes(), client.kc.as_bytes());
            assert_eq!(unwrapped.metadata, metadata);
            // Our wrapped key is identical byte for byte.
            assert_eq!(server.wrap(&client.kc, metadata.as_ref()).unwrap(), client.wkc);
        }
    }

    #[test]
    fn metadata_of_every_length_that_fits() {
        let server = ServerKey::new(&[1; 128]);
        let kc = StaticKey::new([2; 256]);
        let none = server.wrap(&kc, None).unwrap();
        assert_eq!(none.len(), 290);
        assert_eq!(server.unwrap(&none).unwrap().metadata, None);
        for len in [0, 1, MAX_METADATA_LEN - 1] {
            let metadata = Metadata::User(vec![3; len]);
            let wkc = server.wrap(&kc, Some(&metadata)).unwrap();
            assert_eq!(wkc.len(), 291 + len);
            assert_eq!(server.unwrap(&wkc).unwrap().metadata, Some(metadata));
        }
        let long = Metadata::User(vec![3; MAX_METADATA_LEN]);
        let error = server.wrap(&kc, Some(&long)).unwrap_err();
        assert_eq!(error, WrapKeyError::MetadataTooLong(MAX_METADATA_LEN));
        assert_eq!(error.to_string(), "the metadata has 734 bytes; at most 733 fit");
    }

    /// Wraps bytes that no `Metadata` produces.
    fn wrap_raw(metadata: &[u8]) -> (ServerKey, Vec<u8>) {
        let server = ServerKey::new(&[1; 128]);
        let len = u16::try_from(290 + metadata.len()).unwrap().to_be_bytes();
        let mut inside = [&[2; 256], metadata].concat();
        let tag =
            adit_crypto::hmac(adit_crypto::Digest::Sha256, &[1; 32], &[&len, &inside]).unwrap();
        let iv = tag.as_bytes()[..16].try_into().unwrap();
        adit_crypto::aes256_ctr(&[1; 32], &iv, &mut inside).unwrap();
        (server, [tag.as_bytes(), &inside, &len].concat())
    }

    #[test]
    fn metadata_of_a_wrong_type_or_length_is_refused() {
        let unwrap = |metadata: &[u8]| {
            let (server, wkc) = wrap_raw(metadata);
            server.unwrap(&wkc).map(|unwrapped| unwrapped.metadata)
        };
        assert_eq!(unwrap(&[]), Ok(None));
        assert_eq!(unwrap(&[1, 0, 0, 0, 0, 0, 0, 0, 7]), Ok(Some(Metadata::Timestamp(7))));
        assert_eq!(unwrap(&[2]), Err(UnwrapError::BadMetadata));
        assert_eq!(unwrap(&[255, 1]), Err(UnwrapError::BadMetadata));
        assert_eq!(unwrap(&[1, 0, 0, 0, 0, 0, 0, 7]), Err(UnwrapError::BadMetadata));
        assert_eq!(unwrap(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 7]), Err(UnwrapError::BadMetadata));
    }

    #[test]
    fn another_servers_key_does_not_unwrap() {
        let (_, client) = keys(STOCK_SERVER, STOCK_CLIENT);
        let (other, _) = keys(UNIT_SERVER, UNIT_CLIENT);
        assert_eq!(other.unwrap(&client.wkc).unwrap_err(), UnwrapError::BadMac);
    }

    #[test]
    fn every_altered_byte_is_noticed() {
        let (server, client) = keys(STOCK_SERVER, STOCK_CLIENT);
        let len = client.wkc.len();
        for index in 0..len {
            let mut wkc = client.wkc.clone();
            wkc[index] ^= 0x10;
            let expected =
                if index < len - 2 { UnwrapError::BadMac } else { UnwrapError::BadLength };
            assert_eq!(server.unwrap(&wkc).unwrap_err(), expected, "byte {index}");
        }
    }

    /// Only the length field is wrong. The MAC covers the value that was sent.
    #[test]
    fn the_length_field_must_be_right_even_if_authentic() {
        let server = ServerKey::new(&[1; 128]);
        for len in [0, 289, 291, 1024, 65535_u16] {
            let len = len.to_be_bytes();
            let mut inside = vec![2; 256];
            let tag =
                adit_crypto::hmac(adit_crypto::Digest::Sha256, &[1; 32], &[&len, &inside]).unwrap();
            let iv = tag.as_bytes()[..16].try_into().unwrap();
            adit_crypto::aes256_ctr(&[1; 32], &iv, &mut inside).unwrap();
            let wkc = [tag.as_bytes(), &inside, &len].concat();
            assert_eq!(server.unwrap(&wkc).unwrap_err(), UnwrapError::BadLength);
        }
    }

    #[test]
    fn truncated_or_too_long_is_refused() {
        let (server, client) = keys(STOCK_SERVER, STOCK_CLIENT);
        for len in 0..client.wkc.len() {
            assert_eq!(server.unwrap(&client.wkc[..len]).unwrap_err(), UnwrapError::BadLength);
        }
        // The key is authentic, with a correct length field, but one byte too long.
        let (server, wkc) = wrap_raw(&[0; MAX_METADATA_LEN + 1]);
        assert_eq!(server.unwrap(&wkc).unwrap_err(), UnwrapError::BadLength);
        let (server, wkc) = wrap_raw(&[0; MAX_METADATA_LEN]);
        assert!(server.unwrap(&wkc).is_ok());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_unwrap(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            let server = ServerKey::new(&[1; 128]);
            prop_assert!(server.unwrap(&bytes).is_err());
            // With a corrected length field, the MAC check fails.
            let mut sized = bytes;
            sized.resize(sized.len().clamp(290, 1024), 0);
            let len = sized.len();
            sized[len - 2..].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
            prop_assert_eq!(server.unwrap(&sized).unwrap_err(), UnwrapError::BadMac);
        }

        #[test]
        fn what_is_wrapped_unwraps(
            server: [u8; 32],
            kc: [u8; 32],
            user in prop::collection::vec(any::<u8>(), 0..MAX_METADATA_LEN),
        ) {
            let server = ServerKey::generate(|b| b.copy_from_slice(&server.repeat(4)));
            let kc = StaticKey::generate(|b| b.copy_from_slice(&kc.repeat(8)));
            let metadata = Some(Metadata::User(user));
            let client = server.client_key(kc.clone(), metadata.as_ref()).unwrap();
            let client = ClientKey::parse(&client.to_pem()).unwrap();
            let unwrapped = server.unwrap(&client.wkc).unwrap();
            prop_assert_eq!(unwrapped.kc.as_bytes(), kc.as_bytes());
            prop_assert_eq!(unwrapped.metadata, metadata);
        }
    }
}

mod method2 {
    use super::*;

    fn message(role: Role) -> KeyMethod2 {
        KeyMethod2 {
            pre_master: (role == Role::Client).then(|| Zeroizing::new([3; 48])),
            randoms: Randoms { random1: [4; 32], random2: [5; 32] },
            options: "V4,dev-type tun".into(),
            username: "me".into(),
            password: Zeroizing::new("pass word".into()),
            peer_info: "IV_VER=2.6.14\nIV_PROTO=990\n".into(),
        }
    }

    fn raw(role: Role, strings: &[u8]) -> Vec<u8> {
        let pre_master: &[u8] = if role == Role::Client { &[3; 48] } else { &[] };
        [&[0, 0, 0, 0, 2], pre_master, &[4; 32], &[5; 32], strings].concat()
    }

    #[test]
    fn bytes_on_the_wire() {
        let strings = b"\x00\x10V4,dev-type tun\0\x00\x03me\0\x00\x0apass word\0\
            \x00\x1cIV_VER=2.6.14\nIV_PROTO=990\n\0";
        for role in [Role::Client, Role::Server] {
            let bytes = raw(role, strings);
            assert_eq!(message(role).encode().unwrap().as_slice(), bytes);
            assert_eq!(KeyMethod2::parse(&bytes, role), Ok(message(role)));
        }
    }

    #[test]
    fn absent_strings_are_empty() {
        let parsed = KeyMethod2::parse(&raw(Role::Server, b"\x00\x03V4\0"), Role::Server).unwrap();
        assert_eq!(parsed.options, "V4");
        assert!(parsed.username.is_empty() && parsed.password.is_empty());
        assert!(parsed.peer_info.is_empty());
        // Length 0 and a lone NUL have the same meaning.
        let strings = b"\x00\x03V4\0\0\0\0\x01\0\0\0 and what else may follow";
        assert_eq!(KeyMethod2::parse(&raw(Role::Server, strings), Role::Server), Ok(parsed));
    }

    #[test]
    fn truncated_at_every_length_is_refused_or_lacks_whole_strings() {
        let whole = message(Role::Client).encode().unwrap();
        let starts = [117, 117 + 18, 117 + 18 + 5, 117 + 18 + 5 + 12];
        for len in 0..whole.len() {
            let parsed = KeyMethod2::parse(&whole[..len], Role::Client);
            if starts.contains(&len) {
                assert!(parsed.is_ok(), "{len}");
            } else {
                assert!(matches!(parsed, Err(KeyMethod2Error::TooShort(_))), "{len}: {parsed:?}");
            }
        }
    }

    #[test]
    fn other_methods_are_refused() {
        for index in 0..5 {
            let mut bytes = raw(Role::Server, &[]);
            bytes[index] ^= 1;
            let parsed = KeyMethod2::parse(&bytes, Role::Server);
            assert_eq!(parsed, Err(KeyMethod2Error::BadMethod), "byte {index}");
        }
        // Only the lower half of the byte is the method.
        let mut bytes = raw(Role::Server, &[]);
        bytes[4] = 0x12;
        assert!(KeyMethod2::parse(&bytes, Role::Server).is_ok());
    }

    /// Replaces one of the four strings and parses the message.
    fn with_string(index: usize, bytes: &[u8]) -> Result<KeyMethod2, KeyMethod2Error> {
        let mut strings = [&b"V4\0"[..], b"u\0", b"p\0", b"A=b\n\0"];
        strings[index] = bytes;
        let strings: Vec<u8> = strings
            .iter()
            .flat_map(|s| [&u16::try_from(s.len()).unwrap().to_be_bytes(), *s].concat())
            .collect();
        KeyMethod2::parse(&raw(Role::Server, &strings), Role::Server)
    }

    const NAMES: [&str; 4] = ["options string", "user name", "password", "peer info"];

    #[test]
    fn strings_with_nul_or_control_characters_are_refused_by_name() {
        for (index, name) in NAMES.into_iter().enumerate() {
            assert!(with_string(index, b"fine\0").is_ok());
            if matches!(name, "user name" | "password") {
                assert_eq!(with_string(index, b"a"), Err(KeyMethod2Error::NoNul(name)));
                continue;
            }
            let bad = Err(KeyMethod2Error::ControlCharacter(name));
            for text in [&b"a\0b\0"[..], b"\0\0", b"a\rb\0", b"\x1b[2J\0", b"a\x7f\0", b"a\tb\0"] {
                assert_eq!(with_string(index, text), bad, "{name} {text:?}");
            }
            let newline = with_string(index, b"a\nb\0");
            if name == "peer info" {
                assert!(newline.is_ok());
            } else {
                assert_eq!(newline, bad);
            }
            assert_eq!(with_string(index, b"a"), Err(KeyMethod2Error::NoNul(name)));
            assert_eq!(with_string(index, b"\xff\0"), Err(KeyMethod2Error::NotUtf8(name)));
            let long = [&[b'a'; 1537][..], &[0]].concat();
            assert_eq!(with_string(index, &long), Err(KeyMethod2Error::TooLong(name)));
            assert!(with_string(index, &long[1..]).is_ok());
        }
    }

    /// As in OpenVPN, a client's token may contain anything.
    #[test]
    fn control_characters_in_a_login_are_replaced() {
        for (text, wanted) in [
            (&b"alice\0"[..], "alice"),
            (b"a\rb\nc\td\0", "a_b_c_d"),
            (b"\x1b[2J\x7f\0", "_[2J_"),
            (b"J\xc3\xbcrgen\0", "J\u{fc}rgen"),
            (b"a\xffb\0", "a\u{fffd}b"),
            (b"a\0b\0", "a"),
            (b"\0\0", ""),
        ] {
            assert_eq!(with_string(1, text).unwrap().username, wanted, "{text:?}");
            assert_eq!(with_string(2, text).unwrap().password.as_str(), wanted, "{text:?}");
        }
        let long = [&[b'a'; 1537][..], &[0]].concat();
        for index in [1, 2] {
            let error = with_string(index, &long).unwrap_err();
            assert_eq!(error, KeyMethod2Error::TooLong(NAMES[index]));
        }
    }

    #[test]
    fn too_long_messages_are_neither_read_nor_written() {
        let mut bytes = raw(Role::Server, &[]);
        bytes.resize(MAX_MESSAGE_LEN, 0);
        assert!(KeyMethod2::parse(&bytes, Role::Server).is_ok());
        bytes.push(0);
        let error = KeyMethod2Error::TooLong("key exchange message");
        assert_eq!(KeyMethod2::parse(&bytes, Role::Server), Err(error.clone()));
        let mut long = message(Role::Client);
        long.peer_info = "x".repeat(1536);
        long.password = Zeroizing::new("x".repeat(1000));
        assert_eq!(long.encode(), Err(error));
        long.peer_info.push('x');
        assert_eq!(long.encode(), Err(KeyMethod2Error::TooLong("peer info")));
    }

    #[test]
    fn what_the_peer_would_refuse_is_not_sent() {
        for (index, name) in NAMES.into_iter().enumerate() {
            let mut bad = message(Role::Client);
            let text = "a\0b";
            match index {
                0 => bad.options = text.into(),
                1 => bad.username = text.into(),
                2 => bad.password = Zeroizing::new(text.into()),
                _ => bad.peer_info = text.into(),
            }
            assert_eq!(bad.encode(), Err(KeyMethod2Error::ControlCharacter(name)));
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let text = format!("{:?} {:?}", message(Role::Client), message(Role::Client).randoms);
        assert!(!text.contains("pass word") && !text.contains("4, 4"), "{text}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            options in "[ -~]{0,300}",
            username in "[^\\p{Cc}]{0,60}",
            password in "[^\\p{Cc}]{0,60}",
            peer_info in "([A-Z_]{1,10}=[ -~]{0,20}\n){0,10}",
            randoms: [u8; 32],
        ) {
            let sent = KeyMethod2 {
                pre_master: None,
                randoms: Randoms { random1: randoms, random2: [0; 32] },
                options, username, password: Zeroizing::new(password), peer_info,
            };
            let bytes = sent.encode().unwrap();
            prop_assert_eq!(KeyMethod2::parse(&bytes, Role::Server), Ok(sent));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = KeyMethod2::parse(&bytes, Role::Client);
            let _ = KeyMethod2::parse(&raw(Role::Server, &bytes), Role::Server);
        }
    }
}

mod data {
    use super::*;

    fn ascending() -> [u8; EXPORTED_LEN] {
        std::array::from_fn(|i| u8::try_from(i).unwrap())
    }

    /// The client's sending key is key 0.
    #[test]
    fn exported_keys_are_split_by_role() {
        let client = DataKeys::from_exporter(&ascending(), Role::Client);
        let server = DataKeys::from_exporter(&ascending(), Role::Server);
        assert_eq!((client.seal.cipher[0], client.seal.hmac[0]), (0, 64));
        assert_eq!((client.open.cipher[0], client.open.hmac[0]), (128, 192));
        assert_eq!(client.seal.cipher, server.open.cipher);
        assert_eq!(client.seal.hmac, server.open.hmac);
        assert_eq!(client.open.cipher, server.seal.cipher);
        assert_eq!(client.open.hmac, server.seal.hmac);
        assert_eq!(format!("{client:?}"), "DataKeys(..)");
    }

    /// Computed with Python's hmac module.
    #[test]
    fn prf_keys_known_answer() {
        let input = PrfInput {
            pre_master: &std::array::from_fn(|i| u8::try_from(i).unwrap()),
            client: &Randoms { random1: [0x11; 32], random2: [0x12; 32] },
            server: &Randoms { random1: [0x21; 32], random2: [0x22; 32] },
            client_session: SessionId(*b"clientid"),
            server_session: SessionId(*b"serverid"),
        };
        let expected = [
            "9d7824a3c71db23a8503d4237ed328331273ac391b3b16bfd2d29a01bdb96411\
             2a6df5787e1b4dc77b6f6c1e1326de7123ecf901c9af8f5a5948bc3327703b1c",
            "34737e67e25197bb9aa1f1fdf35c20e9128e5e9e4b2c67386a7d91ac7e7ea6cd\
             fc7b9d8b28c5ca8801dd062cd425d21ca6d3ec9fdd2becf7d914db3041e710d6",
            "f22bde37231ec8bb75e7a27c933944488b3dc91fcbfaa6b37611fc44600b9ac4\
             489c6486a5a16afa62186c88dd0521c94b9993b211913163cae8c44a8281e699",
            "9a3171336afae7b26b00f9385cd4990e784f1044c260d325018589c98171cc98\
             c689014ba11378337fa811178599798689149769bedfa9ead69979770195ff05",
        ]
        .map(unhex);
        let client = DataKeys::from_prf(&input, Role::Client).unwrap();
        let halves = [client.seal.cipher, client.seal.hmac, client.open.cipher, client.open.hmac];
        assert_eq!(halves.map(|half| half.to_vec()), expected);
        let server = DataKeys::from_prf(&input, Role::Server).unwrap();
        assert_eq!(server.open.cipher, client.seal.cipher);
        assert_eq!(server.seal.hmac, client.open.hmac);
    }
}
