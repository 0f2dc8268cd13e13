//! The variables of tinc's configuration files: where each may appear, and whether adit supports it.

use crate::sptps::WindowSize;

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

/// The form of a variable's value, as far as tinc starts with another one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Any text. Whether it is valid depends on the variable, and an invalid one is refused.
    Text,
    /// Any text. An invalid one is skipped with a warning.
    Optional,
    /// `yes` or `no`. With another text, the default is used, with a warning.
    Flag,
    /// A number; what follows it has no effect. Without a number, the default is used, with a warning.
    Number {
        /// The number that is used instead of a smaller one, with a warning. [`i64::MIN`] if smaller ones are refused.
        min: i64,
        /// The number that is used instead of a larger one, with a warning.
        max: i64,
    },
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
    /// The form of its value.
    pub value: Value,
}

const fn row(name: &'static str, place: Place) -> Variable {
    Variable { name, place, many: false, safe: false, support: Support::Yes, value: Value::Text }
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

    const fn optional(self) -> Self {
        Self { value: Value::Optional, ..self }
    }

    const fn flag(self) -> Self {
        Self { value: Value::Flag, ..self }
    }

    /// A number that is at least `min` and at most `max`.
    const fn number(self, min: i64, max: i64) -> Self {
        Self { value: Value::Number { min, max }, ..self }
    }

    const fn seconds(self) -> Self {
        self.number(1, INT_MAX)
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

/// The largest number in tinc's files.
const INT_MAX: i64 = i32::MAX as i64;

const LEGACY: &str = "it belongs to tinc 1.0's protocol, which adit does not speak";
const OBSOLETE: &str = "tinc 1.1 does not use it either";

/// All variables, in the order of their names.
pub const VARIABLES: &[Variable] = &[
    host("Address").optional().many(),
    server("AddressFamily").safe(),
    server("AutoConnect").flag().safe(),
    server("BindToAddress").many(),
    server("BindToInterface"),
    server("Broadcast").safe(),
    server("BroadcastSubnet").optional().many().safe(),
    both("Cipher").ignored(LEGACY),
    both("ClampMSS").flag().safe(),
    both("Compression").number(i64::MIN, i64::MAX).safe(),
    server("ConnectTo").optional().many().safe(),
    server("DecrementTTL").flag().safe(),
    server("Device"),
    server("DeviceStandby").flag(),
    server("DeviceType"),
    both("Digest").ignored(LEGACY),
    server("DirectOnly").flag().safe(),
    server("DisableBuggyPeers").ignored("no node needs it any more"),
    server("Ed25519PrivateKeyFile"),
    host("Ed25519PublicKey").optional(),
    both("Ed25519PublicKeyFile"),
    server("ExperimentalProtocol").flag(),
    server("Forwarding"),
    server("FWMark").number(i32::MIN as i64, u32::MAX as i64),
    server("GraphDumpFile").ignored(OBSOLETE),
    server("Hostnames").ignored("the log has addresses, which are not looked up"),
    server("IffOneQueue").ignored(OBSOLETE),
    both("IndirectData").flag().safe(),
    server("Interface"),
    server("InvitationExpire").seconds(),
    server("KeyExpire").seconds().safe(),
    server("LearnKeys").flag(),
    server("LegacyNodes").flag(),
    server("ListenAddress").many(),
    server("LocalDiscovery").flag().safe(),
    server("LogLevel").ignored("start the daemon with -d LEVEL, or use the command debug"),
    server("MACExpire").seconds().safe(),
    both("MACLength").ignored(LEGACY),
    server("MaxConnectionBurst").number(i64::MIN, 1_000_000).safe(),
    server("MaxOutputBufferSize").number(0, INT_MAX).safe(),
    server("MaxTimeout").number(i64::MIN, INT_MAX).safe(),
    server("Mode").safe(),
    server("MTUInfoInterval").seconds().safe(),
    server("Name"),
    server("PingInterval").seconds().safe(),
    server("PingTimeout").seconds().safe(),
    both("PMTU").number(512, u16::MAX as i64),
    both("PMTUDiscovery").flag(),
    host("Port"),
    server("PriorityInheritance").flag(),
    both("PrivateKey").ignored(LEGACY),
    server("PrivateKeyFile").ignored(LEGACY),
    server("ProcessPriority").ignored("set Nice= in the unit adit-tinc@.service"),
    server("Proxy"),
    both("PublicKey").ignored(LEGACY),
    both("PublicKeyFile").ignored(LEGACY),
    server("ReplayWindow").number(i64::MIN, WindowSize::MAX as i64).safe(),
    server("Sandbox").ignored("the daemon always gives up its privileges"),
    server("ScriptsExtension").ignored("scripts are found by their own names"),
    server("ScriptsInterpreter").refused("name the interpreter in the first line of each script"),
    both("SPTPSCipher"),
    both("SPTPSKex").refused("adit supports only tinc's own key exchange: remove the line"),
    server("StrictSubnets").flag().safe(),
    host("Subnet").many().safe(),
    both("TCPOnly").flag().safe(),
    server("TunnelServer").flag().safe(),
    server("UDPDiscovery").flag().safe(),
    server("UDPDiscoveryInterval").seconds().safe(),
    server("UDPDiscoveryKeepaliveInterval").seconds().safe(),
    server("UDPDiscoveryTimeout").seconds().safe(),
    server("UDPInfoInterval").seconds().safe(),
    server("UDPRcvBuf").number(i64::MIN, INT_MAX),
    server("UDPSndBuf").number(i64::MIN, INT_MAX),
    server("UPnP").ignored("adit does not ask routers by UPnP: forward the port by hand"),
    server("UPnPDiscoverWait").ignored("adit does not ask routers by UPnP"),
    server("UPnPRefreshPeriod").ignored("adit does not ask routers by UPnP"),
    server("VDEGroup").ignored("adit has no VDE devices"),
    server("VDEPort").ignored("adit has no VDE devices"),
    host("Weight").number(i32::MIN as i64, INT_MAX).safe(),
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
