//! Reads the configuration of a daemon.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use adit_runtime::fault::Fault;
use adit_runtime::helper::files;
use adit_tinc::config::{
    ConfigError, ConfigOption, DeviceType, Entries, HostConfig, ServerConfig, Warning, decode,
};
use adit_tinc::keys::{PrivateKey, PublicKey};
use adit_tinc::name::NodeName;
use zeroize::Zeroizing;

use super::system_names::SystemNames;
use crate::console::reason;
use crate::net::{Net, host_name};

/// The file that opens TUN and TAP devices.
const DEVICE: &str = "/dev/net/tun";

/// The number of host files that are read.
const MAX_HOSTS: usize = 16_384;

/// The content of the files of a net.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The name of this node.
    pub(crate) name: NodeName,
    /// The settings of this node.
    pub(crate) server: ServerConfig,
    /// The host files of the other nodes.
    pub(crate) hosts: BTreeMap<NodeName, HostConfig>,
    /// Lines without effect, and files that cannot be read.
    pub(crate) warnings: Vec<String>,
}

/// Reads the files of a net. `options` are those of the command line. A mistake in the host file of another node is a warning.
pub(crate) fn load(
    net: &Net,
    options: &[ConfigOption],
    names: &mut SystemNames,
) -> Result<Loaded, Fault> {
    let (name, server, problems) = load_own(net, options, names)?;
    let mut warnings = problems.texts();
    let mut hosts = BTreeMap::new();
    for host in host_names(net, &mut warnings)?.into_iter().filter(|host| *host != name) {
        let (config, problems) = read_host(net, &host, options, names)?;
        warnings.extend(problems.texts());
        hosts.insert(host, config);
    }
    Ok(Loaded { name, server, hosts, warnings })
}

/// Problems in the files of a node that do not prevent their use.
#[derive(Debug, Default)]
pub(crate) struct ConfigProblems {
    pub(crate) lines: Vec<Warning>,
    /// A file that cannot be read.
    pub(crate) file: Option<String>,
}

impl ConfigProblems {
    fn texts(&self) -> Vec<String> {
        self.lines.iter().map(ToString::to_string).chain(self.file.clone()).collect()
    }
}

/// Reads the files of this node.
pub(crate) fn load_own(
    net: &Net,
    options: &[ConfigOption],
    names: &mut SystemNames,
) -> Result<(NodeName, ServerConfig, ConfigProblems), Fault> {
    let mut entries = Entries::default();
    for option in options.iter().filter(|option| option.host.is_none()) {
        entries.add_option(option).map_err(wrong)?;
    }
    add(&mut entries, net, &net.server_file())?;
    for name in conf_d(net) {
        add(&mut entries, net, &net.config.join("conf.d").join(name))?;
    }
    let name = entries.name(|name| std::env::var(name).ok(), &host_name()).map_err(wrong)?;
    for option in options.iter().filter(|option| option.host.as_ref() == Some(&name)) {
        entries.add_option(option).map_err(wrong)?;
    }
    // A node without a host file of its own has no subnets.
    let own = net.host_file(&name);
    let mut file = None;
    match text(&own) {
        Ok(text) => entries.add_host_file(&own.to_string_lossy(), &text),
        Err(error) => file = Some(cannot_read(&own, &error)),
    }
    names.replace(&mut entries);
    let (server, lines) = ServerConfig::read(&entries).map_err(wrong)?;
    refuse(&server)?;
    Ok((name, server, ConfigProblems { lines, file }))
}

/// Refuses what tinc can do and this daemon cannot.
fn refuse(server: &ServerConfig) -> Result<(), Fault> {
    let no_device = server.device_type == Some(DeviceType::Dummy);
    let other_device = server.device.as_deref().is_some_and(|device| device != DEVICE);
    let refused = [
        (
            "Device",
            other_device && !no_device,
            "TUN and TAP devices come from /dev/net/tun: remove the line",
        ),
        ("DeviceStandby", server.device_standby, "the device exists as long as the daemon runs"),
    ];
    match refused.into_iter().find(|(_, set, _)| *set) {
        Some((name, _, why)) => Err(Fault::operator(format!("{name}: not supported: {why}"))),
        None => Ok(()),
    }
}

