//! `tinc.conf`: the settings of the node itself.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::config::values::{choice, host_and_port, number, refused, seconds, yes_or_no};
use crate::config::{
    ConfigError, Entries, Entry, HostConfig, Mistakes, Reason, Warning, WarningReason,
};
use crate::name::NodeName;
use crate::sptps::WindowSize;
use crate::subnet::Subnet;

const UNCOMPRESSED: &str = "adit sends and receives packets uncompressed, which every node accepts";

/// How packets find their destination. All nodes of a net must have the same mode.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By IP address, among the subnets of all nodes.
    #[default]
    Router,
    /// By MAC address, as a switch.
    Switch,
    /// To all nodes.
    Hub,
}

/// How packets to many nodes are sent.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Broadcast {
    /// Along the minimum spanning tree of the net.
    #[default]
    Tree,
    /// By their sender, to each node that it reaches directly.
    Direct,
    /// Not at all.
    No,
}

/// Which packets of other nodes are forwarded.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// None.
    Off,
    /// All, by the node itself.
    #[default]
    Internal,
    /// All, by way of the device and the kernel.
    Kernel,
}

/// Which IP addresses are used for connections.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// Both.
    #[default]
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl AddressFamily {
    /// Returns whether an address is of the family.
    pub fn includes(self, address: &SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// The kind of virtual device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DeviceType {
    /// A TUN device.
    Tun,
    /// A TAP device.
    Tap,
    /// None: the node only forwards.
    Dummy,
}

/// An address to listen on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BindAddress {
    /// The address; `None` for all.
    pub address: Option<IpAddr>,
    /// The port, if it is not the node's own; 0 for any.
    pub port: Option<u16>,
}

/// A proxy for outgoing connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// SOCKS 4, with a user.
    Socks4(String, u16, Option<String>),
    /// SOCKS 5, with a user and a password.
    Socks5(String, u16, Option<(String, String)>),
    /// An HTTP proxy that supports CONNECT.
    Http(String, u16),
    /// A command whose standard input and output are the connection.
    Exec(String),
}

/// The settings of the node itself. Times are at least one second.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are the variables of the manual.
pub struct ServerConfig {
    /// The settings that other nodes' host files contain as well.
    pub own: HostConfig,
    pub address_family: AddressFamily,
    pub auto_connect: bool,
    pub bind_to_address: Vec<BindAddress>,
    pub bind_to_interface: Option<String>,
    pub broadcast: Broadcast,
    pub broadcast_subnets: Vec<Subnet>,
    pub connect_to: Vec<NodeName>,
    pub decrement_ttl: bool,
    pub device: Option<String>,
    pub device_standby: bool,
    /// By default the kind that the mode needs.
    pub device_type: Option<DeviceType>,
    pub direct_only: bool,
    pub ed25519_private_key_file: Option<String>,
    pub forwarding: Forwarding,
    /// The mark of the node's own packets; 0 for none.
    pub fwmark: u32,
    pub interface: Option<String>,
    pub invitation_expire: Duration,
    pub key_expire: Duration,
    /// Keys of nodes without one are accepted from the net, once.
    pub learn_keys: bool,
    /// Packets are exchanged with nodes of tinc 1.0 through the neighbours on the way, which can read them.
    pub legacy_nodes: bool,
    pub listen_address: Vec<BindAddress>,
    pub local_discovery: bool,
    pub mac_expire: Duration,
    pub max_connection_burst: u32,
    /// In bytes.
    pub max_output_buffer_size: u32,
    pub max_timeout: Duration,
    pub mode: Mode,
    pub mtu_info_interval: Duration,
    pub ping_interval: Duration,
    pub ping_timeout: Duration,
    pub priority_inheritance: bool,
    pub proxy: Option<Proxy>,
    pub replay_window: WindowSize,
    pub strict_subnets: bool,
    pub tunnel_server: bool,
    pub udp_discovery: bool,
    pub udp_discovery_interval: Duration,
    pub udp_discovery_keepalive_interval: Duration,
    pub udp_discovery_timeout: Duration,
    pub udp_info_interval: Duration,
    /// In bytes; 0 for the system's size.
    pub udp_rcv_buf: u32,
    /// In bytes; 0 for the system's size.
    pub udp_snd_buf: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            own: HostConfig::default(),
            address_family: AddressFamily::default(),
            auto_connect: true,
            bind_to_address: Vec::new(),
            bind_to_interface: None,
            broadcast: Broadcast::default(),
            broadcast_subnets: Vec::new(),
            connect_to: Vec::new(),
            decrement_ttl: false,
            device: None,
            device_standby: false,
            device_type: None,
            direct_only: false,
            ed25519_private_key_file: None,
            forwarding: Forwarding::default(),
            fwmark: 0,
            interface: None,
            invitation_expire: seconds(604_800),
            key_expire: seconds(3600),
            learn_keys: true,
            legacy_nodes: true,
            listen_address: Vec::new(),
            local_discovery: true,
            mac_expire: seconds(600),
            max_connection_burst: 10,
            max_output_buffer_size: 15_180,
            max_timeout: seconds(900),
            mode: Mode::default(),
            mtu_info_interval: seconds(5),
            ping_interval: seconds(60),
            ping_timeout: seconds(5),
            priority_inheritance: false,
            proxy: None,
            replay_window: WindowSize::DEFAULT,
            strict_subnets: false,
            tunnel_server: false,
            udp_discovery: true,
            udp_discovery_interval: seconds(2),
            udp_discovery_keepalive_interval: seconds(10),
            udp_discovery_timeout: seconds(30),
            udp_info_interval: seconds(5),
            udp_rcv_buf: 1 << 20,
            udp_snd_buf: 1 << 20,
        }
    }
}

