//! Control channel wrapping: none, tls-auth, tls-crypt, tls-crypt-v2.

/// How control packets are wrapped, with the keys.
#[derive(Clone, Debug)]
pub enum WrapConfig {
    /// Not at all.
    None,
}
