use std::time::Duration;

use adit_crypto::Cipher;
use adit_engine::command::Keepalive;
use adit_openvpn::records::RecordSettings;

/// The times when sessions are renewed and end, and their number of data channels.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The number of data channels that this node offers, 1 to [`MAX_CHANNELS`](super::MAX_CHANNELS).
    pub channels: usize,
    /// The number of receiving workers. A channel belongs to the worker whose number is the channel's id modulo this. The channels of a
    /// session are divided evenly among them.
    pub workers: usize,
    /// The cipher of the data channels, the same on every node.
    pub cipher: Cipher,
    /// The maximum duration of a key negotiation.
    pub hand_window: Duration,
    /// The age at which data keys are replaced.
    pub rekey_after: Duration,
    /// The time without traffic after which a session ends, unless it is a standing one.
    pub idle_after: Duration,
    /// The maximum duration of a joining session.
    pub join_lasts: Duration,
    /// The keepalive times of data channels.
    pub keepalive: Keepalive,
    /// Whether the data channels carry Ethernet frames, as the genesis of the mesh says.
    pub ethernet: bool,
    /// The MTU of the tunnel device.
    pub tun_mtu: u16,
    /// The replay window in packets.
    pub replay_window: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            channels: 1,
            workers: 1,
            cipher: Cipher::Aes256Gcm,
            hand_window: Duration::from_secs(10),
            rekey_after: Duration::from_secs(3600),
            idle_after: Duration::from_secs(600),
            join_lasts: Duration::from_secs(60),
            // Probes detect a lost path, within 3 s while there is traffic. These times detect the loss of an idle peer.
            keepalive: Keepalive {
                interval: Duration::from_secs(15),
                timeout: Duration::from_secs(50),
            },
            ethernet: false,
            tun_mtu: 1500,
            replay_window: 1024,
        }
    }
}

impl Policy {
    pub(super) fn record_settings(&self) -> RecordSettings {
        RecordSettings {
            hand_window: self.hand_window,
            rekey_after: self.rekey_after,
            keepalive: self.keepalive,
            ethernet: self.ethernet,
            tun_mtu: self.tun_mtu,
            replay_window: self.replay_window,
        }
    }
}
