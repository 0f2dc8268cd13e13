//! The variables of tinc's configuration files: where each may appear, and whether adit supports it.

/// The files in which a variable may appear.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `tinc.conf`.
    Server,
    /// A host file, or `tinc.conf` for the node itself.
    Host,
    /// Both: a host file's value is about that host.
    Both,
}

/// Whether adit supports a variable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It has tinc's effect.
    Yes,
    /// It has no effect, for this reason. A warning says so.
    Ignored(&'static str),
    /// A configuration with it is refused, for this reason.
    Refused(&'static str),
}

/// A variable.
#[derive(Copy, Clone, Debug)]
pub struct Variable {
    /// The name, as the manual writes it. Case does not matter.
    pub name: &'static str,
    /// Where it may appear.
    pub place: Place,
    /// It may appear more than once.
    pub many: bool,
    /// A node that joins accepts it from an invitation.
    pub safe: bool,
    /// Whether adit supports it.
    pub support: Support,
}

const fn row(name: &'static str, place: Place) -> Variable {
    Variable { name, place, many: false, safe: false, support: Support::Yes }
}

const fn server(name: &'static str) -> Variable {
    row(name, Place::Server)
}

const fn host(name: &'static str) -> Variable {
    row(name, Place::Host)
}

const fn both(name: &'static str) -> Variable {
    row(name, Place::Both)
}

impl Variable {
    const fn many(self) -> Self {
        Self { many: true, ..self }
    }

    const fn safe(self) -> Self {
        Self { safe: true, ..self }
    }

    const fn ignored(self, why: &'static str) -> Self {
        Self { support: Support::Ignored(why), ..self }
    }

    const fn refused(self, why: &'static str) -> Self {
        Self { support: Support::Refused(why), ..self }
    }

    /// Returns the variable with a name, in any case.
    pub fn find(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name.eq_ignore_ascii_case(name))
    }
}

const LEGACY: &str = "it belongs to tinc 1.0's protocol, which adit does not speak";
const LOCAL: &str = "adit has its own way to do this";
const OBSOLETE: &str = "tinc 1.1 does not use it either";

/// All variables, in the order of their names.
pub const VARIABLES: &[Variable] = &[
    host("Address").many(),
    server("AddressFamily").safe(),
    server("AutoConnect").safe(),
    server("BindToAddress").many(),
    server("BindToInterface"),
    server("Broadcast").safe(),
    server("BroadcastSubnet").many().safe(),
    both("Cipher").ignored(LEGACY),
    both("ClampMSS").safe(),
    both("Compression").safe(),
    server("ConnectTo").many().safe(),
    server("DecrementTTL").safe(),
    server("Device"),
    server("DeviceStandby"),
    server("DeviceType"),
    both("Digest").ignored(LEGACY),
    server("DirectOnly").safe(),
    server("DisableBuggyPeers").refused("no node needs it any more: remove the line"),
    server("Ed25519PrivateKeyFile"),
    host("Ed25519PublicKey"),
    both("Ed25519PublicKeyFile"),
    server("ExperimentalProtocol"),
    server("Forwarding"),
    server("FWMark"),
    server("GraphDumpFile").ignored(OBSOLETE),
    server("Hostnames").ignored(LOCAL),
    server("IffOneQueue").ignored(OBSOLETE),
    both("IndirectData").safe(),
    server("Interface"),
    server("InvitationExpire"),
    server("KeyExpire").safe(),
    server("ListenAddress").many(),
    server("LocalDiscovery").safe(),
    server("LogLevel").ignored(LOCAL),
    server("MACExpire").safe(),
    both("MACLength").ignored(LEGACY),
    server("MaxConnectionBurst").safe(),
    server("MaxOutputBufferSize").safe(),
    server("MaxTimeout").safe(),
    server("Mode").safe(),
    server("MTUInfoInterval").safe(),
    server("Name"),
    server("PingInterval").safe(),
    server("PingTimeout").safe(),
    both("PMTU"),
    both("PMTUDiscovery"),
    host("Port"),
    server("PriorityInheritance"),
    both("PrivateKey").ignored(LEGACY),
    server("PrivateKeyFile").ignored(LEGACY),
    server("ProcessPriority").ignored("set Nice= in the unit adit-tinc@.service"),
    server("Proxy"),
    both("PublicKey").ignored(LEGACY),
    both("PublicKeyFile").ignored(LEGACY),
    server("ReplayWindow").safe(),
    server("Sandbox").ignored(LOCAL),
    server("ScriptsExtension").ignored("scripts are found by their own names"),
    server("ScriptsInterpreter").refused("name the interpreter in the first line of each script"),
    both("SPTPSCipher"),
    both("SPTPSKex").refused("adit supports only tinc's own key exchange: remove the line"),
    server("StrictSubnets").safe(),
    host("Subnet").many().safe(),
    both("TCPOnly").safe(),
    server("TunnelServer").safe(),
    server("UDPDiscovery").safe(),
    server("UDPDiscoveryInterval").safe(),
    server("UDPDiscoveryKeepaliveInterval").safe(),
    server("UDPDiscoveryTimeout").safe(),
    server("UDPInfoInterval").safe(),
    server("UDPRcvBuf"),
    server("UDPSndBuf"),
    server("UPnP").ignored("adit does not ask routers by UPnP: forward the port by hand"),
    server("UPnPDiscoverWait").ignored("adit does not ask routers by UPnP"),
    server("UPnPRefreshPeriod").ignored("adit does not ask routers by UPnP"),
    server("VDEGroup").ignored("adit has no VDE devices"),
    server("VDEPort").ignored("adit has no VDE devices"),
    host("Weight").safe(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_names_each_variable_once() {
        let names: Vec<String> = VARIABLES.iter().map(|row| row.name.to_lowercase()).collect();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    }

    #[test]
    fn a_variable_is_found_in_any_case() {
        assert_eq!(Variable::find("clampmss").unwrap().name, "ClampMSS");
        assert!(Variable::find("ClampMS").is_none());
    }
}
