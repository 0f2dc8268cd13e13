//! The baseline for a bridge: a plain relay, as one would write it in C. It reads and writes each frame with one system call each, between
//! two TAP devices without offloads.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use adit_linux::net::Net;
use adit_linux::tun::plain_tap;
use adit_testbed::failure::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The output when the relay is ready.
pub const READY: &str = "relay: ready";

/// The largest frame of an Ethernet MTU of 1500, with room for VLAN tags.
const FRAME: usize = 2048;

/// Two TAP devices joined by reading and writing one frame per system call, for measuring only.
///
/// Example: adit-lab relay private public
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// One TAP device, to be made.
    a: String,
    /// The other.
    b: String,
    /// Use a blocking thread for each direction, instead of one thread that polls both.
    #[arg(long)]
    threads: bool,
}

/// Relays until it is killed.
///
/// # Errors
/// The process is not permitted to create a TAP device, or a device is gone.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let taps = [&arguments.a, &arguments.b].map(|name| plain_tap(name).context(name));
    let [a, b] = taps;
    let (a, b) = (a?, b?);
    set_up([&arguments.a, &arguments.b])?;
    println!("{READY}");
    if arguments.threads {
        return std::thread::scope(|scope| {
            let back = scope.spawn(|| one_way(&b, &a));
            one_way(&a, &b)?;
            back.join().map_err(|_| "a thread panicked")??;
            Ok(ExitCode::SUCCESS)
        });
    }
    let mut frame = [0; FRAME];
    loop {
        let mut both = [&a, &b].map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN));
        poll(&mut both, PollTimeout::NONE)?;
        let ready = both.map(|tap| tap.any().unwrap_or(false));
        for (ready, (from, to)) in ready.into_iter().zip([(&a, &b), (&b, &a)]) {
            if ready {
                one_frame(from, to, &mut frame)?;
            }
        }
    }
}

fn one_way(from: &OwnedFd, to: &OwnedFd) -> Result<()> {
    let mut frame = [0; FRAME];
    loop {
        one_frame(from, to, &mut frame)?;
    }
}

/// Moves one frame. If the other device is down, the frame is lost, as on a cable.
fn one_frame(from: &OwnedFd, to: &OwnedFd, frame: &mut [u8]) -> Result<()> {
    let len = nix::unistd::read(from, frame)?;
    let _ = nix::unistd::write(to, frame.get(..len).unwrap_or_default());
    Ok(())
}

fn set_up(names: [&str; 2]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let net = Net::open()?;
        for name in names {
            let link = net.link(name).await.context(name)?;
            net.set_up(link.index).await.context(name)?;
        }
        Ok(())
    })
}
