//! `mesh.toml`: the choices of an operator for one machine.

use std::fs;
use std::io;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_mesh::session::MAX_CHANNELS;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::settings::checked_device;
use ipnet::IpNet;
use serde::Deserialize;

use super::Paths;

/// The UDP port of a node, unless the settings have another.
pub(crate) const PORT: u16 = 1194;

/// The UDP port for OpenVPN apps, unless the settings have another.
pub(crate) const OPENVPN_PORT: u16 = 1195;

/// The TCP port for incoming streams, unless the settings have another.
const TCP_PORT: u16 = 443;

/// The minimum `max-age`. Connected members compare their rosters every five minutes, so a shorter limit would cut off healthy members.
const MIN_MAX_AGE: Duration = Duration::from_secs(3600);

/// The settings of a node on this machine. Without a file, all of them have their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The UDP port, or 0 for any free one.
    pub port: u16,
    /// The TCP port at which relays and the first node accept nodes without UDP, or 0 for none.
    pub tcp_port: u16,
    /// The name of the TUN device.
    pub device: String,
    /// The number of threads that move packets, or `None` for as many as a server has.
    pub workers: Option<u16>,
    /// The number of data channels offered to each peer, or `None` for one per worker, at most [`MAX_CHANNELS`].
    pub channels: Option<usize>,
    /// Whether to map the port on the router, with PCP or NAT-PMP.
    pub port_mapping: bool,
    /// The name of the gateway through which this machine reaches the internet, or `None` to reach it outside the mesh.
    pub exit: Option<String>,
    /// Whether this machine forwards for the mesh, if the mesh made it a gateway or put networks behind it.
    pub forward: bool,
    /// Whether to translate the source of packets from the mesh to this machine's address in the networks behind it.
    pub masquerade: bool,
    /// The UDP port for OpenVPN apps, if the mesh made this node a gateway for them.
    pub openvpn_port: u16,
    /// The name or address at which OpenVPN apps reach this machine, or `None` for the node's known addresses.
    pub openvpn_host: Option<String>,
    /// The time without a comparison of the roster with another member after which a peer loses its routes, or `None`
    /// for never.
    pub max_age: Option<Duration>,
    /// Where metrics are served.
    pub metrics: Option<MetricsConfig>,
    /// The tinc net in which this node is a guest.
    pub tinc: Option<TincSettings>,
}

/// The tinc net in which a node is a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TincSettings {
    /// The name of the net, which is that of its directory.
    pub net: String,
    /// Its configuration directory.
    pub directory: PathBuf,
    /// The networks of the net that the mesh may reach.
    pub networks: Vec<IpNet>,
}

/// The section `[tinc]` in its stored form.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawTinc {
    net: Option<String>,
    directory: Option<PathBuf>,
    #[serde(default)]
    networks: Vec<IpNet>,
}

/// The file in its stored form.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Raw {
    port: Option<u16>,
    tcp_port: Option<u16>,
    device: Option<String>,
    workers: Option<u16>,
    channels: Option<usize>,
    port_mapping: Option<bool>,
    exit: Option<String>,
    forward: Option<bool>,
    masquerade: Option<bool>,
    openvpn_port: Option<NonZeroU16>,
    openvpn_host: Option<String>,
    max_age: Option<String>,
    metrics: Option<MetricsConfig>,
    tinc: Option<RawTinc>,
}

impl Settings {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// A line is wrong; the fault names it.
    pub fn load(paths: &Paths) -> Result<Self, Fault> {
        let path = paths.settings_file();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| file_fault("cannot read", &path, &error))?,
        };
        let raw: Raw =
            toml::from_str(&text).map_err(|error| Fault::in_toml(&path, &text, &error))?;
        let wrong = |key: &str, message: String| {
            let line = text.lines().position(|line| line.trim_start().starts_with(key));
            Fault::in_line(&path, line.map_or(1, |line| line.saturating_add(1)), &message)
        };
        let device = match raw.device {
            Some(device) => checked_device(&device).map_err(|error| wrong("device", error))?,
            None => paths.device(),
        };
        let max_age = raw.max_age.map(|text| max_age(&text)).transpose();
        let max_age = max_age.map_err(|error| wrong("max-age", error))?;
        if let Some(channels) = raw.channels
            && !(1..=MAX_CHANNELS).contains(&channels)
        {
            let message = format!("{channels} channels: out of range; choose 1 to {MAX_CHANNELS}");
            return Err(wrong("channels", message));
        }
        let forward = raw.forward.unwrap_or(true);
        let tinc = raw.tinc.map(|tinc| tinc_settings(tinc, forward)).transpose();
        let tinc = tinc.map_err(|(key, message)| wrong(key, message))?;
        Ok(Self {
            max_age,
            tinc,
            metrics: raw.metrics,
            port: raw.port.unwrap_or(PORT),
            tcp_port: raw.tcp_port.unwrap_or(TCP_PORT),
            device,
            workers: raw.workers,
            channels: raw.channels,
            port_mapping: raw.port_mapping.unwrap_or(true),
            exit: raw.exit,
            forward,
            masquerade: raw.masquerade.unwrap_or(true),
            openvpn_port: raw.openvpn_port.map_or(OPENVPN_PORT, NonZeroU16::get),
            openvpn_host: raw.openvpn_host,
        })
    }

    /// Returns the number of data channels that a node with this many workers offers to each peer.
    pub(crate) fn channels_of(&self, workers: u16) -> usize {
        self.channels.unwrap_or(usize::from(workers).min(MAX_CHANNELS))
    }
}

