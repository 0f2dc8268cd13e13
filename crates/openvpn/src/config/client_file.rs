//! Per-client files (`client-config-dir`), each with settings for one client in addition to those for all clients.

use adit_engine::auth;
use ipnet::{IpNet, Ipv4Net};

use super::ConfigError;
use super::directives::{self, Spec, Support};
use super::push_filter::PushRules;
use super::reader::{self, Directive};

/// The maximum size of a file in bytes.
pub(super) const MAX_CLIENT_FILE: usize = 64 << 10;

/// The maximum number of warnings for one file.
const MAX_WARNINGS: usize = 8;

/// The rules that the server's configuration sets for its clients' files.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    /// `max-routes-per-client`.
    pub max_routes: u32,
    /// `ifconfig-push-constraint`: the network that must contain the addresses of `ifconfig-push`.
    pub constraint: Option<Ipv4Net>,
    /// The options that may be pushed.
    pub push: PushRules,
    /// Whether the server sorts frames into VLANs (`vlan-tagging`).
    pub vlans: bool,
}

impl Default for ClientRules {
    fn default() -> Self {
        Self { max_routes: 256, constraint: None, push: PushRules::default(), vlans: false }
    }
}

/// One client's file.
#[derive(Clone, Debug, Default)]
pub struct ClientFile {
    /// `disable`: this client may not connect.
    pub disabled: bool,
    /// The client's parameters.
    pub grant: auth::ClientParams,
}

/// Returns the name of a client's file in the directory, or `None` if a client of this name cannot have a file.
///
/// Letters and digits of any script and a few punctuation marks are allowed. Characters that could lead out of the
/// directory, hide the file or be special in a shell are not. Names with other characters are not mapped to allowed
/// ones, because two clients could then share a file.
pub fn client_file_name(common_name: &str) -> Option<&str> {
    let allowed = |c: char| c.is_alphanumeric() || " _-.@+=,:()~'&".contains(c);
    let plain = !common_name.is_empty()
        && common_name.len() <= 255
        && !common_name.starts_with('.')
        && common_name.chars().all(allowed);
    plain.then_some(common_name)
}

impl ClientFile {
    /// Parses the contents of a client's file; `name` is for messages.
    ///
    /// # Errors
    /// Returns the first error, with its file and line.
    pub fn parse(name: &str, bytes: &[u8], rules: &ClientRules) -> Result<Self, ConfigError> {
        let mut raw = RawClientFile::new(*rules);
        for directive in reader::read_alone(name, bytes)? {
            raw.take(&directive)?;
        }
        if let Some((location, excess)) = raw.excess() {
            return Err(location.error(
                format!(
                    "there are {excess} networks and at most {} are taken",
                    raw.rules.max_routes
                ),
                "remove some, or raise max-routes-per-client",
            ));
        }
        raw.file.grant.warnings = raw.warnings.into();
        Ok(raw.file)
    }
}

/// A file while it is being read.
pub(super) struct RawClientFile {
    pub(super) file: ClientFile,
    pub(super) rules: ClientRules,
    warnings: Vec<String>,
    last_route: Option<Directive>,
}

impl RawClientFile {
    fn new(rules: ClientRules) -> Self {
        Self { file: ClientFile::default(), rules, warnings: Vec::new(), last_route: None }
    }

    fn take(&mut self, d: &Directive) -> Result<(), ConfigError> {
        match directives::find(&d.name) {
            Some(spec @ Spec { in_client_file: Some(take), .. }) => {
                d.check_shape(spec)?;
                take(self, d)
            }
            // openvpn may read the same file, so accept its directives.
            Some(Spec { support: Support::NoEffect(why), .. }) => {
                self.warn(d, &format!("{} has no effect: {why}", d.name));
                Ok(())
            }
            _ if d.optional => Ok(()),
            _ => Err(d.error("it has no place in the file of a single client", allowed())),
        }
    }

    pub(super) fn warn(&mut self, d: &Directive, text: &str) {
        let warning = format!("{}:{}: {text}", d.location.file, d.location.line);
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning);
        }
    }

    pub(super) fn route(&mut self, d: &Directive, net: IpNet) {
        if !self.file.grant.iroutes.contains(&net) {
            self.file.grant.iroutes.push(net);
            self.last_route = Some(d.clone());
        }
    }

    fn excess(&self) -> Option<(&Directive, usize)> {
        let count = self.file.grant.iroutes.len();
        let most = usize::try_from(self.rules.max_routes).unwrap_or(usize::MAX);
        Some((self.last_route.as_ref()?, count)).filter(|_| count > most)
    }
}

