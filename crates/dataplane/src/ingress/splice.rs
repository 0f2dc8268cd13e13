//! Sealed packets that a splice relays to another peer, or that a relay has sent to this end.

use adit_engine::command::{SpliceId, SpliceLabel};
use adit_engine::{Link, PeerId};

use super::{Ingress, Run, RunLayout};
use crate::format::{Format, FormatKey as _};
use crate::shared::Shared;
use crate::splice::{Sizes, Spliced};
use crate::stats::DropReason;

impl<'a, F: Format> Ingress<'a, '_, F> {
    /// Relays packets that belong to no session with this plane. Without a splice for them they are dropped for `reason`, or are control
    /// packets if there is none.
    #[inline(never)]
    pub(super) fn splice(
        &mut self,
        link: &Link,
        label: Option<SpliceLabel>,
        layout: impl RunLayout,
        run: &'a mut [u8],
        reason: Option<DropReason>,
    ) {
        let Shared { stats, tables, .. } = self.shared;
        let id = label.zip(tables.by_address(link)).map(|(label, from)| SpliceId { from, label });
        let sizes = || Sizes::of(layout.trains(&mut *run));
        let receiver = id.and_then(|id| tables.splices.receiver(id, self.now, sizes));
        match (receiver, reason) {
            (Some(Ok((to, true))), _) => self.arrived(link, to, layout, run),
            (Some(Ok((to, false))), _) => {
                let trains = layout.trains(run);
                let spliced = trains.map(|(segment, packets)| Spliced { to, segment, packets });
                self.lazy.get_or_insert_default().spliced.extend(spliced);
            }
            (Some(Err(reason)), _) | (None, Some(reason)) => {
                stats.drop_many(reason, layout.count(run));
            }
            (None, None) => layout.packets(run).for_each(|packet| self.control(link, packet)),
        }
    }

    /// Opens packets that a relay has sent to this end, or makes control packets of them if there is no key.
    fn arrived(&mut self, link: &Link, id: PeerId, layout: impl RunLayout, run: &'a mut [u8]) {
        let Some(peer) = self.peers.get(id) else {
            return layout.packets(run).for_each(|packet| self.control(link, packet));
        };
        let keys = peer.keys.load();
        let Some(key) = keys.primary.as_ref().filter(|key| key.format.accepts(run)) else {
            return layout.packets(run).for_each(|packet| self.control(link, packet));
        };
        let spec = peer.settings.load_full();
        self.open_run(Run { peer, spec, link, same_path: true }, key, layout, run);
    }
}
