mod hooks;
mod management;
mod pkcs11;
mod process;
mod proxy;
mod tls;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::negotiate::DnsOptions;
use adit_engine::auth::Challenge;
use adit_engine::command::Keepalive;
use adit_engine::{Family, Target, Transport, Vlans};
use ipnet::{Ipv4Net, Ipv6Net};
use zeroize::Zeroizing;

use crate::data_format::BlockSuite;
use crate::negotiate::{PullFilter, RouteSpec};
use crate::p2p::TunnelAddrs;
use crate::server::{ExportedKey, Network4, Network6};
use crate::session::Settings;
use crate::tls::CertProfile;
use crate::wrap::WrapConfig;

pub use hooks::{Hooks, PasswordProgram, Program, X509Track};
pub use management::{Management, ManagementPassword, ManagementPlace};
pub use pkcs11::{Pkcs11, Pkcs11Provider};
pub use process::{Log, LogTo, Plugin, Process, Remap, Status};
pub use proxy::{HttpProxy, Proxy, ProxyScheme, SocksProxy};
pub use tls::{
    AskPass, ExternalCert, ExternalKey, Identity, NameKind, Padding, Pkcs12, Tls, TlsVersion,
    Usage, VerifyName, Wrap,
};

/// A complete, checked configuration from the command line and files, with helpers expanded and defaults filled in.
///
/// Relative paths are relative to the directory in which the process was started. They already include the directory of
/// `cd`, so the process need not change its directory.
#[derive(Clone, Debug)]
pub struct Options {
    /// The role with its own options: client, server or point-to-point end.
    pub role: Role,
    /// The TUN device.
    pub device: Device,
    /// The local side of the transport.
    pub socket: Socket,
    /// Certificates and TLS.
    pub tls: Tls,
    /// Control channel wrapping.
    pub wrap: Wrap,
    /// The engines' settings. The wrapping in them has no keys yet: the caller reads the keys of [`Self::wrap`] and
    /// passes them to [`Self::settings`].
    pub session: Settings,
    /// The first config file, as named on the command line.
    pub config_file: Option<String>,
    /// `setenv` of other names, for programs; a value set later replaces an earlier one.
    pub environment: Vec<(String, String)>,
    /// The programs to run when the state changes.
    pub hooks: Hooks,
    /// `script-security`: from 2 on, the programs of [`Self::hooks`] may run; 3 allows passwords in their environment.
    pub script_security: u8,
    /// The routes into the tunnel from this end's configuration.
    pub routes: Routes,
    /// Options of the process, such as the user and the pid file.
    pub process: Process,
    /// The destination of the log.
    pub log: Log,
    /// `status`.
    pub status: Option<Status>,
    /// `metrics`. OpenVPN does not have this directive.
    pub metrics: Option<Metrics>,
    /// `management` and the directives that begin with it.
    pub management: Option<Management>,
    /// The warnings for the operator at startup: directives without effect, deprecated ones, and those skipped because
    /// of `setenv opt` or `ignore-unknown-option`. Each is one line with a file and a line number.
    pub warnings: Vec<String>,
    /// All directives that are in force, as written, for the log, without blocks and passwords.
    pub directives: Vec<String>,
    /// `echo`: texts for the management client.
    pub echo: Vec<String>,
    /// `mtu-test`: log the path MTU once it is known.
    pub mtu_test: bool,
}

/// `metrics`: where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// The address, as written.
    pub listen: String,
    /// Whether the metrics have the names of openvpn's exporter.
    pub compatible: bool,
}

/// OpenVPN's defaults; [`super::parse`] replaces the role.
impl Default for Options {
    fn default() -> Self {
        Self {
            role: Role::Client(Box::default()),
            device: Device::default(),
            socket: Socket::default(),
            tls: Tls { profile: CertProfile::Legacy, ..Tls::default() },
            wrap: Wrap::None,
            session: Settings::default(),
            config_file: None,
            environment: Vec::new(),
            hooks: Hooks::default(),
            script_security: 1,
            routes: Routes::default(),
            process: Process::default(),
            log: Log { verb: 1, timestamps: true, ..Log::default() },
            status: None,
            metrics: None,
            management: None,
            warnings: Vec::new(),
            directives: Vec::new(),
            echo: Vec::new(),
            mtu_test: false,
        }
    }
}

impl Options {
    /// Returns the engines' settings, with the keys of [`Self::wrap`].
    pub fn settings(&self, wrap: WrapConfig) -> Settings {
        // A management client gets the variables of `up`.
        let reports = self.management.as_ref().is_some_and(|management| management.up_down);
        Settings {
            wrap,
            describe_certificates: self.hooks.programs().next().is_some()
                || !self.process.plugins.is_empty()
                || reports,
            ..self.session.clone()
        }
    }
}