/// Returns the directives that such a file may have.
fn allowed() -> String {
    let names: Vec<_> = directives::in_client_file().map(|spec| spec.name).collect();
    format!("a client's file may have {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use adit_engine::auth::Inactive;

    fn parse(text: &str) -> Result<ClientFile, ConfigError> {
        ClientFile::parse("ccd/alice", text.as_bytes(), &ClientRules::default())
    }

    #[test]
    fn everything_that_a_file_may_have() {
        let file = parse(
            "# alice\r\nifconfig-push 10.8.0.77 255.255.255.0\nifconfig-ipv6-push fd00::77/64 fd00::1\n\
             iroute 10.50.1.0 255.255.255.0\niroute 10.50.2.9\niroute-ipv6 fd50::/32\n\
             filter-group staff ops\nfilter-group staff\n\
             inactive 600 5000\nsession-timeout 86400\n\
             push \"route 10.1.0.0 255.255.0.0\"\npush-remove route-gateway\nmax-routes-per-client 3\n\
             setenv opt something-new\n",
        )
        .unwrap();
        let grant = &file.grant;
        let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        assert_eq!(grant.ifconfig4, Some((ip("10.8.0.77"), ip("255.255.255.0"))));
        assert_eq!(grant.ifconfig6, Some(("fd00::77/64".parse().unwrap(), "fd00::1".parse().ok())));
        let nets: Vec<_> = grant.iroutes.iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.50.1.0/24", "10.50.2.9/32", "fd50::/32"]);
        assert_eq!((grant.push.len(), grant.push_remove.len()), (1, 1));
        assert_eq!(grant.groups, ["staff", "ops"]);
        assert!(!grant.push_reset && !file.disabled);
        let rule = Inactive { after: Duration::from_secs(600), bytes: 5000 };
        assert_eq!(grant.inactive, Some(rule));
        assert_eq!(grant.session_timeout, Some(Duration::from_secs(86_400)));
        // The settings for all clients do not apply to this client.
        let off = parse("inactive 0\nsession-timeout 0\n").unwrap().grant;
        assert!(off.inactive.is_some_and(|rule| rule.after.is_zero()));
        assert_eq!(off.session_timeout, Some(Duration::ZERO));
        assert!(parse("disable\n").unwrap().disabled);
        assert!(parse("").unwrap().grant.push.is_empty());
    }

    #[test]
    fn a_vlan_needs_a_server_with_vlans() {
        let of = |vlans| {
            let rules = ClientRules { vlans, ..ClientRules::default() };
            let grant = ClientFile::parse("ccd/alice", b"vlan-pvid 10\n", &rules).unwrap().grant;
            (grant.vlan.map(|vlan| vlan.get()), grant.warnings.join(" "))
        };
        assert_eq!(of(true), (Some(10), String::new()));
        let (_, warning) = of(false);
        assert!(warning.starts_with("ccd/alice:1: vlan-pvid has no effect"), "{warning}");
    }

    #[test]
    fn reset_and_remove_count_for_what_stands_before_them() {
        let grant =
            parse("push \"route 10.1.0.0\"\npush-reset\npush \"route 10.2.0.0\"\n").unwrap().grant;
        assert!(grant.push_reset);
        assert_eq!(grant.push, ["route 10.2.0.0"]);
        let grant = parse("push \"route 10.1.0.0\"\npush-remove route\npush \"route 10.2.0.0\"\n")
            .unwrap()
            .grant;
        assert_eq!(grant.push, ["route 10.2.0.0"]);
    }

    #[test]
    fn anything_else_is_refused_by_name_with_file_and_line() {
        for (line, word) in [
            ("config other", "no place"),
            ("up /bin/sh", "no place"),
            ("verb 3", "no place"),
            ("cipher none", "no place"),
            ("gibberish", "no place"),
            ("<ca>\nx\n</ca>", "no place"),
            ("<connection>\nremote a\n</connection>", "no place"),
            ("cd /", "no place"),
            ("ifconfig-push 10.8.0.5", "NETMASK"),
            ("ifconfig-push 10.8.0.5 255.255.255.0 1.2.3.4", "alias"),
            ("ifconfig-push host 255.255.255.0", "IPv4"),
            ("ifconfig-ipv6-push fd00::zz/64", "IPv6"),
            ("iroute 10.0.0.0 255.0.255.0", "netmask"),
            ("iroute-ipv6 fd00::/129", "IPv6"),
            ("push", "OPTION"),
            ("push \"route 10.1.0.0,route 10.2.0.0\"", "comma"),
            ("push-remove \"\"", "everything"),
            ("disable now", "no argument"),
            ("filter-group", "NAME"),
            ("filter-group a/b", "letters"),
            ("filter-group \"\"", "letters"),
            ("max-routes-per-client 0", "1 to"),
            ("vlan-pvid 4095", "1 to 4094"),
        ] {
            let error = parse(&format!("# first\n{line}\n")).unwrap_err();
            assert!(error.to_string().contains(word), "{line}: {error}");
            assert_eq!(
                (error.file.as_str(), error.line),
                ("ccd/alice", if line.starts_with("<conn") { 3 } else { 2 }),
                "{line}"
            );
        }
        assert!(
            ClientFile::parse("x", &vec![b'#'; MAX_CLIENT_FILE + 1], &ClientRules::default())
                .is_err()
        );
        assert!(ClientFile::parse("x", b"disable\0", &ClientRules::default()).is_err());
    }

    #[test]
    fn networks_are_counted_and_addresses_constrained() {
        let many: String = (0..300)
            .map(|n| format!("iroute 10.{}.{}.0 255.255.255.0\n", n / 256, n % 256))
            .collect();
        let error = parse(&many).unwrap_err();
        assert_eq!((error.line, error.directive.as_str()), (300, "iroute"));
        assert!(parse(&format!("{many}max-routes-per-client 300\n")).is_ok());
        let rules =
            ClientRules { constraint: "10.8.0.0/24".parse().ok(), ..ClientRules::default() };
        let constrained = |text: &str| ClientFile::parse("a", text.as_bytes(), &rules);
        assert!(constrained("ifconfig-push 10.8.0.5 255.255.255.0").is_ok());
        let error = constrained("ifconfig-push 10.9.0.5 255.255.255.0").unwrap_err();
        assert!(error.problem.contains("ifconfig-push-constraint"), "{error}");
    }

    #[test]
    fn names_that_lead_elsewhere_have_no_file() {
        for name in [
            "alice",
            "DEFAULT",
            "John Doe",
            "ali@example.org",
            "Jürgen",
            "a.b-c_d",
            "O'Brien",
            "a..b",
        ] {
            assert_eq!(client_file_name(name), Some(name));
        }
        for name in [
            "",
            ".",
            "..",
            "../passwd",
            "a/b",
            "/etc/passwd",
            "a\0b",
            ".hidden",
            "a\nb",
            "a\\b",
            "*",
            "a;b",
            "`x`",
            "$x",
            "a|b",
            "<a>",
        ] {
            assert_eq!(client_file_name(name), None, "{name:?}");
        }
    }

    proptest! {
        /// CVE-2026-84790, CVE-2024-5594: no name in a certificate leads to a file outside the directory.
        #[test]
        fn a_name_never_leaves_the_directory(name in "\\PC{0,40}|[./\\\\\\x00a]{0,12}|(\\.\\./){1,3}[a-z]*") {
            let folder = std::path::Path::new("/ccd");
            if let Some(file) = client_file_name(&name) {
                let path = folder.join(file);
                prop_assert_eq!(path.parent(), Some(folder));
                prop_assert_eq!(path.components().count(), 3);
                prop_assert!(!file.contains(['\0', '/', '\n']) && !file.starts_with('.'));
            }
        }

        #[test]
        fn no_file_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ClientFile::parse("x", &bytes, &ClientRules::default());
        }

        #[test]
        fn no_arguments_make_a_directive_panic(
            name in "vlan-pvid|ifconfig-push|ifconfig-ipv6-push|iroute|iroute-ipv6|push|push-remove|disable|max-routes-per-client|filter-group",
            args in "( ([0-9]{1,12}|10\\.8\\.0\\.[0-9]{1,3}|255\\.255\\.255\\.252|fd00::/[0-9]{1,3}|[a-z!=\"\\\\]{0,9})){0,4}",
        ) {
            let _ = parse(&format!("{name}{args}\n"));
        }
    }
}
