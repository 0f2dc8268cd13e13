//! Takes over a changed configuration while the daemon runs.

use adit_runtime::clock::now;
use adit_runtime::fault::Fault;
use adit_runtime::{helper, programs, say};
use adit_tinc::config::{HostConfig, ServerConfig};

use super::load::load;
use super::running::Running;

impl Running {
    /// Reads the files of the net again.
    pub(super) fn read_again(&mut self) -> Result<(), Fault> {
        match helper::current() {
            Some(helper) => drop(helper.call(helper::Request::Reload, &[])?),
            // Scripts may be new.
            None => programs::start(&self.privileged.duty().setup())?,
        }
        let loaded = load(&self.net, &self.options, &mut self.system_names)?;
        if loaded.name != *self.node.name() {
            return Err(Fault::operator(format!(
                "Name: {} cannot become {} while the daemon runs: restart it",
                self.node.name(),
                loaded.name
            )));
        }
        loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        for variable in take_over(&mut self.server, loaded.server) {
            tracing::warn!("{variable}: changed: restart required");
        }
        let now = now();
        self.node.reload(now, loaded.hosts, &self.guest.with(&self.server.own.subnets));
        self.node.configure(now, &self.server);
        self.data.router.set_settings((&self.server).into());
        self.perform(now);
        say!(1, "The configuration was read again");
        Ok(())
    }
}

/// Replaces the settings that may change while a daemon runs. Returns the names of the other variables that have changed.
fn take_over(old: &mut ServerConfig, new: ServerConfig) -> Vec<&'static str> {
    // All fields are named, so that none is forgotten.
    let ServerConfig {
        own,
        address_family,
        auto_connect,
        bind_to_address,
        bind_to_interface,
        broadcast,
        broadcast_subnets,
        connect_to,
        decrement_ttl,
        device,
        device_standby,
        device_type,
        direct_only,
        ed25519_private_key_file,
        forwarding,
        fwmark,
        interface,
        invitation_expire,
        key_expire,
        learn_keys,
        legacy_nodes,
        listen_address,
        local_discovery,
        mac_expire,
        max_connection_burst,
        max_output_buffer_size,
        max_timeout,
        mode,
        mtu_info_interval,
        ping_interval,
        ping_timeout,
        priority_inheritance,
        proxy,
        replay_window,
        strict_subnets,
        tunnel_server,
        udp_discovery,
        udp_discovery_interval,
        udp_discovery_keepalive_interval,
        udp_discovery_timeout,
        udp_info_interval,
        udp_rcv_buf,
        udp_snd_buf,
    } = new;
    let mut changed = take_over_host(&mut old.own, own);
    let others = [
        ("AddressFamily", old.address_family != address_family),
        ("BindToAddress", old.bind_to_address != bind_to_address),
        ("BindToInterface", old.bind_to_interface != bind_to_interface),
        ("Broadcast", old.broadcast != broadcast),
        ("BroadcastSubnet", old.broadcast_subnets != broadcast_subnets),
        ("DecrementTTL", old.decrement_ttl != decrement_ttl),
        ("Device", old.device != device),
        ("DeviceStandby", old.device_standby != device_standby),
        ("DeviceType", old.device_type != device_type),
        ("DirectOnly", old.direct_only != direct_only),
        ("Ed25519PrivateKeyFile", old.ed25519_private_key_file != ed25519_private_key_file),
        ("Forwarding", old.forwarding != forwarding),
        ("FWMark", old.fwmark != fwmark),
        ("Interface", old.interface != interface),
        ("ListenAddress", old.listen_address != listen_address),
        ("MACExpire", old.mac_expire != mac_expire),
        ("Mode", old.mode != mode),
        ("PriorityInheritance", old.priority_inheritance != priority_inheritance),
        ("Proxy", old.proxy != proxy),
        ("ReplayWindow", old.replay_window != replay_window),
        ("StrictSubnets", old.strict_subnets != strict_subnets),
        ("TunnelServer", old.tunnel_server != tunnel_server),
        ("UDPRcvBuf", old.udp_rcv_buf != udp_rcv_buf),
        ("UDPSndBuf", old.udp_snd_buf != udp_snd_buf),
    ];
    changed.extend(others.into_iter().filter(|(_, is_other)| *is_other).map(|(name, _)| name));
    old.auto_connect = auto_connect;
    old.connect_to = connect_to;
    old.invitation_expire = invitation_expire;
    old.key_expire = key_expire;
    old.learn_keys = learn_keys;
    old.legacy_nodes = legacy_nodes;
    old.local_discovery = local_discovery;
    old.max_connection_burst = max_connection_burst;
    old.max_output_buffer_size = max_output_buffer_size;
    old.max_timeout = max_timeout;
    old.mtu_info_interval = mtu_info_interval;
    old.ping_interval = ping_interval;
    old.ping_timeout = ping_timeout;
    old.udp_discovery = udp_discovery;
    old.udp_discovery_interval = udp_discovery_interval;
    old.udp_discovery_keepalive_interval = udp_discovery_keepalive_interval;
    old.udp_discovery_timeout = udp_discovery_timeout;
    old.udp_info_interval = udp_info_interval;
    changed
}

