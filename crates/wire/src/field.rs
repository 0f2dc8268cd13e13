//! Access to big-endian fields in slices that may be too short.

#[inline]
pub(crate) fn get8(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

#[inline]
pub(crate) fn get16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|field| u16::from_be_bytes(*field))
}

#[inline]
pub(crate) fn get32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field))
}

#[inline]
pub(crate) fn put8(bytes: &mut [u8], at: usize, value: u8) -> Option<()> {
    *bytes.get_mut(at)? = value;
    Some(())
}

#[inline]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

#[inline]
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}
