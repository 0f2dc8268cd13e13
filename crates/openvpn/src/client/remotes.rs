//! The choice of the next server, and the wait before it is tried.

use std::time::Duration;

use adit_engine::Transport;

use super::config::Remote;
use crate::p2p::RemotePolicy;

/// The next step after a failed attempt.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another attempt after a wait.
    After(Duration),
    /// All rounds that `connect-retry-max` allows have failed.
    Exhausted,
}

#[derive(Debug)]
pub(crate) struct Remotes {
    remotes: Vec<Remote>,
    at: usize,
    rounds: u32,
    first_wait: Duration,
    longest_wait: Duration,
    max_rounds: Option<u32>,
    /// Whether waits before attempts over datagrams stay constant.
    steady: bool,
}

impl Remotes {
    pub(crate) fn new(policy: &RemotePolicy) -> Self {
        let (first_wait, longest_wait) = policy.connect_retry;
        Self {
            remotes: policy.remotes.clone(),
            at: 0,
            rounds: 0,
            first_wait,
            longest_wait,
            max_rounds: policy.connect_retry_max,
            steady: false,
        }
    }

    /// Keeps the waits before attempts over datagrams short. This is for two ends that dial each
    /// other. Each listens only during an attempt, so with ever longer waits they could miss each
    /// other forever.
    pub(crate) fn steady(self) -> Self {
        Self { steady: true, ..self }
    }

    pub(crate) fn current(&self) -> Option<&Remote> {
        self.remotes.get(self.at)
    }

    /// Records that the current server worked.
    pub(crate) fn succeeded(&mut self) {
        self.rounds = 0;
    }

    /// Returns the short wait before the same server is tried again after a lost session.
    pub(crate) fn after_loss(&self) -> Duration {
        self.first_wait
    }

    /// Moves on to the next server after the loss of a session, if the loss suggests a fault in the
    /// server or transport. Returns the wait.
    pub(super) fn move_on(&mut self) -> Duration {
        self.at = self.at.saturating_add(1);
        if self.at >= self.remotes.len() {
            self.at = 0;
        }
        self.first_wait
    }

    /// Moves on to the next server after the current one failed. Each full round doubles the wait.
    pub(crate) fn advance(&mut self) -> Next {
        let transport = self.current().map(|remote| remote.target.transport);
        let grows = !self.steady || transport == Some(Transport::Tcp);
        self.at += 1;
        if self.at >= self.remotes.len() {
            self.at = 0;
            self.rounds = self.rounds.saturating_add(1);
            if self.max_rounds.is_some_and(|max| self.rounds >= max) {
                return Next::Exhausted;
            }
        }
        let doublings = if grows { self.rounds.saturating_sub(1).min(16) } else { 0 };
        Next::After(
            (self.first_wait * (1 << doublings)).min(self.longest_wait.max(self.first_wait)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_engine::Target;

    fn remotes(count: usize, max_rounds: Option<u32>) -> Remotes {
        let target = Target {
            host: "vpn.example".into(),
            port: 1194,
            transport: Default::default(),
            family: Default::default(),
            ..Target::default()
        };
        Remotes {
            remotes: vec![Remote { target }; count],
            at: 0,
            rounds: 0,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(300),
            max_rounds,
            steady: false,
        }
    }

    #[test]
    fn waits_of_an_end_that_is_dialled_as_well_stay_short_over_datagrams() {
        let waits = |mut remotes: Remotes, transport| -> Vec<u64> {
            remotes.remotes.iter_mut().for_each(|remote| remote.target.transport = transport);
            let wait = |next| match next {
                Next::After(wait) => wait.as_secs(),
                Next::Exhausted => 0,
            };
            (0..5).map(|_| wait(remotes.advance())).collect()
        };
        assert_eq!(waits(remotes(1, None).steady(), Transport::Udp), [1; 5]);
        assert_eq!(waits(remotes(1, None).steady(), Transport::Tcp), [1, 2, 4, 8, 16]);
    }

    #[test]
    fn waits_double_with_each_round_up_to_the_longest() {
        let mut r = remotes(2, None);
        let waits: Vec<_> = (0..24)
            .map(|_| match r.advance() {
                Next::After(wait) => wait.as_secs(),
                Next::Exhausted => 0,
            })
            .collect();
        assert_eq!(waits.get(..8), Some([1, 1, 1, 2, 2, 4, 4, 8].as_slice()));
        assert_eq!(waits.last(), Some(&300));
        r.succeeded();
        assert_eq!(r.advance(), Next::After(Duration::from_secs(1)));
    }

    #[test]
    fn gives_up_after_the_configured_rounds() {
        let mut r = remotes(3, Some(2));
        let attempts = (0..100).position(|_| r.advance() == Next::Exhausted);
        assert_eq!(attempts, Some(5), "two rounds of three servers");
    }
}
