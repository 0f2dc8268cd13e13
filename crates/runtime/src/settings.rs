//! Settings files: their documented keys, and checks that they share.

/// Longest name of a network device (IFNAMSIZ without its terminator).
const MAX_DEVICE_NAME: usize = 15;

/// A documented key of a settings file.
#[derive(Copy, Clone, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its comment in the file.
    pub comment: &'static str,
    /// A value as it may be written.
    pub example: &'static str,
    /// The default; `None`: the key is required.
    pub default: Option<&'static str>,
    /// A running server takes a new value only when it starts again.
    pub restart: bool,
}

/// Checks the name of a device, which goes into nft rules and file names below /proc/sys.
///
/// # Errors
/// The error, and the correction.
pub fn checked_device(name: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || name.len() > MAX_DEVICE_NAME || !name.chars().all(allowed) {
        return Err(format!(
            "device {name:?} is no device name: 1 to {MAX_DEVICE_NAME} letters, digits, - or _; \
             write device = \"adit0\""
        ));
    }
    if matches!(name, "lo" | "all" | "default") {
        return Err(format!("device {name:?} is taken by the system; write device = \"adit0\""));
    }
    Ok(name.to_owned())
}
