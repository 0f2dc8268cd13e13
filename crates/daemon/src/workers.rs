//! How many threads move packets.

use std::num::NonZero;
use std::thread::available_parallelism;

use crate::fault::Fault;

/// An environment variable with their number, for server and client.
const VARIABLE: &str = "ADIT_WORKERS";

/// More than this nobody may ask for: each has a socket for every port, a queue of the device and
/// buffers of its own.
pub const MAX_WORKERS: u16 = 64;

/// More than this a server does not take by itself, however many cores there are: each more is worth
/// less, since all feed one network stack.
const MAX_BY_DEFAULT: u16 = 16;

/// Up to so many cores a server has one worker: on two, the second takes from the programs that the
/// packets are for what the first could give them, and for a single stream costs a little.
const SMALL_MACHINE: u16 = 2;

/// For a server: what the command line says, else [`VARIABLE`], else the settings, else as many as
/// there are cores, within limits.
///
/// # Errors
/// A number that cannot be.
pub(crate) fn of_server(command: Option<u16>, settings: Option<u16>) -> Result<u16, Fault> {
    let chosen = match command {
        Some(workers) => Some(workers),
        None => from_environment()?.or(settings),
    };
    match chosen {
        Some(workers) => checked(workers).map_err(Fault::operator),
        // Counts what the scheduler and a cgroup's quota leave us.
        None => Ok(by_default(available_parallelism().map_or(1, NonZero::get))),
    }
}

/// For a client: all its packets are one peer's, which sends from one core by design, so one unless
/// [`VARIABLE`] says otherwise.
///
/// # Errors
/// A number that cannot be.
pub(crate) fn of_client() -> Result<u16, Fault> {
    Ok(from_environment()?.unwrap_or(1))
}

/// Whether a number of workers can be.
pub(crate) fn checked(workers: u16) -> Result<u16, String> {
    match workers {
        1..=MAX_WORKERS => Ok(workers),
        _ => Err(format!("{workers} workers cannot be; choose 1 to {MAX_WORKERS}")),
    }
}

fn from_environment() -> Result<Option<u16>, Fault> {
    match std::env::var_os(VARIABLE) {
        None => Ok(None),
        Some(text) => parse(&text.to_string_lossy()).map(Some),
    }
}

fn parse(text: &str) -> Result<u16, Fault> {
    let number = text.trim().parse().map_err(|_| {
        Fault::operator(format!(
            "{VARIABLE}={text}: not a number of workers; choose 1 to {MAX_WORKERS}, or unset it"
        ))
    })?;
    checked(number).map_err(|said| Fault::operator(format!("{VARIABLE}: {said}")))
}

fn by_default(cores: usize) -> u16 {
    match u16::try_from(cores).unwrap_or(u16::MAX) {
        0..=SMALL_MACHINE => 1,
        cores => cores.min(MAX_BY_DEFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_gets_one_and_a_large_one_not_all() {
        let cores = [0, 1, 2, 3, 4, 16, 17, 128, 100_000];
        assert_eq!(cores.map(by_default), [1, 1, 1, 3, 4, 16, 16, 16, 16]);
    }

    #[test]
    fn a_number_that_cannot_be_is_refused_with_the_remedy() {
        assert_eq!(parse(" 3 ").unwrap(), 3);
        for text in ["", "0", "65", "-1", "many", "99999"] {
            let fault = parse(text).unwrap_err();
            assert_eq!(fault.blame(), crate::fault::Blame::Operator);
            assert!(fault.to_string().contains("choose 1 to 64"), "{text}: {fault}");
            assert!(fault.to_string().starts_with("ADIT_WORKERS"), "{text}: {fault}");
        }
        assert!(of_server(Some(0), None).is_err());
        assert_eq!(of_server(Some(5), Some(7)).unwrap(), 5, "the command line goes before");
    }
}
