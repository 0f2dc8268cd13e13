//! Merges neighbouring packets of a flow into one super-packet, the reverse of [`crate::split`].
//!
//! Only headers are copied, and a merged packet is a list of slices for one `writev`. Packets are merged only if the
//! kernel would split the result into the same packets again (the rules are those of its own GRO), and only after their
//! checksums were verified, because otherwise a corrupted packet would leave with a valid checksum.
//!
//! The order within a flow is kept. A packet joins only the latest run of its flow, and a packet that cannot join
//! closes that run. Packets of different flows within a burst may overtake each other.

use crate::checksum::Sum;
use crate::ethernet::MAX_HEADER_LEN;
use crate::field::{get8, get16, get32, put8, put16};
use crate::ip::{TCP, UDP, V4_LEN, V6_LEN, header_checksum_ok, pseudo_header, v4_df, v4_id};
use crate::transport::{Tcp, UDP_LEN, Udp, flags};
use crate::vnet::{Gso, VnetHeader};

/// The maximum number of packets in one super-packet: the slices of one `writev`.
pub const MAX_PARTS: usize = 64;
/// The maximum length of a super-packet from its IP header on: the limit of the IPv4 length field.
const MAX_LEN: usize = 65535;
/// The maximum number of flows that can grow at the same time; another flow closes the oldest.
const MAX_FLOWS: usize = 8;
/// The length of the longest header of a merged packet: Ethernet with tags, IPv6 and TCP with all options.
const MAX_HEADER: usize = MAX_HEADER_LEN + V6_LEN + 60;

/// Collects the packets of one burst.
#[derive(Debug, Default)]
pub struct Merger<'a> {
    tcp: bool,
    udp: bool,
    /// The origin of the packets that are currently pushed.
    origin: u32,
    runs: Vec<Run>,
    parts: Vec<Part<'a>>,
    /// Indices of runs that may still grow, oldest first.
    growing: Vec<usize>,
}

/// A packet, or a frame that contains one, and the index of the next packet of its run.
#[derive(Debug)]
struct Part<'a> {
    frame: &'a [u8],
    next: Option<usize>,
}

/// Packets that are written together.
#[derive(Debug)]
struct Run {
    first: usize,
    last: usize,
    count: usize,
    origin: u32,
    /// Length from the IP header on.
    len: usize,
    flow: Option<Flow>,
}

/// The state that the next packet of a run must continue.
#[derive(Copy, Clone, Debug)]
struct Flow {
    v6: bool,
    tcp: bool,
    /// The bytes before the IP header; the other offsets count from the IP header.
    l2: u16,
    l4: u16,
    header_len: u16,
    /// Payload length of the first packet. All packets but the last have payloads of this length.
    size: usize,
    ports: u32,
    /// TCP: the sequence number that continues the run.
    next_seq: u32,
    /// IPv4: the identification that continues the run.
    next_id: u16,
    /// A short or pushed packet ended the run.
    ended: bool,
    /// The TCP flags except PSH.
    flags: u8,
    pushed: bool,
    verified: bool,
}

/// How a packet can be merged.
enum Shape {
    /// May start or continue a run.
    Mergeable(Flow),
    /// Belongs to this flow but cannot be merged: closes the flow's run.
    Barrier(Flow),
    /// Never merged, because of its kind.
    Other,
}

impl<'a> Merger<'a> {
    /// Creates a merger for a device that takes super-packets of TCP, of UDP, of both or of neither.
    pub fn new(tcp: bool, udp: bool) -> Self {
        Self { tcp, udp, ..Self::default() }
    }

    /// Empties the merger but keeps its memory for the packets of another burst.
    pub fn recycle<'b>(mut self, tcp: bool, udp: bool) -> Merger<'b> {
        self.runs.clear();
        self.growing.clear();
        self.parts.clear();
        // Collecting an emptied vector into one with another lifetime reuses the allocation.
        let parts = self.parts.into_iter().map_while(|_| None).collect();
        Merger { tcp, udp, origin: 0, runs: self.runs, parts, growing: self.growing }
    }

