//! What the directives say, before helpers are expanded and defaults filled in.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use adit_engine::command::Framing;
use ipnet::{Ipv4Net, Ipv6Net};

use super::bridge::Bridge;
use super::directives::{self, InConnection, Spec, Support};
use super::options::{
    AskPass, AuthRetry, Device, DeviceKind, Log, PoolPersist, PortShare, Process, Routes, Source,
    TlsVersion, Usage, UserPass, VerifyName, Wrap,
};
use super::reader::{Directive, Location};
use super::transport::{Proto, Sockets};
use super::{ConfigError, proxies};
use crate::negotiate::PullFilter;
use crate::server::Topology;
use crate::session::{Fragment, Limits, Mssfix};
use crate::tls::{CertProfile, IssuerHash};

/// Why a directive was not taken.
pub(super) enum Rejection {
    /// Unknown or unsupported: may be skipped where the configuration says so.
    Skippable(ConfigError),
    /// Wrong.
    Wrong(ConfigError),
}

impl From<ConfigError> for Rejection {
    fn from(error: ConfigError) -> Self {
        Self::Wrong(error)
    }
}

/// A `remote` line or `<connection>` block; what is `None` comes from the lines outside.
#[derive(Clone, Debug, Default)]
pub(super) struct Remote {
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) proto: Option<Proto>,
    pub(super) location: Option<Location>,
    /// Of a `<connection>` block.
    pub(super) proxies: proxies::Proxies,
    /// `connect-timeout` of a `<connection>` block.
    pub(super) wait: Option<Duration>,
}

/// `ifconfig-pool`.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) first: std::net::Ipv4Addr,
    pub(super) last: std::net::Ipv4Addr,
    pub(super) netmask: Option<std::net::Ipv4Addr>,
}

#[derive(Debug, Default)]
pub(super) struct RawConfig {
    /// The directory of `cd`.
    pub(super) base: Option<PathBuf>,
    /// Where each directive stood last.
    pub(super) seen: HashMap<String, Location>,
    /// Arguments of directives in `<connection>` blocks that concern the whole tunnel.
    shared: HashMap<String, (usize, Directive)>,
    /// `ignore-unknown-option`.
    pub(super) ignored: Vec<String>,
    /// `setenv FORWARD_COMPATIBLE 1`.
    pub(super) forward_compatible: bool,
    pub(super) warnings: Vec<String>,
    /// What was warned of, without its place.
    warned: HashSet<String>,
    /// For the log.
    pub(super) directives: Vec<String>,
    /// `echo`
    pub(super) echo: Vec<String>,
    /// `compat-mode`: the version as one number, 20407 for 2.4.7.
    pub(super) compatible_with: Option<u32>,
    /// `link-mtu`, `udp-mtu`
    pub(super) link_mtu: Option<u16>,
    pub(super) proxies: proxies::Proxies,
    pub(super) port_share: Option<PortShare>,

    pub(super) client: bool,
    pub(super) pull: bool,
    pub(super) tls_client: bool,
    pub(super) tls_server: bool,
    pub(super) mode_server: bool,
    pub(super) no_pool: bool,

    pub(super) remotes: Vec<Remote>,
    pub(super) connections: Vec<Remote>,
    pub(super) proto: Option<Proto>,
    pub(super) sockets: Sockets,
    pub(super) lport: Option<u16>,
    pub(super) rport: Option<u16>,
    pub(super) bind: Option<bool>,
    pub(super) ipv6_only: bool,
    pub(super) multihome: bool,
    pub(super) send_buffer: Option<u32>,
    pub(super) receive_buffer: Option<u32>,
    pub(super) mark: Option<u32>,
    pub(super) bind_device: Option<String>,
    pub(super) random_hostname: bool,
    pub(super) float: bool,
    pub(super) remote_random: bool,
    pub(super) connect_retry: (Duration, Duration),
    pub(super) connect_retry_max: Option<u32>,
    pub(super) server_poll_timeout: Duration,
    pub(super) resolv_retry: Option<Duration>,

    pub(super) device: Option<String>,
    pub(super) device_type: Option<DeviceKind>,
    pub(super) device_rest: Device,
    pub(super) tun_mtu: u16,
    pub(super) tun_mtu_max: u16,
    pub(super) occ_mtu: Option<u16>,
    pub(super) fragment: Option<Fragment>,
    pub(super) mssfix: Option<Mssfix>,
    /// As written; where options are pulled the server's word counts.
    pub(super) topology: Option<Topology>,
    /// Both words as addresses: the second is a netmask or the far end.
    pub(super) ifconfig_pair: Option<(std::net::Ipv4Addr, std::net::Ipv4Addr, Location)>,
    pub(super) ifconfig6: Option<(Ipv6Net, Location)>,
    pub(super) routes: Routes,

