//! Searches the writable memory of this process, for tests that a secret is no longer in it.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// The mask under which a caller keeps secrets; otherwise the search would find the caller's own copies.
pub const MASK: u8 = 0xa5;
/// How much of a secret counts as a find, in bytes. Each secret is searched for in parts of this length.
pub const PART: usize = 16;
/// The amount of memory that is read at once.
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;

/// A part of a secret that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Find {
    /// The index of the secret.
    pub secret: usize,
    /// The first byte of the part within the secret.
    pub offset: usize,
    /// Where it was found.
    pub address: u64,
    /// The name of the mapping: a file, `[heap]`, `[stack]` or `anonymous`.
    pub mapping: String,
}

/// Searches for masked secrets. Returns each find once, sorted.
///
/// # Errors
/// The memory of the process cannot be read.
pub fn search(masked: &[&[u8]]) -> io::Result<Vec<Find>> {
    search_mappings(masked, &fs::read_to_string("/proc/self/maps")?)
}

fn search_mappings(masked: &[&[u8]], maps: &str) -> io::Result<Vec<Find>> {
    // One at a time, because a search would find the copies in the buffer of another one.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let parts = Parts::new(masked);
    let memory = File::open("/proc/self/mem")?;
    let mut buffer = vec![0_u8; CHUNK + PART - 1];
    let own = buffer.as_ptr() as u64..buffer.as_ptr() as u64 + buffer.len() as u64;
    let mut found = Vec::new();
    for mapping in maps.lines() {
        let Some((from, to, name)) = writable(mapping) else { continue };
        for at in (from..to).step_by(CHUNK) {
            let len = buffer.len().min((to - at) as usize);
            let Ok(read) = memory.read_at(&mut buffer[..len], at) else { break };
            parts.find(&buffer[..read], |n, (secret, offset)| {
                let address = at + n as u64;
                if !own.contains(&address) {
                    found.push(Find { secret, offset, address, mapping: name.into() });
                }
            });
        }
    }
    // An allocator that wipes memory might not wipe a block of this length.
    buffer.fill(0);
    std::hint::black_box(&mut buffer);
    // The kernel lists a mapping twice if it grows while the list is read, for example because of the text of the list.
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns the bounds and the name of a mapping of /proc/self/maps if it can be written to.
fn writable(mapping: &str) -> Option<(u64, u64, &str)> {
    let mut words = mapping.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let is_writable = words.next()?.starts_with("rw");
    let name = words.nth(3).unwrap_or("anonymous");
    let address = |text| u64::from_str_radix(text, 16).ok();
    (is_writable && !name.starts_with("[vvar")).then_some((address(from)?, address(to)?, name))
}

/// The parts of all secrets.
struct Parts<'a> {
    masked: &'a [&'a [u8]],
    /// The parts, as secret and offset, by the first byte of the part.
    by_first: Vec<Vec<(usize, usize)>>,
    /// Whether a part begins with these two bytes: of all places in memory, a fraction is compared any further.
    starts: Vec<bool>,
}

impl<'a> Parts<'a> {
    fn new(masked: &'a [&'a [u8]]) -> Self {
        let mut by_first = vec![Vec::new(); 1 << 8];
        let mut starts = vec![false; 1 << 16];
        for (secret, bytes) in masked.iter().enumerate() {
            assert!(bytes.len() >= PART, "a secret that is too short to be searched for");
            for (n, part) in bytes.chunks_exact(PART).enumerate() {
                let [first, second] = [part[0] ^ MASK, part[1] ^ MASK];
                by_first[usize::from(first)].push((secret, n * PART));
                starts[start(first, second)] = true;
            }
        }
        Self { masked, by_first, starts }
    }

    /// Calls `found` with the place and the part for each find in `memory`.
    fn find(&self, memory: &[u8], mut found: impl FnMut(usize, (usize, usize))) {
        const ZEROS: [u8; PAGE + PART] = [0; PAGE + PART];
        for page in (0..memory.len()).step_by(PAGE) {
            let bytes = &memory[page..memory.len().min(page + PAGE + PART - 1)];
            // Most of the memory is zero, and no part of a secret is all zeros.
            if *bytes == ZEROS[..bytes.len()] {
                continue;
            }
            for (n, window) in bytes.windows(PART).enumerate() {
                if !self.starts[start(window[0], window[1])] {
                    continue;
                }
                for &(secret, offset) in &self.by_first[usize::from(window[0])] {
                    let part = &self.masked[secret][offset..offset + PART];
                    if window.iter().zip(part).all(|(a, b)| a ^ MASK == *b) {
                        found(page + n, (secret, offset));
                    }
                }
            }
        }
    }
}

fn start(first: u8, second: u8) -> usize {
    usize::from(u16::from_ne_bytes([first, second]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a masked secret that occurs at no other place in memory.
    fn masked(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn a_copy_is_found_wherever_it_begins_until_it_is_wiped() {
        let secrets = [masked(0x51ab, 48), masked(0x77c3, 20)];
        let secrets: Vec<&[u8]> = secrets.iter().map(Vec::as_slice).collect();
        let mut memory = vec![0_u8; CHUNK + 3 * PAGE];
        // As if a mapping began there.
        let base = memory.as_ptr() as usize;
        let first = base.next_multiple_of(PAGE) - base;
        let (from, len) = (base + first, CHUNK + 2 * PAGE);
        let mapping = format!("{from:x}-{:x} rw-p 00000000 00:00 0", from + len);
        for place in [0, 1, PAGE - 9, PAGE, CHUNK - 9, CHUNK, len - 48] {
            let at = first + place;
            memory[at..at + 48].iter_mut().zip(secrets[0]).for_each(|(to, byte)| *to = byte ^ MASK);
            let found = search_mappings(&secrets, &mapping).unwrap();
            let found: Vec<_> = found.iter().map(|f| (f.secret, f.offset, f.address)).collect();
            let expected = [0, 16, 32].map(|part| (0, part, (from + place + part) as u64));
            assert_eq!(found, expected, "at {place}");
            memory.fill(0);
            assert_eq!(search_mappings(&secrets, &mapping).unwrap(), []);
        }
    }

    #[test]
    fn a_copy_in_a_mapping_that_is_listed_twice_is_found_once() {
        let masked = masked(0x39e5, PART);
        let secret: Vec<u8> = masked.iter().map(|byte| byte ^ MASK).collect();
        let maps = fs::read_to_string("/proc/self/maps").unwrap().repeat(2);
        let found = search_mappings(&[&masked], &maps).unwrap();
        let addresses: Vec<u64> = found.iter().map(|find| find.address).collect();
        assert_eq!(addresses, [secret.as_ptr() as u64]);
    }
}
