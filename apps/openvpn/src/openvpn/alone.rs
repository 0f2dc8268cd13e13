//! The modes of openvpn that need no tunnel: `--mktun`, `--rmtun`, `--show-gateway`, `--show-engines`,
//! `--show-pkcs11-ids`, `--test-crypto`.

use adit_crypto::block::{OpenBlock, SealBlock};
use adit_crypto::{BlockCipher, Digest, DirectionKey};
use adit_linux::privileges::{find_group, find_user};
use adit_linux::tun::{TunMode, make_persistent, remove_persistent};
use adit_openvpn::config::Source;
use adit_runtime::fault::Fault;
use adit_runtime::netinfo::{Gateway, default_gateways};
use adit_runtime::{log, say};

use super::{key_files, token};

/// The largest packet of `--test-crypto`, as in openvpn.
const LARGEST_TEST: usize = 1768;

/// Carries out a mode that needs no tunnel; `None` if the arguments request none.
pub(super) fn run(args: &[String]) -> Option<Result<(), Fault>> {
    let mode = args.iter().find_map(|arg| {
        let run: fn(&Arguments<'_>) -> Result<(), Fault> = match arg.as_str() {
            "--mktun" => |args| persist(args, true),
            "--rmtun" => |args| persist(args, false),
            "--show-gateway" => show_gateway,
            "--show-engines" => |_| {
                println!("There are no cryptographic engines: AWS-LC is the only library.");
                Ok(())
            },
            "--show-pkcs11-ids" => |args| {
                let option = "--show-pkcs11-ids";
                token::show(args.of(option), args.nth(option, 1) == Some("1"))
            },
            "--test-crypto" => test_crypto,
            _ => return None,
        };
        Some(run)
    })?;
    let style = log::Style::OpenVpn { timestamps: true, machine_readable: false };
    let settings = log::Settings { style, verb: 1, mute: None, target: log::Target::Stdout };
    Some(match log::start(settings) {
        Ok(()) => mode(&Arguments(args)),
        Err(e) => Err(Fault::environment(format!("standard output cannot be written: {e}"))),
    })
}

struct Arguments<'a>(&'a [String]);

impl<'a> Arguments<'a> {
    /// Returns the first argument of an option.
    fn of(&self, option: &str) -> Option<&'a str> {
        self.nth(option, 0)
    }

    /// Returns an argument of an option, counted from 0.
    fn nth(&self, option: &str, number: usize) -> Option<&'a str> {
        let at = self.0.iter().position(|arg| arg == option)?;
        let mut values = self.0.iter().skip(at).skip(1).take_while(|arg| !arg.starts_with("--"));
        values.nth(number).map(String::as_str)
    }
}

/// Creates or removes a persistent device.
fn persist(args: &Arguments<'_>, keep: bool) -> Result<(), Fault> {
    let options = |text: String| Fault::operator(format!("Options error: {text}"));
    let name =
        args.of("--dev").ok_or_else(|| options("You must define TUN/TAP device (--dev)".into()))?;
    let mode = match args.of("--dev-type") {
        Some("tun") => TunMode::Tun,
        Some("tap") => TunMode::Tap,
        Some(other) => return Err(options(format!("dev-type {other}: write tun or tap"))),
        None if name.starts_with("tun") => TunMode::Tun,
        None if name.starts_with("tap") => TunMode::Tap,
        None => return Err(options(format!("{name}: add --dev-type tun, or --dev-type tap"))),
    };
    let unknown = |e: adit_linux::privileges::PrivilegeError| Fault::operator(e.to_string());
    let done = if keep {
        let owner = args.of("--user").map(find_user).transpose().map_err(unknown)?;
        let group = args.of("--group").map(find_group).transpose().map_err(unknown)?;
        let owner = owner.map(|(user, _)| user.as_raw());
        make_persistent(name, mode, owner, group.map(|group| group.as_raw()))
    } else {
        remove_persistent(name, mode)
    };
    let name = done.map_err(|e| Fault::environment(e.to_string()))?;
    say!(1, "TUN/TAP device {name} opened");
    say!(1, "Persist state set to: {}", if keep { "ON" } else { "OFF" });
    Ok(())
}

fn show_gateway(_: &Arguments<'_>) -> Result<(), Fault> {
    let [v4, v6] = default_gateways();
    say!(1, "{}", gateway_line("ROUTE_GATEWAY", "0.0.0.0", v4.as_ref()));
    if v6.is_some() {
        say!(1, "{}", gateway_line("ROUTE6_GATEWAY", "::", v6.as_ref()));
    }
    Ok(())
}

/// Formats a gateway as openvpn does.
fn gateway_line(head: &str, none: &str, gateway: Option<&Gateway>) -> String {
    let Some(Gateway { address, netmask, interface, mac }) = gateway else {
        return format!("{head} {none}");
    };
    let netmask = netmask.map(|mask| format!("/{mask}")).unwrap_or_default();
    let mac = mac.as_ref().map(|mac| format!(" HWADDR={mac}")).unwrap_or_default();
    format!("{head} {address}{netmask} IFACE={interface}{mac}")
}

