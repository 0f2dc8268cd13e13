//! Checks of our own certificates' expiry and of the clock's plausibility.

use time::OffsetDateTime;
use x509_parser::pem::Pem;

use crate::control::CertificateReport;
use crate::fault::Fault;
use crate::log::stamp;

/// A time before this version was written (2025-11-01), which a correct clock cannot show.
const WRITTEN: u64 = 1_761_955_200;

/// Refuses one of our certificates if no peer would accept it.
///
/// # Errors
/// Fails if the certificate has expired or is not valid yet, or the clock is wrong.
pub fn check_own(origin: &str, pem: &[u8], now: u64) -> Result<(), Fault> {
    let Some((from, until)) = validity(pem).next() else {
        // TLS reports more precisely what is wrong with the certificate.
        return Ok(());
    };
    if now < WRITTEN {
        return Err(Fault::environment(format!(
            "this machine's clock shows {}, before this program was written: set it (`timedatectl \
             set-ntp true`, or `date -s`); certificates cannot be checked without it",
            stamp(now)
        )));
    }
    if now < from {
        return Err(Fault::operator(format!(
            "{origin}: the certificate is valid from {} only, and this machine's clock shows {}: set \
             the clock, or wait, or have the certificate issued again",
            stamp(from),
            stamp(now)
        )));
    }
    if now > until {
        return Err(Fault::operator(format!(
            "{origin}: the certificate expired on {}: have it renewed (with Easy-RSA: `easyrsa renew \
             NAME`; with adit: `adit server client renew NAME`)",
            stamp(until)
        )));
    }
    Ok(())
}

/// Returns the certificate that expires first.
pub fn nearest<'a>(
    pems: impl Iterator<Item = (&'a str, &'a [u8])>,
    now: u64,
) -> Option<CertificateReport> {
    let ends = pems.flat_map(|(whose, pem)| validity(pem).map(move |(_, until)| (until, whose)));
    ends.min().map(|(not_after, whose)| CertificateReport {
        whose: whose.to_owned(),
        not_after,
        days_left: days_left(not_after, now),
    })
}

fn days_left(not_after: u64, now: u64) -> i64 {
    const DAY: u64 = 86_400;
    if not_after >= now {
        i64::try_from((not_after - now) / DAY).unwrap_or(i64::MAX)
    } else {
        i64::try_from((now - not_after).div_ceil(DAY)).map_or(i64::MIN, |days| -days)
    }
}

/// Returns the validity periods of the certificates in a PEM text, in seconds since 1970.
fn validity(pem: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let blocks: Vec<Pem> = Pem::iter_from_buffer(pem).filter_map(Result::ok).collect();
    blocks.into_iter().filter_map(|block| {
        let certificate = block.parse_x509().ok()?;
        let validity = certificate.validity();
        let seconds = |time: OffsetDateTime| u64::try_from(time.unix_timestamp()).unwrap_or(0);
        Some((
            seconds(validity.not_before.to_datetime()),
            seconds(validity.not_after.to_datetime()),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Valid from 2026-01-01 to 2027-01-01.
    const FROM: u64 = 1_767_225_600;
    const UNTIL: u64 = 1_798_761_600;

    fn pem() -> String {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn our_own_certificate_is_refused_outside_its_time_with_the_remedy() {
        let pem = pem();
        let check = |now| check_own("client.crt", pem.as_bytes(), now);
        assert_eq!(check(FROM + 1), Ok(()));
        let early = check(FROM - 1).unwrap_err().to_string();
        assert!(early.contains("valid from 2026-01-01 00:00:00 only"), "{early}");
        let late = check(UNTIL + 1).unwrap_err().to_string();
        assert!(late.contains("expired on 2027-01-01 00:00:00: have it renewed"), "{late}");
        let clock = check(0).unwrap_err().to_string();
        assert!(clock.contains("clock shows 1970-01-01"), "{clock}");
    }

    #[test]
    fn the_nearest_end_of_all_is_found() {
        let (ours, pem) = (pem(), Vec::new());
        let all = [("ca", pem.as_slice()), ("own", ours.as_bytes())];
        let report = nearest(all.into_iter(), UNTIL - 86_400).unwrap();
        assert_eq!((report.whose.as_str(), report.not_after, report.days_left), ("own", UNTIL, 1));
        assert_eq!(nearest(std::iter::empty(), 0), None);
    }

    #[test]
    fn days_left_round_down_and_go_below_zero() {
        assert_eq!(days_left(UNTIL, UNTIL - 86_400 * 3 - 5), 3);
        assert_eq!(days_left(UNTIL, UNTIL), 0);
        assert_eq!(days_left(UNTIL, UNTIL + 1), -1);
    }
}
