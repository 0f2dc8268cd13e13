//! Directives that are commands of their own: `adit openvpn --NAME`.

use super::{Spec, alone};

/// Each row is on one line, whatever its length.
#[rustfmt::skip]
pub(super) const TABLE: &[Spec] = &[
    alone("genkey", "--genkey secret|tls-crypt-v2-server|auth-token [FILE], or --tls-crypt-v2 KEY --genkey tls-crypt-v2-client [FILE] [METADATA]", "Makes a key; the metadata of a client's key is base64."),
    alone("help", "--help", "Prints all directives."),
    alone("mktun", "--mktun --dev NAME [--dev-type tun|tap] [--user NAME] [--group NAME]", "Makes a device that stays."),
    alone("rmtun", "--rmtun --dev NAME [--dev-type tun|tap]", "Removes such a device."),
    alone("show-ciphers", "--show-ciphers", "Prints the ciphers of the data channel."),
    alone("show-curves", "--show-curves", "Prints the groups of TLS's key exchange."),
    alone("show-digests", "--show-digests", "Prints the digests."),
    alone("show-engines", "--show-engines", "Says that there are no cryptographic engines."),
    alone("show-gateway", "--show-gateway", "Prints the gateways of the default routes."),
    alone("show-groups", "--show-groups", "The same as show-curves."),
    alone("show-pkcs11-ids", "--show-pkcs11-ids [MODULE] [0|1]", "Prints the ids of the certificates on tokens; 1 if they can be seen only after the PIN."),
    alone("show-tls", "--show-tls", "Prints the cipher suites of TLS."),
    alone("test-crypto", "--test-crypto --secret FILE --cipher NAME [--auth NAME]", "Encrypts and decrypts packets of all sizes with a static key."),
    alone("version", "--version", "Prints the version."),
];
