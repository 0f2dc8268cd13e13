//! The tunnel without cryptography: `adit-lab copy` at each end.

/// That of the lab, whose part it is.
pub(super) fn version() -> Result<String, String> {
    Ok(concat!("adit-lab ", env!("CARGO_PKG_VERSION")).to_owned())
}
