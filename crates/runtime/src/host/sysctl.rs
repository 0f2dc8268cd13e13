//! Kernel settings of the network, identified by their names in /proc/sys.

use std::path::PathBuf;
use std::{fs, io};

/// Returns the path of a kernel setting of the network. No key leads to another file, because keys are also read from
/// undo logs.
pub(super) fn path(key: &str) -> io::Result<PathBuf> {
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    let parts: Vec<&str> = key.split('.').collect();
    if parts.first() != Some(&"net") || !parts.iter().all(|part| plain(part)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a setting of the network"));
    }
    Ok(parts.iter().fold(PathBuf::from("/proc/sys"), |path, part| path.join(part)))
}

/// Returns the value of a setting.
pub(super) fn read(key: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path(key)?)?.trim().to_owned())
}

/// Changes a setting.
pub(super) fn write(key: &str, value: &str) -> io::Result<()> {
    fs::write(path(key)?, value)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_key_names_a_setting_of_the_network_alone() {
        let found = path("net.ipv4.conf.all.src_valid_mark").unwrap();
        assert_eq!(found, Path::new("/proc/sys/net/ipv4/conf/all/src_valid_mark"));
        for key in [
            "/etc/passwd",
            "kernel.core_pattern",
            "net.../kernel.modprobe",
            "net",
            "net..x",
            "",
            "net./",
        ] {
            let escaped = path(key).is_ok_and(|path| path != Path::new("/proc/sys/net"));
            assert!(!escaped, "{key}");
        }
    }
}
