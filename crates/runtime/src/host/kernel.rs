//! The interface to the kernel's routing tables. Tests can make any operation fail.

use std::ops::Deref;

use adit_linux::net::{Address, Link, Net, NetError, Route, Rule, RuleInUse};

/// A wrapper of [`Net`] in which tests can inject failures.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    net: Net,
    #[cfg(test)]
    pub(super) faults: faults::Faults,
}

/// An operation that tests can make fail.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    List,
    AddRoute(Route),
    DeleteRoute(Route),
    AddRule(Rule),
    DeleteRule(Rule),
}

impl Deref for Kernel {
    type Target = Net;

    fn deref(&self) -> &Net {
        &self.net
    }
}

impl Kernel {
    pub(super) fn new(net: Net) -> Self {
        Self {
            net,
            #[cfg(test)]
            faults: faults::Faults::default(),
        }
    }

    #[cfg(not(test))]
    fn pass(&self, _operation: Operation) -> Result<(), NetError> {
        Ok(())
    }

    #[cfg(test)]
    fn pass(&self, operation: Operation) -> Result<(), NetError> {
        self.faults.pass(operation)
    }

    pub(super) async fn routes(&self) -> Result<Vec<Route>, NetError> {
        self.pass(Operation::List)?;
        self.net.routes().await
    }

    pub(super) async fn all_routes(&self) -> Result<Vec<Route>, NetError> {
        self.pass(Operation::List)?;
        self.net.all_routes().await
    }

    pub(super) async fn rules(&self) -> Result<Vec<RuleInUse>, NetError> {
        self.pass(Operation::List)?;
        self.net.rules().await
    }

    pub(super) async fn rules_of(&self, v6: bool) -> Result<Vec<RuleInUse>, NetError> {
        self.pass(Operation::List)?;
        self.net.rules_of(v6).await
    }

    pub(super) async fn addresses(&self) -> Result<Vec<Address>, NetError> {
        self.pass(Operation::List)?;
        self.net.addresses().await
    }

    pub(super) async fn link_by_index(&self, index: u32) -> Result<Link, NetError> {
        self.pass(Operation::List)?;
        self.net.link_by_index(index).await
    }

    pub(super) async fn add_route(&self, route: &Route) -> Result<(), NetError> {
        self.pass(Operation::AddRoute(*route))?;
        self.net.add_route(route).await
    }

    pub(super) async fn replace_route(&self, route: &Route) -> Result<(), NetError> {
        self.pass(Operation::AddRoute(*route))?;
        self.net.replace_route(route).await
    }

    /// Adds a route, or replaces the one to the same network with the same metric.
    pub(super) async fn put_route(&self, route: &Route, replaces: bool) -> Result<(), NetError> {
        if replaces { self.replace_route(route).await } else { self.add_route(route).await }
    }

    pub(super) async fn delete_route(&self, route: &Route) -> Result<(), NetError> {
        self.pass(Operation::DeleteRoute(*route))?;
        self.net.delete_route(route).await
    }

    pub(super) async fn add_rule(&self, rule: &Rule) -> Result<(), NetError> {
        self.pass(Operation::AddRule(*rule))?;
        self.net.add_rule(rule).await
    }

    pub(super) async fn delete_rule(&self, rule: &Rule) -> Result<(), NetError> {
        self.pass(Operation::DeleteRule(*rule))?;
        self.net.delete_rule(rule).await
    }
}

#[cfg(test)]
pub(super) mod faults {
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use adit_linux::net::NetError;

    use super::Operation;

    type Chooses = dyn FnMut(usize, Operation) -> Option<i32> + Send;

    /// The operations that fail, shared by all clones.
    #[derive(Clone, Default)]
    pub(in crate::host) struct Faults(Arc<Mutex<Plan>>);

    #[derive(Default)]
    struct Plan {
        operations: usize,
        chooses: Option<Box<Chooses>>,
    }

    impl fmt::Debug for Faults {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Faults").finish_non_exhaustive()
        }
    }

    impl Faults {
        /// Makes the operations fail for which `chooses` returns an error number. Its argument
        /// counts the operations since this call.
        pub(in crate::host) fn set(
            &self,
            chooses: impl FnMut(usize, Operation) -> Option<i32> + Send + 'static,
        ) {
            let mut plan = self.0.lock().unwrap();
            *plan = Plan { operations: 0, chooses: Some(Box::new(chooses)) };
        }

        /// Stops the failures. Returns the number of operations since [`Self::set`].
        pub(in crate::host) fn clear(&self) -> usize {
            std::mem::take(&mut *self.0.lock().unwrap()).operations
        }

        pub(super) fn pass(&self, operation: Operation) -> Result<(), NetError> {
            let mut plan = self.0.lock().unwrap();
            let number = plan.operations;
            plan.operations += 1;
            match plan.chooses.as_mut().and_then(|chooses| chooses(number, operation)) {
                Some(errno) => Err(NetError::from_errno(format!("{operation:?}"), errno)),
                None => Ok(()),
            }
        }
    }
}
