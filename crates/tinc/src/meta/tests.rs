use proptest::prelude::*;

use super::*;
use crate::testing::{alice, hex};

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).unwrap()
}

fn address(host: &str, port: &str) -> AddressToken {
    AddressToken { host: token(host), port: token(port) }
}

fn parse(line: &str) -> Result<Message, MessageError> {
    Message::parse(line.as_bytes())
}

fn write(message: &Message) -> String {
    let mut line = Vec::new();
    message.write(&mut Random::new([1; 32]), &mut line);
    String::from_utf8(line).unwrap()
}

/// The lines of specification 5.4, 6 and 20.4 and their meaning. `R` is the random number.
fn lines() -> Vec<(String, Message)> {
    let (a, b) = (|| name("alice"), || name("bob"));
    let kex = "AAAAAAIAREREREREREREREREREREREREREREREREREREREREREBiLh4V0reohxTYQ10sNtk6zbUU65QMezT3UnNtg0RnLA";
    let subnet = || "10.1.0.0/16#3".parse().unwrap();
    let edge = |local| EdgeInfo {
        address: address("192.0.2.2", "655"),
        options: Options(0x0700_000c),
        weight: 42,
        local,
    };
    let key = alice().public().to_string();
    let answer = |reflexive| Message::AnsKey {
        from: b(),
        to: a(),
        key: token("AAAA"),
        offers_aes: false,
        compression: 0,
        reflexive,
    };
    let request = |request| Message::ReqKey(a(), b(), request);
    let ack = Message::Ack { udp_port: token("655"), weight: 12, options: Options(0x0700_000c) };
    let rows = vec![
        ("4 655 12 700000c", ack),
        ("7", Message::TermReq),
        ("8", Message::Ping),
        ("9", Message::Pong),
        ("10 R alice 10.1.0.0/16#3", Message::AddSubnet(a(), subnet())),
        ("11 R alice 10.1.0.0/16#3", Message::DelSubnet(a(), subnet())),
        ("12 R alice bob 192.0.2.2 655 700000c 42", Message::AddEdge(a(), b(), edge(None))),
        (
            "12 R alice bob 192.0.2.2 655 700000c 42 10.0.0.1 656",
            Message::AddEdge(a(), b(), edge(Some(address("10.0.0.1", "656")))),
        ),
        ("13 R alice bob", Message::DelEdge(a(), b())),
        ("14 R alice", Message::KeyChanged(a())),
        ("15 alice bob", request(None)),
        ("15 alice bob 19", request(Some(KeyRequest::AskPublicKey))),
        ("15 alice bob 21 AAAA", request(Some(KeyRequest::Datagram(token("AAAA"))))),
        ("16 bob alice AAAA -1 -1 -1 0", answer(None)),
        ("16 bob alice AAAA -1 -1 -1 0 192.0.2.1 700", answer(Some(address("192.0.2.1", "700")))),
        ("17 1514", Message::Packet(1514)),
        ("21 1600", Message::SptpsPacket(1600)),
        ("22 alice bob 192.0.2.1 655", Message::UdpInfo(a(), b(), address("192.0.2.1", "655"))),
        ("23 alice bob 1430", Message::MtuInfo(a(), b(), 1430)),
        ("23 alice bob 0", Message::MtuInfo(a(), b(), 0)),
    ];
    let mut rows: Vec<(String, Message)> =
        rows.into_iter().map(|(line, message)| (line.to_owned(), message)).collect();
    rows.push((
        format!("15 alice bob 15 {kex}"),
        request(Some(KeyRequest::Session { record: token(kex), offers_aes: false })),
    ));
    rows.push((
        format!("15 alice bob 15 {kex} aes-256-gcm"),
        request(Some(KeyRequest::Session { record: token(kex), offers_aes: true })),
    ));
    let offer = |reflexive| match answer(reflexive) {
        Message::AnsKey { from, to, key, compression, reflexive, .. } => {
            Message::AnsKey { from, to, key, offers_aes: true, compression, reflexive }
        }
        other => other,
    };
    rows.push(("16 bob alice AAAA 901 -1 -1 0".to_owned(), offer(None)));
    rows.push((
        "16 bob alice AAAA 901 -1 -1 0 192.0.2.1 700".to_owned(),
        offer(Some(address("192.0.2.1", "700"))),
    ));
    rows.push((
        format!("15 alice bob 20 {key}"),
        request(Some(KeyRequest::PublicKey(token(&key)))),
    ));
    rows
}