impl ServerConfig {
    /// Reads the settings from the lines of `tinc.conf` and the node's own host file. `Name` is read by [`Entries::name`].
    ///
    /// # Errors
    /// Fails if a line is invalid or refused.
    pub fn read(entries: &Entries) -> Result<(Self, Vec<Warning>), ConfigError> {
        let mut config = Self::default();
        let mut warnings = entries.apply(false, Mistakes::LikeTinc, |name, value| {
            config.set(name, value)?;
            config.own.set(name, value)
        })?;
        let is_compression = |entry: &&Entry| entry.name.eq_ignore_ascii_case("Compression");
        if config.own.compression > 0
            && let Some(entry) = entries.iter().find(is_compression)
        {
            let reason = WarningReason::ValueNotSupported(UNCOMPRESSED);
            warnings.push(Warning { entry: entry.clone(), reason });
        }
        config.strict_subnets |= config.tunnel_server;
        Ok((config, warnings))
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Reason> {
        let size = || number(value, 0..=i32::MAX.unsigned_abs(), "a number of bytes");
        match name {
            "AddressFamily" => {
                let choices = [
                    ("any", AddressFamily::Any),
                    ("ipv4", AddressFamily::V4),
                    ("ipv6", AddressFamily::V6),
                ];
                self.address_family = choice(value, &choices, "any, ipv4 or ipv6")?;
            }
            "AutoConnect" => self.auto_connect = yes_or_no(value)?,
            "BindToAddress" => self.bind_to_address.push(bind_address(value)?),
            "BindToInterface" => self.bind_to_interface = Some(value.to_owned()),
            "Broadcast" => {
                let choices = [
                    ("mst", Broadcast::Tree),
                    ("yes", Broadcast::Tree),
                    ("direct", Broadcast::Direct),
                    ("no", Broadcast::No),
                ];
                self.broadcast = choice(value, &choices, "mst, direct or no")?;
            }
            "BroadcastSubnet" => self.broadcast_subnets.push(value.parse()?),
            "ConnectTo" => self.connect_to.push(value.parse()?),
            "DecrementTTL" => self.decrement_ttl = yes_or_no(value)?,
            "Device" => self.device = Some(value.to_owned()),
            "DeviceStandby" => self.device_standby = yes_or_no(value)?,
            "DeviceType" => {
                let choices = [
                    ("tun", DeviceType::Tun),
                    ("tap", DeviceType::Tap),
                    ("dummy", DeviceType::Dummy),
                ];
                self.device_type = Some(choice(value, &choices, "tun, tap or dummy")?);
            }
            "DirectOnly" => self.direct_only = yes_or_no(value)?,
            "Ed25519PrivateKeyFile" => self.ed25519_private_key_file = Some(value.to_owned()),
            // Without it, a node speaks tinc 1.0's protocol alone.
            "ExperimentalProtocol" => choice(value, &[("yes", ())], "yes, or remove the line")?,
            "Forwarding" => {
                let choices = [
                    ("off", Forwarding::Off),
                    ("internal", Forwarding::Internal),
                    ("kernel", Forwarding::Kernel),
                ];
                self.forwarding = choice(value, &choices, "off, internal or kernel")?;
            }
            "FWMark" => {
                // tinc passes the bits of a negative number on.
                let mark: i64 = number(value, i64::MIN..=i64::MAX, "a number")?;
                self.fwmark = u32::try_from(mark.rem_euclid(1 << 32)).unwrap_or(0);
            }
            "Interface" => self.interface = Some(value.to_owned()),
            "InvitationExpire" => self.invitation_expire = seconds(value)?,
            "KeyExpire" => self.key_expire = seconds(value)?,
            "LearnKeys" => self.learn_keys = yes_or_no(value)?,
            "LegacyNodes" => self.legacy_nodes = yes_or_no(value)?,
            "ListenAddress" => self.listen_address.push(bind_address(value)?),
            "LocalDiscovery" => self.local_discovery = yes_or_no(value)?,
            "MACExpire" => self.mac_expire = seconds(value)?,
            "MaxConnectionBurst" => {
                self.max_connection_burst = number(value, 1..=1_000_000, "a number from 1")?;
            }
            "MaxOutputBufferSize" => self.max_output_buffer_size = size()?,
            "MaxTimeout" => self.max_timeout = seconds(value)?,
            "Mode" => {
                let choices =
                    [("router", Mode::Router), ("switch", Mode::Switch), ("hub", Mode::Hub)];
                self.mode = choice(value, &choices, "router, switch or hub")?;
            }
            "MTUInfoInterval" => self.mtu_info_interval = seconds(value)?,
            "PingInterval" => self.ping_interval = seconds(value)?,
            "PingTimeout" => self.ping_timeout = seconds(value)?,
            "PriorityInheritance" => self.priority_inheritance = yes_or_no(value)?,
            "Proxy" => self.proxy = proxy(value)?,
            "ReplayWindow" => {
                let bytes = number(value, 0..=WindowSize::MAX, "a number of bytes up to 8192")?;
                self.replay_window = WindowSize::new(bytes).unwrap_or(WindowSize::DEFAULT);
            }
            "StrictSubnets" => self.strict_subnets = yes_or_no(value)?,
            "TunnelServer" => self.tunnel_server = yes_or_no(value)?,
            "UDPDiscovery" => self.udp_discovery = yes_or_no(value)?,
            "UDPDiscoveryInterval" => self.udp_discovery_interval = seconds(value)?,
            "UDPDiscoveryKeepaliveInterval" => {
                self.udp_discovery_keepalive_interval = seconds(value)?;
            }
            "UDPDiscoveryTimeout" => self.udp_discovery_timeout = seconds(value)?,
            "UDPInfoInterval" => self.udp_info_interval = seconds(value)?,
            "UDPRcvBuf" => self.udp_rcv_buf = size()?,
            "UDPSndBuf" => self.udp_snd_buf = size()?,
            _ => {}
        }
        Ok(())
    }
}

fn bind_address(value: &str) -> Result<BindAddress, Reason> {
    let (host, port) = host_and_port(value, 0)?;
    if host == "*" {
        return Ok(BindAddress { address: None, port });
    }
    let address =
        host.parse().map_err(|_| refused(value, "an IP address or *, and perhaps a port"))?;
    Ok(BindAddress { address: Some(address), port })
}

fn proxy(value: &str) -> Result<Option<Proxy>, Reason> {
    const ALLOWED: &str = "none, socks4 HOST PORT [USER], socks5 HOST PORT [USER PASSWORD], \
        http HOST PORT, or exec COMMAND";
    let (kind, rest) = value.split_once([' ', '\t']).unwrap_or((value, ""));
    // Without the rest, which may be a password.
    let bad = || refused(kind, ALLOWED);
    let lower = kind.to_ascii_lowercase();
    let rest = rest.trim();
    if lower == "exec" && !rest.is_empty() {
        return Ok(Some(Proxy::Exec(rest.to_owned())));
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    if lower == "none" {
        return Ok(None);
    }
    let [host, port, login @ ..] = &words[..] else { return Err(bad()) };
    let host = (*host).to_owned();
    let port = number(port, 1..=u16::MAX, "a port from 1 to 65535")?;
    Ok(Some(match (lower.as_str(), login) {
        ("socks4", []) => Proxy::Socks4(host, port, None),
        ("socks4", [user]) => Proxy::Socks4(host, port, Some((*user).to_owned())),
        ("socks5", []) => Proxy::Socks5(host, port, None),
        ("socks5", [user, password]) => {
            Proxy::Socks5(host, port, Some(((*user).to_owned(), (*password).to_owned())))
        }
        ("http", []) => Proxy::Http(host, port),
        _ => return Err(bad()),
    }))
}
