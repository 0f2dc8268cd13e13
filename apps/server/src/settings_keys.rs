//! The table of the keys in `server.toml`. The file and the manual page are generated from it.

use std::fmt::{Display, Write};

use adit_runtime::settings::Key;

use super::event_settings::EventSettings;
use super::oidc_settings::OidcSettings;
use super::settings::{Nat, Reach, Settings};

/// Formats the file. It contains every key, so that an operator need not look up names.
pub(super) fn render(settings: &Settings) -> String {
    let mut text = String::from(HEAD);
    render_keys(&mut text, &KEYS, |key| value(settings, key));
    text.push_str(EVENTS_HEAD);
    let events = settings.events.as_ref();
    text.push_str(if events.is_some() { "[events]\n" } else { "# [events]\n" });
    render_keys(&mut text, &EVENT_KEYS, |key| event_value(events?, key));
    text.push_str(OIDC_HEAD);
    let oidc = settings.oidc.as_ref();
    text.push_str(if oidc.is_some() { "[oidc]\n" } else { "# [oidc]\n" });
    render_keys(&mut text, &OIDC_KEYS, |key| oidc_value(oidc?, key));
    text
}

/// Formats keys with their comments. A key without a value is commented out.
fn render_keys(text: &mut String, keys: &[Key], value: impl Fn(&str) -> Option<String>) {
    for key in keys {
        text.push('\n');
        for row in key.comment.lines() {
            let _ = writeln!(text, "# {row}");
        }
        let _ = match value(key.name) {
            Some(value) => writeln!(text, "{} = {value}", key.name),
            None => writeln!(text, "# {} = {}", key.name, key.example),
        };
    }
}

/// Formats a value of the section `[events]`; `None` if it has none.
fn event_value(events: &EventSettings, key: &str) -> Option<String> {
    Some(match key {
        "url" => quoted(&events.url),
        "header-file" => quoted(events.header_file.as_ref()?.display()),
        "ca-file" => quoted(events.ca_file.as_ref()?.display()),
        "plain-http" => events.plain_http.to_string(),
        _ => return None,
    })
}

/// Formats a value of the section `[oidc]`; `None` if it has none.
fn oidc_value(oidc: &OidcSettings, key: &str) -> Option<String> {
    Some(match key {
        "issuer" => quoted(&oidc.issuer),
        "client-id" => quoted(&oidc.client_id),
        "client-secret-file" => quoted(oidc.client_secret_file.as_ref()?.display()),
        "scopes" => list(&oidc.scopes),
        "user-claim" => quoted(&oidc.user_claim),
        "groups-claim" => quoted(&oidc.groups_claim),
        "required-group" => quoted(oidc.required_group.as_ref()?),
        "ca-file" => quoted(oidc.ca_file.as_ref()?.display()),
        "session-hours" => oidc.session_hours.to_string(),
        _ => return None,
    })
}

/// Formats a setting's value; `None` if it has none.
fn value(settings: &Settings, key: &str) -> Option<String> {
    Some(match key {
        "listen" => list(&settings.listen),
        "host" => quoted(&settings.host),
        "network" => quoted(settings.network),
        "network6" => quoted(settings.network6?),
        "full-tunnel" => (settings.reach == Reach::Full).to_string(),
        "routes" => match &settings.reach {
            Reach::Full => "[]".to_owned(),
            Reach::Networks(routes) => list(routes),
        },
        "dns" => list(&settings.dns),
        "nat" => quoted(match settings.nat {
            Nat::Auto => "auto",
            Nat::Off => "off",
        }),
        "client-to-client" => settings.client_to_client.to_string(),
        "login" => quoted(settings.login.name()),
        "pam-service" => quoted(&settings.pam_service),
        "max-clients" => settings.max_clients.to_string(),
        "mtu" => settings.mtu?.to_string(),
        "workers" => settings.workers?.to_string(),
        "user" => quoted(settings.user.as_ref()?),
        "on-event" => quoted(settings.on_event.as_ref()?.display()),
        "filter" => quoted(settings.filter.as_ref()?.display()),
        "metrics" => settings.metrics.as_ref()?.to_toml(),
        "device" => quoted(&settings.device),
        _ => return None,
    })
}

