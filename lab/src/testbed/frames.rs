//! Finds the largest frame on a veth pair, and checks it against the link mode.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::net::{Namespace, VETH};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, socket,
};
use std::os::fd::AsFd;

use super::LinkMode;

/// The number of outgoing frames to examine: enough to see the largest one, and too few to slow a trial down.
const LOOK_AT: u32 = 3000;

/// `PACKET_OUTGOING` of linux/if_packet.h: an outgoing frame.
const OUTGOING: u8 = 4;

/// The buffer size, larger than any super-packet (`GSO_MAX_SIZE`, 8 * 65535, is used only with BIG TCP on request).
const BUFFER: usize = 1 << 17;

/// The largest frame of an Ethernet with an MTU of 1500, with its header and an optional VLAN tag.
const LARGEST_WIRE: u64 = 1500 + 14 + 4;

/// Captures the frames that leave a host through its veth pair, after the last point where the kernel splits
/// super-packets.
pub(super) struct Tap {
    thread: JoinHandle<Result<u64>>,
    stop: Arc<AtomicBool>,
}

impl Tap {
    /// Starts to capture.
    pub(super) fn start(host: &Namespace) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (ready, is_ready) = mpsc::channel();
        let thread = host.thread(move || watch(&stopped, &ready))?;
        match is_ready.recv() {
            Ok(()) => Ok(Self { thread, stop }),
            // The sender is gone because the thread has failed. Its result contains the reason.
            Err(_) => Err(join(thread).err().unwrap_or_else(|| Failure::from("no tap"))),
        }
    }

    /// Returns the largest frame so far in bytes, including the Ethernet header if the device has one.
    pub(super) fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let largest = join(self.thread)?;
        ensure(largest > 0, || "no frame left the client's host while traffic ran".to_owned())?;
        Ok(largest)
    }
}

fn join(thread: JoinHandle<Result<u64>>) -> Result<u64> {
    thread.join().map_err(|_| Failure::from("the thread that looks at frames panicked"))?
}

fn watch(stop: &AtomicBool, ready: &mpsc::Sender<()>) -> Result<u64> {
    let veth = nix::net::if_::if_nametoindex(VETH).context(VETH)?;
    let tap = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::EthAll,
    )
    .context("a socket that sees frames")?;
    // The receiver is gone only if the start was abandoned.
    let _ = ready.send(());
    let (mut largest, mut seen) = (0, 0);
    let mut buffer = vec![0; BUFFER];
    while seen < LOOK_AT {
        match recvfrom::<LinkAddr>(tap.as_raw_fd(), &mut buffer) {
            Ok((length, from)) => {
                let ours = |from: &LinkAddr| {
                    from.pkttype() == OUTGOING && u32::try_from(from.ifindex()) == Ok(veth)
                };
                if from.is_some_and(|from| ours(&from)) {
                    largest = largest.max(length as u64);
                    seen += 1;
                }
            }
            Err(nix::Error::EAGAIN) if stop.load(Ordering::Relaxed) => break,
            Err(nix::Error::EAGAIN) => {
                let pause = PollTimeout::try_from(Duration::from_millis(20)).context("a pause")?;
                poll(&mut [PollFd::new(tap.as_fd(), PollFlags::POLLIN)], pause)?;
            }
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error).context("looking at frames"),
        }
    }
    Ok(largest)
}

/// Checks whether a largest frame of this many bytes is possible in this mode.
pub(super) fn check(mode: LinkMode, largest: u64) -> std::result::Result<(), String> {
    match mode {
        LinkMode::Offload => Ok(()),
        LinkMode::WireGro | LinkMode::Wire if largest <= LARGEST_WIRE => Ok(()),
        LinkMode::WireGro | LinkMode::Wire => Err(format!(
            "a frame of {largest} bytes crossed a cable that is labelled {mode}, where none may have more than \
             {LARGEST_WIRE}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_carries_single_packets_only() {
        for mode in [LinkMode::Wire, LinkMode::WireGro] {
            assert_eq!(check(mode, 1514), Ok(()));
            assert_eq!(check(mode, 1518), Ok(()));
            let error = check(mode, 1519).unwrap_err();
            assert!(error.contains("1519") && error.contains(&mode.to_string()), "{error}");
        }
    }

    #[test]
    fn offload_may_carry_super_packets_and_need_not() {
        assert_eq!(check(LinkMode::Offload, 65_226), Ok(()));
        assert_eq!(check(LinkMode::Offload, 1514), Ok(()));
    }
}
