//! Decides which options a server may push to its clients, from its own configuration or from the file of a single
//! client.

use crate::data_format::Framing;
use crate::negotiate::compression;
use crate::server::Topology;

/// The length of the longest option that fits into a PUSH_REPLY.
const MAX_PUSH: usize = 980;

/// The server's own settings, with which a pushed option must be consistent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PushRules {
    /// The packet framing.
    pub framing: Framing,
    /// The topology of IPv4 addresses.
    pub topology: Topology,
    /// Whether each client gets its own IPv6 address.
    pub ipv6: bool,
}

impl Default for PushRules {
    fn default() -> Self {
        Self { framing: Framing::None, topology: Topology::Subnet, ipv6: false }
    }
}

/// The outcome for an option that does not prevent the server from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The option is pushed.
    Kept,
    /// The server pushes the option anyway.
    Implied,
    /// The option is not pushed; the warning gives the reason.
    LeftOut(String),
}

impl PushRules {
    /// Evaluates an option. An error consists of the problem and the remedy.
    pub(super) fn evaluate(&self, option: &str) -> Result<Pushed, (String, String)> {
        let mut words = option.split_whitespace();
        let (word, rest) = (words.next().unwrap_or_default(), words.next());
        // Commas and control characters are an error in every option.
        check_text(option)?;
        if compression(word, rest.unwrap_or_default()) == Some((self.framing, true)) {
            // The configuration sets the framing without compression, which is pushed instead.
            return Ok(Pushed::LeftOut(format!(
                "push \"{option}\": clients must frame packets and compress none"
            )));
        }
        if let Some(why) = self.overridden(word, rest).or_else(|| self.other_framing(word, rest)) {
            return Ok(Pushed::LeftOut(format!("push \"{option}\" has no effect: {why}")));
        }
        Ok(if word == "topology" { Pushed::Implied } else { Pushed::Kept })
    }

    /// Evaluates an option for a single client. A program may give its client a token, which would let everyone in if all
    /// clients got it.
    pub(super) fn evaluate_for_one(&self, option: &str) -> Result<Pushed, (String, String)> {
        let word = option.split_whitespace().next().unwrap_or_default();
        if matches!(word, "auth-token" | "auth-token-user") {
            check_text(option)?;
            return Ok(Pushed::Kept);
        }
        self.evaluate(option)
    }

    /// Returns the reason why a pushed option has no effect on clients, if a later option for the individual client
    /// overrides it. It does so in openvpn too.
    fn overridden(&self, word: &str, rest: Option<&str>) -> Option<&'static str> {
        Some(match word {
            "ifconfig" => {
                "each client gets an address of its own; a client's file may have ifconfig-push"
            }
            "ifconfig-ipv6" if self.ipv6 => "each client gets an IPv6 address of its own",
            "topology" if rest != Some(self.topology.name()) => {
                "clients get the topology that the server itself has"
            }
            "fragment" => {
                "clients do not take it from a server; write it into their configurations"
            }
            "cipher" | "peer-id" | "key-derivation" | "protocol-flags" => {
                "it is negotiated with each client"
            }
            "push-continuation" => "long lists of options are split without it",
            "auth-token" | "auth-token-user" => {
                "all clients would have the same token; client-connect may push one to each"
            }
            _ => return None,
        })
    }

    /// Returns the reason why an option about the framing of packets is left out. The client would frame its packets in
    /// another way than the server, and neither would understand the other.
    fn other_framing(&self, word: &str, rest: Option<&str>) -> Option<&'static str> {
        if !matches!(word, "comp-lzo" | "compress") {
            return None;
        }
        match compression(word, rest.unwrap_or_default()) {
            Some((pushed, false)) if pushed == self.framing => None,
            Some((_, false)) => {
                Some("the server itself is not set so; add the option to its configuration too")
            }
            _ => Some("packets are not compressed: it gives away their content (VORACLE)"),
        }
    }
}

fn check_text(option: &str) -> Result<(), (String, String)> {
    if option.contains(',') {
        return Err((
            "there is a comma in the option".into(),
            "commas separate options on the wire; write one push line for each".into(),
        ));
    }
    if option.chars().any(char::is_control) {
        return Err(("there is a control character in the option".into(), "remove it".into()));
    }
    if option.len() > MAX_PUSH {
        return Err((
            format!("an option of {} bytes is too long", option.len()),
            format!("write at most {MAX_PUSH} bytes"),
        ));
    }
    Ok(())
}
