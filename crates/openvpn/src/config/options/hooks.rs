use std::fmt;
use std::path::PathBuf;

/// A program with its arguments, as a directive names it. It is run without a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// The path as written. A relative path starts at the working directory; there is no search path.
    pub path: String,
    /// The arguments before those that openvpn appends.
    pub args: Vec<String>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// The programs that the configuration names, and the options for when they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// `up`.
    pub up: Option<Program>,
    /// `down`.
    pub down: Option<Program>,
    /// `down-pre`: run `down` before the device is closed.
    pub down_pre: bool,
    /// `up-delay`: open the device once the other end has answered.
    pub up_delay: bool,
    /// `up-restart`: run `up` and `down` also at a restart that keeps the device.
    pub up_restart: bool,
    /// `route-up`.
    pub route_up: Option<Program>,
    /// `route-pre-down`.
    pub route_pre_down: Option<Program>,
    /// `ipchange`.
    pub ip_change: Option<Program>,
    /// `dns-updown COMMAND`: run instead of applying DNS settings, with the privileges of the start.
    pub dns_updown: Option<Program>,
    /// `tls-verify`.
    pub tls_verify: Option<Program>,
    /// `tls-export-cert`: the directory for the certificate that `tls-verify` checks.
    pub export_cert: Option<PathBuf>,
    /// `auth-user-pass-verify`.
    pub auth_user_pass_verify: Option<PasswordProgram>,
    /// `client-connect`.
    pub client_connect: Option<Program>,
    /// `client-disconnect`.
    pub client_disconnect: Option<Program>,
    /// `learn-address`.
    pub learn_address: Option<Program>,
    /// `tls-crypt-v2-verify`.
    pub tls_crypt_v2_verify: Option<Program>,
    /// `client-crresponse`.
    pub client_cr_response: Option<Program>,
    /// `x509-track`: the attributes of certificates in the environment. If there are none, all are set.
    pub tracked: Vec<X509Track>,
    /// `tmp-dir`.
    pub temporary: Option<PathBuf>,
}

/// `auth-user-pass-verify`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordProgram {
    /// The program.
    pub program: Program,
    /// `via-file`: the user name and the password are in a file, not in the environment.
    pub via_file: bool,
}

/// `x509-track`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct X509Track {
    /// The name of the attribute.
    pub attribute: String,
    /// `+`: of each certificate in the chain, not only of the peer's.
    pub whole_chain: bool,
}

impl Hooks {
    /// Returns all programs, each with the directive that names it.
    pub fn programs(&self) -> impl Iterator<Item = (&'static str, &Program)> {
        let password = self.auth_user_pass_verify.as_ref().map(|password| &password.program);
        [
            ("up", self.up.as_ref()),
            ("down", self.down.as_ref()),
            ("route-up", self.route_up.as_ref()),
            ("route-pre-down", self.route_pre_down.as_ref()),
            ("ipchange", self.ip_change.as_ref()),
            ("dns-updown", self.dns_updown.as_ref()),
            ("tls-verify", self.tls_verify.as_ref()),
            ("auth-user-pass-verify", password),
            ("client-connect", self.client_connect.as_ref()),
            ("client-disconnect", self.client_disconnect.as_ref()),
            ("learn-address", self.learn_address.as_ref()),
            ("tls-crypt-v2-verify", self.tls_crypt_v2_verify.as_ref()),
            ("client-crresponse", self.client_cr_response.as_ref()),
        ]
        .into_iter()
        .filter_map(|(directive, program)| Some((directive, program?)))
    }
}
