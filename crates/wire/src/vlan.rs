//! The outermost VLAN tag of a frame (IEEE 802.1Q clause 9.6).
//!
//! A switch keeps the VLAN of a frame next to it, and removes and adds the tag where the frame comes from or goes to a
//! port with tagged frames. As in openvpn, the priority in a tag is lost with its VLAN. A tag whose VLAN is 0 is a
//! priority tag: it belongs to no VLAN, and stays in the frame.
//!
//! ```text
//!   | destination 6 | source 6 | 0x8100 | priority 4 bits, VLAN 12 bits | type 2 | payload
//! ```

use crate::field::{get16, put16};
use crate::vnet::{Gso, VnetHeader};

/// Length of a tag.
const TAG_LEN: usize = 4;
/// Length of the two addresses, which precede the tag.
const ADDRESSES: usize = 12;
/// The offset of the tag's control information.
const CONTROL: usize = 14;
/// The EtherType of a customer's tag. A provider's tag (802.1ad) is not looked at.
const TPID: u16 = 0x8100;
/// The bits of the control information that contain the VLAN; those above contain the priority.
const VLAN: u16 = 0x0fff;

/// The control information of a frame's outermost tag.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Tag(u16);

impl Tag {
    /// Returns the tag of a frame; `None` if it has none.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        (get16(frame, ADDRESSES)? == TPID).then_some(())?;
        get16(frame, CONTROL).map(Self)
    }

    /// Returns the number of the VLAN; 0 in a priority tag.
    pub const fn vlan(self) -> u16 {
        self.0 & VLAN
    }
}

/// Removes the outermost tag of a frame, if it has one, and returns the frame's length. `vnet` describes the frame, and
/// is adjusted.
pub fn remove(vnet: &mut VnetHeader, frame: &mut [u8]) -> usize {
    if Tag::of(frame).is_none() {
        return frame.len();
    }
    frame.copy_within(ADDRESSES.saturating_add(TAG_LEN).., ADDRESSES);
    *vnet = shifted(vnet, |offset| offset.saturating_sub(TAG_LEN as u16));
    frame.len().saturating_sub(TAG_LEN)
}

/// The beginning of a frame with a tag, and what follows it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Tagged {
    /// The frame's description.
    pub vnet: VnetHeader,
    /// The addresses and the tag.
    pub start: [u8; ADDRESSES + TAG_LEN],
    /// The offset in the frame without the tag at which the rest begins.
    pub rest: usize,
}

impl Tagged {
    /// Adds a VLAN to a frame that begins with these bytes. A priority tag gets the VLAN's number, and another frame gets
    /// a tag. Returns `None` if the frame is too short.
    pub fn new(vnet: &VnetHeader, frame: &[u8], vlan: u16) -> Option<Self> {
        let addresses: &[u8; ADDRESSES] = frame.first_chunk()?;
        let tag = Tag::of(frame).filter(|tag| tag.vlan() == 0);
        let control = tag.map_or(0, |tag| tag.0) | vlan & VLAN;
        let mut start = [0; ADDRESSES + TAG_LEN];
        let (to, field) = start.split_first_chunk_mut::<ADDRESSES>()?;
        *to = *addresses;
        put16(field, 0, TPID)?;
        put16(field, 2, control)?;
        Some(match tag {
            Some(_) => Self { vnet: *vnet, start, rest: ADDRESSES.saturating_add(TAG_LEN) },
            None => {
                let vnet = shifted(vnet, |offset| offset.saturating_add(TAG_LEN as u16));
                Self { vnet, start, rest: ADDRESSES }
            }
        })
    }
}