    pub(super) server4: Option<(Ipv4Net, Location)>,
    pub(super) server6: Option<(Ipv6Net, Location)>,
    pub(super) pool4: Option<Pool>,
    pub(super) pool6: Option<(Ipv6Net, Location)>,
    pub(super) push: Vec<String>,
    pub(super) max_clients: u32,
    pub(super) duplicate_cn: bool,
    pub(super) client_to_client: bool,
    pub(super) pool_persist: Option<PoolPersist>,
    pub(super) client_config_dir: Option<PathBuf>,
    pub(super) ccd_exclusive: bool,
    /// `filter`.
    pub(super) filter: Option<PathBuf>,
    pub(super) push_constraint: Option<Ipv4Net>,
    pub(super) max_routes_per_client: u32,
    pub(super) bridge: Option<(Bridge, Location)>,
    /// `route-gateway dhcp`.
    pub(super) gateway_dhcp: Option<Location>,
    /// `stale-routes-check`.
    pub(super) station_age: Option<Duration>,
    pub(super) compress_migrate: bool,
    /// `peer-fingerprint`, lower-case hex.
    pub(super) fingerprints: Vec<String>,
    pub(super) management: Option<Vec<String>>,

    pub(super) secret: Option<Source>,
    pub(super) ca: Option<Source>,
    pub(super) cert: Option<Source>,
    pub(super) key: Option<Source>,
    pub(super) extra: Option<Source>,
    pub(super) crl: Option<Source>,
    pub(super) askpass: Option<AskPass>,
    pub(super) verify_name: Option<VerifyName>,
    pub(super) peer_usage: Option<Usage>,
    pub(super) key_usage: Option<Vec<u8>>,
    /// `ns-cert-type`
    pub(super) netscape_usage: Option<Usage>,
    /// `tls-cert-profile`
    pub(super) profile: Option<CertProfile>,
    pub(super) dh: Option<Source>,
    /// `allow-compression no`
    pub(super) never_decompress: bool,
    pub(super) issuer: Option<IssuerHash>,
    pub(super) ca_path: Option<PathBuf>,
    pub(super) min_version: TlsVersion,
    pub(super) max_version: Option<TlsVersion>,
    pub(super) cipher_list: Option<Vec<String>>,
    pub(super) cipher_suites: Option<Vec<String>>,
    pub(super) groups: Option<Vec<String>>,
    /// `tls-auth` or `tls-crypt`.
    pub(super) wrap: Wrap,
    pub(super) crypt_v2: Option<(Source, Location)>,
    pub(super) max_key_age: Option<Duration>,
    pub(super) key_direction: Option<u8>,
    pub(super) force_cookie: bool,
    pub(super) data_ciphers: Option<(String, Location)>,
    pub(super) fallback: Option<(String, Location)>,
    pub(super) cipher: Option<(String, Location)>,
    pub(super) auth: Option<String>,
    pub(super) framing: Framing,

    pub(super) hand_window: Duration,
    pub(super) tran_window: Duration,
    pub(super) tls_timeout: Duration,
    pub(super) reneg_sec: Option<(Duration, Option<Duration>)>,
    pub(super) reneg_bytes: u64,
    pub(super) reneg_packets: u64,
    pub(super) replay_window: u32,
    pub(super) ping: Option<Duration>,
    pub(super) ping_timeout: Option<Duration>,
    pub(super) keepalive: Option<(Duration, Duration)>,
    pub(super) limits: Limits,
    pub(super) exit_notify: Option<u8>,
    pub(super) auth_user_pass: Option<UserPass>,
    pub(super) auth_nocache: bool,
    pub(super) auth_retry: AuthRetry,
    pub(super) pull_filters: Vec<PullFilter>,
    pub(super) route_nopull: bool,
    pub(super) push_peer_info: bool,
    pub(super) environment: Vec<(String, String)>,

    pub(super) process: Process,
    pub(super) log: Log,
    pub(super) syslog: Option<String>,
    pub(super) status: Option<(PathBuf, Duration)>,
    pub(super) status_version: u8,
}

impl RawConfig {
    /// Creates a configuration with openvpn's defaults where these are not zero or empty.
    pub(super) fn new(base: Option<PathBuf>) -> Self {
        Self {
            connect_retry: (Duration::from_secs(1), Duration::from_secs(300)),
            server_poll_timeout: Duration::from_secs(120),
            tun_mtu: 1500,
            tun_mtu_max: 1600,
            max_clients: 1024,
            max_routes_per_client: 256,
            hand_window: Duration::from_secs(60),
            tran_window: Duration::from_secs(3600),
            tls_timeout: Duration::from_secs(2),
            replay_window: 64,
            process: Process { directory: base.clone(), ..Process::default() },
            log: Log { verb: 1, timestamps: true, ..Log::default() },
            status_version: 1,
            base,
            ..Self::default()
        }
    }

