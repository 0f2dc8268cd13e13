use std::time::Duration;

use crate::negotiate::DataCipher;
use adit_crypto::Cipher;
use adit_engine::CertificateFacts;
use adit_engine::auth::Inactive;
use adit_engine::command::Keepalive;

use crate::data_format::Framing;
use crate::tls::TlsSession;
use crate::wrap::WrapConfig;

/// The limits after which the data key is replaced.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Renegotiation {
    /// `reneg-sec`: the age at which to negotiate another key; zero: no limit.
    pub after: Duration,
    /// The second argument of `reneg-sec`: the actual age is random, between this age and `after`.
    /// A server's default is 90 % of `after`, so that its clients do not renegotiate all at once.
    pub earliest: Duration,
    /// `reneg-bytes`; zero: the cipher's limit.
    pub bytes: u64,
    /// `reneg-pkts`; zero: the cipher's limit.
    pub packets: u64,
}

impl Default for Renegotiation {
    fn default() -> Self {
        Self {
            after: Duration::from_secs(3600),
            earliest: Duration::from_secs(3600),
            bytes: 0,
            packets: 0,
        }
    }
}

/// The limits after which this end ends a session or the program.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `inactive`: on a server this ends the session; any other end exits.
    pub inactive: Option<Inactive>,
    /// `session-timeout`: on a server this ends the session; any other end exits.
    pub session: Option<Duration>,
    /// `ping-exit`: [`Keepalive::timeout`] ends the program rather than only the session. A
    /// server's sessions end in either case.
    pub exit_when_silent: bool,
    /// `tls-exit`: a handshake that fails ends the program.
    pub exit_on_tls_failure: bool,
}

/// The settings of both client and server engines.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The wrapping of the control channel.
    pub wrap: WrapConfig,
    /// `data-ciphers`, most preferred first.
    pub ciphers: Vec<DataCipher>,
    /// `cipher`, as named in the options string. It is all that peers without negotiation learn
    /// about our cipher.
    pub occ_cipher: String,
    /// `data-ciphers-fallback`: for peers that do not negotiate.
    pub cipher_fallback: Option<DataCipher>,
    /// `auth`: the digest named in the options string. tls-auth has its own.
    pub auth: String,
    /// `dev tap`: the tunnel carries Ethernet frames, not packets.
    pub ethernet: bool,
    /// Whether the session may move between IPv4 and IPv6. TCP segments then fit both, because a connection keeps the size
    /// that it began with.
    pub changes_family: bool,
    /// `tun-mtu`.
    pub tun_mtu: u16,
    /// `tun-mtu-max`: the maximum that a server may push.
    pub tun_mtu_max: u16,
    /// The second argument of `tun-mtu`, which replaces the first one in the options string.
    pub occ_mtu: Option<u16>,
    /// `fragment`: over datagrams only.
    pub fragment: Option<Fragment>,
    /// `mssfix`: `None` for the default (the size of `fragment`, or 1492 bytes with outer headers),
    /// `Some(0)` to leave SYNs unchanged.
    pub mssfix: Option<Mssfix>,
    /// `hand-window`: a handshake that takes longer is abandoned.
    pub hand_window: Duration,
    /// `tran-window`: the time for which the previous key is still used for decryption.
    pub tran_window: Duration,
    /// Whether this end offers to wrap renegotiations with keys from the first negotiation (dynamic
    /// tls-crypt, OpenVPN 2.6 and later).
    pub dynamic_tls_crypt: bool,
    /// `tls-timeout`: the retransmission timeout until a round trip has been measured.
    pub tls_timeout: Duration,
    /// `reneg-sec`, `reneg-bytes`, `reneg-pkts`.
    pub renegotiation: Renegotiation,
    /// `replay-window`, in packets.
    pub replay_window: u32,
    /// `float`.
    pub float: bool,
    /// The compression framing that the config requests.
    pub framing: Framing,
    /// Whether compressed packets from the other end are decompressed.
    pub decompress: bool,
    /// `ping`, `ping-restart`, as configured at this end.
    pub keepalive: Keepalive,
    /// `inactive`, `session-timeout`, `ping-exit`, `tls-exit`.
    pub limits: Limits,
    /// `explicit-exit-notify`: the number of attempts; `None` if it is not configured.
    pub exit_notify: Option<u8>,
    /// Additional variables for the peer info (`setenv`).
    pub peer_info: Vec<(String, String)>,
    /// `push-peer-info`: also send information that negotiation does not need.
    pub push_peer_info: bool,
    /// `force-tls-key-material-export` of a server: clients must derive data keys with the TLS exporter.
    pub force_exporter: bool,
    /// `single-session` of a point-to-point end: a handshake does not replace the session.
    pub single_session: bool,
    /// `connect-freq` of an end that waits for handshakes: how many may start.
    pub connect_freq: Option<Frequency>,
    /// `connect-freq-initial`: how many first packets from one network are answered; `None` for 500 in 10 s.
    pub connect_freq_initial: Option<Frequency>,
    /// Whether requests and events contain the peer's certificates as plain data, which takes time in every handshake.
    pub describe_certificates: bool,
}

