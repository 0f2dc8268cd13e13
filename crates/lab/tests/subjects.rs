//! Every subject that is installed here comes up on a pair and on a star, and carries a ping each way.
//!
//! An own main function: the private world is this program started again, which the usual harness would not survive.

use std::process::ExitCode;
use std::time::Instant;

use adit_interop::failure::{Context, Failure, Result};
use adit_interop::world::{self, Entered, World};
use adit_lab::bed::{Bed, LinkMode};
use adit_lab::subject::{Kit, Subject, TunnelSpec, check, prepare};

const SUBJECTS: [Subject; 7] = [
    Subject::Bare,
    Subject::Copy,
    Subject::Adit(None),
    Subject::Openvpn,
    Subject::OpenvpnTcp,
    Subject::Tinc,
    Subject::WireguardGo,
];

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("subjects: SKIPPED: namespaces need root");
        return ExitCode::SUCCESS;
    }
    let subjects = subjects();
    // Outside of the world there may be a network, which a build needs.
    let done = prepare(&subjects).and_then(|_| world::enter()).and_then(|entered| match entered {
        Entered::Ended(code) => Ok(code),
        Entered::Inside(world) => run(&world, &subjects).map(|()| ExitCode::SUCCESS),
    });
    match done {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("subjects: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// With those revisions of adit that the arguments name, as `adit@HEAD~1`.
fn subjects() -> Vec<Subject> {
    let named = std::env::args().filter(|argument| argument.starts_with("adit@"));
    let named = named.filter_map(|name| name.split('/').next().and_then(|name| name.parse().ok()));
    SUBJECTS.into_iter().chain(named).collect()
}

/// Arguments narrow it down to the cases whose names hold one of them. `star100` takes long and is run only when named:
/// `cargo test -p adit-lab --test subjects -- adit/star100`.
fn run(world: &World, subjects: &[Subject]) -> Result<()> {
    let kit = Kit::new(world, subjects)?;
    refuses(&kit)?;
    for subject in subjects {
        match kit.available(subject) {
            Ok(version) => println!("{subject}: {version}"),
            Err(why) => eprintln!("{subject}: SKIPPED: {why}"),
        }
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let named = |name: &str| wanted.iter().any(|part| name.contains(part));
    // Most of the time is spent on waiting, so that all places may as well be tried at once.
    std::thread::scope(|scope| {
        let places = PLACES.map(|place| {
            let cases: Vec<(String, &Subject)> = subjects
                .iter()
                .filter(|subject| kit.available(subject).is_ok())
                .map(|subject| (format!("{subject}/{}", place.name), subject))
                .filter(|(name, _)| named(name) || wanted.is_empty() && place.name != "star100")
                .collect();
            let kit = &kit;
            scope.spawn(move || place.run(kit, &cases))
        });
        places.into_iter().try_for_each(|place| {
            place.join().unwrap_or_else(|_| Err("a place's thread panicked".into()))
        })
    })
}

/// A bed and how the tunnels on it are to be.
struct Place {
    name: &'static str,
    /// At a switch, if this is given.
    clients: Option<u16>,
    mode: LinkMode,
    outer_v6: bool,
}

const PLACES: [Place; 4] = [
    Place { name: "pair", clients: None, mode: LinkMode::Offload, outer_v6: false },
    Place { name: "star", clients: Some(3), mode: LinkMode::Wire, outer_v6: false },
    Place { name: "star6", clients: Some(3), mode: LinkMode::WireGro, outer_v6: true },
    Place { name: "star100", clients: Some(100), mode: LinkMode::Offload, outer_v6: false },
];

impl Place {
    fn run(&self, kit: &Kit, cases: &[(String, &Subject)]) -> Result<()> {
        if cases.is_empty() {
            return Ok(());
        }
        let (mode, outer_v6) = (self.mode, self.outer_v6);
        let bed = match self.clients {
            None => Bed::pair(mode),
            Some(clients) => Bed::star(clients, mode),
        }
        .context(self.name)?;
        let spec = TunnelSpec { outer_v6, ..TunnelSpec::default() };
        for (name, subject) in cases {
            let begun = Instant::now();
            check(kit, &bed, subject, &spec).context(name)?;
            println!("{name}: ok, {:.1} s", begun.elapsed().as_secs_f32());
        }
        Ok(())
    }
}

/// What cannot be measured is said by name, and starting it fails.
fn refuses(kit: &Kit) -> Result<()> {
    let why = kit.available(&Subject::AditTcp).err().context("adit-tcp is said to be available")?;
    if !why.contains("UDP only") {
        return Err(Failure(format!("adit-tcp is refused for another reason: {why}")));
    }
    let unknown = Subject::Adit(Some("no-such-revision".into()));
    kit.available(&unknown).err().context("an unknown revision is said to be available")?;
    Ok(())
}
