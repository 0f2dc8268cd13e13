//! The parameters that two ends agree on without a server. Both compute them from the same facts
//! and so reach the same result without a message. This is the "P2P NCP" of OpenVPN 2.6.

use std::fmt;

use crate::negotiate::DataCipher;

use crate::keys::{KeyMethod2, Role};
use crate::negotiate::{IvProto, PeerInfo};
use crate::reason::Reason;
use crate::session::Settings;

/// The agreed parameters of a session.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionParams {
    /// The cipher of the data channel.
    pub(super) cipher: DataCipher,
    /// Whether the keys come from the TLS exporter.
    pub(super) exporter: bool,
    /// Whether packets are DATA_V2 with a peer-id.
    pub(super) data_v2: bool,
    /// Whether EXIT is sent on the control channel.
    pub(super) exit_by_control: bool,
    /// Whether dynamic tls-crypt wraps renegotiations.
    pub(super) wrap_renegotiations: bool,
    /// Whether packets have the data format of 2.7; AEADs only.
    pub(super) epoch: bool,
}

/// The error for ends that have no cipher in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoCipher {
    offered: Vec<String>,
}

impl fmt::Display for NoCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offered.as_slice() {
            [] => f.write_str(
                "the peer negotiates no cipher: name the one in its `cipher` line here, with \
                 data-ciphers-fallback",
            ),
            offered => write!(
                f,
                "no common cipher: the peer offers {}; add one of these to data-ciphers",
                offered.join(":")
            ),
        }
    }
}

/// Computes the agreed parameters from the data of both ends.
///
/// # Errors
/// The outer error means that the peer info is malformed. The inner error is a configuration
/// problem for the operator.
pub(super) fn agree(
    role: Role,
    settings: &Settings,
    remote: &KeyMethod2,
) -> Result<Result<SessionParams, NoCipher>, Reason> {
    let info =
        PeerInfo::parse(&remote.peer_info).map_err(|_| Reason::Protocol("malformed peer info"))?;
    let proto = info.proto();
    let both = |bit| proto.has(IvProto::P2P_NCP) && proto.has(bit);
    let exporter = both(IvProto::TLS_EKM);
    let offered = info.ciphers();
    let theirs =
        |cipher: &DataCipher| offered.iter().any(|n| DataCipher::from_name(n) == Some(*cipher));
    // Both ends use the TLS server's order of preference.
    let common = match role {
        Role::Server => settings.ciphers.iter().copied().find(theirs),
        Role::Client => offered
            .iter()
            .filter_map(|name| DataCipher::from_name(name))
            .find(|cipher| settings.ciphers.contains(cipher)),
    };
    let fallback = settings.cipher_fallback.filter(|_| offered.is_empty());
    let Some(cipher) = common.or(fallback) else {
        let offered = offered.into_iter().map(str::to_owned).collect();
        return Ok(Err(NoCipher { offered }));
    };
    Ok(Ok(SessionParams {
        cipher,
        exporter,
        data_v2: both(IvProto::DATA_V2),
        exit_by_control: both(IvProto::CC_EXIT),
        wrap_renegotiations: exporter && settings.dynamic_tls_crypt && both(IvProto::DYN_TLS_CRYPT),
        epoch: cipher.is_aead() && both(IvProto::DATA_EPOCH),
    }))
}

/// Returns the peer info of a point-to-point end, as short as OpenVPN's.
pub(super) fn our_peer_info(settings: &Settings) -> String {
    let names: Vec<_> = settings.ciphers.iter().map(|cipher| cipher.name()).collect();
    let proto = IvProto::between_two().offering(settings.dynamic_tls_crypt).0;
    format!("IV_CIPHERS={}\nIV_PROTO={proto}\n", names.join(":"))
}

#[cfg(test)]
mod tests {
    use adit_crypto::{BlockCipher, Cipher};
    use zeroize::Zeroizing;

    use super::*;
    use crate::keys::Randoms;

    fn said(peer_info: &str) -> KeyMethod2 {
        KeyMethod2 {
            pre_master: None,
            randoms: Randoms { random1: [0; 32], random2: [0; 32] },
            options: String::new(),
            username: String::new(),
            password: Zeroizing::default(),
            peer_info: peer_info.into(),
        }
    }