/// Reads the host file of another node. A node whose key cannot be read gets none from the net.
pub(crate) fn read_host(
    net: &Net,
    host: &NodeName,
    options: &[ConfigOption],
    names: &mut SystemNames,
) -> Result<(HostConfig, ConfigProblems), Fault> {
    let mut entries = Entries::default();
    for option in options.iter().filter(|option| option.host.as_ref() == Some(host)) {
        entries.add_option(option).map_err(wrong)?;
    }
    let path = net.host_file(host);
    let content = match text(&path) {
        Ok(content) => content,
        Err(error) => {
            let config = HostConfig { unusable_key: true, ..HostConfig::default() };
            let file = Some(cannot_read(&path, &error));
            return Ok((config, ConfigProblems { file, ..ConfigProblems::default() }));
        }
    };
    let (mut config, lines) =
        HostConfig::read_other(entries, &path.to_string_lossy(), &content, |entries| {
            names.replace(entries);
        });
    let mut file = None;
    let named = config.public_key_file.as_ref().filter(|_| config.public_key.is_none());
    if let Some(named) = named.filter(|_| !config.unusable_key) {
        match key_file(&net.config.join(named)) {
            Ok(key) => config.public_key = Some(key),
            Err(why) => {
                config.unusable_key = true;
                file = Some(format!("{}: Ed25519PublicKeyFile: {why}", path.display()));
            }
        }
    }
    Ok((config, ConfigProblems { lines, file }))
}

fn key_file(path: &Path) -> Result<PublicKey, String> {
    let text = text(path).map_err(|error| cannot_read(path, &error))?;
    PublicKey::from_file(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads the private key of this node.
pub(crate) fn private_key(net: &Net, server: &ServerConfig) -> Result<PrivateKey, Fault> {
    let named = server.ed25519_private_key_file.as_ref();
    let path = named.map_or_else(|| net.private_key(), |name| net.config.join(name));
    let text = text(&path).map(Zeroizing::new).map_err(|error| {
        let fault = cannot_read(&path, &error);
        let command = net.command();
        Fault::operator(format!("{fault}; create a key with: {command} generate-ed25519-keys"))
    })?;
    PrivateKey::from_file(&text)
        .map_err(|error| Fault::operator(format!("{}: {error}", path.display())))
}

fn wrong(error: ConfigError) -> Fault {
    Fault::operator(error.to_string())
}

fn add(entries: &mut Entries, net: &Net, path: &Path) -> Result<(), Fault> {
    let text = text(path).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => {
                format!("; create the files of a node with: {} init NAME", net.command())
            }
            _ => String::new(),
        };
        Fault::operator(cannot_read(path, &error) + &remedy)
    })?;
    entries.add_file(&path.to_string_lossy(), &text).map_err(wrong)
}