/// A number of events in any period of this length.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Frequency {
    /// The number of events, at least 1.
    pub count: u32,
    /// The period, at least a second.
    pub period: Duration,
}

impl Settings {
    /// Returns the peer's certificates as plain data, or nothing if no request or event is to contain them.
    pub(crate) fn certificates_of(&self, tls: &TlsSession) -> Vec<CertificateFacts> {
        if self.describe_certificates { tls.certificate_facts() } else { Vec::new() }
    }

    /// Returns the maximum length of a packet after decompression; `None` if packets are not
    /// decompressed.
    pub(crate) fn longest_decompressed(&self, framing: Framing) -> Option<u16> {
        // The length of an Ethernet header with two VLAN tags.
        const FRAME_HEADER: u16 = 14 + 4 + 4;
        let header = if self.ethernet { FRAME_HEADER } else { 0 };
        (self.decompress && framing != Framing::None)
            .then(|| self.tun_mtu.max(LEAST_DECOMPRESSED).saturating_add(header))
    }
}

/// The minimum size reserved for a decompressed packet. It applies even if `tun-mtu` is less,
/// because the other end may have the default.
const LEAST_DECOMPRESSED: u16 = 1500;

/// `fragment`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The largest datagram in bytes.
    pub size: u16,
    /// `fragment N mtu`: the size includes IP and UDP headers.
    pub outer: bool,
}

/// `mssfix`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mssfix {
    /// The size in bytes; 0 disables it.
    pub size: u16,
    /// `mssfix N mtu`: the size includes IP and UDP headers.
    pub outer: bool,
    /// `mssfix N fixed`: the size is that of the inner packet.
    pub fixed: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wrap: WrapConfig::None,
            ciphers: [Cipher::Aes256Gcm, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305]
                .map(DataCipher::Aead)
                .to_vec(),
            occ_cipher: "BF-CBC".into(),
            cipher_fallback: None,
            auth: "SHA1".into(),
            ethernet: false,
            changes_family: false,
            tun_mtu: 1500,
            tun_mtu_max: 1600,
            occ_mtu: None,
            fragment: None,
            mssfix: None,
            hand_window: Duration::from_secs(60),
            tran_window: Duration::from_secs(3600),
            dynamic_tls_crypt: true,
            tls_timeout: Duration::from_secs(2),
            renegotiation: Renegotiation::default(),
            replay_window: 64,
            float: false,
            framing: Framing::None,
            decompress: true,
            keepalive: Keepalive::default(),
            limits: Limits::default(),
            exit_notify: None,
            peer_info: Vec::new(),
            push_peer_info: false,
            force_exporter: false,
            single_session: false,
            connect_freq: None,
            connect_freq_initial: None,
            describe_certificates: false,
        }
    }
}
