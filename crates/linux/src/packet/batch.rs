//! A burst of frames, read from a packet socket by `recvmmsg` or from a TAP device one by one, and written to either.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd};

use super::PacketSocket;
use crate::tun::{TunQueue, VNET_LEN};

/// The size of one slot in bytes: an Ethernet header, two VLAN tags and an IP packet of the maximum length, preceded by
/// space for the tag that the kernel delivers outside the frame.
pub const SLOT: usize = 65_536 + 64;

/// The maximum number of slots of a batch.
const MAX_SLOTS: usize = 256;

/// A VLAN tag's length.
const TAG: usize = 4;

/// Length of the two hardware addresses that precede the tag.
const ADDRESSES: usize = 12;

/// The checksum is still to be computed (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
const NEEDS_CSUM: u8 = 1;

/// The number of bytes that a burst should not much exceed: a part of a core's L2 cache.
const BURST: usize = 512 << 10;

/// The minimum number of slots offered.
const MIN_OFFERED: usize = 8;

/// Space for one `tpacket_auxdata` with its header.
#[derive(Copy, Clone)]
#[repr(C, align(8))]
struct Aux([u8; 64]);

/// One frame of a burst.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The work that the kernel left undone in it (`virtio_net_hdr`).
    pub vnet: &'a mut [u8; VNET_LEN],
    /// The frame, starting at the destination address, including VLAN tags.
    pub bytes: &'a mut [u8],
    /// Whether to send it; false at first.
    pub keep: &'a mut bool,
}

/// The position of a frame in its slot, and whether to send it.
#[derive(Copy, Clone, Default)]
struct Span {
    start: usize,
    len: usize,
    keep: bool,
}

/// Buffers for a burst. Pages into which no frame is written are never touched.
pub struct FrameBatch {
    buffers: Vec<u8>,
    vnets: Vec<[u8; VNET_LEN]>,
    spans: Vec<Span>,
    names: Vec<libc::sockaddr_ll>,
    controls: Vec<Aux>,
    /// Referenced by `incoming`, two for each; only the kernel reads them.
    _parts: Vec<libc::iovec>,
    incoming: Vec<libc::mmsghdr>,
    /// Written before each send and not used after it.
    out_parts: Vec<libc::iovec>,
    outgoing: Vec<libc::mmsghdr>,
    /// The number of messages that the last receive used.
    used: usize,
    filled: usize,
    drained: bool,
    offered: usize,
    /// Frames skipped since the last [`FrameBatch::take_unusable`].
    unusable: u64,
}

// SAFETY: its pointers refer to the memory of its own vectors, which moves with it and keeps its address: the vectors
// never grow. Those of `outgoing` dangle between calls but are never used then.
unsafe impl Send for FrameBatch {}

fn empty_message() -> libc::mmsghdr {
    // SAFETY: mmsghdr is plain data (pointers and lengths) for which all zeroes is a valid value.
    unsafe { std::mem::zeroed() }
}

impl FrameBatch {
    /// Creates a batch with space for this many frames (1 to 256).
    pub fn new(slots: usize) -> Self {
        let n = slots.clamp(1, MAX_SLOTS);
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut buffers = vec![0; n * SLOT];
        let mut vnets = vec![[0; VNET_LEN]; n];
        // SAFETY: sockaddr_ll is plain data for which all zeroes is a valid value.
        let mut names = vec![unsafe { std::mem::zeroed::<libc::sockaddr_ll>() }; n];
        let mut controls = vec![Aux([0; 64]); n];
        let mut parts = vec![none; 2 * n];
        let mut incoming = vec![empty_message(); n];
        let (buffer, vnet) = (buffers.as_mut_ptr(), vnets.as_mut_ptr());
        let (name, control, part) = (names.as_mut_ptr(), controls.as_mut_ptr(), parts.as_mut_ptr());
        for (i, message) in incoming.iter_mut().enumerate() {
            // SAFETY: `i` is below `n`, the number of elements (of SLOT bytes for the buffers, two
            // for each frame in the parts) behind each pointer.
            unsafe {
                *part.add(2 * i) = libc::iovec { iov_base: vnet.add(i).cast(), iov_len: VNET_LEN };
                *part.add(2 * i + 1) = libc::iovec {
                    iov_base: buffer.add(i * SLOT + TAG).cast(),
                    iov_len: SLOT - TAG,
                };
                message.msg_hdr.msg_name = name.add(i).cast();
                message.msg_hdr.msg_control = control.add(i).cast();
                message.msg_hdr.msg_iov = part.add(2 * i);
            }
            message.msg_hdr.msg_iovlen = 2;
        }
        Self {
            buffers,
            vnets,
            spans: vec![Span::default(); n],
            names,
            controls,
            _parts: parts,
            incoming,
            out_parts: vec![none; 2 * n],
            outgoing: vec![empty_message(); n],
            used: n,
            filled: 0,
            drained: true,
            offered: MIN_OFFERED.min(n),
            unusable: 0,
        }
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.spans.len()
    }

    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Returns whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns how many frames were skipped since the last call because they were truncated or sent by this host.
    pub fn take_unusable(&mut self) -> u64 {
        std::mem::take(&mut self.unusable)
    }