    fn settings(ciphers: &[DataCipher]) -> Settings {
        Settings { ciphers: ciphers.to_vec(), ..Settings::default() }
    }

    const AES: DataCipher = DataCipher::Aead(Cipher::Aes256Gcm);
    const CHACHA: DataCipher = DataCipher::Aead(Cipher::ChaCha20Poly1305);

    #[test]
    fn both_ends_take_the_servers_first_choice() {
        let (server, client) = (settings(&[AES, CHACHA]), settings(&[CHACHA, AES]));
        let at_server = agree(Role::Server, &server, &said(&our_peer_info(&client)));
        let at_client = agree(Role::Client, &client, &said(&our_peer_info(&server)));
        let (at_server, at_client) = (at_server.unwrap().unwrap(), at_client.unwrap().unwrap());
        assert_eq!(at_server.cipher, AES);
        assert_eq!(at_server, at_client);
        assert!(at_server.exporter && at_server.data_v2 && at_server.exit_by_control);
    }

    /// The peer info of openvpn 2.6.14, and 2.7's bit 10.
    #[test]
    fn we_say_what_openvpn_says() {
        let said = our_peer_info(&Settings::default());
        assert_eq!(said, "IV_CIPHERS=AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305\nIV_PROTO=1770\n");
    }

    #[test]
    fn without_its_bit_no_other_bit_counts() {
        let all_but = IvProto::between_two().0 & !IvProto::P2P_NCP.0;
        let said = said(&format!("IV_CIPHERS=AES-256-GCM\nIV_PROTO={all_but}\n"));
        let agreed = agree(Role::Server, &settings(&[AES]), &said).unwrap().unwrap();
        assert_eq!(agreed.cipher, AES);
        assert!(!agreed.exporter && !agreed.data_v2 && !agreed.exit_by_control);
        assert!(!agreed.wrap_renegotiations);
    }

    #[test]
    fn epochs_are_for_aeads_at_ends_that_both_know_them() {
        const CBC: DataCipher = DataCipher::Block(Some(BlockCipher::Aes256Cbc));
        let epoch = |cipher: DataCipher, proto: u32| {
            let said = said(&format!("IV_CIPHERS={cipher}\nIV_PROTO={proto}\n"));
            let agreed = agree(Role::Client, &settings(&[cipher]), &said).unwrap().unwrap();
            (agreed.cipher == cipher, agreed.epoch)
        };
        let all = IvProto::between_two().0;
        assert_eq!(epoch(AES, all), (true, true));
        assert_eq!(epoch(AES, all & !IvProto::DATA_EPOCH.0), (true, false));
        assert_eq!(epoch(CBC, all), (true, false));
    }

    #[test]
    fn dynamic_wrapping_needs_the_exporter() {
        let without = IvProto::between_two().0 & !IvProto::TLS_EKM.0;
        let said = said(&format!("IV_CIPHERS=AES-256-GCM\nIV_PROTO={without}\n"));
        let agreed = agree(Role::Client, &settings(&[AES]), &said).unwrap().unwrap();
        assert!(!agreed.wrap_renegotiations && !agreed.exporter && agreed.data_v2);
    }

    #[test]
    fn the_fallback_is_for_peers_that_say_nothing() {
        let mut ours = settings(&[AES]);
        let silent = agree(Role::Server, &ours, &said("")).unwrap();
        assert!(silent.unwrap_err().to_string().contains("data-ciphers-fallback"));
        ours.cipher_fallback = Some(CHACHA);
        assert_eq!(agree(Role::Server, &ours, &said("")).unwrap().unwrap().cipher, CHACHA);
        let other = said("IV_CIPHERS=AES-128-GCM\nIV_PROTO=1770\n");
        let refused = agree(Role::Server, &ours, &other).unwrap().unwrap_err();
        assert!(refused.to_string().contains("AES-128-GCM"), "{refused}");
    }

    #[test]
    fn malformed_peer_info_ends_the_attempt() {
        assert!(agree(Role::Client, &settings(&[AES]), &said("IV_PROTO=\0")).is_err());
    }
}
