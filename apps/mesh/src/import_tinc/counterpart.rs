//! What a mesh has in place of each variable of tinc's configuration.

/// What replaces a variable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Counterpart {
    /// The import uses it, or a mesh needs no setting for it.
    Covered,
    /// Nothing does what the variable does, for this reason.
    None(&'static str),
}

const PATHS: &str =
    "a node uses the path that answers: direct, through a relay, or over TCP where UDP is dropped";
const LISTENS: &str =
    "a node listens at all addresses of its machine; `port` in mesh.toml chooses the port";
const DEVICE: &str = "adit creates the device itself; `device` in mesh.toml names it";
const SCRIPTS: &str = "a mesh has no scripts";

/// Returns what replaces a variable, by its name in tinc's manual; `None` if tinc has no such variable.
pub(super) fn counterpart(variable: &str) -> Option<Counterpart> {
    use Counterpart::{Covered, None as Lacks};
    Some(match variable {
        // The import reads these.
        "Address" | "Mode" | "Name" | "Subnet" => Covered,
        // Members find each other and choose their paths by themselves.
        "AddressFamily"
        | "AutoConnect"
        | "ConnectTo"
        | "LocalDiscovery"
        | "MaxConnectionBurst"
        | "MaxOutputBufferSize"
        | "MaxTimeout"
        | "MTUInfoInterval"
        | "PingInterval"
        | "PingTimeout"
        | "PMTU"
        | "PMTUDiscovery"
        | "Port"
        | "UDPDiscovery"
        | "UDPDiscoveryInterval"
        | "UDPDiscoveryKeepaliveInterval"
        | "UDPDiscoveryTimeout"
        | "UDPInfoInterval"
        | "UDPRcvBuf"
        | "UDPSndBuf" => Covered,
        // Each node has a key of its own, and sessions have one cipher.
        "Cipher"
        | "Digest"
        | "Ed25519PrivateKeyFile"
        | "Ed25519PublicKey"
        | "Ed25519PublicKeyFile"
        | "ExperimentalProtocol"
        | "InvitationExpire"
        | "KeyExpire"
        | "MACLength"
        | "PrivateKey"
        | "PrivateKeyFile"
        | "PublicKey"
        | "PublicKeyFile"
        | "ReplayWindow"
        | "SPTPSCipher"
        | "SPTPSKex" => Covered,
        // Members and their networks are signed, so no node believes more than that.
        "LearnKeys" | "LegacyNodes" | "StrictSubnets" | "TunnelServer" => Covered,
        // tinc's own work.
        "ClampMSS" | "DisableBuggyPeers" | "GraphDumpFile" | "Hostnames" | "IffOneQueue"
        | "LogLevel" | "MACExpire" | "Sandbox" | "UPnPDiscoverWait" | "UPnPRefreshPeriod" => {
            Covered
        }
        "BindToAddress" | "BindToInterface" | "ListenAddress" => Lacks(LISTENS),
        "Broadcast" | "BroadcastSubnet" => Lacks(
            "only a mesh of Ethernet frames carries broadcasts, and sends them to all members",
        ),
        "Compression" => Lacks("packets are not compressed"),
        "DecrementTTL" => Lacks("packets between two members keep their TTL"),
        "Device" | "DeviceStandby" | "DeviceType" | "Interface" | "VDEGroup" | "VDEPort" => {
            Lacks(DEVICE)
        }
        "DirectOnly" => Lacks(
            "where there is no direct path, a relay forwards; with --relay off on all members, none does",
        ),
        "Forwarding" => Lacks(
            "members do not route packets for each other: relays forward sealed packets, and a policy filters at both ends",
        ),
        "FWMark" => Lacks("the packets of a node have no mark that you can choose"),
        "IndirectData" | "TCPOnly" | "Weight" => Lacks(PATHS),
        "PriorityInheritance" => Lacks("the type of service of inner packets is not copied"),
        "ProcessPriority" => Lacks("set `Nice` in the unit adit-mesh@.service"),
        "Proxy" => Lacks("nodes do not connect through a proxy"),
        "ScriptsExtension" | "ScriptsInterpreter" => Lacks(SCRIPTS),
        "UPnP" => Lacks("a node asks its router to map the port by PCP or NAT-PMP, not by UPnP"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use adit_tinc::config::variables::VARIABLES;

    use super::*;

    #[test]
    fn each_variable_of_tinc_has_a_counterpart_or_a_reason() {
        for variable in VARIABLES {
            assert!(counterpart(variable.name).is_some(), "{}", variable.name);
        }
        assert_eq!(counterpart("Foo"), None);
    }
}