    /// Returns whether no packets were pushed.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Sets the origin ([`Write::origin`]) of the packets that are pushed from now on. Frames of different origins are
    /// not merged. IP packets are distinguished only by their addresses, so each address must have a single origin.
    #[inline]
    pub fn set_origin(&mut self, origin: u32) {
        self.origin = origin;
    }

    /// Adds one IP packet.
    #[inline(always)]
    pub fn push(&mut self, packet: &'a [u8]) {
        self.push_any::<false>(packet, 0);
    }

    /// Adds one frame whose IP packet follows `l2` bytes. For a frame with other contents, `l2` is the whole length,
    /// and it passes unchanged.
    #[inline]
    pub fn push_behind(&mut self, frame: &'a [u8], l2: usize) {
        self.push_any::<true>(frame, l2);
    }

    /// Adds a packet or a frame. Compiled twice, so that a TUN device's packets do not pay for the handling of frame
    /// headers.
    #[inline(always)]
    fn push_any<const FRAMES: bool>(&mut self, frame: &'a [u8], l2: usize) {
        let packet = if FRAMES { frame.get(l2..).unwrap_or(&[]) } else { frame };
        match self.shape(packet, l2) {
            Shape::Other => self.start(frame, packet.len(), None),
            Shape::Barrier(flow) => {
                if let Some((slot, _)) = self.find::<FRAMES>(&flow, frame, packet) {
                    self.growing.remove(slot);
                }
                self.start(frame, packet.len(), None);
            }
            Shape::Mergeable(flow) => self.push_mergeable::<FRAMES>(frame, packet, flow),
        }
    }

    fn push_mergeable<const FRAMES: bool>(
        &mut self,
        frame: &'a [u8],
        packet: &'a [u8],
        flow: Flow,
    ) {
        let Some((slot, index)) = self.find::<FRAMES>(&flow, frame, packet) else {
            return self.grow(frame, packet.len(), flow);
        };
        if self.join::<FRAMES>(index, frame, packet, &flow).is_none() {
            self.growing.remove(slot);
            self.grow(frame, packet.len(), flow);
        }
    }

    /// Starts a run that may grow.
    fn grow(&mut self, frame: &'a [u8], len: usize, flow: Flow) {
        if self.growing.len() >= MAX_FLOWS {
            self.growing.remove(0);
        }
        self.growing.push(self.runs.len());
        self.start(frame, len, Some(flow));
    }

    fn start(&mut self, frame: &'a [u8], len: usize, flow: Option<Flow>) {
        let at = self.parts.len();
        self.parts.push(Part { frame, next: None });
        self.runs.push(Run { first: at, last: at, count: 1, origin: self.origin, len, flow });
    }

    /// Finds the growing run of the same flow: its index in `growing` and in `runs`. Flows with different Ethernet
    /// headers are different flows.
    fn find<const FRAMES: bool>(
        &self,
        flow: &Flow,
        frame: &[u8],
        packet: &[u8],
    ) -> Option<(usize, usize)> {
        self.growing.iter().copied().enumerate().rev().find(|(_, index)| {
            self.runs.get(*index).is_some_and(|run| {
                run.flow.is_some_and(|other| {
                    other.ports == flow.ports
                        && other.tcp == flow.tcp
                        && other.v6 == flow.v6
                        && (!FRAMES || (other.l2 == flow.l2 && run.origin == self.origin))
                }) && self.parts.get(run.first).is_some_and(|part| {
                    let l2 = if FRAMES { usize::from(flow.l2) } else { 0 };
                    addresses(part.frame.get(l2..).unwrap_or(&[])) == addresses(packet)
                        && (l2 == 0 || part.frame.get(..l2) == frame.get(..l2))
                })
            })
        })
    }

