//! PUSH_UPDATE: options that change within a session (openvpn 2.7).

use super::PushRefused;
use super::option::{Change, PushedOption};
use super::pull_filter::{FilterAction, PullFilters};

/// The options that may change within a session. They concern addresses, routes, name servers and
/// sizes, and exclude options that change the format of packets. The list is openvpn 2.7's, plus
/// the ping times.
const UPDATABLE: [&str; 19] = [
    "block-ipv6",
    "block-outside-dns",
    "dhcp-option",
    "dns",
    "ifconfig",
    "ifconfig-ipv6",
    "keepalive",
    "ping",
    "ping-restart",
    "redirect-gateway",
    "redirect-private",
    "route",
    "route-gateway",
    "route-ipv6",
    "route-ipv6-gateway",
    "route-metric",
    "topology",
    "tun-mtu",
    "register-dns",
];

/// The options that our server changes within a session if it cannot identify the client's
/// software.
const OFFERED: [&str; 11] = [
    "block-ipv6",
    "block-outside-dns",
    "dhcp-option",
    "dns",
    "redirect-gateway",
    "redirect-private",
    "route",
    "route-gateway",
    "route-ipv6",
    "route-metric",
    "tun-mtu",
];

/// The maximum number of options that a session may have after updates.
const MAX_OPTIONS: usize = 4096;

/// Returns the changes from a client's old options to the new ones. For each kind of option that
/// differs, these are all new options, which replace the old ones, or `-kind` if there are none.
pub fn updates(old: &[String], new: &[String]) -> Vec<String> {
    let of = |options: &[String], kind: &str| -> Vec<String> {
        let named = |option: &&String| PushedOption::parse(option).is_ok_and(|o| o.name() == kind);
        options.iter().filter(named).cloned().collect()
    };
    let mut changes = Vec::new();
    for kind in OFFERED {
        let (had, has) = (of(old, kind), of(new, kind));
        if had == has {
            continue;
        }
        if has.is_empty() {
            changes.push(format!("-{kind}"));
        }
        changes.extend(has);
    }
    changes
}