    /// Returns a frame of the burst.
    pub fn frame(&mut self, at: usize) -> Option<Frame<'_>> {
        if at >= self.filled {
            return None;
        }
        let slot = self.buffers.get_mut(at.checked_mul(SLOT)?..)?;
        let span = self.spans.get_mut(at)?;
        Some(Frame {
            vnet: self.vnets.get_mut(at)?,
            bytes: slot.get_mut(span.start..span.start.checked_add(span.len)?)?,
            keep: &mut span.keep,
        })
    }

    /// Returns whether a frame of the burst will be sent.
    pub fn is_kept(&self, at: usize) -> bool {
        at < self.filled && self.spans.get(at).is_some_and(|span| span.keep)
    }

    /// Returns whether the last burst took everything that was available.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Receives up to `most` frames from a TAP queue, or fewer once they total `bytes` bytes; returns how many.
    /// `WouldBlock` if there are none.
    ///
    /// # Errors
    /// Fails as [`TunQueue::read`] does if no frame was received.
    pub fn receive_from_tap(
        &mut self,
        queue: &TunQueue,
        most: usize,
        bytes: usize,
    ) -> io::Result<usize> {
        (self.filled, self.drained) = (0, false);
        let mut taken = 0;
        let slots = self.buffers.chunks_exact_mut(SLOT).zip(&mut self.vnets);
        for ((slot, vnet), span) in slots.zip(&mut self.spans).take(most) {
            let len = match queue.read(vnet, &mut slot[TAG..]) {
                Ok(len) => len,
                Err(_) if self.filled > 0 => {
                    self.drained = true;
                    break;
                }
                Err(e) => return Err(e),
            };
            *span = Span { start: TAG, len, keep: false };
            self.filled += 1;
            taken += len;
            if taken >= bytes {
                break;
            }
        }
        Ok(self.filled)
    }

    pub(super) fn receive(&mut self, socket: &PacketSocket) -> io::Result<usize> {
        for message in self.incoming.iter_mut().take(self.used) {
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            message.msg_hdr.msg_controllen = size_of::<Aux>() as _;
            message.msg_hdr.msg_flags = 0;
        }
        (self.used, self.filled) = (0, 0);
        let count = loop {
            // SAFETY: every header's pointers refer to this batch's own vectors, whose elements they cover with the
            // right lengths (set in `new` and above); `&mut self` excludes any other access during the call.
            let count = unsafe {
                libc::recvmmsg(
                    socket.as_fd().as_raw_fd(),
                    self.incoming.as_mut_ptr(),
                    self.offered as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            if let Ok(count) = usize::try_from(count) {
                break count;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        (self.used, self.filled) = (count, count);
        self.drained = count < self.offered;
        self.finish_received();
        self.offer_for_next();
        Ok(count)
    }

    /// Inserts the VLAN tags and marks unusable frames by a length of 0.
    fn finish_received(&mut self) {
        let slots = self.buffers.chunks_exact_mut(SLOT).zip(&mut self.vnets).zip(&mut self.spans);
        let received = self.incoming.iter().zip(&self.names).zip(&self.controls);
        for (((slot, vnet), span), ((message, name), control)) in
            slots.zip(received).take(self.filled)
        {
            let len = (message.msg_len as usize).saturating_sub(VNET_LEN);
            *span = Span { start: TAG, len, keep: false };
            let cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            // Only a fanout group on a kernel before 6.7 delivers frames that the host sent.
            if cut || name.sll_pkttype == libc::PACKET_OUTGOING {
                span.len = 0;
                self.unusable += 1;
                continue;
            }
            if let Some(tag) = tag_beside(control, message.msg_hdr.msg_controllen as _) {
                insert_tag(slot, span, vnet, tag);
            }
        }
    }

    /// Offers as many slots as hold [`BURST`] bytes of frames of the last burst's size, but more than before only if
    /// that burst filled all slots offered.
    fn offer_for_next(&mut self) {
        let bytes: usize = self.spans.iter().take(self.filled).map(|span| span.len).sum();
        let average = (bytes / self.filled.max(1)).max(1);
        let slots = self.spans.len();
        let fitting = (BURST / average).clamp(MIN_OFFERED.min(slots), slots);
        if fitting < self.offered || self.filled == self.offered {
            self.offered = fitting;
        }
    }

    /// Writes the kept frames from `from` up to `to` to a TAP queue. Stops at the first frame that the kernel does not
    /// accept. Returns how many frames of the range are finished, kept or not, and the error of the next frame, if any.
    pub fn send_to_tap(
        &self,
        queue: &TunQueue,
        from: usize,
        to: usize,
    ) -> (usize, Option<io::Error>) {
        for at in from..to.min(self.filled) {
            let Some((vnet, bytes)) = self.kept(at) else { continue };
            if let Err(e) = queue.write(&[IoSlice::new(vnet), IoSlice::new(bytes)]) {
                return (at - from, Some(e));
            }
        }
        (to.min(self.filled).saturating_sub(from), None)
    }

    /// Sends the kept frames from `from` up to `to`. Returns how many frames of the range are finished, kept or not,
    /// and the error of the next frame, if any.
    ///
    /// `WouldBlock`: the socket's send buffer is full. `ENOBUFS`: the interface's queue is full and has dropped the
    /// frame. `ENETDOWN`, `ENXIO`: the interface is down or removed. `EMSGSIZE`: the frame is longer than the
    /// interface's MTU. `EINVAL`: the kernel refuses the header.
    pub fn send_to_socket(
        &mut self,
        socket: &PacketSocket,
        from: usize,
        to: usize,
    ) -> (usize, Option<io::Error>) {
        let to = to.min(self.filled);
        let queued = self.queue(from, to);
        let mut sent = 0;
        while sent < queued {
            let Some(rest) = self.outgoing.get_mut(sent..queued) else { break };
            // SAFETY: `queue` has just written the headers in `rest`, with pointers to elements of this batch's own
            // vectors and their lengths; the kernel only reads the memory that they refer to.
            let count = unsafe {
                libc::sendmmsg(
                    socket.as_fd().as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                )
            };
            if let Ok(count) = usize::try_from(count) {
                sent += count;
                continue;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return (self.until_kept(from, to, sent), Some(error));
            }
        }
        (to.saturating_sub(from), None)
    }

    /// Returns the header and bytes of a frame to send.
    fn kept(&self, at: usize) -> Option<(&[u8; VNET_LEN], &[u8])> {
        let span = self.spans.get(at).filter(|span| span.keep)?;
        let start = at * SLOT + span.start;
        Some((self.vnets.get(at)?, self.buffers.get(start..start + span.len)?))
    }

    /// Describes the frames to send; returns the number of messages.
    fn queue(&mut self, from: usize, to: usize) -> usize {
        let mut queued = 0;
        for at in from..to {
            let Some((vnet, bytes)) = self.kept(at) else { continue };
            let parts = [
                libc::iovec { iov_base: vnet.as_ptr().cast_mut().cast(), iov_len: VNET_LEN },
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
            ];
            let (Some(room), Some(message)) =
                (self.out_parts.get_mut(2 * queued..2 * queued + 2), self.outgoing.get_mut(queued))
            else {
                break;
            };
            room.copy_from_slice(&parts);
            *message = empty_message();
            message.msg_hdr.msg_iov = room.as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            queued += 1;
        }
        queued
    }

    /// Returns how many frames of the range precede the kept frame with the number `nth`.
    fn until_kept(&self, from: usize, to: usize, nth: usize) -> usize {
        let kept = (from..to).filter(|at| self.kept(*at).is_some());
        kept.into_iter().nth(nth).map_or(to.saturating_sub(from), |at| at - from)
    }
}

/// Returns the tag that the kernel delivers outside the frame: its type and its control word.
fn tag_beside(control: &Aux, len: usize) -> Option<[u8; TAG]> {
    let header = size_of::<libc::cmsghdr>();
    let bytes = control.0.get(..len)?;
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(libc::c_int::from_ne_bytes);
    // cmsghdr ends with level and type; this is the only control message that was requested.
    if word(header - 8)? != libc::SOL_PACKET || word(header - 4)? != libc::PACKET_AUXDATA {
        return None;
    }
    let status = word(header)? as u32;
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let half = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
    // tpacket_auxdata: status, len, snaplen (4 each), mac, net, vlan_tci, vlan_tpid (2 each).
    let control_word = half(header + 16)?;
    let kind = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => libc::ETH_P_8021Q as u16,
        _ => half(header + 18)?,
    };
    let ([a, b], [c, d]) = (kind.to_be_bytes(), control_word.to_be_bytes());
    Some([a, b, c, d])
}

/// Inserts a tag after the addresses, which move into the space before them, and adjusts the header.
fn insert_tag(slot: &mut [u8], span: &mut Span, vnet: &mut [u8; VNET_LEN], tag: [u8; TAG]) {
    if span.len < ADDRESSES + 2 {
        return;
    }
    slot.copy_within(TAG..TAG + ADDRESSES, 0);
    slot[ADDRESSES..ADDRESSES + TAG].copy_from_slice(&tag);
    (span.start, span.len) = (0, span.len + TAG);
    // The offsets count from the frame's start: hdr_len of a super-packet, csum_start if a checksum must be computed.
    let mut shift = |at: usize| {
        let value = u16::from_ne_bytes([vnet[at], vnet[at + 1]]).saturating_add(TAG as u16);
        vnet[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    };
    shift(2);
    let due = vnet[0] & NEEDS_CSUM != 0;
    if due {
        let value = u16::from_ne_bytes([vnet[6], vnet[7]]).saturating_add(TAG as u16);
        vnet[6..8].copy_from_slice(&value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_goes_behind_the_addresses_and_the_offsets_move() {
        let mut slot: Vec<u8> = (0..64).collect();
        let mut span = Span { start: TAG, len: 60, keep: false };
        // NEEDS_CSUM, TCPv4, hdr_len 54, gso_size 1448, csum_start 34, csum_offset 16.
        let mut vnet = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0];
        insert_tag(&mut slot, &mut span, &mut vnet, [0x81, 0, 0x20, 5]);
        assert_eq!((span.start, span.len), (0, 64));
        assert_eq!(slot[..12], (4..16).collect::<Vec<u8>>());
        assert_eq!(slot[12..16], [0x81, 0, 0x20, 5]);
        assert_eq!(slot[16..], (16..64).collect::<Vec<u8>>());
        assert_eq!(vnet, [1, 1, 58, 0, 0xa8, 5, 38, 0, 16, 0]);
    }

    #[test]
    fn a_frame_that_has_no_room_for_a_type_keeps_its_bytes() {
        let mut slot: Vec<u8> = (0..64).collect();
        let before = slot.clone();
        let mut span = Span { start: TAG, len: 13, keep: false };
        insert_tag(&mut slot, &mut span, &mut [0; VNET_LEN], [1; TAG]);
        assert_eq!((slot, span.start, span.len), (before, TAG, 13));
    }

    fn aux(level: i32, status: u32, tci: u16, tpid: u16) -> Aux {
        let mut bytes = [0; 64];
        let header = size_of::<libc::cmsghdr>();
        bytes[header - 8..header - 4].copy_from_slice(&level.to_ne_bytes());
        bytes[header - 4..header].copy_from_slice(&libc::PACKET_AUXDATA.to_ne_bytes());
        bytes[header..header + 4].copy_from_slice(&status.to_ne_bytes());
        bytes[header + 16..header + 18].copy_from_slice(&tci.to_ne_bytes());
        bytes[header + 18..header + 20].copy_from_slice(&tpid.to_ne_bytes());
        Aux(bytes)
    }

    #[test]
    fn a_tag_apart_is_read_only_where_the_kernel_vouches_for_it() {
        let (valid, typed) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        let all = size_of::<libc::cmsghdr>() + 20;
        let packet = libc::SOL_PACKET;
        let tag = |aux: Aux, len| tag_beside(&aux, len);
        assert_eq!(
            tag(aux(packet, valid | typed, 0x2005, 0x88a8), all),
            Some([0x88, 0xa8, 0x20, 5])
        );
        assert_eq!(tag(aux(packet, valid, 0x2005, 0), all), Some([0x81, 0, 0x20, 5]));
        // VLAN 0 (a priority tag) is a tag too.
        assert_eq!(tag(aux(packet, valid | typed, 0, 0x8100), all), Some([0x81, 0, 0, 0]));
        assert_eq!(tag(aux(packet, typed, 0x2005, 0x8100), all), None);
        assert_eq!(tag(aux(packet + 1, valid | typed, 0x2005, 0x8100), all), None);
        assert_eq!(tag(aux(packet, valid | typed, 0x2005, 0x8100), all - 1), None);
        assert_eq!(tag(aux(packet, valid, 0x2005, 0x8100), 0), None);
    }

    proptest::proptest! {
        #[test]
        fn no_auxiliary_data_panics(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 64),
            len in 0..100_usize,
            ours in proptest::bool::ANY,
        ) {
            let mut bytes: [u8; 64] = bytes.try_into().unwrap();
            if ours {
                let header = size_of::<libc::cmsghdr>();
                bytes[header - 8..header - 4].copy_from_slice(&libc::SOL_PACKET.to_ne_bytes());
                bytes[header - 4..header].copy_from_slice(&libc::PACKET_AUXDATA.to_ne_bytes());
            }
            let tag = tag_beside(&Aux(bytes), len);
            assert!(tag.is_none() || len >= size_of::<libc::cmsghdr>() + 18);
        }
    }
}
