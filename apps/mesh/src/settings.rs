//! `mesh.toml`: the choices of an operator for one machine.

use std::fs;
use std::io;
use std::num::NonZeroU16;
use std::time::Duration;

use adit_mesh::session::MAX_CHANNELS;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::settings::checked_device;
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
        Ok(Self {
            max_age,
            metrics: raw.metrics,
            port: raw.port.unwrap_or(PORT),
            tcp_port: raw.tcp_port.unwrap_or(TCP_PORT),
            device,
            workers: raw.workers,
            channels: raw.channels,
            port_mapping: raw.port_mapping.unwrap_or(true),
            exit: raw.exit,
            forward: raw.forward.unwrap_or(true),
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
    fn each_worker_has_a_channel_unless_the_settings_say_otherwise() {
        let defaults = load(None).unwrap();
        assert_eq!([1, 2, 16, 64].map(|workers| defaults.channels_of(workers)), [1, 2, 16, 16]);
        let three = load(Some("channels = 3\n")).unwrap();
        assert_eq!([1, 64].map(|workers| three.channels_of(workers)), [3, 3]);
    }
}