/// The role of this end, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// `client`, or `tls-client` with `pull`.
    Client(Box<ClientOptions>),
    /// `server`, or `mode server` with `tls-server`.
    Server(Box<ServerOptions>),
    /// A point-to-point end: `secret`, or `tls-client` or `tls-server` alone.
    Peer(Box<PeerOptions>),
}

/// The options of a point-to-point end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerOptions {
    /// The source of the keys.
    pub keys: PeerKeys,
    /// The targets to dial. If there are no remotes, the other end is whichever host authenticates.
    pub dial: DialOptions,
    /// `proto tcp-server`: wait for connections from these addresses (`remote`), or from any address if empty.
    pub accepts: Option<Vec<IpAddr>>,
    /// `ifconfig` and `ifconfig-ipv6`.
    pub tunnel_addrs: TunnelAddrs,
    /// `tls-crypt-v2 ... force-cookie`.
    pub force_cookie: bool,
}

/// The source of the keys of a point-to-point tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerKeys {
    /// `secret`; [`Options::tls`] is empty.
    Static {
        /// The key file.
        key: Source,
        /// `key-direction`, or the second argument of `secret`. `None` means one key for both directions.
        direction: Option<u8>,
        /// `cipher` and `auth`.
        suite: BlockSuite,
    },
    /// `tls-server`.
    TlsServer,
    /// `tls-client`.
    TlsClient,
}

/// The dial options of a client, or of a point-to-point end that dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialOptions {
    /// The `remote` lines and `<connection>` blocks in their order; never empty for a client.
    pub remotes: Vec<Target>,
    /// `remote-random`: shuffle before use.
    pub remote_random: bool,
    /// `connect-retry`: the first and the longest wait between rounds.
    pub connect_retry: (Duration, Duration),
    /// `connect-retry-max`: the number of rounds before the client gives up.
    pub connect_retry_max: Option<u32>,
    /// The time limit for the other end to answer: `server-poll-timeout`, `connect-timeout`; for a point-to-point end
    /// `hand-window`.
    pub connect_timeout: Duration,
    /// `resolv-retry`: the time for which a failing name lookup is repeated. `None` repeats it forever, zero not at
    /// all.
    pub resolv_retry: Option<Duration>,
    /// `http-proxy`, `socks-proxy`: the proxies; each entry in `remotes` contains the index of its proxy.
    pub proxies: Vec<Proxy>,
    /// `preresolve`: look up all names at the start.
    pub preresolve: bool,
    /// `persist-remote-ip`: reconnect to the address that worked without a look-up.
    pub persist_remote: bool,
    /// `remote-random-hostname`: put a random label in front of each name before its lookup.
    pub random_hostname: bool,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self {
            remotes: Vec::new(),
            remote_random: false,
            connect_retry: (Duration::from_secs(1), Duration::from_secs(300)),
            connect_retry_max: None,
            connect_timeout: Duration::from_secs(120),
            resolv_retry: None,
            proxies: Vec::new(),
            preresolve: false,
            persist_remote: false,
            random_hostname: false,
        }
    }
}

/// The options of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// The targets to dial.
    pub dial: DialOptions,
    /// `pull`: ask for the server's options. Currently always true, because a client without `pull` is refused.
    pub pull: bool,
    /// Our own `ifconfig`, for a TAP device if the server pushes none.
    pub ifconfig4: Option<Ipv4Net>,
    /// Our own `ifconfig-ipv6`, for a TAP device if the server pushes none.
    pub ifconfig6: Option<Ipv6Net>,
    /// The `pull-filter` lines in their order.
    pub pull_filters: Vec<PullFilter>,
    /// `route-nopull`: take no routes and no DNS from the server.
    pub route_nopull: bool,
    /// `allow-pull-fqdn`: look up names in the server's routes.
    pub allow_names: bool,
    /// `auth-user-pass`.
    pub auth_user_pass: Option<UserPass>,
    /// `auth-nocache`: ask again instead of keeping the password.
    pub auth_nocache: bool,
    /// `auth-retry`.
    pub auth_retry: AuthRetry,
    /// `static-challenge`.
    pub static_challenge: Option<Challenge>,
}

