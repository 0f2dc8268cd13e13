//! The directives as they were read, before helper directives are expanded and combinations are checked.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use adit_engine::{VlanAccept, VlanId};
use ipnet::{Ipv4Net, Ipv6Net};

use super::bridge::Bridge;
use super::directives::{self, InConnection, Spec, Support};
use super::options::{
    ClientOptions, DeviceKind, DialOptions, ManagementPassword, ManagementPlace, Options, Padding,
    ServerOptions, Source,
};
use super::reader::{Directive, Location};
use super::transport::{Proto, Sockets};
use super::{ConfigError, proxies};
use crate::server::Topology;
use crate::tls::CertificateQuery;

/// The reason why a directive was not accepted.
pub(super) enum Rejection {
    /// The directive is unknown or not supported. The configuration may allow it to be skipped.
    Skippable(ConfigError),
    /// The directive is wrong.
    Wrong(ConfigError),
}

impl From<ConfigError> for Rejection {
    fn from(error: ConfigError) -> Self {
        Self::Wrong(error)
    }
}

/// A `remote` line or `<connection>` block. Values for fields that are `None` come from the lines outside the block.
#[derive(Clone, Debug, Default)]
pub(super) struct Remote {
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) proto: Option<Proto>,
    pub(super) location: Option<Location>,
    /// The proxies of a `<connection>` block.
    pub(super) proxies: proxies::Proxies,
    /// `connect-timeout` of a `<connection>` block.
    pub(super) wait: Option<Duration>,
}

/// `ifconfig-pool`.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) first: Ipv4Addr,
    pub(super) last: Ipv4Addr,
    pub(super) netmask: Option<Ipv4Addr>,
}

/// The directives about the management interface, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RawManagement {
    pub(super) place: Option<ManagementPlace>,
    pub(super) password: Option<ManagementPassword>,
    pub(super) connects: bool,
    pub(super) client_user: Option<String>,
    pub(super) client_group: Option<String>,
    pub(super) hold: bool,
    pub(super) query_passwords: bool,
    pub(super) query_remote: bool,
    pub(super) query_proxy: bool,
    pub(super) client_auth: bool,
    pub(super) up_down: bool,
    pub(super) forget_disconnect: bool,
    pub(super) signal: bool,
    pub(super) log_cache: Option<usize>,
    pub(super) external_key: Option<Vec<Padding>>,
    pub(super) external_cert: Option<String>,
}

/// The directives about keys on tokens, in any order. Each list has an entry for each provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RawPkcs11 {
    pub(super) providers: Vec<String>,
    pub(super) protected: Vec<bool>,
    pub(super) private: Vec<bool>,
    pub(super) query: Option<CertificateQuery>,
    pub(super) ask: bool,
    pub(super) pin_cache: Option<Duration>,
}

/// The configuration while its directives are being read.
///
/// A value that a single directive determines goes directly into [`Self::options`] or the parts of the roles. The other
/// fields are resolved once all directives are known, because they depend on the role, on other directives, or on the
/// precedence among directives.
#[derive(Debug, Default)]
pub(super) struct RawConfig {
    pub(super) options: Options,
    /// The dial options of a client, and of a point-to-point end that dials.
    pub(super) dial: DialOptions,
    pub(super) client: ClientOptions,
    pub(super) server: ServerOptions,

    /// The directory set by `cd`.
    pub(super) base: Option<PathBuf>,
    /// The last location of each directive.
    pub(super) seen: HashMap<String, Location>,
    /// Arguments of directives in `<connection>` blocks that concern the whole tunnel.
    shared: HashMap<String, (usize, Directive)>,
    /// `ignore-unknown-option`.
    pub(super) ignored: Vec<String>,
    /// `setenv FORWARD_COMPATIBLE 1`.
    pub(super) forward_compatible: bool,
    /// The warnings already given, without their locations.
    warned: HashSet<String>,
    /// The arguments of directives that name files which are read after `chroot`.
    pub(super) paths_in_root: HashMap<String, String>,
    /// `compat-mode`: the version as one number, 20407 for 2.4.7.
    pub(super) compatible_with: Option<u32>,

    pub(super) tls_client: bool,
    pub(super) tls_server: bool,
    pub(super) mode_server: bool,

    pub(super) remotes: Vec<Remote>,
    pub(super) connections: Vec<Remote>,
    pub(super) proxies: proxies::Proxies,
    pub(super) proto: Option<Proto>,
    pub(super) sockets: Sockets,
    pub(super) lport: Option<u16>,
    pub(super) rport: Option<u16>,
    pub(super) bind: Option<bool>,
    pub(super) ipv6_only: bool,

