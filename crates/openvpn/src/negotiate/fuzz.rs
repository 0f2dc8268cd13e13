//! The functions that the fuzz targets run.

use super::option::{Change, PushItem, ReplyItem};
use super::{
    ControlMessage, DataCipher, DhcpDns, FilterAction, MAX_MESSAGE, PeerInfo, PullFilter,
    PullFilters, PushAssembler, PushPart, PushRefused, PushedOption, PushedOptions, RemoteOptions,
    apply_update, build_push_reply, choose_cipher, updates,
};

/// Runs every parser in this module that reads a peer's text.
pub fn fuzz(bytes: &[u8]) {
    for message in ControlMessage::parse_record(bytes).flatten() {
        let again = message.encode();
        if again.len() <= MAX_MESSAGE {
            assert_eq!(ControlMessage::parse(&again).as_ref(), Ok(&message));
        }
        let (ControlMessage::PushReply(part) | ControlMessage::PushUpdate(part)) = message else {
            continue;
        };
        let filters = PullFilters::default();
        if let Ok(Some(items)) = assembled::<ReplyItem>(&part) {
            rebuilt(&part, &items);
            if let Ok((pushed, options)) = PushedOptions::from_reply(items, &filters) {
                let context = pushed.route_context(None);
                let _ = pushed.routes4.iter().filter_map(|route| route.resolve(&context)).count();
                let _ = pushed.routes6.iter().filter_map(|route| route.resolve(&context)).count();
                let changes = assembled::<Change>(&part).ok().flatten().unwrap_or_default();
                if let Ok((after, _)) = apply_update(&options, &changes, &filters) {
                    let texts = |options: &[PushedOption]| -> Vec<String> {
                        options.iter().map(PushedOption::text).collect()
                    };
                    let _ = updates(&texts(&options), &texts(&after));
                }
            }
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let occ = RemoteOptions::parse(text);
        if let Ok(info) = PeerInfo::parse(text) {
            let _ = (info.proto(), info.max_mtu());
            let all = adit_crypto::Cipher::ALL.map(DataCipher::Aead);
            let _ = choose_cipher(&all, &info, occ.cipher(), None);
        }
    }
}

fn assembled<T: PushItem>(part: &str) -> Result<Option<Vec<T>>, super::PushError> {
    PushAssembler::default().add(PushPart::lex(part))
}

/// Bundles the options again and checks that no option is lost.
fn rebuilt(part: &str, items: &[ReplyItem]) {
    let text = |item: &&str| {
        let option = PushedOption::parse(item);
        !item.is_empty() && !option.is_ok_and(|option| option.name() == "push-continuation")
    };
    let texts = part.split(',').map(|item| item.trim_matches(crate::config::is_space));
    let texts: Vec<String> = texts.filter(text).map(str::to_owned).collect();
    if let Ok(messages) = build_push_reply(&texts) {
        let mut assembler = PushAssembler::<ReplyItem>::default();
        let parts = messages.iter().filter_map(|message| message.strip_prefix("PUSH_REPLY,"));
        let whole = parts.filter_map(|part| assembler.add(PushPart::lex(part)).ok().flatten());
        assert_eq!(whole.last().unwrap_or_default(), items);
    }
}

/// The kinds of options that the filters of [`fuzz_filters`] leave out, each with the prefix that a
/// user would write and the option's effect on the result.
const KINDS: [Kind; 7] = [
    (
        "route ",
        |p| !(p.routes4.is_empty() && p.named_routes.is_empty()),
        |p| {
            p.routes4.clear();
            p.named_routes.clear();
        },
    ),
    ("route-ipv6 ", |p| !p.routes6.is_empty(), |p| p.routes6.clear()),
    ("redirect-gateway", |p| p.redirect_gateway.is_some(), |p| p.redirect_gateway = None),
    ("redirect-private", |p| p.redirect_private.is_some(), |p| p.redirect_private = None),
    ("block-ipv6", |p| p.block_ipv6, |p| p.block_ipv6 = false),
    ("dhcp-option", |p| p.dns.dhcp != DhcpDns::default(), |p| p.dns.dhcp = DhcpDns::default()),
    (
        "dns",
        |p| !(p.dns.servers.is_empty() && p.dns.search_domains.is_empty()),
        |p| {
            p.dns.servers.clear();
            p.dns.search_domains.clear();
        },
    ),
];

/// Pushes options through filters. Checks that the result equals the unfiltered one minus the
/// filtered kinds, however the server spells its options.
///
/// The first byte selects the kinds to leave out, or `route-nopull`; the first line after it is a
/// PUSH_REPLY, each further one a PUSH_UPDATE.
pub fn fuzz_filters(bytes: &[u8]) {
    let Some((&choice, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let route_nopull = choice & 0x80 != 0;
    let chosen =
        |(index, _): &(usize, _)| route_nopull || choice & 1_u8.wrapping_shl(*index as u32) != 0;
    let kinds: Vec<_> = KINDS.iter().enumerate().filter(chosen).map(|(_, kind)| kind).collect();
    let filters = |action| {
        let lines = kinds.iter().map(|(prefix, ..)| PullFilter::new(action, prefix));
        PullFilters {
            filters: if route_nopull { Vec::new() } else { lines.collect() },
            route_nopull,
        }
    };
    let ignore = filters(FilterAction::Ignore);
    let mut lines = text.split('\n');
    let Ok(Some(items)) = assembled::<ReplyItem>(lines.next().unwrap_or_default()) else { return };

    let whole = PushedOptions::from_reply(items.clone(), &PullFilters::default());
    let filtered = PushedOptions::from_reply(items.clone(), &ignore);
    if let Ok((whole, _)) = &whole {
        let mut masked = PushedOptions { notes: Vec::new(), ..whole.clone() };
        kinds.iter().for_each(|(_, _, mask)| mask(&mut masked));
        let result = filtered.clone().map(|(p, _)| PushedOptions { notes: Vec::new(), ..p });
        assert_eq!(result, Ok(masked), "the filters are no mask");
        let reject = PushedOptions::from_reply(items, &filters(FilterAction::Reject));
        let hit = kinds.iter().any(|(_, present, _)| present(whole));
        if hit && !route_nopull {
            assert!(matches!(reject, Err(PushRefused::Filtered(_))), "nothing was rejected");
        }
    }
    let Ok((pushed, mut options)) = filtered else { return };
    nothing_of(&kinds, &pushed);
    for line in lines {
        let Ok(Some(changes)) = assembled::<Change>(line) else { return };
        let Ok((after, _)) = apply_update(&options, &changes, &ignore) else { return };
        let Ok(pushed) = PushedOptions::parse(&after, &ignore) else { return };
        nothing_of(&kinds, &pushed);
        options = after;
    }
}

type Kind = (&'static str, fn(&PushedOptions) -> bool, fn(&mut PushedOptions));

fn nothing_of(kinds: &[&Kind], pushed: &PushedOptions) {
    for (prefix, present, _) in kinds {
        assert!(!present(pushed), "{prefix:?} is filtered, and appears in {pushed:?}");
    }
}