/// Checks the section `[tinc]`. An error has the key whose line is wrong.
fn tinc_settings(raw: RawTinc, forward: bool) -> Result<TincSettings, (&'static str, String)> {
    let RawTinc { net, directory, networks } = raw;
    let (net, directory) = match (net, directory) {
        (Some(net), None) => {
            if net.is_empty() || net.contains('/') || net.starts_with('.') {
                let message = format!("net = {net:?}: write the name of a folder in /etc/tinc");
                return Err(("net", message));
            }
            let directory = Path::new("/etc/tinc").join(&net);
            (net, directory)
        }
        (None, Some(directory)) => {
            let name = directory.file_name().and_then(|name| name.to_str());
            let name = name.filter(|name| directory.is_absolute() && !name.starts_with('.'));
            let Some(name) = name.map(str::to_owned) else {
                let message = "directory: write an absolute path, whose last part names the net";
                return Err(("directory", message.into()));
            };
            (name, directory)
        }
        (Some(_), Some(_)) => {
            return Err(("directory", "write either net or directory, not both".into()));
        }
        (None, None) => {
            let message = "[tinc]: name the tinc net: net = \"office\" for /etc/tinc/office, or \
                           directory = \"/path\"";
            return Err(("[tinc]", message.into()));
        }
    };
    if networks.is_empty() || networks.iter().any(|net| net.prefix_len() == 0) {
        let message = "[tinc]: name the networks of the tinc net that the mesh may reach, such as \
                       networks = [\"10.20.0.0/16\"]";
        return Err(("networks", message.into()));
    }
    if !forward {
        let message = "forward = false: a guest in a tinc net forwards: leave out one of the two";
        return Err(("forward", message.into()));
    }
    let networks = networks.iter().map(IpNet::trunc).collect();
    Ok(TincSettings { net, directory, networks })
}