/// Does the same with the variables that host files contain as well.
fn take_over_host(old: &mut HostConfig, new: HostConfig) -> Vec<&'static str> {
    let HostConfig {
        addresses,
        port,
        subnets,
        public_key,
        unusable_key,
        public_key_file,
        indirect_data,
        tcp_only,
        pmtu,
        pmtu_discovery,
        clamp_mss,
        compression,
        cipher,
        weight,
    } = new;
    let others = [
        ("Port", old.port != port),
        ("IndirectData", old.indirect_data != indirect_data),
        ("TCPOnly", old.tcp_only != tcp_only),
        ("PMTUDiscovery", old.pmtu_discovery != pmtu_discovery),
        ("ClampMSS", old.clamp_mss != clamp_mss),
        ("SPTPSCipher", old.cipher != cipher),
    ];
    // These tell other nodes about this one; it has no use for them itself.
    old.addresses = addresses;
    old.public_key = public_key;
    old.unusable_key = unusable_key;
    old.public_key_file = public_key_file;
    old.pmtu = pmtu;
    old.compression = compression;
    old.subnets = subnets;
    old.weight = weight;
    others.into_iter().filter(|(_, is_other)| *is_other).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use adit_tinc::config::Entries;

    use super::*;

    fn server(text: &str) -> ServerConfig {
        let mut entries = Entries::default();
        entries.add_file("tinc.conf", text).unwrap();
        ServerConfig::read(&entries).unwrap().0
    }

    #[test]
    fn settings_that_may_change_are_taken_over() {
        for line in [
            "AutoConnect = no",
            "ConnectTo = bob",
            "InvitationExpire = 7",
            "KeyExpire = 7",
            "LearnKeys = no",
            "LegacyNodes = no",
            "LocalDiscovery = no",
            "MaxConnectionBurst = 7",
            "MaxOutputBufferSize = 7",
            "MaxTimeout = 7",
            "MTUInfoInterval = 7",
            "PingInterval = 7",
            "PingTimeout = 7",
            "Subnet = 10.1.0.0/16",
            "UDPDiscovery = no",
            "UDPDiscoveryInterval = 7",
            "UDPDiscoveryKeepaliveInterval = 7",
            "UDPDiscoveryTimeout = 7",
            "UDPInfoInterval = 7",
            "Weight = 7",
        ] {
            let (mut old, new) = (server(""), server(line));
            assert_ne!(old, new, "{line}");
            assert_eq!(take_over(&mut old, new.clone()), [] as [&str; 0], "{line}");
            assert_eq!(old, new, "{line}");
        }
    }

    #[test]
    fn other_settings_remain_and_are_named() {
        for line in [
            "AddressFamily = ipv4",
            "BindToAddress = 192.0.2.1",
            "BindToInterface = eth0",
            "Broadcast = direct",
            "BroadcastSubnet = 10.0.0.0/8",
            "ClampMSS = no",
            "DecrementTTL = yes",
            "Device = /dev/x",
            "DeviceStandby = yes",
            "DeviceType = dummy",
            "DirectOnly = yes",
            "Ed25519PrivateKeyFile = x",
            "Forwarding = off",
            "FWMark = 7",
            "IndirectData = yes",
            "Interface = x",
            "ListenAddress = 192.0.2.1",
            "MACExpire = 7",
            "Mode = switch",
            "PMTUDiscovery = no",
            "Port = 7",
            "PriorityInheritance = yes",
            "Proxy = http proxy 1",
            "ReplayWindow = 7",
            "StrictSubnets = yes",
            "TCPOnly = yes",
            "UDPRcvBuf = 7",
            "UDPSndBuf = 7",
        ] {
            let mut old = server("");
            let (name, _) = line.split_once(' ').unwrap();
            assert_eq!(take_over(&mut old, server(line)), [name]);
            assert_eq!(old, server(""), "{line}");
        }
        // This one implies another.
        let changed = take_over(&mut server(""), server("TunnelServer = yes"));
        assert_eq!(changed, ["StrictSubnets", "TunnelServer"]);
    }
}