#[test]
fn every_line_of_the_specification_is_read_and_written() {
    for (line, message) in lines() {
        let random = u32::from_be_bytes(Random::new([1; 32]).bytes());
        let line = line.replace(" R ", &format!(" {random:x} "));
        assert_eq!(parse(&line), Ok(message.clone()), "{line}");
        assert_eq!(parse(&format!("{line}\n")), Ok(message.clone()));
        assert_eq!(write(&message), format!("{line}\n"));
        // Specification 5.5: further words are ignored.
        let more = format!("{line} more words");
        match parse(&more) {
            // These have words that may be left out, so the further ones take their places.
            Ok(Message::AddEdge(_, _, edge)) if !line.contains("656") => {
                assert_eq!(edge.local, Some(address("more", "words")));
            }
            Ok(Message::AnsKey { reflexive, .. }) if !line.contains("700") => {
                assert_eq!(reflexive, Some(address("more", "words")));
            }
            Err(MessageError::Field(15, "request")) if line == "15 alice bob" => {}
            other => assert_eq!(other, Ok(message)),
        }
    }
}

/// A node on the way may add the words of an address, and other implementations other words.
#[test]
fn an_offer_is_found_among_other_words() {
    for (words, offered) in [
        ("aes-256-gcm", true),
        ("192.0.2.1 655 aes-256-gcm", true),
        ("aes-256-gcm 192.0.2.1 655", true),
        ("x aes-256-gcm y z", true),
        ("192.0.2.1 655", false),
        ("aes-256-gcm2 xaes-256-gcm AES-256-GCM", false),
        ("", false),
    ] {
        match parse(&format!("15 alice bob 15 AAAA {words}")) {
            Ok(Message::ReqKey(_, _, Some(KeyRequest::Session { offers_aes, .. }))) => {
                assert_eq!(offers_aes, offered, "{words}");
            }
            other => panic!("{other:?}"),
        }
    }
    for (line, offered) in [("901 1 1 0 a b", true), ("-1 901 901 901 901 901", false)] {
        match parse(&format!("16 bob alice AAAA {line}")) {
            Ok(Message::AnsKey { offers_aes, .. }) => assert_eq!(offers_aes, offered, "{line}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_line_without_one_of_its_words_is_refused() {
    for (line, message) in lines() {
        let line = line.replace(" R ", " 1f ");
        let (short, _) = line.rsplit_once(' ').unwrap_or(("", ""));
        match parse(short) {
            Ok(Message::AnsKey { reflexive: None, .. }) => assert!(line.contains("700")),
            Ok(Message::ReqKey(_, _, None)) => assert_eq!(line, "15 alice bob 19"),
            Ok(Message::ReqKey(_, _, Some(KeyRequest::Session { offers_aes: false, .. }))) => {
                assert!(line.ends_with(" aes-256-gcm"));
            }
            outcome => assert!(outcome.is_err(), "{short}: {outcome:?}, {message:?}"),
        }
    }
}

/// Specification 5.5 and 6: what is fatal to the connection.
#[test]
fn an_invalid_line_is_refused_with_its_reason() {
    for bad in ["", "\n", " 8", "x", "-1", "+8", "99999999999", "8x"] {
        assert_eq!(parse(bad), Err(MessageError::NoNumber), "{bad:?}");
    }
    for kind in [0, 1, 2, 3, 5, 6, 18, 19, 20, 24, 4_000_000_000] {
        let line = format!("{kind} 1 2 3 4 5 6 7");
        assert_eq!(parse(&line), Err(MessageError::Unexpected(kind)));
    }
    let rows = [
        ("4 655 x 0", 4, "weight"),
        ("4 655 1 x", 4, "options"),
        ("10 x alice 10.0.0.0", 10, "random number"),
        ("10 1 al-ice 10.0.0.0", 10, "name"),
        ("10 1 alice 10.0", 10, "subnet"),
        ("12 1 alice bob 192.0.2.1 655 100000000 1", 12, "options"),
        ("12 1 alice bob 192.0.2.1 655 0 99999999999", 12, "weight"),
        ("15 alice bob -1", 15, "request"),
        ("16 alice bob AAAA x -1 -1 0", 16, "cipher"),
        ("17 -1", 17, "length"),
        ("17 32768", 17, "length"),
        ("17 9019", 17, "length"),
        ("21 11", 21, "length"),
        ("23 alice bob x", 23, "MTU"),
    ];
    for (line, kind, field) in rows {
        assert_eq!(parse(line), Err(MessageError::Field(kind, field)), "{line}");
    }
    let seven = "12 1 alice bob 192.0.2.1 655 0 1 10.0.0.1";
    assert_eq!(parse(seven), Err(MessageError::Short(12)), "half an address");
    assert_eq!(parse("12 1 alice alice 192.0.2.1 655 0 1"), Err(MessageError::Loop));
    let long = format!("15 alice bob 15 {}", "A".repeat(MAX_FIELD));
    assert!(parse(&long).is_ok());
    assert_eq!(parse(&format!("{long}A")), Err(MessageError::TooLong(MAX_FIELD + 1)));
    let long = format!("8 {}", "a ".repeat(MAX_ACCEPTED / 2));
    assert_eq!(parse(&long), Err(MessageError::TooLong(MAX_ACCEPTED + 2)));
}

#[test]
fn the_texts_of_a_request_are_those_of_the_vectors() {
    let first = include_str!("../sptps/vectors/datagram.txt").lines().next().unwrap();
    let record = hex(first.strip_prefix("alice ").unwrap());
    let session = lines().into_iter().find_map(|(_, message)| match message {
        Message::ReqKey(_, _, Some(KeyRequest::Session { record, .. })) => Some(record),
        _ => None,
    });
    assert_eq!(decode_record(&session.unwrap()).unwrap().as_slice(), record);
    let key = alice().public();
    assert_eq!(decode_public_key(&token(&key.to_string())), Some(key));
    assert_eq!(decode_public_key(&token("AAAA")), None);
    assert_eq!(decode_record(&token("A=")), None);
}

/// An unreadable address reaches the other nodes as it came.
#[test]
fn an_unreadable_address_is_repeated() {
    let line = "12 1 alice bob ex\u{e4}mple.org http 0 1 fe80::1%eth0 655\n";
    let message = Message::parse(line.as_bytes()).unwrap();
    let Message::AddEdge(_, _, edge) = &message else { panic!() };
    assert_eq!((edge.address.socket(), edge.local.as_ref().unwrap().socket()), (None, None));
    let (_, words) = line.split_once("alice").unwrap();
    assert!(write(&message).ends_with(words));
}

/// Specification 1: a message that a neighbour does not know ends the connection.
#[test]
fn messages_name_the_minor_version_that_they_need() {
    let needs = |line: &str| parse(line).unwrap().needs_minor();
    assert_eq!(needs("22 a b unspec unspec"), 5);
    assert_eq!(needs("23 a b 1400"), 6);
    assert_eq!(needs("21 100"), 7);
    assert_eq!(needs("17 100"), 0);
    let flooded: Vec<bool> = lines().iter().map(|(_, message)| message.is_flooded()).collect();
    assert_eq!(flooded.iter().filter(|flooded| **flooded).count(), 6);
}

proptest! {
    #[test]
    fn a_message_that_was_read_is_written_as_a_line_of_the_same_meaning(
        kind in 4..25_u32,
        words in proptest::collection::vec("[a-z]{1,3}|[0-9]{1,4}|[0-9.:/#-]{1,9}|10.0.0.0/8", 0..10),
    ) {
        let line = format!("{kind} {}", words.join(" "));
        if let Ok(message) = parse(&line) {
            prop_assert_eq!(parse(&write(&message)), Ok(message));
        }
    }

    #[test]
    fn no_line_panics(line: Vec<u8>, kind in 4..25_u32) {
        let _ = Message::parse(&line);
        let _ = Message::parse(&[format!("{kind} 1 alice bob ").as_bytes(), &line].concat());
    }
}