fn quoted(item: impl Display) -> String {
    format!("\"{item}\"")
}

fn list<T: Display>(items: &[T]) -> String {
    let quoted: Vec<String> = items.iter().map(quoted).collect();
    format!("[{}]", quoted.join(", "))
}

const HEAD: &str = "\
# The settings of this VPN server. Edit, then: adit reload
# `adit reload` prints which changes took effect, and which need a restart: `listen`, `network`,
# `network6`, `device`, `mtu`, `workers`, `user`, `client-to-client`, `pam-service`, `metrics`,
# `on-event`, `[events]`, and a filter where there was none.
# Clients with adit, or openvpn from 2.7 on, get new routes and name servers at once, others
# when they connect again. Profiles keep the host and ports that they were made with; see
# adit server client remotes
";

/// All keys, in the order of the file.
pub const KEYS: [Key; 19] = [
    Key {
        name: "listen",
        comment: "\
Where to listen: \"udp/PORT\" or \"tcp/PORT\" on every address, \"udp/ADDRESS:PORT\" on one.
Profiles name all of them, UDP first. TCP is slower, for networks that let nothing else out.
Open them in the firewall in front of this machine.",
        example: r#"["udp/1194", "tcp/443"]"#,
        default: Some(r#"["udp/1194"]"#),
        restart: true,
    },
    Key {
        name: "host",
        comment: "\
The name or address that clients dial; it is written into each new profile.
A DNS name survives a change of address.",
        example: r#""vpn.example.net""#,
        default: None,
        restart: false,
    },
    Key {
        name: "network",
        comment: "\
The network inside the tunnel. The server has its first address. Pick a range that is
used neither here nor on your clients' home networks. Avoid common ones such as
10.8.0.0/24 and 192.168.0.0/24.",
        example: r#""10.87.31.0/24""#,
        default: None,
        restart: true,
    },
    Key {
        name: "network6",
        comment: "\
The same for IPv6. Without this line the tunnel carries only IPv4.",
        example: r#""fd12:3456:789a::/64""#,
        default: Some("no IPv6"),
        restart: true,
    },
    Key {
        name: "full-tunnel",
        comment: "\
true: clients send all traffic through the tunnel (full tunnel). false: only traffic to
`network`, `network6` and the networks in `routes` (split tunnel).",
        example: "true",
        default: Some("false"),
        restart: false,
    },
    Key {
        name: "routes",
        comment: "\
Networks behind this server that clients reach through the tunnel,
for example [\"192.168.7.0/24\"].",
        example: r#"["192.168.7.0/24"]"#,
        default: Some("[]"),
        restart: false,
    },
    Key {
        name: "dns",
        comment: "\
Name servers for the clients, for example [\"9.9.9.9\"]. They should be reachable
through the tunnel.",
        example: r#"["9.9.9.9"]"#,
        default: Some("[]"),
        restart: false,
    },
    Key {
        name: "nat",
        comment: "\
\"auto\": masquerade client traffic behind this machine's address. \"off\": no NAT; the
network behind the server must have a route back to the clients.",
        example: r#""off""#,
        default: Some(r#""auto""#),
        restart: false,
    },
    Key {
        name: "client-to-client",
        comment: "\
Whether clients may talk to each other.",
        example: "true",
        default: Some("false"),
        restart: true,
    },
    Key {
        name: "login",
        comment: "\
What a client needs. \"certificate\": its profile. \"certificate+password\": also the name and
password of a user (adit server user add), and a one-time code if the user has codes.
\"certificate+password+code\": every user needs a one-time code. \"password\", \"password+code\":
the same without a certificate, which is weaker. \"certificate+oidc\": also a login in the
browser, see [oidc] below. \"pam\", \"certificate+pam\": PAM checks the password. After a change,
hand out new profiles.",
        example: r#""certificate+password""#,
        default: Some(r#""certificate""#),
        restart: false,
    },
    Key {
        name: "pam-service",
        comment: "\
The service of PAM, a file in /etc/pam.d, with login = \"pam\" or \"certificate+pam\".",
        example: r#""vpn""#,
        default: Some(r#""adit""#),
        restart: true,
    },
    Key {
        name: "max-clients",
        comment: "\
The maximum number of clients connected at the same time.",
        example: "1000",
        default: Some("250"),
        restart: false,
    },
    Key {
        name: "mtu",
        comment: "\
Largest IP packet inside the tunnel: 1280 to 1500 bytes, 1500 without this line. TCP adjusts to
the path automatically; a smaller number helps UDP if fragments are lost (adit connect --check).",
        example: "1400",
        default: Some("1500"),
        restart: true,
    },
    Key {
        name: "workers",
        comment: "\
Threads that move packets. Without this line, one on machines with up to 2 cores, and
otherwise as many as there are cores, 16 at most.",
        example: "4",
        default: Some("as many as there are cores"),
        restart: true,
    },
    Key {
        name: "user",
        comment: "\
The user that the network process runs as; it needs no privileges and should own no files.
Without this line, it is `adit` if that user exists, and `nobody` otherwise.",
        example: r#""adit""#,
        default: Some("`adit`, or `nobody`"),
        restart: true,
    },
    Key {
        name: "filter",
        comment: "\
A file of rules for packets in the tunnel, in nftables' language; a relative path is relative
to this file's folder. Without it everything passes, except packets between clients.",
        example: r#""rules.nft""#,
        default: Some("no rules"),
        restart: true,
    },
    Key {
        name: "metrics",
        comment: "\
Where metrics for Prometheus are served: unix:PATH, or a port of this machine such as
127.0.0.1:9190. Without this line, nowhere. See docs/metrics.md.",
        example: r#""unix:/run/adit/server.metrics""#,
        default: Some("none"),
        restart: true,
    },
    Key {
        name: "on-event",
        comment: "\
A program that is run for each event: a client connects, disconnects or is refused, a
certificate expires soon, a limit is reached, a reload fails. Its argument is the event's
name, and the variable ADIT_EVENT contains a JSON object. It runs as root.",
        example: r#""/etc/adit/on-event""#,
        default: Some("no program"),
        restart: true,
    },
    Key {
        name: "device",
        comment: "\
The name of the tunnel's network device.",
        example: r#""vpn0""#,
        default: Some(r#""adit0""#),
        restart: true,
    },
];

const EVENTS_HEAD: &str = "
# A webhook that gets each event of `on-event` as a JSON object. Sections such as this one come
# after all other lines.
";

/// The keys of the section `[events]`, in the order of the file.
pub const EVENT_KEYS: [Key; 4] = [
    Key {
        name: "url",
        comment: "\
Where to send each event: an https URL, or an http URL of this machine.",
        example: r#""https://hooks.example.net/adit""#,
        default: None,
        restart: true,
    },
    Key {
        name: "header-file",
        comment: "\
A file whose first line is sent in the head of each request, for example
Authorization: Bearer SECRET. A relative path is relative to this file's folder.",
        example: r#""hook.header""#,
        default: Some("none"),
        restart: true,
    },
    Key {
        name: "ca-file",
        comment: "\
The authorities for the webhook's certificate in PEM. Without this line, those of this machine.",
        example: r#""hook-ca.pem""#,
        default: Some("those of this machine"),
        restart: true,
    },
    Key {
        name: "plain-http",
        comment: "\
true: an http URL may name another machine. Anyone on the way can read and change events.",
        example: "true",
        default: Some("false"),
        restart: true,
    },
];

const OIDC_HEAD: &str = "
# Single sign-on: where users log in in a browser, with login = \"certificate+oidc\".
";

/// The keys of the section `[oidc]`, in the order of the file.
pub const OIDC_KEYS: [Key; 9] = [
    Key {
        name: "issuer",
        comment: "\
The URL of the OpenID Connect provider, exactly as it names itself.",
        example: r#""https://sso.example.net/realms/staff""#,
        default: None,
        restart: false,
    },
    Key {
        name: "client-id",
        comment: "\
The name under which this server is registered with the provider, for the device flow.",
        example: r#""adit""#,
        default: None,
        restart: false,
    },
    Key {
        name: "client-secret-file",
        comment: "\
The file with the secret from the provider; only root needs to read it. Without this line,
the server is a public client. A relative path is relative to this file's folder.",
        example: r#""oidc.secret""#,
        default: Some("a public client"),
        restart: false,
    },
    Key {
        name: "scopes",
        comment: "\
What to request from the provider; some need \"groups\" or \"email\" for these claims.",
        example: r#"["openid", "profile", "groups"]"#,
        default: Some(r#"["openid", "profile"]"#),
        restart: false,
    },
    Key {
        name: "user-claim",
        comment: "\
The claim with the name of the user.",
        example: r#""email""#,
        default: Some(r#""preferred_username""#),
        restart: false,
    },
    Key {
        name: "groups-claim",
        comment: "\
The claim with the groups of the user, which rules name as @group:NAME.",
        example: r#""roles""#,
        default: Some(r#""groups""#),
        restart: false,
    },
    Key {
        name: "required-group",
        comment: "\
Only users in this group may log in. Without this line, all users of the provider may.",
        example: r#""vpn""#,
        default: Some("none"),
        restart: false,
    },
    Key {
        name: "ca-file",
        comment: "\
The authorities for the provider's certificate in PEM. Without this line, those of this machine.",
        example: r#""sso-ca.pem""#,
        default: Some("those of this machine"),
        restart: false,
    },
    Key {
        name: "session-hours",
        comment: "\
After this time a session ends, and its user logs in in the browser again: 1 to 720.",
        example: "8",
        default: Some("12"),
        restart: false,
    },
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(text: &str) -> Settings {
        let base = "host = \"h\"\nnetwork = \"10.9.9.0/24\"\n";
        Settings::parse(&format!("{base}{text}"), Path::new("server.toml")).unwrap()
    }

    #[test]
    fn every_key_is_in_the_table_and_its_example_and_default_can_be_read() {
        let written = toml::to_string(&settings("")).unwrap();
        let known: Vec<&str> =
            written.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        for key in known {
            assert!(KEYS.iter().any(|row| row.name == key), "{key} is not in the table");
        }
        for key in &KEYS {
            let text = format!("{} = {}\n", key.name, key.example);
            let text = match key.name {
                "host" => format!("{text}network = \"10.9.9.0/24\"\n"),
                "network" => format!("{text}host = \"h\"\n"),
                _ => format!("{text}host = \"h\"\nnetwork = \"10.9.9.0/24\"\n"),
            };
            let read = Settings::parse(&text, Path::new("server.toml")).unwrap();
            assert_eq!(value(&read, key.name).as_deref(), Some(key.example), "{}", key.name);
            let without = value(&settings(""), key.name);
            match (key.default, without) {
                (Some(default), Some(value)) => assert_eq!(value, default, "{}", key.name),
                (None, _) => assert!(matches!(key.name, "host" | "network"), "{}", key.name),
                (Some(_), None) => {}
            }
        }
    }

    #[test]
    fn the_manual_has_every_key_with_its_default_and_example() {
        let manual = include_str!("../../../docs/server.md");
        let rows: Vec<Vec<String>> = manual
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
            .map(|row| row.split(" | ").map(|cell| cell.replace('`', "")).collect())
            .collect();
        for (key, nth) in KEYS.iter().chain(&OIDC_KEYS).map(|key| (key, 0)).chain(
            // The webhook's table comes after that of the provider, which has a `ca-file` too.
            EVENT_KEYS.iter().map(|key| (key, usize::from(key.name == "ca-file"))),
        ) {
            let mut named =
                rows.iter().filter(|row| row.first().is_some_and(|cell| cell == key.name));
            let row = named.nth(nth);
            let Some([_, default, example, takes_effect]) = row.map(Vec::as_slice) else {
                panic!("{} has no row of four cells", key.name);
            };
            let expected = key.default.unwrap_or("required").replace('`', "");
            assert_eq!(*default, expected, "{}", key.name);
            assert_eq!(example, key.example, "{}", key.name);
            assert_eq!(takes_effect.starts_with("restart"), key.restart, "{}", key.name);
            let item = format!("\n- **`{}`**: ", key.name);
            assert!(manual.contains(&item), "{} is not explained", key.name);
        }
    }

    #[test]
    fn every_key_of_the_provider_is_in_the_table_and_its_example_and_default_can_be_read() {
        let required = |key: &str| matches!(key, "issuer" | "client-id");
        let base = OidcSettings::new("https://sso.example.net", "adit");
        let written = toml::to_string(&OidcSettings {
            client_secret_file: Some("a".into()),
            required_group: Some("a".into()),
            ca_file: Some("a".into()),
            ..base.clone()
        });
        for line in written.unwrap().lines() {
            let name = line.split_once(" = ").unwrap().0;
            assert!(OIDC_KEYS.iter().any(|key| key.name == name), "{name} is not in the table");
        }
        for key in &OIDC_KEYS {
            let others = [("issuer", "https://a"), ("client-id", "b")];
            let others = others.iter().filter(|(name, _)| *name != key.name);
            let others: String =
                others.map(|(name, value)| format!("{name} = \"{value}\"\n")).collect();
            let text = format!("[oidc]\n{others}{} = {}\n", key.name, key.example);
            let read = settings(&text).oidc.unwrap();
            assert_eq!(oidc_value(&read, key.name).as_deref(), Some(key.example), "{}", key.name);
            assert_eq!(key.default.is_none(), required(key.name), "{}", key.name);
            if let (Some(default), Some(value)) = (key.default, oidc_value(&base, key.name))
                && !required(key.name)
            {
                assert_eq!(value, default, "{}", key.name);
            }
        }
    }

    #[test]
    fn every_key_of_the_webhook_is_in_the_table_and_its_example_and_default_can_be_read() {
        let base = EventSettings::new("https://a/");
        let full = EventSettings {
            header_file: Some("a".into()),
            ca_file: Some("a".into()),
            ..base.clone()
        };
        for line in toml::to_string(&full).unwrap().lines() {
            let name = line.split_once(" = ").unwrap().0;
            assert!(EVENT_KEYS.iter().any(|key| key.name == name), "{name} is not in the table");
        }
        for key in &EVENT_KEYS {
            let url = if key.name == "url" { "" } else { "url = \"https://a/\"\n" };
            let text = format!("[events]\n{url}{} = {}\n", key.name, key.example);
            let read = settings(&text).events.unwrap();
            assert_eq!(event_value(&read, key.name).as_deref(), Some(key.example), "{}", key.name);
            if let (Some(default), Some(value)) = (key.default, event_value(&base, key.name)) {
                assert_eq!(value, default, "{}", key.name);
            }
        }
    }

    #[test]
    fn the_head_names_every_key_that_waits_for_a_restart() {
        let waiting = HEAD.split_once("restart: ").unwrap().1.split_once(".\n").unwrap().0;
        for key in &KEYS {
            let named = waiting.contains(&format!("`{}`", key.name))
                || (key.name == "filter" && waiting.contains("a filter where there was none"));
            assert_eq!(named, key.restart, "{}", key.name);
        }
    }
}
