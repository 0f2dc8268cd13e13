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
    /// The peers that share the path with this one, and do not search themselves.
    sharing: Vec<PeerId>,
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
        Self { peer, link, protection, path, sharing: Vec::new(), told: None }
    }

    /// Also searches on behalf of another peer on the same path, in place of its own search.
    pub(crate) fn search_for(&mut self, other: &mut Self) {
        other.path = None;
        self.sharing.push(other.peer);
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
        for peer in std::iter::once(&self.peer).chain(&self.sharing) {
            out.plane(Command::SetMtu(*peer, mtu));
        }
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

    #[test]
    fn a_peer_on_the_same_path_gets_its_sizes_and_sends_no_probes() {
        use adit_crypto::Cipher;
        use adit_engine::command::ProbeResult;

        let link = Link::datagram(Default::default(), None, ([192, 0, 2, 1], 1194).into());
        let (settings, start) = (Settings::default(), Instant::from_nanos(1));
        let protection = Protection::Epoch(Cipher::Aes256Gcm);
        let sizes = |id| PacketSizes::new(start, PeerId(id), link, protection, &settings);
        let (mut first, mut further) = (sizes(1), sizes(2));
        first.search_for(&mut further);
        assert!(further.deadline().is_none() && first.deadline().is_some());
        // The first link carries 1400 bytes.
        let (mut out, mut set) = (Outbox::<()>::new(), Vec::new());
        let mut now = start;
        for _ in 0..100 {
            let Some((due, _)) = first.deadline().filter(|_| set.is_empty()) else { break };
            now = now.max(due);
            first.tick(now, &settings, &mut out);
            while let Some(output) = out.pop() {
                match output {
                    adit_engine::Output::Plane(Command::ProbePath(peer, size)) => {
                        assert_eq!(peer, PeerId(1));
                        let notice = if size > 1400 {
                            Notice::ProbeResult(peer, ProbeResult { size: 0, kernel: 1400 })
                        } else {
                            let [high, low] = (size - outer_headers(link)).to_be_bytes();
                            let answer = [&OCC_MAGIC[..], &[OCC_MTU_REPLY, high, low, 0, 0]];
                            Notice::InBand(peer, answer.concat())
                        };
                        assert!(further.notice(now, &notice, &settings, &mut out).is_none());
                        first.notice(now, &notice, &settings, &mut out);
                    }
                    adit_engine::Output::Plane(Command::SetMtu(peer, mtu)) => set.push((peer, mtu)),
                    other => panic!("{other:?}"),
                }
            }
        }
        let [(PeerId(1), one), (PeerId(2), other)] = set[..] else { panic!("{set:?}") };
        assert!(one == other && (1300..1400).contains(&one.largest), "{one:?}");
    }
}
