//! Reads the configuration of a daemon.

use std::collections::BTreeMap;
use std::path::Path;

use adit_runtime::fault::Fault;
use adit_runtime::helper::files;
use adit_tinc::config::{ConfigError, ConfigOption, Entries, HostConfig, ServerConfig, Warning};
use adit_tinc::keys::{PrivateKey, PublicKey};
use adit_tinc::name::NodeName;
use zeroize::Zeroizing;

use crate::console::reason;
use crate::net::{Net, host_name};

/// What opens TUN and TAP devices.
const DEVICE: &str = "/dev/net/tun";

/// The number of host files that are read.
const MAX_HOSTS: usize = 16_384;

/// What the files of a net contain.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The name of this node.
    pub(crate) name: NodeName,
    /// The settings of this node.
    pub(crate) server: ServerConfig,
    /// The host files of the other nodes.
    pub(crate) hosts: BTreeMap<NodeName, HostConfig>,
    /// Lines without effect.
    pub(crate) warnings: Vec<Warning>,
}

/// Reads the files of a net. `options` are those of the command line.
pub(crate) fn load(net: &Net, options: &[ConfigOption]) -> Result<Loaded, Fault> {
    let mut entries = Entries::default();
    for option in options.iter().filter(|option| option.host.is_none()) {
        entries.add_option(option).map_err(wrong)?;
    }
    add(&mut entries, &net.server_file())?;
    for name in conf_d(net) {
        add(&mut entries, &net.config.join("conf.d").join(name))?;
    }
    let name = entries.name(|name| std::env::var(name).ok(), &host_name()).map_err(wrong)?;
    for option in options.iter().filter(|option| option.host.as_ref() == Some(&name)) {
        entries.add_option(option).map_err(wrong)?;
    }
    // A node without a host file of its own has no subnets.
    let own = net.host_file(&name);
    if let Ok(text) = text(&own) {
        entries.add_file(&own.to_string_lossy(), &text).map_err(wrong)?;
    }
    let (server, mut warnings) = ServerConfig::read(&entries).map_err(wrong)?;
    refuse(&server)?;
    let mut hosts = BTreeMap::new();
    for host in host_names(net)? {
        if host == name {
            continue;
        }
        let (config, new) = read_host(net, &host, options)?;
        warnings.extend(new);
        hosts.insert(host, config);
    }
    Ok(Loaded { name, server, hosts, warnings })
}

/// Refuses what tinc can do and this daemon cannot.
fn refuse(server: &ServerConfig) -> Result<(), Fault> {
    let other_device = server.device.as_deref().is_some_and(|device| device != DEVICE);
    let refused = [
        ("Device", other_device, "TUN and TAP devices come from /dev/net/tun: remove the line"),
        ("DeviceStandby", server.device_standby, "the device exists as long as the daemon runs"),
    ];
    match refused.into_iter().find(|(_, set, _)| *set) {
        Some((name, _, why)) => Err(Fault::operator(format!("{name}: not supported: {why}"))),
        None => Ok(()),
    }
}

fn read_host(
    net: &Net,
    host: &NodeName,
    options: &[ConfigOption],
) -> Result<(HostConfig, Vec<Warning>), Fault> {
    let mut entries = Entries::default();
    for option in options.iter().filter(|option| option.host.as_ref() == Some(host)) {
        entries.add_option(option).map_err(wrong)?;
    }
    let path = net.host_file(host);
    let (mut config, warnings) =
        HostConfig::read(entries, &path.to_string_lossy(), &text(&path)?).map_err(wrong)?;
    if let (None, Some(other)) = (&config.public_key, &config.public_key_file) {
        let path = net.config.join(other);
        let key = PublicKey::from_file(&text(&path)?);
        config.public_key =
            Some(key.map_err(|error| Fault::operator(format!("{}: {error}", path.display())))?);
    }
    Ok((config, warnings))
}

/// Reads the private key of this node.
pub(crate) fn private_key(net: &Net, server: &ServerConfig) -> Result<PrivateKey, Fault> {
    let named = server.ed25519_private_key_file.as_ref();
    let path = named.map_or_else(|| net.private_key(), |name| net.config.join(name));
    let text = Zeroizing::new(text(&path).map_err(|fault| {
        Fault::operator(format!("{fault}; create a key with: adit tinc generate-ed25519-keys"))
    })?);
    PrivateKey::from_file(&text)
        .map_err(|error| Fault::operator(format!("{}: {error}", path.display())))
}