/// Reads a time like `24h`.
fn max_age(text: &str) -> Result<Duration, String> {
    let unit = |unit| match unit {
        'h' => Some(3600),
        'd' => Some(86_400),
        _ => None,
    };
    let time = text.char_indices().next_back().and_then(|(at, last)| {
        let number: u32 = text.get(..at)?.parse().ok()?;
        number.checked_mul(unit(last)?).map(|seconds| Duration::from_secs(seconds.into()))
    });
    time.filter(|time| *time >= MIN_MAX_AGE).ok_or_else(|| {
        format!("max-age = {text:?}: write a time of at least an hour, like \"24h\" or \"7d\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: Option<&str>) -> Result<Settings, Fault> {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        paths.create().unwrap();
        if let Some(text) = text {
            fs::write(paths.settings_file(), text).unwrap();
        }
        Settings::load(&paths)
    }

    #[test]
    fn without_a_file_all_settings_have_their_defaults() {
        let defaults = Settings {
            port: 1194,
            tcp_port: 443,
            device: "mesh-home".into(),
            workers: None,
            channels: None,
            port_mapping: true,
            exit: None,
            forward: true,
            masquerade: true,
            openvpn_port: 1195,
            openvpn_host: None,
            max_age: None,
            metrics: None,
            tinc: None,
        };
        assert_eq!(load(None).unwrap(), defaults);
        assert_eq!(load(Some("")).unwrap(), defaults);
    }

    #[test]
    fn each_setting_is_read_and_a_wrong_one_is_named_with_its_line() {
        let text = "port = 7\ntcp-port = 0\ndevice = \"m0\"\nworkers = 2\nchannels = 3\nport-mapping = false\nexit = \"hub\"\n\
                    forward = false\nmasquerade = false\nopenvpn-port = 8\nopenvpn-host = \"vpn.example.org\"\n\
                    max-age = \"24h\"\nmetrics = \"127.0.0.1:9190\"\n";
        let expected = Settings {
            port: 7,
            tcp_port: 0,
            device: "m0".into(),
            workers: Some(2),
            channels: Some(3),
            port_mapping: false,
            exit: Some("hub".into()),
            forward: false,
            masquerade: false,
            openvpn_port: 8,
            openvpn_host: Some("vpn.example.org".into()),
            max_age: Some(Duration::from_secs(86_400)),
            metrics: Some("127.0.0.1:9190".parse().unwrap()),
            tinc: None,
        };
        assert_eq!(load(Some(text)).unwrap(), expected);
        let wrong = load(Some("port = 7\nprot = 8\n")).unwrap_err().to_string();
        assert!(wrong.contains("mesh.toml line 2") && wrong.contains("prot"), "{wrong}");
        for channels in [0, 17] {
            let text = format!("port = 7\nchannels = {channels}\n");
            let wrong = load(Some(&text)).unwrap_err().to_string();
            assert!(
                wrong.contains("mesh.toml line 2") && wrong.contains("choose 1 to 16"),
                "{wrong}"
            );
        }
        let wrong = load(Some("\ndevice = \"a/b\"\n")).unwrap_err().to_string();
        assert!(wrong.contains("mesh.toml line 2"), "{wrong}");
        for text in ["", "h", "0h", "90", "59m", "24 h", "-1h", "99999999999h", "h24", "24ä"] {
            let wrong = load(Some(&format!("max-age = \"{text}\"\n"))).unwrap_err().to_string();
            assert!(wrong.contains("line 1") && wrong.contains("24h"), "{wrong}");
        }
        assert_eq!(load(Some("max-age = \"7d\"")).unwrap().max_age.unwrap().as_secs(), 604_800);
    }

    #[test]
    fn a_guest_has_a_net_and_its_networks() {
        let tinc = |text: &str| load(Some(&format!("port = 7\n[tinc]\n{text}\n")));
        let expected = TincSettings {
            net: "office".into(),
            directory: "/etc/tinc/office".into(),
            networks: vec!["10.20.0.0/16".parse().unwrap()],
        };
        let read = tinc("net = \"office\"\nnetworks = [\"10.20.1.0/16\"]").unwrap().tinc.unwrap();
        assert_eq!(read, expected);
        let read = tinc("directory = \"/srv/tinc\"\nnetworks = [\"fd00::/8\"]").unwrap();
        assert_eq!(read.tinc.unwrap().net, "tinc");
        let networks = "networks = [\"10.20.0.0/16\"]";
        for (text, line, part) in [
            ("networks = [\"10.20.0.0/16\"]", 2, "name the tinc net"),
            ("net = \"office\"", 1, "name the networks"),
            ("net = \"office\"\nnetworks = [\"0.0.0.0/0\"]", 4, "name the networks"),
            (&format!("net = \"../x\"\n{networks}"), 3, "a folder in /etc/tinc"),
            (&format!("directory = \"x\"\n{networks}"), 3, "absolute"),
            (&format!("net = \"a\"\ndirectory = \"/x\"\n{networks}"), 4, "not both"),
            (&format!("net = \"a\"\nmode = 1\n{networks}"), 4, "mode"),
        ] {
            let wrong = tinc(text).unwrap_err().to_string();
            let line = format!("mesh.toml line {line}");
            assert!(wrong.contains(&line) && wrong.contains(part), "{text}: {wrong}");
        }
        let text = format!("forward = false\n[tinc]\nnet = \"a\"\n{networks}\n");
        let wrong = load(Some(&text)).unwrap_err().to_string();
        assert!(wrong.contains("line 1") && wrong.contains("forward = false"), "{wrong}");
    }

    #[test]
    fn each_worker_has_a_channel_unless_the_settings_say_otherwise() {
        let defaults = load(None).unwrap();
        assert_eq!([1, 2, 16, 64].map(|workers| defaults.channels_of(workers)), [1, 2, 16, 16]);
        let three = load(Some("channels = 3\n")).unwrap();
        assert_eq!([1, 64].map(|workers| three.channels_of(workers)), [3, 3]);
    }
}
