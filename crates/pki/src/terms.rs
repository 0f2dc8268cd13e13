//! The operator's settings of a client: a note, the networks behind it, its quota and its rate.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use time::{Date, Month, OffsetDateTime};

use crate::{ClientName, GroupName, PkiError};

/// The maximum length of a note, in characters.
pub(crate) const MAX_NOTE: usize = 200;
/// The maximum number of networks behind one client.
pub(crate) const MAX_NETWORKS: usize = 16;
/// The maximum number of networks behind all clients together. Each is a route of the server and a pushed option.
pub(crate) const MAX_ALL_NETWORKS: usize = 256;
/// The maximum number of clients and groups from which a client's networks are hidden.
pub(crate) const MAX_HIDDEN_FROM: usize = 16;

/// The bounds of a rate, in bits per second. Below the lower one, no program works.
const RATES: std::ops::RangeInclusive<u64> = 10_000..=1_000_000_000_000;
/// The smallest quota, in bytes. A connection alone takes a few kilobytes.
const LEAST_QUOTA: u64 = 1_000_000;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// The operator's settings of a client. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientTerms {
    /// A note for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The networks behind the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<IpNet>,
    /// The clients and groups that get no routes to these networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_from: Vec<Member>,
    /// The limit on its traffic in a day or month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// The limit on its speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<ClientRate>,
}

/// A client, or all clients of a group, as in the rules of packet filters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Member {
    /// `@client:NAME`.
    Client(ClientName),
    /// `@group:NAME`.
    Group(GroupName),
}

impl FromStr for Member {
    type Err = PkiError;

    fn from_str(text: &str) -> Result<Self, PkiError> {
        if let Some(name) = text.strip_prefix("@client:") {
            return Ok(Self::Client(name.parse()?));
        }
        if let Some(name) = text.strip_prefix("@group:") {
            return Ok(Self::Group(name.parse()?));
        }
        let shown: String = text.chars().take(80).collect();
        Err(PkiError::BadSetting(
            "hide-from",
            format!("{shown:?} is neither a client nor a group; write @client:NAME or @group:NAME"),
        ))
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(name) => write!(f, "@client:{name}"),
            Self::Group(name) => write!(f, "@group:{name}"),
        }
    }
}

impl TryFrom<String> for Member {
    type Error = PkiError;

    fn try_from(text: String) -> Result<Self, PkiError> {
        text.parse()
    }
}

impl From<Member> for String {
    fn from(member: Member) -> Self {
        member.to_string()
    }
}

/// The period of a quota, in UTC.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// From midnight to midnight.
    Day,
    /// From the first of a month to the first of the next one.
    Month,
}

impl Period {
    /// Returns the beginning of the period that contains a time, in seconds since 1970.
    pub fn start(self, unix: u64) -> u64 {
        let midnight = unix - unix % DAY;
        match self {
            Self::Day => midnight,
            Self::Month => {
                date(unix).and_then(|date| first_of(date.year(), date.month())).unwrap_or(midnight)
            }
        }
    }

    /// Returns the end of the period that contains a time, in seconds since 1970.
    pub fn end(self, unix: u64) -> u64 {
        let next_midnight = (unix - unix % DAY).saturating_add(DAY);
        let next_month = || {
            let date = date(unix)?;
            let year = i32::from(date.month() == Month::December);
            first_of(date.year().checked_add(year)?, date.month().next())
        };
        match self {
            Self::Day => next_midnight,
            Self::Month => next_month().unwrap_or(next_midnight),
        }
    }

    /// Returns the date of [`Self::end`], such as `2027-03-01`.
    pub fn end_date(self, unix: u64) -> String {
        date(self.end(unix)).map_or_else(|| "then".into(), |date| date.to_string())
    }

    /// Returns `day` or `month`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }
}

fn date(unix: u64) -> Option<Date> {
    let unix = i64::try_from(unix).ok()?;
    Some(OffsetDateTime::from_unix_timestamp(unix).ok()?.date())
}

fn first_of(year: i32, month: Month) -> Option<u64> {
    let first = Date::from_calendar_date(year, month, 1).ok()?;
    u64::try_from(first.midnight().assume_utc().unix_timestamp()).ok()
}

/// The limit on a client's traffic, in both directions together.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// The bytes of a period, as they are on the wire.
    pub bytes: u64,
    /// The period.
    pub per: Period,
}

impl FromStr for Quota {
    type Err = String;

    /// Parses text such as `50GB/month` or `500MB/day`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no quota; write one such as 50GB/month or 500MB/day");
        let (amount, period) = text.split_once('/').ok_or_else(wrong)?;
        let per = match period {
            "day" => Period::Day,
            "month" => Period::Month,
            _ => return Err(wrong()),
        };
        let bytes = quantity(amount, &SIZES).ok_or_else(wrong)?;
        if bytes < LEAST_QUOTA {
            return Err(format!("{text:?} is too little to connect; write at least 1MB/{period}"));
        }
        Ok(Self { bytes, per })
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} a {}", shown(self.bytes, ["B", "kB", "MB", "GB", "TB"]), self.per.name())
    }
}