fn wrong(error: ConfigError) -> Fault {
    Fault::operator(error.to_string())
}

fn add(entries: &mut Entries, path: &Path) -> Result<(), Fault> {
    entries.add_file(&path.to_string_lossy(), &text(path)?).map_err(wrong)
}

fn text(path: &Path) -> Result<String, Fault> {
    let fault = |why: &str| Fault::operator(format!("cannot read {}: {why}", path.display()));
    let bytes = files::contents(path).map_err(|error| fault(&reason(&error)))?;
    String::from_utf8(bytes).map_err(|_| fault("the file is not UTF-8"))
}

/// Returns the names of the files in `conf.d`, in their order.
fn conf_d(net: &Net) -> Vec<String> {
    let mut names = files::list(&net.config.join("conf.d")).unwrap_or_default();
    names.retain(|name| is_conf(name));
    names.sort();
    names
}

/// Returns whether a file in `conf.d` is read.
pub(super) fn is_conf(name: &str) -> bool {
    name.ends_with(".conf")
}

/// Returns whether a file in `hosts` is a host file.
pub(super) fn is_host(name: &str) -> bool {
    name.parse::<NodeName>().is_ok()
}

fn host_names(net: &Net) -> Result<Vec<NodeName>, Fault> {
    let folder = net.hosts();
    let names = files::list(&folder).map_err(|error| {
        Fault::operator(format!("cannot read {}: {}", folder.display(), reason(&error)))
    })?;
    let mut names: Vec<NodeName> = names.iter().filter_map(|name| name.parse().ok()).collect();
    if names.len() > MAX_HOSTS {
        return Err(Fault::operator(format!("{}: more than {MAX_HOSTS} hosts", folder.display())));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn files_and_options_are_read_in_their_order() {
        let folder = Folder::new();
        folder.write("tinc.conf", "Name = alice\nMode = hub\nPingTimeout = 7\n");
        folder.write("conf.d/a.conf", "Mode = switch\nPingInterval = 9\n");
        folder.write("conf.d/ignored", "Foo\n");
        folder.write("hosts/alice", "Subnet = 10.1.0.0/16\nPort = 7\n");
        folder.write("hosts/bob", "Port = 8\nMode = hub\n");
        folder.write("hosts/bob-up", "#!/bin/sh\n");
        let options = ["PingTimeout=8", "bob.Port=9", "alice.Port=10"];
        let options: Vec<ConfigOption> = options.iter().map(|text| text.parse().unwrap()).collect();
        let loaded = load(&folder.net, &options).unwrap();
        assert_eq!(loaded.name.as_str(), "alice");
        assert_eq!(loaded.server.mode, adit_tinc::config::Mode::Hub);
        assert_eq!(loaded.server.ping_timeout.as_secs(), 8);
        assert_eq!(loaded.server.ping_interval.as_secs(), 9);
        assert_eq!((loaded.server.own.port, loaded.server.own.subnets.len()), (10, 1));
        let hosts: Vec<(&str, u16)> =
            loaded.hosts.iter().map(|(name, host)| (name.as_str(), host.port)).collect();
        assert_eq!(hosts, [("bob", 9)]);
        let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.iter().any(|line| line.contains("bob:2: Mode: ignored")), "{warnings:?}");
    }

    #[test]
    fn a_configuration_that_the_daemon_cannot_follow_is_refused_by_name() {
        let folder = Folder::new();
        for (line, name) in
            [("DeviceStandby = yes", "DeviceStandby"), ("Device = /dev/tap0", "Device")]
        {
            folder.write("tinc.conf", &format!("Name = alice\n{line}\n"));
            let error = load(&folder.net, &[]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: not supported")), "{error}");
        }
        folder.write("tinc.conf", "Name = alice\nDevice = /dev/net/tun\n");
        folder.write("hosts/alice", "");
        load(&folder.net, &[]).unwrap();
    }
}