/// Encrypts and decrypts packets of all sizes with a static key.
fn test_crypto(args: &Arguments<'_>) -> Result<(), Fault> {
    let options = |text: String| Fault::operator(format!("Options error: {text}"));
    let file =
        args.of("--secret").ok_or_else(|| options("You must define key file (--secret)".into()))?;
    let cipher = args.of("--cipher").unwrap_or("BF-CBC");
    let cipher = BlockCipher::from_name(cipher).ok_or_else(|| {
        options(format!("cipher {cipher} is not supported with a static key: --cipher AES-256-CBC"))
    })?;
    let digest = args.of("--auth").unwrap_or("SHA1");
    let digest = Digest::from_name(digest)
        .ok_or_else(|| options(format!("digest {digest} is not supported: --auth SHA256")))?;
    let key = key_files::secret(&Source::File(file.into()))?;
    let mut half = DirectionKey { cipher: [0; 64], hmac: [0; 64] };
    let parts = key.as_bytes().chunks_exact(64);
    [&mut half.cipher, &mut half.hmac].into_iter().zip(parts).for_each(|(to, from)| {
        to.copy_from_slice(from);
    });
    let failed = |what: &str| Fault::ours(format!("crypto self-test: {what}"));
    let seal = SealBlock::new(Some(cipher), Some(digest), &half).map_err(|_| failed("no key"))?;
    let open = OpenBlock::new(Some(cipher), Some(digest), &half).map_err(|_| failed("no key"))?;
    say!(1, "Entering OpenVPN crypto self-test mode.");
    for length in 1..=LARGEST_TEST {
        say!(1, "TESTING ENCRYPT/DECRYPT of packet length={length}");
        let packet: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
        let mut sealed = vec![0; length + seal.overhead()];
        let end = seal.seal(length as u64, &[], &packet, &mut sealed);
        let sealed = end.and_then(|end| sealed.get_mut(..end));
        let sealed = sealed.ok_or_else(|| failed("a packet does not fit"))?;
        let opened = open.open(sealed).map_err(|_| failed("a packet is not authentic"))?;
        if *opened != *packet {
            return Err(failed("a packet changed"));
        }
    }
    say!(1, "OpenVPN crypto self-test mode SUCCEEDED.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_anywhere() {
        let args = ["--dev", "tun7", "--mktun", "--user", "--group", "0"].map(str::to_owned);
        let args = Arguments(&args);
        assert_eq!(args.of("--dev"), Some("tun7"));
        assert_eq!((args.of("--user"), args.of("--group")), (None, Some("0")));
        assert_eq!((args.of("--mktun"), args.of("--rmtun")), (None, None));
        let args = ["--show-pkcs11-ids", "m.so", "1", "--verb", "3"].map(str::to_owned);
        let args = Arguments(&args);
        let at = |number| args.nth("--show-pkcs11-ids", number);
        assert_eq!((at(0), at(1), at(2)), (Some("m.so"), Some("1"), None));
    }

    #[test]
    fn a_gateway_is_shown_in_openvpns_words() {
        let gateway = Gateway {
            address: "192.0.2.1".parse().unwrap(),
            netmask: "255.255.255.0".parse().ok(),
            interface: "eth0".into(),
            mac: Some("02:00:00:00:00:01".into()),
        };
        assert_eq!(
            gateway_line("ROUTE_GATEWAY", "0.0.0.0", Some(&gateway)),
            "ROUTE_GATEWAY 192.0.2.1/255.255.255.0 IFACE=eth0 HWADDR=02:00:00:00:00:01"
        );
        assert_eq!(gateway_line("ROUTE_GATEWAY", "0.0.0.0", None), "ROUTE_GATEWAY 0.0.0.0");
    }

    #[test]
    fn the_self_test_needs_a_key_and_a_cipher_that_exists() {
        let test = |words: &[&str]| {
            let args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            test_crypto(&Arguments(&args)).map_err(|fault| fault.to_string())
        };
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, adit_openvpn::keys::StaticKey::new([7; 256]).to_text().as_bytes())
            .unwrap();
        let key = key.to_str().unwrap();
        assert!(test(&["--test-crypto"]).unwrap_err().contains("--secret"));
        assert!(test(&["--secret", key]).unwrap_err().contains("BF-CBC"));
        let wrong = ["--secret", key, "--cipher", "AES-256-CBC", "--auth", "none"];
        assert!(test(&wrong).unwrap_err().contains("digest none"));
        test(&["--secret", key, "--cipher", "AES-128-CBC", "--auth", "SHA256"]).unwrap();
    }

    #[test]
    fn a_device_needs_a_name_and_a_kind() {
        let persist = |words: &[&str]| {
            let args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            persist(&Arguments(&args), true).map_err(|fault| fault.to_string())
        };
        assert!(persist(&["--mktun"]).unwrap_err().contains("--dev)"));
        assert!(persist(&["--dev", "office"]).unwrap_err().contains("--dev-type"));
        assert!(persist(&["--dev", "x", "--dev-type", "y"]).unwrap_err().contains("dev-type y"));
        let lost = persist(&["--dev", "tun7", "--user", "no-such-user"]).unwrap_err();
        assert!(lost.contains("no-such-user"), "{lost}");
    }
}