fn text(path: &Path) -> io::Result<String> {
    files::contents(path).map(decode)
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {}", path.display(), reason(error))
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

/// Returns the names of the nodes with a host file. tinc starts without the folder as well.
fn host_names(net: &Net, warnings: &mut Vec<String>) -> Result<Vec<NodeName>, Fault> {
    let folder = net.hosts();
    let names = match files::list(&folder) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            warnings.push(cannot_read(&folder, &error));
            Vec::new()
        }
        Err(error) => return Err(Fault::operator(cannot_read(&folder, &error))),
    };
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
        let loaded = load(&folder.net, &options, &mut SystemNames::default()).unwrap();
        assert_eq!(loaded.name.as_str(), "alice");
        assert_eq!(loaded.server.mode, adit_tinc::config::Mode::Hub);
        assert_eq!(loaded.server.ping_timeout.as_secs(), 8);
        assert_eq!(loaded.server.ping_interval.as_secs(), 9);
        assert_eq!((loaded.server.own.port, loaded.server.own.subnets.len()), (10, 1));
        let hosts: Vec<(&str, u16)> =
            loaded.hosts.iter().map(|(name, host)| (name.as_str(), host.port)).collect();
        assert_eq!(hosts, [("bob", 9)]);
        let warnings = &loaded.warnings;
        assert!(warnings.iter().any(|line| line.contains("bob:2: Mode: ignored")), "{warnings:?}");
    }

    #[test]
    fn a_configuration_that_the_daemon_cannot_follow_is_refused_by_name() {
        let folder = Folder::new();
        std::fs::remove_file(folder.net.server_file()).unwrap();
        let error = load(&folder.net, &[], &mut SystemNames::default()).unwrap_err().to_string();
        let command = format!("adit tinc -c {} init NAME", folder.net.config.display());
        let expected = format!(
            "tinc.conf: No such file or directory; create the files of a node with: {command}"
        );
        assert!(error.ends_with(&expected), "{error}");
        for (line, name) in
            [("DeviceStandby = yes", "DeviceStandby"), ("Device = /dev/tap0", "Device")]
        {
            folder.write("tinc.conf", &format!("Name = alice\n{line}\n"));
            let error =
                load(&folder.net, &[], &mut SystemNames::default()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: not supported")), "{error}");
        }
        for conf in ["Device = /dev/net/tun", "DeviceType = dummy\nDevice = /dev/tap0"] {
            folder.write("tinc.conf", &format!("Name = alice\n{conf}\n"));
            load(&folder.net, &[], &mut SystemNames::default()).unwrap();
        }
    }

    /// Each of these once stopped the daemon, although tinc starts.
    #[test]
    fn a_mistake_in_the_file_of_another_node_is_a_warning() {
        let folder = Folder::new();
        let path = folder.net.config.join("hosts/bob");
        let loaded = || load(&folder.net, &[], &mut SystemNames::default()).unwrap();
        for (content, unusable, warning) in [
            (&b"# B\xfcro\nPort = 8\n"[..], false, None),
            (b"Address = B\xfcro\nPort = 8\n", false, Some("bob:1: Address: ignored: ")),
            (b"Subnet\nPort = 8\n", false, Some("bob:1: Subnet: ignored: ")),
            (
                b"Ed25519PublicKey = xx\nPort = 8\n",
                true,
                Some("bob:1: Ed25519PublicKey: ignored: "),
            ),
            (
                b"Ed25519PublicKeyFile = /nonexistent\nPort = 8\n",
                true,
                Some("bob: Ed25519PublicKeyFile: cannot read /nonexistent: "),
            ),
        ] {
            std::fs::write(&path, content).unwrap();
            let Loaded { hosts, warnings, .. } = loaded();
            let (bob, host) = hosts.first_key_value().unwrap();
            let found = (bob.as_str(), host.port, host.unusable_key);
            assert_eq!(found, ("bob", 8, unusable), "{warning:?}");
            match warning {
                Some(text) => {
                    assert!(warnings.len() == 1 && warnings[0].contains(text), "{warnings:?}");
                }
                None => assert_eq!(warnings, [] as [&str; 0]),
            }
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let Loaded { hosts, warnings, .. } = loaded();
        assert!(hosts.first_key_value().unwrap().1.unusable_key);
        assert!(warnings.len() == 1 && warnings[0].contains("bob: Is a directory"), "{warnings:?}");
    }

    #[test]
    fn a_net_without_host_files_starts() {
        let folder = Folder::new();
        std::fs::remove_dir_all(folder.net.hosts()).unwrap();
        let loaded = load(&folder.net, &[], &mut SystemNames::default()).unwrap();
        assert_eq!((loaded.hosts.len(), loaded.warnings.len()), (0, 2), "{:?}", loaded.warnings);
    }

    #[test]
    fn a_mistake_in_the_own_host_file_skips_its_line() {
        let folder = Folder::new();
        folder.write("hosts/alice", "Subnet\nPort = 8\n");
        let loaded = load(&folder.net, &[], &mut SystemNames::default()).unwrap();
        assert_eq!((loaded.server.own.port, loaded.warnings.len()), (8, 1));
        folder.write("tinc.conf", "Name = alice\nPort\n");
        let error = load(&folder.net, &[], &mut SystemNames::default()).unwrap_err().to_string();
        assert!(error.ends_with("tinc.conf:2: Port: the variable has no value"), "{error}");
    }
}
