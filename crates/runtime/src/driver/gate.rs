//! A decision before each attempt to connect.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use adit_engine::{Engine, Target};

use super::Driver;
use super::backend::Backend;
use super::resolve::Lookup;
use crate::proxy::Proxy;

/// Decides when an attempt to connect may begin, and where it leads: a person or a program may be asked.
pub trait DialGate: Send + Sync {
    /// Returns the decision about an attempt, or `None` if it may begin at once. The decision may take any time; it is
    /// dropped if the engine gives the attempt up.
    fn decide(&self, target: &Target) -> Option<PassageFuture>;
}

/// A decision that may take some time.
pub type PassageFuture = Pin<Box<dyn Future<Output = Passage> + Send>>;

/// The decision about an attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The server to connect to.
    pub target: Target,
    /// The proxy to use, or no proxy, instead of that of the target.
    pub proxy: Option<Option<Arc<Proxy>>>,
}

impl<E: Engine, B: Backend<Format = E::Format>> Driver<E, B> {
    /// Sets the gate for all attempts from now on.
    pub fn set_gate(&mut self, gate: Arc<dyn DialGate>) {
        self.gate = Some(gate);
    }

    pub(super) fn dial(&mut self, target: Target) {
        // A decision about an earlier attempt no longer counts.
        self.decision = None;
        while self.decided.1.try_recv().is_ok() {}
        self.proxy_instead = None;
        let Some(decision) = self.gate.as_ref().and_then(|gate| gate.decide(&target)) else {
            return self.begin(target);
        };
        self.lookup = None;
        self.connect_to = None;
        self.streams.forget();
        let tx = self.decided.0.clone();
        self.decision = Some(Lookup(tokio::spawn(async move {
            let _ = tx.send(decision.await).await;
        })));
    }

    pub(super) fn pass(&mut self, passage: Passage) {
        self.decision = None;
        self.proxy_instead = passage.proxy;
        self.begin(passage.target);
    }
}
