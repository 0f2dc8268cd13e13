//! Finds changes that ended processes left in this network namespace, for `adit doctor` and `adit connect --release`.

use std::io;

use adit_linux::net::{Net, Rule};

use super::dns::Dns;
use super::{orphan_rules, undo_log};

/// Changes that an ended process left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A kill switch blocks traffic outside the tunnel.
    KillSwitch,
    /// The process was killed before it could undo its changes.
    Killed,
    /// Rules block traffic outside the tunnel, and no visible undo log contains them.
    Unclaimed,
}

/// Returns the changes of ended processes, and the rules that belong to no process. Call it outside a tokio runtime.
pub fn leftovers() -> Vec<Leftover> {
    let kind = |kept| if kept { Leftover::KillSwitch } else { Leftover::Killed };
    let pages = undo_log::dead();
    let dns = Dns::default().is_left().then_some(Leftover::Killed);
    let unclaimed = unclaimed().unwrap_or_default();
    let unclaimed = unclaimed.first().map(|_| Leftover::Unclaimed);
    pages.iter().map(|(_, page)| kind(page.is_kept())).chain(dns).chain(unclaimed).collect()
}

fn unclaimed() -> io::Result<Vec<Rule>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Ok(orphan_rules::rules(&Net::open()?).await) })
}

/// Returns the reasons why running tunnels lack rules and routes that they need.
pub fn unfinished() -> Vec<String> {
    undo_log::problems()
}

/// Undoes the DNS settings that ended processes left.
///
/// # Errors
/// Fails if no runtime can be started.
pub fn clean_up_dns() -> io::Result<()> {
    let dns = Dns::default();
    if dns.is_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The runtime's threads end with it.
        runtime.block_on(dns.clean_up());
    }
    Ok(())
}

/// Undoes all leftover changes, including kill switches. Returns the removed entries.
///
/// # Errors
/// Fails if no netlink socket can be opened.
pub fn release() -> io::Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let net = Net::open()?;
        let mut undone = undo_log::release(&net).await;
        undone.extend(orphan_rules::release(&net).await);
        let dns = Dns::default();
        if dns.is_left() {
            dns.clean_up().await;
            undone.extend((!dns.is_left()).then(|| "the tunnel's DNS settings".to_owned()));
        }
        Ok(undone)
    })
}
