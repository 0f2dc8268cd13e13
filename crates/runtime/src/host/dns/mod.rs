//! Applies the tunnel's DNS servers to the host, watches the settings and undoes them.
//!
//! There are four back ends: systemd-resolved, NetworkManager, resolvconf, and /etc/resolv.conf itself. The first one that the host
//! supports is used. Each change is recorded before it is made. The record is in /run/adit for the programs. For resolv.conf, which may
//! outlive a reboot, it is in the file itself.

mod back_ends;
mod file;
mod plan;
mod programs;
mod records;
pub mod resolv_conf;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use back_ends::Link;
pub use plan::{BackEnd, DnsChange, DnsEvent, DnsInUse, DnsPlan, Transport};
use resolv_conf::{Original, Owner};

/// The interval between checks of the settings.
const LOOK: Duration = Duration::from_secs(2);

/// The number of times that resolv.conf is written again within [`PERIOD`]. After that, a program that keeps replacing
/// it prevails.
const AGAIN_LIMIT: u32 = 8;

/// The time without a change after which the count starts over.
const PERIOD: Duration = Duration::from_secs(120);

/// The DNS settings that a tunnel has made.
#[derive(Debug)]
pub(super) struct Dns {
    /// The root directory. It differs from `/` only in tests.
    root: PathBuf,
    made: Option<AppliedSettings>,
    in_use: DnsInUse,
}

/// The settings in force.
#[derive(Debug)]
struct AppliedSettings {
    plan: DnsPlan,
    link: Link,
    back_end: BackEnd,
    owner: Owner,
    /// The content that we wrote to resolv.conf, if we did.
    written: Vec<u8>,
    record: Option<PathBuf>,
    signature: Option<file::Signature>,
    next_look: Instant,
    again: u32,
    changed: Instant,
    /// The servers in use while the settings are applied.
    in_force: DnsInUse,
}

impl Default for Dns {
    fn default() -> Self {
        Self { root: "/".into(), made: None, in_use: DnsInUse::default() }
    }
}

impl Dns {
    /// Returns the servers in use.
    pub(super) fn in_use(&self) -> &DnsInUse {
        &self.in_use
    }

    /// Restores a resolv.conf that a killed process left. Does not wait.
    pub(super) fn repair(&self) {
        file::repair(&self.root);
    }

    /// Cleans up the settings of programs that manage DNS.
    pub(super) async fn clean_up(&self) {
        self.repair();
        records::clean_up(&self.root).await;
    }

    /// Returns whether a killed process left settings.
    pub(super) fn is_left(&self) -> bool {
        file::is_left(&self.root) || records::is_left(&self.root)
    }

    /// Applies the DNS settings of a plan. Returns notes on the parts that were left out.
    pub(super) async fn apply(
        &mut self,
        plan: Option<&DnsPlan>,
        device: Option<&(String, u32)>,
    ) -> Vec<String> {
        let link = device.map(|(name, index)| Link { name: name.clone(), index: *index });
        let Some((plan, link)) = plan.zip(link) else {
            self.undo().await;
            return Vec::new();
        };
        if self.made.as_ref().is_some_and(|made| made.plan == *plan && made.link == link) {
            return Vec::new();
        }
        if let Err(why) = plan.check() {
            self.undo().await;
            self.in_use = DnsInUse::Own(Some(why.clone()));
            return vec![format!("DNS: not applied: {why}")];
        }
        let former = self.made.take();
        let mut candidates = match &former {
            // Replace the settings without a gap, in which queries would go elsewhere.
            Some(made) if made.link == link => vec![made.back_end],
            _ => back_ends::candidates(&self.root),
        };
        if candidates != [BackEnd::File] && !candidates.contains(&BackEnd::File) {
            candidates.push(BackEnd::File);
        }
        let mut notes = Vec::new();
        let mut reason = String::new();
        for back_end in candidates {
            match self.make(back_end, plan, &link, former.as_ref()).await {
                Ok(more) => {
                    notes.extend(more);
                    return notes;
                }
                Err(e) => {
                    reason = format!("{back_end}: {e}");
                    notes.push(format!("DNS: not applied by {reason}"));
                }
            }
        }
        self.made = former;
        self.undo().await;
        self.in_use = DnsInUse::Own(Some(reason));
        notes
    }

    async fn make(
        &mut self,
        back_end: BackEnd,
        plan: &DnsPlan,
        link: &Link,
        former: Option<&AppliedSettings>,
    ) -> Result<Vec<String>, String> {
        let owner = file::owner(&link.name);
        let mut written = Vec::new();
        let mut record = None;
        if back_end == BackEnd::File {
            plan.is_plain()?;
            let io = |e: std::io::Error| e.to_string();
            let mut original = file::read_state(&self.root).map_err(io)?;
            // The file is our own, or a killed process left it.
            if let Original::File(bytes) = &original
                && let Some(ours) = resolv_conf::read(bytes)
                && (ours.owner == owner || !file::is_alive(&ours.owner))
            {
                original = ours.original;
            }
            written = file::install(&self.root, plan, &owner, &original).map_err(io)?;
        } else {
            record = records::write(&self.root, back_end, link);
        }
        let applied = match back_ends::apply(back_end, plan, link, &self.root).await {
            Ok(applied) => applied,
            Err(e) => {
                let _ = back_ends::undo(back_end, link).await;
                record.map(std::fs::remove_file);
                return Err(e);
            }
        };
        if let Some(former) = former.filter(|made| made.back_end != back_end) {
            self.take_back(former).await;
        }
        let in_force = DnsInUse::Tunnel {
            servers: plan.servers.clone(),
            back_end,
            domains: applied.domains,
            exclusive: applied.exclusive,
        };
        self.in_use = in_force.clone();
        self.made = Some(AppliedSettings {
            plan: plan.clone(),
            link: link.clone(),
            back_end,
            owner,
            written,
            record,
            signature: file::signature(&self.root),
            next_look: Instant::now() + LOOK,
            again: 0,
            changed: Instant::now(),
            in_force,
        });
        Ok(applied.notes)
    }

