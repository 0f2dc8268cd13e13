//! Combines two windows of one trial into one cost.

use std::collections::BTreeMap;

use super::{RoleUsage, Usage};
use crate::testbed::Drops;

impl Usage {
    /// Returns the total cost of this window and a later one of the same processes. Memory and descriptors are those of
    /// the later one.
    pub fn then(self, later: Self) -> Self {
        let offset = self.samples.last().map_or(0.0, |sample| sample.at);
        let mut samples = self.samples;
        samples.extend(later.samples.into_iter().map(|mut sample| {
            sample.at += offset;
            sample
        }));
        let mut roles: BTreeMap<String, RoleUsage> = later.roles;
        for (role, before) in self.roles {
            let both = roles.entry(role).or_default();
            both.user += before.user;
            both.system += before.system;
            both.wait += before.wait;
            both.switches += before.switches;
        }
        Self {
            seconds: self.seconds + later.seconds,
            roles,
            samples,
            steal: self.steal.max(later.steal),
            drops: Drops {
                sockets: self.drops.sockets + later.drops.sockets,
                tun: self.drops.tun + later.drops.tun,
                veths: self.drops.veths + later.drops.veths,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Sample;

    #[test]
    fn costs_add_up_and_memory_is_the_last() {
        let window = |user: f64, pss_kib, at| Usage {
            seconds: 2.0,
            roles: [("server".to_owned(), RoleUsage { user, pss_kib, ..RoleUsage::default() })]
                .into(),
            samples: vec![Sample { at, ..Sample::default() }],
            steal: user / 100.0,
            drops: Drops { sockets: 1, tun: 2, veths: 0 },
        };
        let both = window(3.0, 10, 2.1).then(window(1.0, 8, 0.1));
        assert!((both.seconds - 4.0).abs() < 1e-9);
        assert!((both.roles["server"].user - 4.0).abs() < 1e-9);
        assert_eq!(both.roles["server"].pss_kib, 8);
        assert!((both.samples[1].at - 2.2).abs() < 1e-9, "the time goes on");
        assert!((both.steal - 0.03).abs() < 1e-9, "the worst of both");
        assert_eq!((both.drops.sockets, both.drops.tun), (2, 4));
    }
}
