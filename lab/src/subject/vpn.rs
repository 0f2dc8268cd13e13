//! Tunnels with OpenVPN's protocol, between adit and openvpn in any combination.

use std::fmt;
use std::fs;
use std::path::Path;

use adit_testbed::failure::{Context, Result};

use super::directives::{self, End};
use super::toolchain::{Toolchain, first_line};
use super::{TunnelSpec, Tunnels, adit};
use crate::testbed::Testbed;

/// A tunnel with OpenVPN's protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vpn {
    /// The program at the server.
    pub server: Implementation,
    /// The program at the clients.
    pub client: Implementation,
    /// The transport of the packets.
    pub carrier: Carrier,
    /// The difference from adit's defaults.
    pub variant: Variant,
}

/// A program that speaks OpenVPN's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Implementation {
    /// adit.
    Adit,
    /// The system's `openvpn`, in user space.
    Openvpn,
}

impl Implementation {
    /// Returns the program's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adit => "adit",
            Self::Openvpn => "openvpn",
        }
    }
}

/// The transport of the tunnel's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carrier {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// UDP, with Ethernet frames inside the tunnel.
    UdpTap,
}

impl Carrier {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Udp => "",
            Self::Tcp => "-tcp",
            Self::UdpTap => "-tap",
        }
    }
}

/// The difference from this tree's build of adit with its defaults.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// No difference.
    Default,
    /// adit is built from a git revision.
    Revision(String),
    /// The server has this many workers. A client has one peer, and one worker.
    Workers(u16),
    /// The server has a packet filter with a hundred rules, the last of which decides.
    Filter,
}

impl fmt::Display for Vpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let carrier = self.carrier.suffix();
        write!(f, "{}{carrier}", self.server.name())?;
        if self.client != self.server {
            write!(f, "/{}{carrier}", self.client.name())?;
        }
        match &self.variant {
            Variant::Default => Ok(()),
            Variant::Revision(revision) => write!(f, "@{revision}"),
            Variant::Workers(workers) => write!(f, "-w{workers}"),
            Variant::Filter => f.write_str("-filter"),
        }
    }
}

impl Vpn {
    /// Creates a tunnel with one program at both ends.
    pub const fn of(both: Implementation, carrier: Carrier, variant: Variant) -> Self {
        Self { server: both, client: both, carrier, variant }
    }

    /// Returns all tunnels with a fixed name.
    pub(super) fn named() -> impl Iterator<Item = Self> {
        use Carrier::{Tcp, Udp, UdpTap};
        use Implementation::{Adit, Openvpn};
        let pairs = [
            (Adit, Adit, Udp),
            (Adit, Adit, Tcp),
            (Adit, Openvpn, Udp),
            (Openvpn, Adit, Udp),
            (Adit, Openvpn, Tcp),
            (Openvpn, Adit, Tcp),
            (Openvpn, Openvpn, Udp),
            (Openvpn, Openvpn, Tcp),
            (Adit, Adit, UdpTap),
            (Openvpn, Openvpn, UdpTap),
        ];
        let vpn =
            |(server, client, carrier)| Self { server, client, carrier, variant: Variant::Default };
        pairs.into_iter().map(vpn).chain([Self::of(Adit, Udp, Variant::Filter)])
    }

    /// Parses a name that contains a revision or a number of workers: `adit@REVISION`, `adit-wN`, `adit-tcp-wN`.
    pub(super) fn numbered(text: &str) -> Option<Self> {
        let adit = |carrier, variant| Some(Self::of(Implementation::Adit, carrier, variant));
        if let Some(revision) = text.strip_prefix("adit@") {
            let variant = Variant::Revision(revision.to_owned());
            return adit(Carrier::Udp, variant).filter(|_| !revision.is_empty());
        }
        let (carrier, number) = match text.strip_prefix("adit-tcp-w") {
            Some(number) => (Carrier::Tcp, number),
            None => (Carrier::Udp, text.strip_prefix("adit-w")?),
        };
        let workers = number.parse().ok().filter(|number| (1..=64).contains(number))?;
        adit(carrier, Variant::Workers(workers))
    }

    /// Returns the git revision that is measured, if the variant names one.
    pub fn revision(&self) -> Option<&str> {
        match &self.variant {
            Variant::Revision(revision) => Some(revision),
            _ => None,
        }
    }

    /// Returns the versions of the programs on this machine.
    pub(super) fn version(&self) -> std::result::Result<String, String> {
        if let Some(revision) = self.revision() {
            return Err(format!("adit@{revision} is built when a run needs it"));
        }
        let of = |program| match program {
            Implementation::Adit => adit::version(&adit::beside()?, false),
            Implementation::Openvpn => openvpn_version(),
        };
        if self.server == self.client {
            return of(self.server);
        }
        Ok(format!("{}; {}", of(Implementation::Adit)?, of(Implementation::Openvpn)?))
    }

    /// Starts server and clients with the same config files for both programs.
    pub(super) fn start(
        &self,
        toolchain: &Toolchain,
        testbed: &Testbed,
        spec: &TunnelSpec,
    ) -> Result<Tunnels> {
        let mut server = self.server_end(toolchain, testbed)?;
        let client = self.end(toolchain, self.client, 1)?;
        let mut rules = None;
        if self.variant == Variant::Filter {
            let folder = toolchain.scratch()?;
            let path = folder.path().join("rules.nft");
            fs::write(&path, adit::rules()).context(path.display())?;
            server.own = format!("filter {}\n", path.display());
            // The server reads it when it starts.
            rules = Some(folder);
        }
        let mut tunnels =
            directives::start(toolchain, testbed, spec, self.carrier, [&server, &client])?;
        tunnels.configs.extend(rules.map(|_| ("rules.nft".to_owned(), adit::rules())));
        Ok(tunnels)
    }

    fn server_end(&self, toolchain: &Toolchain, testbed: &Testbed) -> Result<End> {
        let workers = match self.variant {
            Variant::Workers(workers) => workers,
            _ => 1,
        };
        let mut end = self.end(toolchain, self.server, workers)?;
        // openvpn answers 100 new clients in 10 s unless configured otherwise; here all connect at once.
        let many = testbed.clients.len() > 50 && self.carrier != Carrier::Tcp;
        if many && self.server == Implementation::Openvpn {
            end.own.push_str("connect-freq-initial 10000 10\n");
        }
        Ok(end)
    }

    fn end(&self, toolchain: &Toolchain, program: Implementation, workers: u16) -> Result<End> {
        Ok(match program {
            Implementation::Adit => End {
                program: toolchain.adit(self.revision())?,
                arguments: &["openvpn", "--config"],
                own: String::new(),
                workers: matches!(self.variant, Variant::Workers(_)).then_some(workers),
            },
            Implementation::Openvpn => End {
                program: "openvpn".into(),
                arguments: &["--config"],
                // The kernel's module, if present, is a different implementation.
                own: "disable-dco\n".to_owned(),
                workers: None,
            },
        })
    }
}

/// Returns the first line of `openvpn --version`.
fn openvpn_version() -> std::result::Result<String, String> {
    first_line(Path::new("openvpn"), &["--version"], "apt install openvpn, or: scripts/lab-deps.sh")
}
