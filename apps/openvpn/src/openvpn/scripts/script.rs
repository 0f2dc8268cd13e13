//! The kinds of programs, and what their failures mean.

use adit_linux::plugin::Kind;
use adit_runtime::fault::Fault;
use adit_runtime::programs::{ExitStatus, Finished};

/// A program of a client, of a point-to-point end or of a server's device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// `ipchange`.
    IpChange,
    /// `up`, at the start (or after the device was closed), or at a restart that keeps the device.
    Up(Context),
    /// `route-up`.
    RouteUp,
    /// `route-pre-down`.
    RoutePreDown,
    /// `down`.
    Down(Context),
    /// `dns-updown`, before `up`.
    DnsUp,
    /// `dns-updown`, before the device is closed.
    DnsDown,
}

/// `script_context`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// The device is opened or closed.
    Init,
    /// The device stays open.
    Restart,
}

impl Context {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Restart => "restart",
        }
    }
}

impl Script {
    /// Returns openvpn's name of the program in `script_type`.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::IpChange => "ipchange",
            Self::Up(_) => "up",
            Self::RouteUp => "route-up",
            Self::RoutePreDown => "route-pre-down",
            Self::Down(_) => "down",
            Self::DnsUp => "dns-up",
            Self::DnsDown => "dns-down",
        }
    }

    /// Returns the call of plugins for the same purpose.
    pub(super) fn plugin_call(self) -> Option<Kind> {
        match self {
            Self::IpChange => Some(Kind::IpChange),
            Self::Up(_) => Some(Kind::Up),
            Self::RouteUp => Some(Kind::RouteUp),
            Self::RoutePreDown => Some(Kind::RoutePredown),
            Self::Down(_) => Some(Kind::Down),
            Self::DnsUp | Self::DnsDown => None,
        }
    }

    /// Returns openvpn's name of the option in messages.
    fn option(self) -> &'static str {
        match self {
            Self::IpChange => "--ipchange",
            Self::Up(_) | Self::Down(_) => "--up/--down",
            Self::RouteUp => "--route-up",
            Self::RoutePreDown => "--route-pre-down",
            Self::DnsUp | Self::DnsDown => "--dns-updown",
        }
    }

    /// Logs the program's failure.
    ///
    /// # Errors
    /// The process cannot continue without the program.
    pub(crate) fn judge(self, finished: &Finished) -> Result<(), Fault> {
        if finished.status.is_success() {
            return Ok(());
        }
        let text = match (self, &finished.status) {
            (Self::DnsUp, ExitStatus::Code(code)) => {
                format!("WARNING: dns up command exited with status {code}")
            }
            (Self::DnsDown, ExitStatus::Code(code)) => {
                format!("WARNING: dns down command exited with status {code}")
            }
            (_, status) => {
                format!("WARNING: Failed running command ({}): {status}", self.option())
            }
        };
        // Without `up` the tunnel would not be what the operator wants.
        if matches!(self, Self::Up(_) | Self::Down(_)) {
            return Err(Fault::environment(text));
        }
        tracing::warn!("{text}");
        Ok(())
    }
}