    /// Appends `packet` to a run if all conditions are met.
    fn join<const FRAMES: bool>(
        &mut self,
        index: usize,
        frame: &'a [u8],
        packet: &'a [u8],
        new: &Flow,
    ) -> Option<()> {
        let run = self.runs.get_mut(index)?;
        let flow = run.flow.as_mut()?;
        let l2 = if FRAMES { usize::from(flow.l2) } else { 0 };
        let first = self.parts.get(run.first)?.frame.get(l2..)?;
        let len = run.len.checked_add(new.size)?;
        let fits = !flow.ended
            && run.count < MAX_PARTS
            && len <= MAX_LEN
            && new.size <= flow.size
            && new.header_len == flow.header_len
            && new.flags == flow.flags
            && (!flow.tcp || new_seq(new) == flow.next_seq)
            && (flow.v6 || v4_df(packet) || v4_id(packet) == Some(flow.next_id))
            && same_headers(flow, first, packet);
        if !fits {
            return None;
        }
        if !flow.verified {
            flow.verified = true;
            if !checksums_ok(flow, first) {
                flow.ended = true;
                return None;
            }
        }
        if !checksums_ok(new, packet) {
            return None;
        }
        flow.next_seq = new.next_seq;
        flow.next_id = flow.next_id.wrapping_add(1);
        flow.pushed = new.pushed;
        flow.ended = new.pushed || new.size < flow.size;
        run.len = len;
        run.count = run.count.saturating_add(1);
        let at = self.parts.len();
        self.parts.push(Part { frame, next: None });
        self.parts.get_mut(run.last)?.next = Some(at);
        run.last = at;
        Some(())
    }

    #[inline(always)]
    fn shape(&self, packet: &[u8], l2: usize) -> Shape {
        if !self.tcp && !self.udp {
            return Shape::Other;
        }
        self.parse(packet, l2).unwrap_or(Shape::Other)
    }

    #[inline(always)]
    fn parse(&self, packet: &[u8], l2: usize) -> Option<Shape> {
        let (v6, protocol, l4, stated) = match packet.first()? {
            // No IP options.
            0x45 => {
                let fragment = get16(packet, 6)? & 0xbfff != 0;
                let len = usize::from(get16(packet, 2)?);
                (false, if fragment { 0 } else { get8(packet, 9)? }, V4_LEN, len)
            }
            0x60..=0x6f => {
                let len = usize::from(get16(packet, 4)?).checked_add(V6_LEN)?;
                (true, get8(packet, 6)?, V6_LEN, len)
            }
            _ => return None,
        };
        if stated != packet.len() {
            return None;
        }
        let transport = packet.get(l4..)?;
        let next_id = if v6 { 0 } else { v4_id(packet)?.wrapping_add(1) };
        let l2 = u16::try_from(l2).ok()?;
        match protocol {
            TCP if self.tcp => {
                let tcp = Tcp::parse(transport)?;
                let header_len = l4.checked_add(tcp.header_len)?;
                let size = packet.len().checked_sub(header_len)?;
                let pushed = tcp.flags & flags::PSH != 0;
                let flow = Flow {
                    v6,
                    tcp: true,
                    l2,
                    l4: l4 as u16,
                    header_len: header_len as u16,
                    size,
                    ports: tcp.ports,
                    next_seq: tcp.seq.wrapping_add(u32::try_from(size).ok()?),
                    next_id,
                    ended: pushed,
                    flags: tcp.flags & !flags::PSH,
                    pushed,
                    verified: false,
                };
                let plain = flow.flags & !flags::ECE == flags::ACK && size > 0;
                Some(if plain { Shape::Mergeable(flow) } else { Shape::Barrier(flow) })
            }
            UDP if self.udp => {
                let udp = Udp::parse(transport)?;
                let header_len = l4.checked_add(UDP_LEN)?;
                let size = packet.len().checked_sub(header_len)?;
                let flow = Flow {
                    v6,
                    tcp: false,
                    l2,
                    l4: l4 as u16,
                    header_len: header_len as u16,
                    size,
                    ports: udp.ports,
                    next_seq: 0,
                    next_id,
                    ended: false,
                    flags: 0,
                    pushed: false,
                    verified: false,
                };
                let plain =
                    usize::from(udp.len) == transport.len() && udp.checksum != 0 && size > 0;
                Some(if plain { Shape::Mergeable(flow) } else { Shape::Barrier(flow) })
            }
            _ => None,
        }
    }