/// The limit on a client's speed, in bits per second of the packets inside the tunnel.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRate {
    /// From the client to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// From the server to the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
}

impl FromStr for ClientRate {
    type Err = String;

    /// Parses `20Mbit` for both directions, or `up=5Mbit,down=20Mbit` for one or each of them.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no rate; write one such as 20Mbit or up=5Mbit,down=20Mbit");
        let rate = |text: &str| {
            let rate = quantity(text.trim_end_matches("/s"), &BITS).ok_or_else(wrong)?;
            if RATES.contains(&rate) {
                Ok(rate)
            } else {
                Err(format!("{text:?}: write a rate from 10kbit to 1000Gbit"))
            }
        };
        if !text.contains('=') {
            let both = Some(rate(text)?);
            return Ok(Self { up: both, down: both });
        }
        let mut limits = Self { up: None, down: None };
        for part in text.split(',') {
            let (direction, value) = part.split_once('=').ok_or_else(wrong)?;
            let limit = match direction {
                "up" => &mut limits.up,
                "down" => &mut limits.down,
                _ => return Err(wrong()),
            };
            if limit.replace(rate(value)?).is_some() {
                return Err(wrong());
            }
        }
        Ok(limits)
    }
}

impl fmt::Display for ClientRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: u64| shown(rate, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
        match (self.up, self.down) {
            (Some(up), Some(down)) => write!(f, "{} up, {} down", rate(up), rate(down)),
            (Some(up), None) => write!(f, "{} up", rate(up)),
            (None, Some(down)) => write!(f, "{} down", rate(down)),
            (None, None) => f.write_str("none"),
        }
    }
}

/// The units of sizes, in lower case.
const SIZES: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

/// The units of rates, in lower case.
const BITS: [(&str, u64); 4] =
    [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];

/// Parses a number with a unit, such as `1.5GB`.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let (number, unit) =
        units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?.trim_end(), *size)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let mut total = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        total = total.checked_add(place.checked_mul(u64::from(digit - b'0'))?)?;
    }
    Some(total)
}

/// Formats a number with the largest unit that leaves at least 1, and up to two decimals.
fn shown(number: u64, units: [&str; 5]) -> String {
    let mut size = 1u64;
    let mut unit = 0;
    while unit + 1 < units.len() && number / size >= 1000 {
        size = size.saturating_mul(1000);
        unit += 1;
    }
    let hundredths = u128::from(number) * 100 / u128::from(size);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    let name = units.get(unit).copied().unwrap_or_default();
    match (rest, rest % 10) {
        (0, _) => format!("{whole} {name}"),
        (_, 0) => format!("{whole}.{} {name}", rest / 10),
        _ => format!("{whole}.{rest:02} {name}"),
    }
}

impl ClientTerms {
    /// Checks the settings that do not depend on other clients.
    pub(crate) fn check(&self) -> Result<(), PkiError> {
        let bad = |what, why: String| Err(PkiError::BadSetting(what, why));
        if let Some(note) = &self.note {
            if note.chars().count() > MAX_NOTE {
                return bad("note", format!("it has at most {MAX_NOTE} characters"));
            }
            if note.chars().any(char::is_control) {
                return bad("note", "it is one line, without control characters".into());
            }
        }
        if self.networks.len() > MAX_NETWORKS {
            return bad("network", format!("a client has at most {MAX_NETWORKS}"));
        }
        if self.hidden_from.len() > MAX_HIDDEN_FROM {
            return bad("hide-from", format!("there are at most {MAX_HIDDEN_FROM}"));
        }
        for (at, network) in self.networks.iter().enumerate() {
            if !is_routable(network) {
                return bad("network", format!("{network} cannot be behind a client"));
            }
            let others = self.networks.iter().take(at);
            if let Some(other) = others.into_iter().find(|other| overlap(network, other)) {
                return bad("network", format!("{network} overlaps {other}; keep the larger one"));
            }
        }
        Ok(())
    }

    /// Returns whether a client with this name and these groups gets no routes to the networks.
    pub fn is_hidden_from(&self, name: &str, groups: &[GroupName]) -> bool {
        self.hidden_from.iter().any(|member| match member {
            Member::Client(client) => client.as_str() == name,
            Member::Group(group) => groups.contains(group),
        })
    }
}

/// Returns whether two networks have an address in common.
pub(crate) fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.addr()) || other.contains(&one.addr())
}