    pub(super) device: Option<String>,
    pub(super) device_type: Option<DeviceKind>,
    /// `link-mtu`, `udp-mtu`.
    pub(super) link_mtu: Option<u16>,
    /// The configured topology. A topology that the server pushes overrides it.
    pub(super) topology: Option<Topology>,
    /// Both arguments as addresses. The second one is a netmask or the far end's address.
    pub(super) ifconfig_pair: Option<(Ipv4Addr, Ipv4Addr, Location)>,
    pub(super) ifconfig6: Option<(Ipv6Net, Location)>,
    /// `route-gateway dhcp`.
    pub(super) gateway_dhcp: Option<Location>,

    pub(super) server4: Option<(Ipv4Net, Location)>,
    pub(super) server6: Option<(Ipv6Net, Location)>,
    /// `server ... nopool`.
    pub(super) no_pool: bool,
    pub(super) pool4: Option<Pool>,
    pub(super) pool6: Option<(Ipv6Net, Location)>,
    pub(super) bridge: Option<(Bridge, Location)>,
    pub(super) vlan_tagging: bool,
    pub(super) vlan_accept: Option<VlanAccept>,
    pub(super) vlan_pvid: Option<VlanId>,

    pub(super) secret: Option<Source>,
    pub(super) cert: Option<Source>,
    pub(super) key: Option<Source>,
    pub(super) extra: Option<Source>,
    pub(super) pkcs12: Option<Source>,
    pub(super) pkcs11: RawPkcs11,
    pub(super) key_direction: Option<u8>,
    pub(super) crypt_v2: Option<(Source, Location)>,
    pub(super) force_cookie: bool,
    pub(super) max_key_age: Option<Duration>,
    pub(super) data_ciphers: Option<(String, Location)>,
    pub(super) fallback: Option<(String, Location)>,
    pub(super) cipher: Option<(String, Location)>,

    pub(super) keepalive: Option<(Duration, Duration)>,
    pub(super) ping_timeout: Option<Duration>,
    /// The second argument of `reneg-sec`.
    pub(super) reneg_earliest: Option<Duration>,
    pub(super) management: RawManagement,
    pub(super) syslog: Option<String>,
    pub(super) status_version: Option<u8>,
}

impl RawConfig {
    /// Creates a configuration with openvpn's defaults.
    pub(super) fn new(base: Option<PathBuf>) -> Self {
        let mut raw = Self { base, ..Self::default() };
        raw.options.process.directory.clone_from(&raw.base);
        raw
    }

    /// Processes a directive, or skips it if the configuration allows that.
    pub(super) fn take(&mut self, directive: &Directive) -> Result<(), ConfigError> {
        let name = directive.name.as_str();
        let fault = match self.dispatch(directive) {
            Ok(()) => {
                if matches!(name, "client-config-dir" | "crl-verify") {
                    self.paths_in_root.insert(name.to_owned(), directive.arg(0).to_owned());
                }
                self.seen.insert(name.to_owned(), directive.location.clone());
                return Ok(());
            }
            Err(fault) => fault,
        };
        let may_skip = directive.optional || self.ignored.iter().any(|ignored| ignored == name);
        match fault {
            Rejection::Skippable(error) if may_skip => {
                self.options.warnings.push(format!("{}; skipped", one_line(&error)));
                Ok(())
            }
            Rejection::Skippable(error)
                if self.forward_compatible && directives::find(name).is_none() =>
            {
                self.options.warnings.push(format!("{}; skipped", one_line(&error)));
                Ok(())
            }
            Rejection::Wrong(error) if directive.optional => {
                self.options.warnings.push(format!("{}; skipped", one_line(&error)));
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
            Support::Alone(command, _) => {
                let why = "it is a separate command, not a part of a configuration";
                return Err(Rejection::Skippable(d.error(why, format!("adit openvpn {command}"))));
            }
            Support::Refused(why, remedy) => {
                return Err(Rejection::Skippable(d.error(why, remedy)));
            }
        }
        Ok(())
    }

    /// Checks a directive for the whole tunnel in a `<connection>` block. All blocks that contain the directive must
    /// agree.
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

    /// Returns a server's topology. The default is that of openvpn up to 2.6.
    pub(super) fn topology(&self) -> Topology {
        // Ethernet frames need no topology.
        if self.is_ethernet() {
            return Topology::Subnet;
        }
        self.topology.unwrap_or(Topology::Net30)
    }

    pub(super) fn warn(&mut self, d: &Directive, text: &str) {
        // Warn only once, even if the directive is repeated.
        if self.warned.insert(format!("{} {text}", d.name)) {
            let warning = format!("{}:{}: {} {text}", d.location.file, d.location.line, d.name);
            self.options.warnings.push(warning);
        }
    }

    /// Returns an error about a directive that was processed earlier, or about the configuration as a whole.
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

    /// Returns the block's remote, which is created on first use.
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