    /// Returns the writes, in order.
    pub fn writes(&self) -> impl Iterator<Item = Write<'_, 'a>> {
        self.runs.iter().filter_map(|run| Write::new(run, &self.parts))
    }
}

/// Returns the sequence number at which a parsed packet starts.
fn new_seq(flow: &Flow) -> u32 {
    flow.next_seq.wrapping_sub(flow.size as u32)
}

fn addresses(packet: &[u8]) -> Option<&[u8]> {
    match packet.first()? >> 4 {
        4 => packet.get(12..V4_LEN),
        _ => packet.get(8..V6_LEN),
    }
}

/// Returns whether the fields that every segment of a super-packet shares are equal, except addresses and ports.
fn same_headers(flow: &Flow, a: &[u8], b: &[u8]) -> bool {
    let ip = if flow.v6 {
        // Version, traffic class, flow label; next header and hop limit.
        a.get(..4) == b.get(..4) && a.get(6..8) == b.get(6..8)
    } else {
        // Version, header length, TOS; flags, TTL, protocol.
        a.get(..2) == b.get(..2) && a.get(6..10) == b.get(6..10)
    };
    let tcp = |packet: &[u8]| {
        let header = packet.get(usize::from(flow.l4)..usize::from(flow.header_len))?;
        Some((get32(header, 8)?, get8(header, 12)?, get16(header, 14)?, get16(header, 18)?))
    };
    let options = usize::from(flow.l4).saturating_add(crate::transport::TCP_LEN)
        ..usize::from(flow.header_len);
    ip && (!flow.tcp || (tcp(a) == tcp(b) && a.get(options.clone()) == b.get(options)))
}

fn checksums_ok(flow: &Flow, packet: &[u8]) -> bool {
    let protocol = if flow.tcp { TCP } else { UDP };
    let sum = || -> Option<Sum> {
        let transport = packet.get(usize::from(flow.l4)..)?;
        let len = u16::try_from(transport.len()).ok()?;
        Some(pseudo_header(packet, protocol)?.word(len).bytes(transport))
    };
    header_checksum_ok(packet) && sum().is_some_and(|sum| sum.fold() == 0xffff)
}

/// One write to the device: a plain packet, or headers and the payloads of several.
#[derive(Debug)]
pub struct Write<'m, 'a> {
    vnet: [u8; VnetHeader::LEN],
    header: [u8; MAX_HEADER],
    header_len: usize,
    run: &'m Run,
    parts: &'m [Part<'a>],
}