/// Returns whether hosts can have the addresses of a network, and the network is not everything.
fn is_routable(network: &IpNet) -> bool {
    let address = network.addr();
    let local = match address {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    network.prefix_len() > 0
        && !address.is_loopback()
        && !address.is_multicast()
        && !address.is_unspecified()
        && !local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_and_shown() {
        for (text, bytes, per, shown) in [
            ("50GB/month", 50_000_000_000, Period::Month, "50 GB a month"),
            ("500MB/day", 500_000_000, Period::Day, "500 MB a day"),
            ("1.5tb/month", 1_500_000_000_000, Period::Month, "1.5 TB a month"),
            ("1 GiB/day", 1 << 30, Period::Day, "1.07 GB a day"),
        ] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!(quota, Quota { bytes, per }, "{text}");
            assert_eq!(quota.to_string(), shown);
        }
        for bad in ["", "50GB", "50GB/week", "GB/day", "-1GB/day", "1e3GB/day", "50/day", "1kB/day"]
        {
            assert!(bad.parse::<Quota>().is_err(), "{bad}");
        }
        assert!("99999999999TB/day".parse::<Quota>().is_err(), "more than a number holds");
    }

    #[test]
    fn rates_are_read_and_shown() {
        let rate = |text: &str| text.parse::<ClientRate>();
        let both = ClientRate { up: Some(20_000_000), down: Some(20_000_000) };
        assert_eq!(rate("20Mbit"), Ok(both));
        assert_eq!(rate("20mbit/s"), Ok(both));
        let one = ClientRate { up: None, down: Some(1_500_000) };
        assert_eq!(rate("down=1.5Mbit"), Ok(one));
        assert_eq!(one.to_string(), "1.5 Mbit/s down");
        let each = rate("up=5Mbit,down=20Mbit").unwrap();
        assert_eq!(each.to_string(), "5 Mbit/s up, 20 Mbit/s down");
        for bad in ["", "20", "20MB", "5kbit", "2000Gbit", "up=1Mbit,up=2Mbit", "left=1Mbit", "up="]
        {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn periods_begin_and_end_at_midnight() {
        // 2024-02-29 12:00:00 UTC.
        let leap = 1_709_208_000;
        assert_eq!(Period::Day.start(leap), 1_709_164_800);
        assert_eq!(Period::Day.end(leap), 1_709_251_200);
        assert_eq!(Period::Month.start(leap), 1_706_745_600, "February 1");
        assert_eq!(Period::Month.end(leap), 1_709_251_200, "March 1");
        assert_eq!(Period::Month.end_date(leap), "2024-03-01");
        // 2023-12-31 23:59:59 UTC.
        let last = 1_704_067_199;
        assert_eq!(Period::Month.end(last), last + 1);
        assert_eq!(Period::Month.start(last + 1), last + 1);
        assert!(Period::Month.end(u64::MAX) >= Period::Month.start(u64::MAX));
    }

    #[test]
    fn each_check_refuses_alone() {
        let networks = |list: &[&str]| ClientTerms {
            networks: list.iter().map(|net| net.parse().unwrap()).collect(),
            ..ClientTerms::default()
        };
        networks(&["192.168.1.0/24", "fd01::/64", "192.168.2.0/24"]).check().unwrap();
        let many: Vec<String> = (0..17).map(|n| format!("10.{n}.0.0/16")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for bad in [
            &["0.0.0.0/0"][..],
            &["127.0.0.0/8"],
            &["224.0.0.0/8"],
            &["fe80::/64"],
            &["169.254.0.0/16"],
            &["10.0.0.0/8", "10.1.0.0/16"],
            &many,
        ] {
            assert!(networks(bad).check().is_err(), "{bad:?}");
        }
        for bad in ["a\nb".to_owned(), "n".repeat(MAX_NOTE + 1)] {
            let terms = ClientTerms { note: Some(bad), ..ClientTerms::default() };
            assert!(terms.check().is_err());
        }
        let all: Vec<Member> = (0..17).map(|n| format!("@group:g{n}").parse().unwrap()).collect();
        let terms = ClientTerms { hidden_from: all, ..ClientTerms::default() };
        assert!(terms.check().is_err());
    }

    #[test]
    fn networks_are_hidden_from_clients_and_groups() {
        let hidden = ["@client:phone", "@group:guests"].map(|text| text.parse().unwrap());
        let terms = ClientTerms { hidden_from: hidden.into(), ..ClientTerms::default() };
        let groups = |name: &str| vec![name.parse::<GroupName>().unwrap()];
        assert!(terms.is_hidden_from("phone", &[]));
        assert!(terms.is_hidden_from("laptop", &groups("guests")));
        assert!(!terms.is_hidden_from("laptop", &groups("phone")));
        for bad in ["phone", "@client:", "@group:a b", "@user:x"] {
            assert!(bad.parse::<Member>().is_err(), "{bad}");
        }
        let text = serde_json::to_string(&terms).unwrap();
        assert_eq!(serde_json::from_str::<ClientTerms>(&text).unwrap(), terms);
    }
}
