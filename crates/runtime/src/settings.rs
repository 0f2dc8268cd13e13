//! The documented keys of settings files, and checks that several files share.

/// The maximum length of a network device's name (IFNAMSIZ without its terminator).
const MAX_DEVICE_NAME: usize = 15;

/// A documented key of a settings file.
#[derive(Copy, Clone, Debug)]
pub struct Key {
    /// The name of the key.
    pub name: &'static str,
    /// The comment in the file.
    pub comment: &'static str,
    /// An example value.
    pub example: &'static str,
    /// The default, or `None` if the key is required.
    pub default: Option<&'static str>,
    /// Whether a running server applies a new value only after a restart.
    pub restart: bool,
}

/// Checks the name of a device, which goes into nft rules and file names below /proc/sys.
///
/// # Errors
/// Returns the error and the correction.
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