impl<'m, 'a> Write<'m, 'a> {
    fn new(run: &'m Run, parts: &'m [Part<'a>]) -> Option<Self> {
        let mut write = Self {
            vnet: VnetHeader::default().encode(),
            header: [0; MAX_HEADER],
            header_len: 0,
            run,
            parts,
        };
        if let (Some(flow), 2..) = (&run.flow, run.count) {
            write.fill_header(flow, parts.get(run.first)?.frame)?;
        }
        Some(write)
    }

    /// Writes the headers of the whole super-packet, leaving the checksum to the kernel.
    fn fill_header(&mut self, flow: &Flow, first: &[u8]) -> Option<()> {
        let (l2, l4) = (usize::from(flow.l2), usize::from(flow.l4));
        self.header_len = l2.checked_add(usize::from(flow.header_len))?;
        let header = self.header.get_mut(..self.header_len)?;
        header.copy_from_slice(first.get(..self.header_len)?);
        let header = header.get_mut(l2..)?;
        let len = u16::try_from(self.run.len).ok()?;
        let l4_len = len.checked_sub(flow.l4)?;
        if flow.v6 {
            put16(header, 4, l4_len)?;
        } else {
            put16(header, 2, len)?;
            put16(header, 10, 0)?;
            let sum = Sum::new().bytes(header.get(..V4_LEN)?).finish();
            put16(header, 10, sum)?;
        }
        let protocol = if flow.tcp { TCP } else { UDP };
        let pseudo = pseudo_header(header, protocol)?.word(l4_len).fold();
        let csum_offset = if flow.tcp { 16 } else { 6 };
        put16(header, l4.checked_add(csum_offset)?, pseudo)?;
        if flow.tcp {
            let push = if flow.pushed { flags::PSH } else { 0 };
            put8(header, l4.checked_add(13)?, flow.flags | push)?;
        } else {
            put16(header, l4.checked_add(4)?, l4_len)?;
        }
        self.vnet = VnetHeader {
            needs_csum: true,
            gso: match (flow.tcp, flow.v6) {
                (true, false) => Gso::TcpV4,
                (true, true) => Gso::TcpV6,
                (false, _) => Gso::UdpL4,
            },
            ecn: false,
            hdr_len: u16::try_from(self.header_len).ok()?,
            gso_size: u16::try_from(flow.size).ok()?,
            csum_start: flow.l4.checked_add(flow.l2)?,
            csum_offset: csum_offset as u16,
        }
        .encode();
        Some(())
    }

    /// Returns the virtio header, which comes first.
    pub fn vnet(&self) -> &[u8; VnetHeader::LEN] {
        &self.vnet
    }

    /// Returns the merged headers; empty for a plain packet.
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.header_len).unwrap_or(&[])
    }

    /// Returns the parts after [`Self::header`]: payloads, or the one plain packet. At most [`MAX_PARTS`].
    pub fn bodies(&self) -> impl Iterator<Item = &'a [u8]> + use<'m, 'a> {
        let skip = self.header_len;
        self.packets().map(move |packet| packet.get(skip..).unwrap_or(&[]))
    }

    /// Returns the original packets, for a device that refuses the merged form.
    pub fn packets(&self) -> impl Iterator<Item = &'a [u8]> + use<'m, 'a> {
        let parts = self.parts;
        let mut next = Some(self.run.first);
        std::iter::from_fn(move || {
            let part = parts.get(next?)?;
            next = part.next;
            Some(part.frame)
        })
    }

    /// Returns the total number of bytes of headers and payloads.
    #[allow(clippy::len_without_is_empty, reason = "there is no write of nothing")]
    pub fn len(&self) -> usize {
        let payload = |flow: &Flow| self.run.len.saturating_sub(usize::from(flow.header_len));
        match &self.run.flow {
            Some(flow) if self.run.count > 1 => self.header_len.saturating_add(payload(flow)),
            _ => self.packets().next().map_or(0, <[u8]>::len),
        }
    }

    /// Returns the origin of its packets, as set by [`Merger::set_origin`].
    pub fn origin(&self) -> u32 {
        self.run.origin
    }

    /// Returns the number of packets in this write.
    pub fn count(&self) -> usize {
        self.run.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Segments;
    use crate::testing::{TcpSpec, naive_split, udp_packet, udp_super};
    use proptest::prelude::*;

    /// Returns each write as (virtio header, bytes, number of packets).
    fn merge(packets: &[Vec<u8>]) -> Vec<(VnetHeader, Vec<u8>, usize)> {
        merge_behind(packets, 0)
    }

    fn merge_behind(frames: &[Vec<u8>], l2: usize) -> Vec<(VnetHeader, Vec<u8>, usize)> {
        let mut merger = Merger::new(true, true);
        for frame in frames {
            merger.push_behind(frame, l2);
        }
        merger
            .writes()
            .map(|write| {
                let mut bytes = write.header().to_vec();
                write.bodies().for_each(|body| bytes.extend(body));
                assert_eq!(bytes.len(), write.len());
                (VnetHeader::decode(write.vnet()), bytes, write.count())
            })
            .collect()
    }

    fn counts(packets: &[Vec<u8>]) -> Vec<usize> {
        merge(packets).iter().map(|(_, _, count)| *count).collect()
    }

    fn pair(change: impl Fn(&mut TcpSpec)) -> Vec<Vec<u8>> {
        let first = TcpSpec::default();
        let mut second = TcpSpec { seq: first.seq + 100, id: first.id + 1, ..TcpSpec::default() };
        change(&mut second);
        vec![first.build(&[1; 100]), second.build(&[2; 100])]
    }

    #[test]
    fn each_condition_alone_prevents_merging() {
        assert_eq!(counts(&pair(|_| ())), [2]);
        assert_eq!(counts(&pair(|spec| spec.seq += 1)), [1, 1], "a gap");
        assert_eq!(counts(&pair(|spec| spec.ack += 1)), [1, 1], "acknowledgement");
        assert_eq!(counts(&pair(|spec| spec.tos = 4)), [1, 1], "TOS");
        assert_eq!(counts(&pair(|spec| spec.ttl = 63)), [1, 1], "TTL");
        assert_eq!(counts(&pair(|spec| spec.df = true)), [1, 1], "DF");
        assert_eq!(counts(&pair(|spec| spec.id += 1)), [1, 1], "identification");
        assert_eq!(counts(&pair(|spec| spec.port += 1)), [1, 1], "port");
        assert_eq!(counts(&pair(|spec| spec.flags |= flags::FIN)), [1, 1], "FIN");
        assert_eq!(counts(&pair(|spec| spec.flags |= flags::CWR)), [1, 1], "CWR");
        assert_eq!(counts(&pair(|spec| spec.options = vec![1; 4])), [1, 1], "options");
        assert_eq!(counts(&pair(|spec| spec.flags |= flags::PSH)), [2], "PSH on the last");
        let mut bad = pair(|_| ());
        bad[1][60] ^= 1;
        assert_eq!(counts(&bad), [1, 1], "checksum of the second");
        let mut bad = pair(|_| ());
        bad[0][60] ^= 1;
        assert_eq!(counts(&bad), [1, 1], "checksum of the first");
        let mut bad = pair(|_| ());
        bad[1][11] ^= 1;
        assert_eq!(counts(&bad), [1, 1], "IP checksum");
        let mut fragment = pair(|_| ());
        fragment[1][6] = 0x20;
        crate::testing::fill_checksums(&mut fragment[1]);
        assert_eq!(counts(&fragment), [1, 1], "fragment");
        let mut padded = pair(|_| ());
        padded[1].push(0);
        assert_eq!(counts(&padded), [1, 1], "bytes beyond the packet");
    }

    #[test]
    fn frames_of_different_stations_or_networks_stay_apart() {
        let header = |change: usize| {
            let mut header = crate::testing::behind(&VnetHeader::default(), false, 1).0;
            if let Some(byte) = header.get_mut(change) {
                *byte ^= 0x10;
            }
            header
        };
        let frames = |change: usize| -> Vec<Vec<u8>> {
            let headers = [header(99), header(change)];
            headers.iter().zip(pair(|_| ())).map(|(h, p)| [h.clone(), p].concat()).collect()
        };
        let counts = |frames: &[Vec<u8>]| -> Vec<usize> {
            merge_behind(frames, 18).iter().map(|(_, _, count)| *count).collect()
        };
        assert_eq!(counts(&frames(99)), [2]);
        assert_eq!(counts(&frames(3)), [1, 1], "destination");
        assert_eq!(counts(&frames(8)), [1, 1], "source");
        assert_eq!(counts(&frames(15)), [1, 1], "VLAN");
        // Frames whose headers differ in length do not merge either, regardless of their bytes.
        let mut merger = Merger::new(true, true);
        let (tagged, bare) = (frames(99), pair(|_| ()));
        merger.push_behind(&tagged[0], 18);
        merger.push_behind(&bare[1], 0);
        assert_eq!(merger.writes().map(|write| write.count()).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn a_frame_without_ip_passes_as_it_is() {
        // Its contents would be a valid packet if it were IP.
        let frames: Vec<Vec<u8>> = pair(|_| ());
        let mut merger = Merger::new(true, true);
        frames.iter().for_each(|frame| merger.push_behind(frame, frame.len()));
        let writes: Vec<_> = merger.writes().collect();
        assert_eq!(writes.len(), 2);
        for (write, frame) in writes.iter().zip(&frames) {
            assert_eq!(write.vnet(), &VnetHeader::default().encode());
            assert_eq!((write.header(), write.bodies().next()), (&[][..], Some(&frame[..])));
        }
    }

    #[test]
    fn a_short_or_pushed_packet_is_the_last() {
        let spec = |seq, id, flags| TcpSpec { seq, id, flags, ..TcpSpec::default() };
        let short = [
            spec(0, 0, flags::ACK).build(&[1; 100]),
            spec(100, 1, flags::ACK).build(&[1; 50]),
            spec(150, 2, flags::ACK).build(&[1; 50]),
        ];
        assert_eq!(counts(&short), [2, 1]);
        let pushed = [
            spec(0, 0, flags::ACK | flags::PSH).build(&[1; 100]),
            spec(100, 1, flags::ACK).build(&[1; 100]),
        ];
        assert_eq!(counts(&pushed), [1, 1]);
        let longer =
            [spec(0, 0, flags::ACK).build(&[1; 100]), spec(100, 1, flags::ACK).build(&[1; 101])];
        assert_eq!(counts(&longer), [1, 1]);
    }

    #[test]
    fn interleaved_flows_merge_and_a_bare_ack_is_a_barrier() {
        let packet = |port, seq, id, len| {
            TcpSpec { port, seq, id, ..TcpSpec::default() }.build(&vec![3; len])
        };
        let packets = [
            packet(1, 0, 0, 100),
            packet(2, 0, 0, 100),
            packet(1, 100, 1, 100),
            packet(2, 100, 1, 100),
            packet(1, 200, 2, 0),
            packet(1, 200, 3, 100),
            packet(2, 200, 2, 100),
        ];
        assert_eq!(counts(&packets), [2, 3, 1, 1]);
    }

    #[test]
    fn nothing_is_merged_for_a_device_without_offloads() {
        let packets = pair(|_| ());
        let mut merger = Merger::new(false, false);
        packets.iter().for_each(|packet| merger.push(packet));
        let raw: Vec<_> = merger.writes().flat_map(|write| write.bodies()).collect();
        assert_eq!(raw, packets);
        assert!(merger.recycle(true, true).is_empty());
    }

    #[test]
    fn udp_without_a_checksum_stays_alone() {
        let mut packets =
            vec![udp_packet(false, 1, 9, &[1; 64]), udp_packet(false, 2, 9, &[2; 64])];
        assert_eq!(counts(&packets), [2]);
        packets[1][26..28].fill(0);
        assert_eq!(counts(&packets), [1, 1]);
    }

    proptest! {
        #[test]
        fn split_then_merge_is_the_identity(
            v6: bool, udp: bool, size in 300u16..1500, segments in 2usize..40, short in 0usize..299,
            seq: u32, id: u16, push: bool, df: bool,
        ) {
            let payload = vec![0x5au8; usize::from(size) * segments - short];
            let push = if push { flags::PSH } else { 0 };
            let (vnet, packet) = if udp {
                udp_super(v6, id, &payload, size)
            } else {
                TcpSpec { v6, seq, id, df, flags: flags::ACK | push, ..TcpSpec::default() }
                    .super_packet(&payload, size)
            };
            let mut copy = packet.clone();
            let mut cut = Segments::new(&vnet, &mut copy).unwrap();
            let mut packets = Vec::new();
            while let Some(segment) = cut.next() {
                packets.push(segment.to_vec());
            }
            let merged = merge(&packets);
            prop_assert_eq!(merged.len(), 1);
            prop_assert_eq!(&merged[0].0, &vnet);
            prop_assert_eq!(&merged[0].1, &packet);
        }

        /// Frames merge exactly as their packets do, and the result contains their header once.
        #[test]
        fn frames_merge_like_their_packets(
            v6: bool, udp: bool, size in 300u16..1500, segments in 2usize..40, short in 0usize..299,
            tags in 0usize..3,
        ) {
            let payload = vec![0x5au8; usize::from(size) * segments - short];
            let (vnet, packet) = if udp {
                udp_super(v6, 5, &payload, size)
            } else {
                TcpSpec { v6, ..TcpSpec::default() }.super_packet(&payload, size)
            };
            let (header, vnet_behind) = crate::testing::behind(&vnet, v6, tags);
            let packets = naive_split(&vnet, &packet);
            let frames: Vec<_> = packets.iter().map(|p| [header.clone(), p.clone()].concat()).collect();
            let merged = merge_behind(&frames, header.len());
            let alone = merge(&packets);
            prop_assert_eq!(merged.len(), alone.len());
            prop_assert_eq!(&merged[0].0, &vnet_behind);
            for (frame, packet) in merged.iter().zip(&alone) {
                prop_assert_eq!(&frame.1[..header.len()], &header[..]);
                prop_assert_eq!(&frame.1[header.len()..], &packet.1[..]);
                prop_assert_eq!(frame.2, packet.2);
            }
        }

        /// Splitting a merged packet again gives the original packets, in order per flow.
        #[test]
        fn merged_packets_cut_into_what_came(
            steps in proptest::collection::vec((0u16..3, 0usize..4, any::<bool>(), 0u8..12), 1..60),
        ) {
            let mut seqs = [0u32; 3];
            let mut ids = [0u16; 3];
            let mut packets = Vec::new();
            for (port, len, push, spoil) in steps {
                let flow = usize::from(port);
                let push = if push { flags::PSH } else { 0 };
                let len = [0, 50, 100, 100][len];
                let spec = TcpSpec {
                    port, seq: seqs[flow], id: ids[flow], flags: flags::ACK | push,
                    ..TcpSpec::default()
                };
                let mut packet = spec.build(&vec![flow as u8; len]);
                if spoil == 0 {
                    let last = packet.len() - 1;
                    packet[last] ^= 0x80;
                }
                seqs[flow] += len as u32;
                ids[flow] += 1;
                packets.push(packet);
            }
            let mut again: Vec<Vec<u8>> = Vec::new();
            for (vnet, bytes, count) in merge(&packets) {
                if count == 1 {
                    again.push(bytes);
                } else {
                    again.extend(naive_split(&vnet, &bytes));
                }
            }
            for port in 0u16..3 {
                let of = |packets: &[Vec<u8>]| -> Vec<Vec<u8>> {
                    packets.iter().filter(|p| p[20..22] == port.to_be_bytes()).cloned().collect()
                };
                prop_assert_eq!(of(&again), of(&packets));
            }
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120), first: u8) {
            let mut packet = bytes;
            if let Some(byte) = packet.first_mut() {
                *byte = if first & 1 == 0 { 0x45 } else { 0x60 };
            }
            let mut merger = Merger::new(true, true);
            merger.push(&packet);
            merger.push(&packet);
            prop_assert_eq!(merger.writes().map(|write| write.count()).sum::<usize>(), 2);
        }
    }
}
