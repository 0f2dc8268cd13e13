//! The verb: one stream through a tunnel, sampled in a trial of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use adit_interop::failure::{Context, Result, ensure};
use adit_interop::world::{self, Entered};

use super::{CALLS, DOT, FLAME, FOLDED, Recording, differential, graphs};
use crate::bed::{Bed, LinkMode};
use crate::subject::{self, Kit, Subject, TunnelSpec};
use crate::work::{Edge, Route, Window, tcp_bulk};

/// Shows where the time goes: a flame graph and a call graph of one TCP stream through a tunnel. Needs root and perf.
///
/// Example: adit-lab profile adit --against adit@HEAD~1
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// What to sample: adit, adit@REVISION, copy, openvpn, ...
    #[arg(default_value = "adit")]
    subject: Subject,
    /// Draw the difference to this too: another subject, or the folder that an earlier call made.
    #[arg(long)]
    against: Option<String>,
    /// How long the stream is sampled, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// What the ends of the cable leave to each other.
    #[arg(long, value_enum, default_value_t = LinkMode::Offload)]
    mode: LinkMode,
    /// Where the graphs go, in a folder by the subject's name.
    #[arg(long, default_value = "profile")]
    out: PathBuf,
}

/// What the difference is to.
enum Against {
    Subject(Subject),
    Folder(PathBuf),
}

impl Against {
    fn parse(text: &str) -> Result<Against> {
        let folder = PathBuf::from(text);
        if folder.join(FOLDED).is_file() {
            return Ok(Against::Folder(folder));
        }
        let subject = text.parse().map_err(|error: String| {
            format!("--against {text}: no folder with {FOLDED}, and {error}")
        });
        Ok(Against::Subject(subject?))
    }
}

/// Samples and draws.
///
/// # Errors
/// No root or no perf, or the subject did not come up.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let against = arguments.against.as_deref().map(Against::parse).transpose()?;
    let mut subjects = vec![arguments.subject.clone()];
    if let Some(Against::Subject(other)) = &against {
        ensure(*other != arguments.subject, || format!("--against {other}: that is the same"))?;
        subjects.push(other.clone());
    }
    // The private world has no network, which a build may need.
    subject::prepare(&subjects)?;
    let world = match world::enter()? {
        Entered::Inside(world) => world,
        Entered::Ended(code) => return Ok(code),
    };
    let kit = Kit::new(&world, &subjects)?;
    let files = world.folder("recordings")?;
    let mut folders = Vec::new();
    for subject in &subjects {
        let folder = arguments.out.join(name(subject));
        let mbps = sample(&kit, subject, arguments, &files.join(name(subject)), &folder)?;
        println!("{subject}: {mbps:.0} Mb/s while sampled: {}", folder.display());
        println!("  {FLAME}, {CALLS}, {DOT}, {FOLDED}");
        folders.push(folder);
    }
    let before = match against {
        Some(Against::Folder(folder)) => Some(folder),
        _ => folders.get(1).cloned(),
    };
    if let (Some(before), Some(after)) = (before, folders.first()) {
        let out = after.join("difference.svg");
        differential(&before, after, &out)?;
        println!("difference to {}: {}", before.display(), out.display());
    }
    println!("$ {}", std::env::args().collect::<Vec<_>>().join(" "));
    Ok(ExitCode::SUCCESS)
}

/// A folder's name: a revision may have slashes.
fn name(subject: &Subject) -> String {
    subject.to_string().replace('/', "_")
}

/// One stream from client to server: the client seals, the server opens. Returns Mb/s.
fn sample(
    kit: &Kit,
    subject: &Subject,
    arguments: &Arguments,
    file: &Path,
    out: &Path,
) -> Result<f64> {
    let bed = Bed::pair(arguments.mode)?;
    let tunnels = kit.start(subject, &bed, &TunnelSpec::default())?;
    let pids: Vec<u32> = tunnels.processes().into_iter().flat_map(|(_, pids)| pids).collect();
    ensure(!pids.is_empty(), || format!("{subject}: there is no process to sample"))?;
    let from = bed.clients.first().context("a bed without clients")?;
    let to_address = tunnels.server_inner.v4;
    let route = Route { name: "up 1".to_owned(), from, to: &bed.server, to_address };
    let length = Duration::from_secs(arguments.seconds);
    let window = Window { warmup: Duration::from_secs(1), length };
    let mut recording = None;
    let measured = tcp_bulk(&[route], &window, &mut |edge| {
        match edge {
            Edge::Begin => recording = Some(Recording::start(&pids, file)?),
            Edge::End => recording.take().map_or(Ok(()), Recording::stop)?,
        }
        Ok(())
    })?;
    ensure(measured.mbps() > 0.0, || format!("{subject}: nothing arrived\n{}", tunnels.logs()))?;
    fs::create_dir_all(out).context(out.display())?;
    // While the programs still run: those of other revisions lie in folders of their own.
    graphs(file, out)?;
    Ok(measured.mbps())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn against_takes_a_folder_of_before_or_a_subject() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let failure = Against::parse(path).err().unwrap();
        assert!(failure.0.contains(FOLDED) && failure.0.contains("adit@REVISION"), "{failure}");
        fs::write(folder.path().join(FOLDED), "a 1\n").unwrap();
        assert!(matches!(Against::parse(path), Ok(Against::Folder(_))));
        assert!(matches!(Against::parse("openvpn"), Ok(Against::Subject(Subject::Openvpn))));
    }
}