/// Returns the description of a frame whose IP packet has moved.
fn shifted(vnet: &VnetHeader, by: impl Fn(u16) -> u16) -> VnetHeader {
    if !vnet.needs_csum && vnet.gso == Gso::None {
        return *vnet;
    }
    VnetHeader { hdr_len: by(vnet.hdr_len), csum_start: by(vnet.csum_start), ..*vnet }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ADDRESSED: [u8; ADDRESSES] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

    fn frame(tags: &[u16], rest: &[u8]) -> Vec<u8> {
        let tags = tags.iter().flat_map(|control| [TPID.to_be_bytes(), control.to_be_bytes()]);
        ADDRESSED.into_iter().chain(tags.flatten()).chain(rest.iter().copied()).collect()
    }

    fn added(frame: &[u8], vlan: u16) -> Option<Vec<u8>> {
        let tagged = Tagged::new(&VnetHeader::default(), frame, vlan)?;
        Some([&tagged.start[..], &frame[tagged.rest..]].concat())
    }

    fn removed(mut frame: Vec<u8>) -> Vec<u8> {
        let len = remove(&mut VnetHeader::default(), &mut frame);
        frame.truncate(len);
        frame
    }

    #[test]
    fn a_priority_goes_with_its_vlan_and_a_priority_tag_gets_one() {
        let ip = [8, 0, 0x45, 1, 2, 3];
        assert_eq!(removed(frame(&[7], &ip)), frame(&[], &ip));
        assert_eq!(removed(frame(&[0xa007], &ip)), frame(&[], &ip));
        assert_eq!(removed(frame(&[], &ip)), frame(&[], &ip));
        assert_eq!(added(&frame(&[], &ip), 7), Some(frame(&[7], &ip)));
        assert_eq!(added(&frame(&[0xa000], &ip), 7), Some(frame(&[0xa007], &ip)));
        assert_eq!(added(&frame(&[0], &ip), 7), Some(frame(&[7], &ip)));
    }

    #[test]
    fn only_the_outer_one_of_two_tags_is_touched() {
        let ip = [8, 0, 0x45, 1, 2, 3];
        assert_eq!(removed(frame(&[7, 0x6009], &ip)), frame(&[0x6009], &ip));
        assert_eq!(added(&frame(&[9], &ip), 7), Some(frame(&[7, 9], &ip)), "a VLAN inside another");
        let mut provider = frame(&[7], &ip);
        provider[ADDRESSES..][..2].copy_from_slice(&[0x88, 0xa8]);
        assert_eq!(Tag::of(&provider), None);
        assert_eq!(removed(provider.clone()), provider);
    }

    #[test]
    fn a_frame_that_is_too_short_for_its_tag_has_none() {
        let whole = frame(&[0xa007], &[8, 0]);
        for len in 0..16 {
            assert_eq!(Tag::of(&whole[..len]), None, "{len}");
            assert_eq!(removed(whole[..len].to_vec()), whole[..len]);
            assert_eq!(added(&whole[..len], 5).is_some(), len >= ADDRESSES, "{len}");
        }
        assert_eq!(Tag::of(&whole[..16]), Some(Tag(0xa007)));
        assert_eq!(removed(frame(&[7], &[])), frame(&[], &[]));
    }

    #[test]
    fn the_description_moves_with_the_packet() {
        let described = VnetHeader {
            needs_csum: true,
            gso: Gso::TcpV4,
            hdr_len: 58,
            gso_size: 1400,
            csum_start: 38,
            csum_offset: 16,
            ..VnetHeader::default()
        };
        let mut vnet = described;
        let mut bytes = frame(&[7], &[8, 0, 0x45]);
        remove(&mut vnet, &mut bytes);
        assert_eq!((vnet.csum_start, vnet.hdr_len), (34, 54));
        let tagged = Tagged::new(&vnet, &frame(&[], &[8, 0, 0x45]), 7).unwrap();
        assert_eq!(tagged.vnet, described);
        // A frame with a priority tag keeps its length.
        assert_eq!(Tagged::new(&vnet, &frame(&[0x2000], &[8, 0]), 7).unwrap().vnet, vnet);
        let plain = VnetHeader::default();
        assert_eq!(Tagged::new(&plain, &frame(&[], &[8, 0]), 7).unwrap().vnet, plain);
    }

    proptest! {
        /// Any tag inside stays as it is.
        #[test]
        fn adding_and_removing_a_vlan_changes_nothing(
            tags in proptest::collection::vec(any::<u16>().prop_filter("a VLAN", |tag| tag & VLAN != 0), 0..3),
            rest in proptest::collection::vec(any::<u8>(), 0..60),
            vlan in 1u16..4095,
        ) {
            let frame = frame(&tags, &[&[8, 0][..], &rest].concat());
            let tagged = added(&frame, vlan).unwrap();
            prop_assert_eq!(Tag::of(&tagged).map(Tag::vlan), Some(vlan));
            prop_assert_eq!(removed(tagged), frame);
        }

        #[test]
        fn a_priority_tag_is_the_tag_of_the_vlan(
            priority in 0u16..16,
            rest in proptest::collection::vec(any::<u8>(), 0..60),
            vlan in 1u16..4095,
        ) {
            let tagged = added(&frame(&[priority << 12], &rest), vlan).unwrap();
            prop_assert_eq!(tagged, frame(&[priority << 12 | vlan], &rest));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), vlan: u16) {
            let _ = added(&bytes, vlan);
            let len = bytes.len();
            prop_assert!(removed(bytes).len() <= len);
        }
    }
}