    /// Takes a directive, or skips it where the configuration allows that.
    pub(super) fn take(&mut self, directive: &Directive) -> Result<(), ConfigError> {
        let name = directive.name.as_str();
        let fault = match self.dispatch(directive) {
            Ok(()) => {
                self.seen.insert(name.to_owned(), directive.location.clone());
                return Ok(());
            }
            Err(fault) => fault,
        };
        let may_skip = directive.optional || self.ignored.iter().any(|ignored| ignored == name);
        match fault {
            Rejection::Skippable(error) if may_skip => {
                self.warnings.push(format!("{}; skipped", one_line(&error)));
                Ok(())
            }
            Rejection::Skippable(error)
                if self.forward_compatible && directives::find(name).is_none() =>
            {
                self.warnings.push(format!("{}; skipped", one_line(&error)));
                Ok(())
            }
            Rejection::Wrong(error) if directive.optional => {
                self.warnings.push(format!("{}; skipped", one_line(&error)));
                Ok(())
            }
            Rejection::Skippable(error) | Rejection::Wrong(error) => Err(error),
        }
    }

    fn dispatch(&mut self, d: &Directive) -> Result<(), Rejection> {
        let spec = directives::find(&d.name);
        if let Some(block) = d.connection {
            match spec {
                Some(spec @ Spec { support: Support::Used(_), in_connection, .. }) => {
                    match in_connection {
                        InConnection::Refused => {
                            return Err(Rejection::Wrong(d.error(
                                "it has no place in a connection block",
                                "write it outside, before or after the block",
                            )));
                        }
                        InConnection::Own(parser) => {
                            d.check_shape(spec)?;
                            let base = self.base.clone();
                            if let Some(remote) = self.connection(block) {
                                parser(remote, base.as_deref(), d)?;
                            }
                            return Ok(());
                        }
                        InConnection::Shared => self.shared_by_connections(block, d)?,
                        InConnection::Free => {}
                    }
                }
                _ => self.shared_by_connections(block, d)?,
            }
        }
        let Some(spec) = spec else {
            let remedy = match directives::nearest(&d.name) {
                Some(near) => format!("did you mean {near}?"),
                None => {
                    "remove it, or let it be skipped: ignore-unknown-option NAME before it".into()
                }
            };
            return Err(Rejection::Skippable(d.error("unknown directive", remedy)));
        };
        match spec.support {
            Support::Used(field) => {
                d.check_shape(spec)?;
                field.take(self, spec, d)?;
            }
            Support::NoEffect(why) => self.warn(d, &format!("has no effect: {why}")),
            Support::ClientFile => {
                return Err(Rejection::Skippable(d.error(
                    "it is for the file of a single client",
                    "write it into a file named as the client in the directory of client-config-dir",
                )));
            }
            Support::Refused(why, remedy) => {
                return Err(Rejection::Skippable(d.error(why, remedy)));
            }
        }
        Ok(())
    }

    /// What concerns the whole tunnel may stand in `<connection>` blocks if all say the same.
    fn shared_by_connections(&mut self, block: usize, d: &Directive) -> Result<(), ConfigError> {
        match self.shared.get(&d.name) {
            Some((other, first))
                if *other != block && (&first.args, &first.inline) != (&d.args, &d.inline) =>
            {
                Err(d.error(
                    "connection blocks differ in it",
                    "write it once, outside of the blocks: only remote, proto and ports may differ",
                ))
            }
            _ => {
                self.shared.insert(d.name.clone(), (block, d.clone()));
                Ok(())
            }
        }
    }

    /// A server's topology; without a word openvpn's default up to 2.6.
    pub(super) fn topology(&self) -> Topology {
        // Frames find their way by themselves.
        if self.is_ethernet() {
            return Topology::Subnet;
        }
        self.topology.unwrap_or(Topology::Net30)
    }

    pub(super) fn warn(&mut self, d: &Directive, text: &str) {
        // Once, however often the directive is repeated.
        if self.warned.insert(format!("{} {text}", d.name)) {
            let warning = format!("{}:{}: {} {text}", d.location.file, d.location.line, d.name);
            self.warnings.push(warning);
        }
    }

    /// An error about a directive that was taken, or about the configuration as a whole.
    pub(super) fn error(
        &self,
        directive: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        match self.seen.get(directive) {
            Some(location) => location.error(directive, problem, remedy),
            None => ConfigError {
                file: "configuration".into(),
                line: 0,
                directive: String::new(),
                problem: problem.into(),
                remedy: remedy.into(),
            },
        }
    }

    /// The block's remote, made on first use.
    fn connection(&mut self, block: usize) -> Option<&mut Remote> {
        if self.connections.len() <= block {
            self.connections.resize_with(block.saturating_add(1), Remote::default);
        }
        self.connections.get_mut(block)
    }
}

pub(super) fn one_line(error: &ConfigError) -> String {
    error.to_string().replace("\n ", ";")
}