/// The options of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// `server` (or `ifconfig` and `ifconfig-pool`).
    pub network4: Option<Network4>,
    /// With `topology net30` or `p2p`, the far end's address of the server's device, which belongs to no client.
    pub far4: Option<Ipv4Addr>,
    /// `server-ipv6` (or `ifconfig-ipv6` and `ifconfig-ipv6-pool`).
    pub network6: Option<Network6>,
    /// The `push` lines in their order, without those from helper directives that the engine generates itself.
    pub push: Vec<String>,
    /// `ping` and `ping-restart` for clients, from `keepalive` or from `push`.
    pub push_keepalive: Option<Keepalive>,
    /// `max-clients`.
    pub max_clients: u32,
    /// `duplicate-cn`.
    pub duplicate_cn: bool,
    /// `client-to-client`.
    pub client_to_client: bool,
    /// `port-share`.
    pub port_share: Option<PortShare>,
    /// `ifconfig-pool-persist`.
    pub pool_persist: Option<PoolPersist>,
    /// `tls-crypt-v2 ... force-cookie`.
    pub force_cookie: bool,
    /// `client-config-dir`: the directory of the [`super::ClientFile`]s, each of which is read when its client
    /// connects.
    pub client_config_dir: Option<PathBuf>,
    /// `ccd-exclusive`: a client without its own file may not connect.
    pub ccd_exclusive: bool,
    /// `filter`: the file with the rules for packets in the tunnel. OpenVPN does not have this directive. In a file
    /// that OpenVPN reads too, write `setenv opt` before it.
    pub filter: Option<PathBuf>,
    /// The rules for the files in `client_config_dir`.
    pub client_rules: super::ClientRules,
    /// `compress migrate`.
    pub compress_migrate: bool,
    /// `server-bridge`: the device belongs to a bridge and has no address from [`Self::network4`] itself.
    pub bridged: bool,
    /// The device's address, if `ifconfig` is configured together with `server-bridge`.
    pub bridged_address: Option<Ipv4Net>,
    /// `stale-routes-check` with a TAP device: the time after which a silent station is forgotten.
    pub station_age: Option<Duration>,
    /// `vlan-tagging`, `vlan-accept` and `vlan-pvid`.
    pub vlans: Option<Vlans>,
    /// `auth-user-pass-optional`: a client need not send a user name.
    pub username_optional: bool,
    /// `username-as-common-name`.
    pub username_as_common_name: bool,
    /// `opt-verify`.
    pub verify_options: bool,
    /// `auth-gen-token`.
    pub tokens: Option<TokenOptions>,
    /// `auth-gen-token-secret`.
    pub token_secret: Option<Source>,
    /// `keying-material-exporter`.
    pub exported_key: Option<ExportedKey>,
}

/// `auth-gen-token [LIFETIME [RENEWAL]] [external-auth]`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenOptions {
    /// The time for which tokens replace the password; `None` for no limit.
    pub lifetime: Option<Duration>,
    /// How often a token is renewed; `None` for the time of `reneg-sec`.
    pub renewal: Option<Duration>,
    /// `external-auth`: the other checks decide even if a token is valid.
    pub external: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            network4: None,
            far4: None,
            network6: None,
            push: Vec::new(),
            push_keepalive: None,
            max_clients: 1024,
            duplicate_cn: false,
            client_to_client: false,
            port_share: None,
            pool_persist: None,
            force_cookie: false,
            client_config_dir: None,
            ccd_exclusive: false,
            filter: None,
            client_rules: super::ClientRules::default(),
            compress_migrate: false,
            bridged: false,
            bridged_address: None,
            station_age: None,
            vlans: None,
            username_optional: false,
            username_as_common_name: false,
            verify_options: false,
            tokens: None,
            token_secret: None,
            exported_key: None,
        }
    }
}

/// `ifconfig-pool-persist FILE [SECONDS]`: lines `name,ipv4[,ipv6]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPersist {
    /// The file.
    pub path: PathBuf,
    /// How often the file is written (default 600 s); zero: it is only read.
    pub every: Duration,
}

/// The TUN device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The device's name; `None` for the first free `tunN` or `tapN`.
    pub name: Option<String>,
    /// `lladdr` of a TAP device.
    pub mac: Option<[u8; 6]>,
    /// `txqueuelen`.
    pub tx_queue: Option<u32>,
    /// `shaper`: the maximum rate of packets into the tunnel, in bytes a second.
    pub rate: Option<u32>,
    /// `persist-tun`: keep the device over a reconnect.
    pub persist: bool,
    /// `ifconfig-noexec`: leave addresses to another program.
    pub ifconfig_noexec: bool,
}

/// `dev`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// `tun`, `tunN` or, with `dev-type tun`, any name.
    #[default]
    Tun,
    /// `tap`, `tapN` or, with `dev-type tap`, any name: Ethernet frames.
    Tap,
    /// `null`: no device.
    Null,
}

