//! The packet sizes of one session. Passes findings about the path to the data plane.

use std::fmt;

use adit_engine::{Instant, Link, PeerId};

use super::common::{DEFAULT_TUN_MTU, OCC_MAGIC, inner_mtu, inside, outer_headers};
use super::path_mtu::{CEILING, PathMtu};
use super::settings::Settings;
use crate::data_format::{Command, Notice, Outbox, Protection};

/// The OCC message with the lengths of the longest datagrams that the sender has received and sent.
const OCC_MTU_REPLY: u8 = 5;

/// The findings about the path to a peer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// The largest IP packet that the path carries unfragmented, at most 1500; `None` if the peer
    /// does not answer probes.
    pub mtu: Option<u16>,
    /// The maximum TCP segment size over IPv4; 0: unlimited.
    pub mss4: u16,
    /// The maximum TCP segment size over IPv6; 0: unlimited.
    pub mss6: u16,
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mtu {
            Some(mtu) => write!(f, "path MTU {mtu}: ")?,
            None => write!(f, "path MTU unknown, probes are not answered: ")?,
        }
        match self.mss4 {
            0 => write!(f, "TCP segments are left as they are"),
            mss => write!(f, "TCP segments of at most {mss} bytes"),
        }
    }
}

/// The packet sizes of a session with one peer.
#[derive(Clone, Debug)]
pub(crate) struct PacketSizes {
    peer: PeerId,
    link: Link,
    protection: Protection,
    /// The path MTU search; `None` over TCP and with `fragment`, where datagrams are never too
    /// large.
    path: Option<PathMtu>,
    told: Option<PathReport>,
}

impl PacketSizes {
    pub(crate) fn new(
        now: Instant,
        peer: PeerId,
        link: Link,
        protection: Protection,
        settings: &Settings,
    ) -> Self {
        let cut = link.is_stream() || settings.fragment.is_some();
        let path = (!cut).then(|| PathMtu::new(now, link));
        Self { peer, link, protection, path, told: None }
    }

    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.path.as_ref().map(|path| (path.deadline(), "path mtu"))
    }

    pub(crate) fn tick<E>(
        &mut self,
        now: Instant,
        settings: &Settings,
        out: &mut Outbox<E>,
    ) -> Option<PathReport> {
        let next = self.path.as_mut()?.tick(now);
        self.probe(next, out);
        self.tell(settings, out)
    }

    /// Processes this peer's notices about sizes.
    pub(crate) fn notice<E>(
        &mut self,
        now: Instant,
        notice: &Notice,
        settings: &Settings,
        out: &mut Outbox<E>,
    ) -> Option<PathReport> {
        let path = self.path.as_mut()?;
        let next = match notice {
            Notice::ProbeResult(_, probed) => path.probed(now, *probed),
            Notice::Traffic(_, traffic) => {
                path.traffic(now, traffic.packets.saturating_sub(traffic.in_band_packets));
                None
            }
            Notice::InBand(_, message) => {
                let received = received(message)?.saturating_add(outer_headers(self.link));
                path.answered(now, received)
            }
            _ => return None,
        };
        self.probe(next, out);
        self.tell(settings, out)
    }

    /// Restarts the search because packets to the peer take another path.
    pub(crate) fn moved(&mut self, now: Instant, link: Link) {
        self.link = link;
        if let Some(path) = &mut self.path {
            path.moved(now, link);
        }
    }

    fn probe<E>(&self, size: Option<u16>, out: &mut Outbox<E>) {
        if let Some(size) = size {
            out.plane(Command::ProbePath(self.peer, size));
        }
    }

    /// Applies the findings, if they have changed.
    fn tell<E>(&mut self, settings: &Settings, out: &mut Outbox<E>) -> Option<PathReport> {
        let path = self.path.as_ref()?;
        let found = path.found();
        if found.is_none() && self.told.is_none() && path.is_searching() {
            return None;
        }
        let mut mtu = inner_mtu(settings, self.link, self.protection);
        // An operator who chooses another `tun-mtu` accepts fragmented outer packets.
        if let Some(found) = found.filter(|mtu| *mtu < CEILING)
            && settings.tun_mtu <= DEFAULT_TUN_MTU
        {
            let size = found.saturating_sub(outer_headers(self.link));
            let inner = inside(settings, self.link, self.protection, size);
            mtu.largest = inner;
            if settings.mssfix.is_none() {
                mtu.mss4 = mtu.mss4.min(inner.saturating_sub(20 + 20));
                mtu.mss6 = mtu.mss6.min(inner.saturating_sub(40 + 20));
            }
        }
        let report = PathReport { mtu: found, mss4: mtu.mss4, mss6: mtu.mss6 };
        if self.told == Some(report) {
            return None;
        }
        self.told = Some(report);
        out.plane(Command::SetMtu(self.peer, mtu));
        Some(report)
    }
}

/// Returns the length of the longest datagram that a peer reports having received.
fn received(message: &[u8]) -> Option<u16> {
    let rest = message.strip_prefix(&OCC_MAGIC)?;
    match rest {
        [OCC_MTU_REPLY, high, low, ..] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_is_an_answer() {
        let with = |rest: &[u8]| [&OCC_MAGIC[..], rest].concat();
        assert_eq!(received(&with(&[5, 5, 0xdc, 0, 0])), Some(1500));
        assert_eq!(received(&with(&[5, 5])), None);
        assert_eq!(received(&with(&[4, 5, 0xdc])), None);
        assert_eq!(received(&OCC_MAGIC), None);
        assert_eq!(received(&[5, 5, 0xdc]), None);
    }
}
