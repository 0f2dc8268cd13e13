/// What a verified certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The subject in OpenVPN's form, `C=..., O=..., CN=...`.
    pub subject: String,
    /// The subject's common name.
    pub common_name: String,
    /// Serial number, lower-case hex.
    pub serial: String,
    /// SHA-256 of the DER, lower-case hex.
    pub fingerprint: String,
    /// End of validity, seconds since 1970.
    pub not_after: u64,
}