/// Returns the options of a session after an update, and notes for the log.
///
/// `-option` removes all options of that kind; `option ...` replaces those from before this update.
/// An option that may not change ends the session, unless it is preceded by `?`.
///
/// # Errors
/// [`PushRefused`]: no part of the update takes effect.
pub fn apply_update(
    current: &[PushedOption],
    update: &[Change],
    filters: &PullFilters,
) -> Result<(Vec<PushedOption>, Vec<String>), PushRefused> {
    let mut options = current.to_vec();
    let mut notes = Vec::new();
    let mut renewed: Vec<&str> = Vec::new();
    for change in update {
        let updatable = match &change.option {
            Ok(option) if UPDATABLE.contains(&option.name()) => Ok(option),
            Ok(option) => Err(option.shown()),
            Err(refused) => Err(refused.to_string()),
        };
        let option = match updatable {
            Ok(option) => option,
            Err(shown) if change.optional => {
                notes.push(format!("left out of an update, cannot change: {shown}"));
                continue;
            }
            Err(shown) => return Err(PushRefused::NotUpdatable(shown)),
        };
        match filters.decide(option) {
            FilterAction::Accept => {}
            FilterAction::Ignore => {
                notes.push(format!("left out as configured: {}", option.shown()));
                continue;
            }
            FilterAction::Reject => return Err(PushRefused::Filtered(option.shown())),
        }
        if change.remove || !renewed.contains(&option.name()) {
            options.retain(|other| other.name() != option.name());
            renewed.push(option.name());
        }
        if !change.remove {
            options.push(option.clone());
        }
        if options.len() > MAX_OPTIONS {
            return Err(PushRefused::Malformed {
                option: option.shown(),
                reason: "the session has more options than are taken".into(),
            });
        }
    }
    Ok((options, notes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::PullFilter;
    use super::super::option::PushItem;
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split(',').filter(|o| !o.is_empty()).map(str::to_owned).collect()
    }

    fn options(text: &str) -> Vec<PushedOption> {
        list(text).iter().map(|option| PushedOption::parse(option).unwrap()).collect()
    }

    fn changes(text: &str) -> Vec<Change> {
        text.split(',').map(Change::lex).collect()
    }

    fn after(current: &str, update: &str) -> Result<String, PushRefused> {
        let (options, _) =
            apply_update(&options(current), &changes(update), &PullFilters::default())?;
        Ok(options.iter().map(PushedOption::text).collect::<Vec<_>>().join(","))
    }

    const NOW: &str = "route 10.1.0.0 255.255.0.0,route 10.2.0.0 255.255.0.0,ping 10,peer-id 3";

    #[test]
    fn the_first_of_a_kind_replaces_and_further_ones_are_added() {
        assert_eq!(
            after(NOW, "route 10.3.0.0 255.255.0.0,route 10.4.0.0 255.255.0.0").unwrap(),
            "ping 10,peer-id 3,route 10.3.0.0 255.255.0.0,route 10.4.0.0 255.255.0.0"
        );
        assert_eq!(after(NOW, "-route").unwrap(), "ping 10,peer-id 3");
        assert_eq!(
            after(NOW, "-?route,dns search-domains a").unwrap(),
            "ping 10,peer-id 3,dns search-domains a"
        );
        // An option that is removed and given again is present.
        assert_eq!(after("route a", "-route,route b,route c").unwrap(), "route b,route c");
        assert_eq!(after("route a", "route b,-route,route c").unwrap(), "route c");
    }

    #[test]
    fn what_may_not_change_ends_the_session_unless_it_is_dispensable() {
        for option in [
            "cipher AES-128-GCM",
            "peer-id 7",
            "-peer-id",
            "comp-lzo yes",
            "up /bin/sh",
            "-cipher",
            "--route",
            "auth-token x",
            "",
            "-",
            "explicit-exit-notify 3",
        ] {
            let update = [Change::lex(option)];
            let refused = apply_update(&options(NOW), &update, &PullFilters::default());
            assert!(matches!(refused, Err(PushRefused::NotUpdatable(_))), "{option}");
        }
        let update = changes("?cipher none,-?peer-id,?new,?\"new,?N");
        let (after, notes) = apply_update(&options(NOW), &update, &PullFilters::default()).unwrap();
        assert_eq!((after, notes.len()), (options(NOW), 5));
    }

    #[test]
    fn filters_keep_what_there_is() {
        let filter = |action| PullFilters {
            filters: vec![PullFilter::new(action, "route ")],
            route_nopull: false,
        };
        for route in ["route", "?route", "? route", "\"route\"", "?\t'route'"] {
            let update = changes(&format!("{route} 10.9.0.0 255.255.0.0"));
            let (after, notes) =
                apply_update(&options(NOW), &update, &filter(FilterAction::Ignore)).unwrap();
            assert_eq!((after, notes.len()), (options(NOW), 1), "{route}");
            let rejected = apply_update(&options(NOW), &update, &filter(FilterAction::Reject));
            assert!(matches!(rejected, Err(PushRefused::Filtered(_))), "{route}");
        }
    }

    #[test]
    fn a_removal_takes_every_spelling_away() {
        let now = "\"route\" 10.1.0.0 255.255.0.0,'route'\t10.2.0.0 255.255.0.0,ping 10";
        for removal in ["-route", "-\"route\"", "-? route"] {
            assert_eq!(after(now, removal).unwrap(), "ping 10", "{removal}");
        }
    }

    #[test]
    fn updates_name_only_what_differs_and_may_change() {
        let old = list("route a,route b,dhcp-option DNS 1.1.1.1,explicit-exit-notify 1,peer-id 1");
        let new = list("route b,peer-id 1,redirect-gateway def1");
        assert_eq!(updates(&old, &new), ["-dhcp-option", "redirect-gateway def1", "route b"]);
        assert!(updates(&old, &old).is_empty());
        assert!(updates(&list("explicit-exit-notify 1"), &list("ping 3")).is_empty());
    }

    #[test]
    fn a_session_cannot_be_filled_without_end() {
        let many: Vec<Change> =
            (0..5000).map(|n| Change::lex(&format!("route 10.0.{n}.0"))).collect();
        assert!(apply_update(&[], &many, &PullFilters::default()).is_err());
    }

    proptest! {
        /// The changes that one end computes lead to the same options of each kind at the other
        /// end.
        #[test]
        fn an_update_arrives(
            old in proptest::collection::vec("(route|dns|dhcp-option|redirect-gateway) [a-c]", 0..8),
            new in proptest::collection::vec("(route|dns|dhcp-option|redirect-gateway) [a-c]", 0..8),
        ) {
            let changes: Vec<_> = updates(&old, &new).iter().map(|c| Change::lex(c)).collect();
            let (old, new) = (options(&old.join(",")), options(&new.join(",")));
            let (after, _) = apply_update(&old, &changes, &PullFilters::default()).unwrap();
            for kind in OFFERED {
                let of = |list: &[PushedOption]| -> Vec<PushedOption> {
                    list.iter().filter(|o| o.name() == kind).cloned().collect()
                };
                prop_assert_eq!(of(&after), of(&new));
            }
        }

        #[test]
        fn no_update_panics(update in proptest::collection::vec("\\PC{0,30}", 0..8)) {
            let update: Vec<_> = update.iter().map(|item| Change::lex(item)).collect();
            let _ = apply_update(&options(NOW), &update, &PullFilters::default());
        }
    }
}
