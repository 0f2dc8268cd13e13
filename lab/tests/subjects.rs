//! Every installed subject comes up on a pair and on a star, and carries a ping in each direction.
//!
//! It has its own main function: the sandbox is this program started again, which the default test harness does not
//! support.

use std::process::ExitCode;
use std::time::Instant;

use adit_lab::subject::{Carrier, Subject, Toolchain, TunnelSpec, Variant, Vpn, check, prepare};
use adit_lab::testbed::{LinkMode, Testbed};
use adit_sim::Impairment;
use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::sandbox::{self, Entered, Sandbox};

const SUBJECTS: [&str; 15] = [
    "bare",
    "copy",
    "adit",
    "adit-tcp",
    "adit-tcp/openvpn-tcp",
    "openvpn-tcp/adit-tcp",
    "openvpn",
    "openvpn-tcp",
    "adit-tap",
    "openvpn-tap",
    "adit-filter",
    "tinc",
    "tinc-1.1",
    "nebula",
    "wireguard-go",
];

/// The subjects whose programs only `scripts/lab-deps.sh` fetches, into private roots. A run of all checks counts as
/// complete even without them.
const FETCHED_FOR_THE_LAB: [&str; 2] = ["tinc-1.1", "nebula"];

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        adit_testbed::skip::skip("subjects", adit_testbed::skip::NEEDS_ROOT);
        return ExitCode::SUCCESS;
    }
    let subjects = subjects();
    // Outside the sandbox there may be a network, which a build needs.
    let done =
        prepare(&subjects).and_then(|_| sandbox::enter()).and_then(|entered| match entered {
            Entered::Ended(code) => Ok(code),
            Entered::Inside(sandbox) => run(&sandbox, &subjects).map(|()| ExitCode::SUCCESS),
        });
    match done {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("subjects: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the subjects, with those revisions of adit that the arguments name, as `adit@HEAD~1`.
fn subjects() -> Vec<Subject> {
    let named = std::env::args().filter(|argument| argument.starts_with("adit@"));
    let named: Vec<String> =
        named.filter_map(|name| Some(name.split('/').next()?.to_owned())).collect();
    let known = SUBJECTS.iter().map(|name| name.parse().expect("a subject's name"));
    known.chain(named.iter().filter_map(|name| name.parse().ok())).collect()
}

/// Runs the cases whose names contain one of the arguments, or all without arguments. `star100` takes long and is run
/// only when named: `cargo test -p adit-lab --test subjects -- adit/star100`.
fn run(sandbox: &Sandbox, subjects: &[Subject]) -> Result<()> {
    let toolchain = Toolchain::new(sandbox, subjects)?;
    refuses(&toolchain)?;
    for subject in subjects {
        match toolchain.available(subject) {
            Ok(version) => println!("{subject}: {version}"),
            Err(why) if FETCHED_FOR_THE_LAB.contains(&subject.to_string().as_str()) => {
                println!("{subject}: not part of this run: {why}");
            }
            Err(why) => adit_testbed::skip::skip(&subject.to_string(), &why),
        }
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let named = |name: &str| wanted.iter().any(|part| name.contains(part));
    // Most of the time is spent waiting, so all places are tried at once.
    std::thread::scope(|scope| {
        let places = PLACES.map(|place| {
            let cases: Vec<(String, &Subject)> = subjects
                .iter()
                .filter(|subject| toolchain.available(subject).is_ok())
                .map(|subject| (format!("{subject}/{}", place.name), subject))
                .filter(|(name, _)| named(name) || wanted.is_empty() && place.name != "star100")
                .collect();
            let toolchain = &toolchain;
            scope.spawn(move || place.run(toolchain, &cases))
        });
        places.into_iter().try_for_each(|place| {
            place.join().unwrap_or_else(|_| Err("a place's thread panicked".into()))
        })
    })
}

/// A testbed and the specification of the tunnels on it.
struct Place {
    name: &'static str,
    testbed: Kind,
    outer_v6: bool,
    inner_mtu: Option<u32>,
}

enum Kind {
    Pair,
    Line,
    Star(u16),
}

const PLACES: [Place; 6] = [
    Place { name: "pair", testbed: Kind::Pair, outer_v6: false, inner_mtu: None },
    Place { name: "line", testbed: Kind::Line, outer_v6: false, inner_mtu: None },
    Place { name: "star", testbed: Kind::Star(3), outer_v6: false, inner_mtu: None },
    Place { name: "star6", testbed: Kind::Star(3), outer_v6: true, inner_mtu: None },
    Place { name: "large", testbed: Kind::Pair, outer_v6: false, inner_mtu: Some(8900) },
    Place { name: "star100", testbed: Kind::Star(100), outer_v6: false, inner_mtu: None },
];

impl Place {
    fn run(&self, toolchain: &Toolchain, cases: &[(String, &Subject)]) -> Result<()> {
        if cases.is_empty() {
            return Ok(());
        }
        let testbed = match self.testbed {
            Kind::Pair => Testbed::pair(LinkMode::Offload),
            Kind::Line => Testbed::line([Impairment::default(), Impairment::default()], 1),
            Kind::Star(clients) => Testbed::star(clients, LinkMode::Wire),
        }
        .context(self.name)?;
        let (outer_v6, inner_mtu) = (self.outer_v6, self.inner_mtu);
        let spec = TunnelSpec { outer_v6, inner_mtu, ..TunnelSpec::default() };
        for (name, subject) in cases {
            let begun = Instant::now();
            check(toolchain, &testbed, subject, &spec).context(name)?;
            println!("{name}: ok, {:.1} s", begun.elapsed().as_secs_f32());
        }
        let unknown = TunnelSpec { cipher: "NO-SUCH-CIPHER".to_owned(), ..TunnelSpec::default() };
        for (name, subject) in cases.iter().filter(|(_, subject)| chooses_cipher(subject)) {
            let refused = check(toolchain, &testbed, subject, &unknown).err();
            let why =
                refused.context(format!("{name} came up with a cipher that does not exist"))?;
            if !why.0.contains("NO-SUCH-CIPHER") {
                return Err(Failure(format!("{name} does not say what is wrong: {why}")));
            }
        }
        Ok(())
    }
}

fn chooses_cipher(subject: &Subject) -> bool {
    matches!(subject, Subject::Vpn(Vpn { carrier: Carrier::Udp | Carrier::Tcp, server, client, variant })
        if server == client && matches!(variant, Variant::Default | Variant::Revision(_)))
}

/// A subject that cannot be measured is reported by name, and starting it fails.
fn refuses(toolchain: &Toolchain) -> Result<()> {
    let unknown = "adit@no-such-revision".parse::<Subject>().map_err(Failure)?;
    toolchain.available(&unknown).err().context("an unknown revision is said to be available")?;
    Ok(())
}