    /// Undoes the settings.
    pub(super) async fn undo(&mut self) {
        self.in_use = DnsInUse::default();
        if let Some(made) = self.made.take() {
            self.take_back(&made).await;
        }
    }

    async fn take_back(&self, made: &AppliedSettings) {
        let outcome = match made.back_end {
            BackEnd::File => {
                // The file is no longer ours if another program has replaced it.
                file::restore(&self.root, &made.owner).map(drop).map_err(|e| e.to_string())
            }
            other => back_ends::undo(other, &made.link).await,
        };
        if let Err(e) = outcome {
            tracing::warn!("DNS: settings not removed from {}: {e}", made.back_end);
        }
        if let Some(record) = &made.record {
            let _ = std::fs::remove_file(record);
        }
        // Repair the settings of another tunnel, which ended while ours had replaced them.
        self.repair();
    }

    /// Waits until another program changes the settings, or forever while there are none. Cancel-safe.
    pub(super) async fn event(&mut self) -> DnsEvent {
        loop {
            let Some(made) = &self.made else { return std::future::pending().await };
            sleep_until(made.next_look).await;
            if let Some(event) = self.check_for_changes() {
                return event;
            }
        }
    }

    /// Compares the current settings with those that were applied.
    fn check_for_changes(&mut self) -> Option<DnsEvent> {
        let made = self.made.as_mut()?;
        let now = Instant::now();
        made.next_look = now + LOOK;
        let signature = file::signature(&self.root);
        if signature == made.signature {
            return None;
        }
        made.signature = signature;
        let tunnel = made.in_force.clone();
        let was_lost = matches!(self.in_use, DnsInUse::Own(_));
        if made.back_end != BackEnd::File {
            return self.look_at_program(tunnel, was_lost);
        }
        let content = file::content(&self.root).unwrap_or_default();
        if content == made.written {
            self.in_use = tunnel.clone();
            return was_lost.then_some(DnsEvent { change: DnsChange::Back, in_use: tunnel });
        }
        if now.duration_since(made.changed) > PERIOD {
            made.again = 0;
        }
        made.changed = now;
        let other = resolv_conf::read(&content).filter(|ours| file::is_alive(&ours.owner));
        let why = if other.is_some() {
            "another tunnel of adit has written /etc/resolv.conf".to_owned()
        } else if made.again >= AGAIN_LIMIT {
            "another program keeps replacing /etc/resolv.conf".to_owned()
        } else {
            made.again = made.again.saturating_add(1);
            // The new content comes from the network, so it is restored at the end.
            let put = file::read_state(&self.root)
                .and_then(|new| file::install(&self.root, &made.plan, &made.owner, &new));
            match put {
                Ok(written) => {
                    made.written = written;
                    made.signature = file::signature(&self.root);
                    self.in_use = tunnel.clone();
                    let change = DnsChange::AppliedAgain;
                    return Some(DnsEvent { change, in_use: tunnel });
                }
                Err(e) => format!("/etc/resolv.conf was replaced and cannot be written: {e}"),
            }
        };
        self.in_use = DnsInUse::Own(Some(why));
        let event = DnsEvent { change: DnsChange::Lost, in_use: self.in_use.clone() };
        (!was_lost).then_some(event)
    }

    /// Checks whether the program's settings still reach /etc/resolv.conf.
    fn look_at_program(&mut self, tunnel: DnsInUse, was_lost: bool) -> Option<DnsEvent> {
        let made = self.made.as_ref()?;
        let in_force = match made.back_end {
            BackEnd::Resolved => {
                back_ends::candidates(&self.root).first() == Some(&BackEnd::Resolved)
            }
            _ => {
                let servers =
                    resolv_conf::addresses(&file::content(&self.root).unwrap_or_default());
                let first = servers.first();
                let ours = |ip| made.plan.servers.iter().any(|server| server.ip() == ip);
                first.is_some_and(|ip| ip.is_loopback() || ours(*ip))
            }
        };
        match (in_force, was_lost) {
            (true, true) => {
                self.in_use = tunnel;
                let in_use = self.in_use.clone();
                Some(DnsEvent { change: DnsChange::Back, in_use })
            }
            (false, false) => {
                let why =
                    format!("/etc/resolv.conf was replaced and no longer uses {}", made.back_end);
                self.in_use = DnsInUse::Own(Some(why));
                let in_use = self.in_use.clone();
                Some(DnsEvent { change: DnsChange::Lost, in_use })
            }
            (true, false) | (false, true) => None,
        }
    }
}
