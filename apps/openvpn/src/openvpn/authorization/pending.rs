//! The time that a check has.

use std::time::Duration;

use adit_runtime::authorize::PendingSender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Extends the time for a decision, and tells the client why it takes long.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    sender: PendingSender,
    until: watch::Sender<Instant>,
    /// The longest extension.
    longest: Duration,
}

impl Pending {
    pub(crate) fn new(sender: PendingSender, patience: Duration, longest: Duration) -> Self {
        Self { sender, until: watch::Sender::new(Instant::now() + patience), longest }
    }

    /// Extends the time to `timeout` from now, at most as far as the configuration allows, and sends the client
    /// AUTH_PENDING and, with `info`, INFO_PRE. Returns false if the client is gone.
    pub(crate) fn extend(&self, timeout: Duration, info: Option<String>) -> bool {
        let timeout = timeout.min(self.longest);
        let until = Instant::now() + timeout;
        self.until.send_if_modified(|now| {
            let later = *now < until;
            *now = until.max(*now);
            later
        });
        self.sender.send(timeout, info)
    }

    /// Returns the time that is left.
    #[cfg(test)]
    pub(super) fn remaining(&self) -> Duration {
        self.until.borrow().saturating_duration_since(Instant::now())
    }

    /// Waits until the time is over.
    pub(super) async fn expired(&self) {
        let mut until = self.until.subscribe();
        loop {
            let at = *until.borrow_and_update();
            tokio::select! {
                () = sleep_until(at) => return,
                // This end exists, so the channel stays open.
                _ = until.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the bound this test would not end, and without the extension it would end too early.
    #[tokio::test]
    async fn an_extension_counts_from_now_and_is_bounded() {
        let (patience, longest) = (Duration::from_millis(200), Duration::from_millis(400));
        let pending = Pending::new(PendingSender::none(), patience, longest);
        let waiting = tokio::spawn({
            let pending = pending.clone();
            async move { pending.expired().await }
        });
        tokio::task::yield_now().await;
        let begin = Instant::now();
        pending.extend(Duration::from_secs(1_000_000), None);
        pending.extend(Duration::ZERO, None);
        waiting.await.unwrap();
        assert!(begin.elapsed() >= longest, "{:?}", begin.elapsed());
    }
}
