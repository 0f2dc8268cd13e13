//! The reasons why a plugin cannot be used.

use std::fmt;

use super::PLUGIN_VERSION;

/// The reason why a plugin cannot be used, without the plugin's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginError {
    /// This build cannot load shared objects.
    Unsupported,
    /// The dynamic linker's reason.
    Load(String),
    /// The object lacks a function.
    Missing(&'static str),
    /// The plugin needs a newer interface, of this version.
    Newer(i32),
    /// The plugin asks to be opened at an unknown point.
    InitPoint(i32),
    /// The plugin's open function failed.
    Open,
    /// The plugin's open function returned a list that is too long or endless.
    OpenList,
    /// The plugin wants to filter packets (`OPENVPN_PLUGIN_ENABLE_PF`).
    PacketFilter,
    /// The plugin wants calls that do not exist, by their mask.
    Unknown(u32),
    /// The plugin verifies certificates through OpenSSL, which cannot be loaded.
    Crypto(String),
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str(
                "this build of adit cannot load shared objects (it is static, or for another processor): use the build \
                 for glibc on x86-64 or arm64",
            ),
            Self::Load(reason) => write!(f, "it cannot be loaded: {reason}"),
            Self::Missing(function) => write!(f, "it is not a plugin: it has no {function}"),
            Self::Newer(version) => write!(
                f,
                "it needs version {version} of the plugin interface, and adit has {PLUGIN_VERSION}"
            ),
            Self::InitPoint(point) => {
                write!(f, "it wants to be initialized at the unknown point {point}")
            }
            Self::Open => f.write_str("its initialization failed: see its messages above"),
            Self::OpenList => f.write_str("its initialization returned too long a list"),
            Self::PacketFilter => f.write_str(
                "it wants to filter packets (OPENVPN_PLUGIN_ENABLE_PF), which openvpn 2.6 removed: use a plugin \
                 without it",
            ),
            Self::Unknown(mask) => {
                write!(f, "it wants calls that do not exist (mask {mask:#x})")
            }
            Self::Crypto(reason) => write!(f, "it verifies certificates with OpenSSL: {reason}"),
        }
    }
}

impl std::error::Error for PluginError {}