/// The local side of the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The addresses to listen on or to send from. There is one entry per `local`, or one without a host if there is no
    /// `local`; none with `nobind`.
    pub listen: Vec<Listen>,
    /// Whether a client's streams are also bound to this address and port. openvpn binds them only with `local`,
    /// `lport`, `port` or `bind`.
    pub bind_streams: bool,
    /// `tcp-queue-limit`: packets that may wait for a full stream.
    pub queue_limit: u32,
    /// `multihome`: answer from the address to which the packet was sent. adit always does so; the flag is kept for
    /// `status`.
    pub multihome: bool,
    /// `sndbuf`, bytes.
    pub send_buffer: Option<u32>,
    /// `rcvbuf`, bytes.
    pub receive_buffer: Option<u32>,
    /// `mark`.
    pub mark: Option<u32>,
    /// `passtos`: datagrams have the type of service of the packets that they carry.
    pub copies_tos: bool,
    /// `mtu-disc`; `None` for adit's default, which is `No`.
    pub mtu_discovery: Option<MtuDiscovery>,
    /// `bind-dev`: the interface, such as one of a VRF, to which all sockets are bound.
    pub device: Option<String>,
}

impl Default for Socket {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            bind_streams: false,
            queue_limit: 64,
            multihome: false,
            send_buffer: None,
            receive_buffer: None,
            mark: None,
            copies_tos: false,
            mtu_discovery: None,
            device: None,
        }
    }
}

/// `mtu-disc`: whether the tunnel's own datagrams may be fragmented.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MtuDiscovery {
    /// By this host and by routers.
    No,
    /// By this host only.
    Maybe,
    /// Not at all.
    Yes,
}

/// An address to bind to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// `local`: address or name; `None` for all addresses.
    pub host: Option<String>,
    /// The port of `local`, or `lport` or `port`, default 1194; 0 for any.
    pub port: u16,
    /// `proto`, or that of `local`.
    pub transport: Transport,
    /// `proto udp4`, `proto tcp6`. `Any`: a dual-stack socket unless `host` says otherwise.
    pub family: Family,
    /// `bind ipv6only`.
    pub ipv6_only: bool,
}

/// A file named in the configuration, or its content in the configuration itself.
#[derive(Clone, PartialEq, Eq)]
pub enum Source {
    /// A path. The caller reads the file.
    File(PathBuf),
    /// `<name> ... </name>`.
    Inline {
        /// The directive, for messages: `[inline] <ca>`.
        directive: &'static str,
        /// The text between the tags.
        text: Zeroizing<String>,
    },
}

// Implemented by hand to keep inline keys out of the logs.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({self})")
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Inline { directive, .. } => write!(f, "[inline] <{directive}>"),
        }
    }
}

/// `port-share`: the destination of connections that are not OpenVPN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortShare {
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// `auth-user-pass`.
#[derive(Clone, PartialEq, Eq)]
pub enum UserPass {
    /// Ask for the user name and password on the terminal.
    Prompt,
    /// A file with one line for each. If the second line is missing, the password is read from the terminal.
    Source(Source),
}

impl std::fmt::Debug for UserPass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Prompt => f.write_str("Prompt"),
            Self::Source(source) => source.fmt(f),
        }
    }
}

/// `auth-retry`: the reaction to AUTH_FAILED.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthRetry {
    /// End the client.
    #[default]
    None,
    /// Try again with the same password.
    NoInteract,
    /// Ask for the credentials again.
    Interact,
}

/// The routes of this end's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// `route`.
    pub v4: Vec<RouteSpec<Ipv4Net, Ipv4Addr>>,
    /// `route-ipv6`.
    pub v6: Vec<RouteSpec<Ipv6Net, Ipv6Addr>>,
    /// `route-gateway`.
    pub gateway4: Option<Ipv4Addr>,
    /// `route-ipv6-gateway`.
    pub gateway6: Option<Ipv6Addr>,
    /// `route-metric`.
    pub metric: Option<u32>,
    /// `route-delay`: the time from the connection to its routes. Without it, configured routes do not wait for a
    /// connection.
    pub delay: Option<Duration>,
    /// `route-table`.
    pub table: Option<u32>,
    /// `redirect-gateway` flags.
    pub redirect_gateway: Option<Vec<String>>,
    /// `redirect-private` flags: as above without the default route.
    pub redirect_private: Option<Vec<String>>,
    /// `block-ipv6`.
    pub block_ipv6: bool,
    /// `policy-routing on|off`, which only adit has: implement `redirect-gateway` with a routing table that is
    /// consulted before the main one. `None` selects the program's default.
    pub policy: Option<bool>,
    /// `allow-lan`, which only adit has: traffic to private networks of the host stays outside the tunnel.
    pub allow_lan: bool,
    /// `kill-switch`, which only adit has: traffic cannot leave outside the tunnel, even after the client ends.
    pub kill_switch: bool,
    /// `allow-recursive-routing`: packets that carry the tunnel may themselves be routed into it.
    pub allow_recursive: bool,
    /// `route-noexec`: leave routes to another program.
    pub noexec: bool,
    /// `dhcp-option` and `dns` of this end's configuration.
    pub dns: DnsOptions,
    /// `dns-updown`: whether this program itself applies DNS settings, or `None` if not configured.
    pub apply_dns: Option<bool>,
}
