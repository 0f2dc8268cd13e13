//! Randomness from the kernel.

use adit_engine::{Random, Seed};

use crate::fault::Fault;

/// Returns random bytes that are suitable for keys.
pub fn bytes<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// Creates a seed for an engine.
pub fn seed() -> Result<Seed, Fault> {
    Seed::try_with(fill)
}

/// Creates a seeded generator.
pub fn generator() -> Result<Random, Fault> {
    seed().map(Random::new)
}

fn fill(bytes: &mut [u8]) -> Result<(), Fault> {
    getrandom::fill(bytes).map_err(|e| Fault::environment(format!("getrandom: {e}")))
}
