//! Leftovers of ended processes in this network namespace, for `adit doctor` and `adit connect --release`.

use std::io;

use adit_linux::net::{Net, Rule};

use super::dns::Dns;
use super::{orphan_rules, undo_log};

/// A leftover of an ended process.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A kill switch keeps traffic in.
    KillSwitch,
    /// The process was killed before it could undo its changes.
    Killed,
    /// Rules keep traffic in, and no process that can be seen here has written them down.
    Unclaimed,
}

/// Returns the changes to undo, by ended process, and the rules that belong to no process. Call outside of a
/// tokio runtime.
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

/// Returns the reasons why running tunnels do not have the rules and routes that they ask for.
pub fn unfinished() -> Vec<String> {
    undo_log::problems()
}

/// Undoes what ended processes left of their DNS settings.
///
/// # Errors
/// No runtime can be started.
pub fn clean_up_dns() -> io::Result<()> {
    let dns = Dns::default();
    if dns.is_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Its threads end with it.
        runtime.block_on(dns.clean_up());
    }
    Ok(())
}

/// Undoes all of it, kill switches too; returns what was removed.
///
/// # Errors
/// No netlink socket can be opened.
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
