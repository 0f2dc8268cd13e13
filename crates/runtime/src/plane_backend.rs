//! The data plane as a driver backend.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use adit_dataplane::format::Format;
use adit_dataplane::{Failure, Histogram, Offloads, Plane, StreamOptions, Upcalls};
use adit_engine::{Command, DataFormat, Link, SocketId};
use adit_linux::tcp::TcpStream;
use adit_linux::tun::TunOffloads;
use adit_linux::udp::UdpSocket;

use crate::control::StatusReport;
use crate::driver::{self, Backend};
use crate::fault::Fault;
use crate::metrics::{Samples, table};

/// A data plane with its queue of upcalls.
#[derive(Debug)]
pub struct PlaneBackend<F: Format> {
    plane: Plane<F>,
    upcalls: Upcalls<F::Types>,
    streams: StreamOptions,
}

impl<F: Format> PlaneBackend<F> {
    /// Combines a data plane with its queue of upcalls.
    pub fn new(plane: Plane<F>, upcalls: Upcalls<F::Types>, streams: StreamOptions) -> Self {
        Self { plane, upcalls, streams }
    }

    /// Adds the data plane's metrics that a status report does not have.
    pub fn measure(&self, samples: &mut Samples) {
        let totals = self.plane.totals();
        for (worker, busy) in totals.busy.iter().enumerate() {
            samples.real(&table::WORKER_BUSY, [&worker.to_string()], busy.as_secs_f64());
        }
        for (offload, reason, count) in totals.downgrades {
            samples.count(&table::OFFLOAD_DOWNGRADES, [offload, reason], count);
        }
        for (queue, length, limit) in self.upcalls.lengths() {
            samples.count(&table::QUEUE_LENGTH, [queue], length as u64);
            samples.count(&table::QUEUE_LIMIT, [queue], limit as u64);
        }
    }

    /// Returns the data plane, so that it can be stopped.
    pub fn into_plane(self) -> Plane<F> {
        self.plane
    }

    /// Returns the data plane itself.
    pub fn plane(&self) -> &Plane<F> {
        &self.plane
    }
}

impl<F: Format> Backend for PlaneBackend<F> {
    type Format = F::Types;

    fn apply(&self, op: Command<F::Types>) {
        self.plane.apply(op);
    }

    fn add_socket(&self, id: SocketId, socket: Arc<UdpSocket>) -> io::Result<()> {
        self.plane.add_socket(id, socket);
        Ok(())
    }

    fn remove_socket(&self, id: SocketId) {
        self.plane.remove_socket(id);
    }

    fn add_stream(&self, link: Link, stream: TcpStream) -> io::Result<()> {
        self.plane.add_stream(link, stream, self.streams)
    }

    fn remove_stream(&self, link: Link) {
        self.plane.remove_stream(link);
    }

    fn send_control(&self, link: Link, frame: &[u8]) -> bool {
        self.plane.send_control(link, frame)
    }

    fn failure(&self) -> Option<Fault> {
        self.plane.failure().map(|why| match why {
            Failure::TunGone => Fault::environment(format!("{why}: the tunnel cannot continue")),
            Failure::WorkerDied => Fault::ours(why.to_string()),
        })
    }

    fn wakeup(&self) -> io::Result<OwnedFd> {
        self.upcalls.as_fd().try_clone_to_owned()
    }

    fn drain(&mut self, sink: &mut dyn FnMut(driver::Upcall<F::Types>)) {
        self.upcalls.drain(|upcall| sink(convert(upcall)));
    }

    fn drain_silently(&mut self, sink: &mut dyn FnMut(driver::Upcall<F::Types>)) {
        self.upcalls.drain_silently(|upcall| sink(convert(upcall)));
    }
}

fn convert<T: DataFormat>(upcall: adit_dataplane::Upcall<T>) -> driver::Upcall<T> {
    match upcall {
        adit_dataplane::Upcall::ControlPacket(link, packet)
        | adit_dataplane::Upcall::Unauthenticated(link, packet) => {
            driver::Upcall::ControlPacket(link, packet)
        }
        adit_dataplane::Upcall::Notice(notice) => driver::Upcall::Notice(notice),
        adit_dataplane::Upcall::StreamEnded(link, why) => {
            driver::Upcall::StreamEnded(link, why.to_string())
        }
    }
}

/// The names in [`SWITCH`], in the order of [`gates`].
const GATES: [&str; 4] = ["udp-gso", "udp-gro", "tun-tso", "tun-uso"];

/// The environment variable with a comma-separated list of offloads to disable. It is for hosts
/// with a faulty kernel or driver, and for measuring the effect of each offload.
const SWITCH: &str = "ADIT_DISABLE";

/// Returns the offloads that may be used.
pub fn gates() -> Offloads {
    let disabled = std::env::var(SWITCH).unwrap_or_default();
    gates_without(&disabled)
}

fn gates_without(disabled: &str) -> Offloads {
    let names: Vec<&str> = disabled.split(',').map(str::trim).collect();
    let [udp_gso, udp_gro, tun_tso, tun_uso] = GATES.map(|gate| !names.contains(&gate));
    Offloads { udp_gso, udp_gro, tun_tso, tun_uso }
}

/// Returns the offloads to request from the device.
pub fn tun_offloads() -> TunOffloads {
    let gates = gates();
    TunOffloads { csum: true, tso: gates.tun_tso, uso: gates.tun_uso }
}

/// Adds the data plane's counters to a report.
pub fn fill_totals<F: Format>(report: &mut StatusReport, plane: &Plane<F>) {
    let totals = plane.totals();
    report.workers = plane.workers();
    let drops = totals.drops.iter().filter(|(_, count)| *count > 0);
    report.drops.extend(drops.map(|(reason, count)| (reason.name().to_owned(), *count)));
    report.trains.sent = buckets(&totals.sent);
    report.trains.received = buckets(&totals.received);
    report.trains.sent_packets = totals.sent.packets;
    report.trains.received_packets = totals.received.packets;
    report.trains.relayed = buckets(&totals.spliced);
    report.trains.relayed_packets = totals.spliced.packets;
    let Offloads { udp_gso, udp_gro, tun_tso, tun_uso } = totals.offloads;
    let state = [udp_gso, udp_gro, tun_tso, tun_uso];
    report.offloads = GATES.iter().map(|gate| (*gate).to_owned()).zip(state).collect();
}

fn buckets(histogram: &Histogram) -> BTreeMap<u32, u64> {
    // The lower bounds of `Histogram::LABELS`.
    let bounds = [1, 2, 3, 5, 9, 17, 33, 65];
    bounds.into_iter().zip(histogram.buckets).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_offload_has_its_switch() {
        assert_eq!(gates_without(""), Offloads::ALL);
        assert_eq!(gates_without("udp-gso, udp-gro,tun-tso,tun-uso"), Offloads::NONE);
        assert_eq!(gates_without("tun-tso"), Offloads { tun_tso: false, ..Offloads::ALL });
    }

    #[test]
    fn each_worker_queue_and_downgrade_has_a_metric() {
        use crate::trivial::Trivial;

        let config = adit_dataplane::PlaneConfig {
            tun: None,
            sockets: Vec::new(),
            relay: adit_dataplane::Relay::Kernel,
            gates: Offloads::ALL,
            client: false,
            ethernet: false,
        };
        let (plane, upcalls) = Plane::<Trivial>::start(config, crate::clock::now).unwrap();
        let backend = PlaneBackend::new(plane, upcalls, StreamOptions::default());
        let mut samples = Samples::default();
        backend.measure(&mut samples);
        let text = samples.text();
        for line in [
            "adit_worker_busy_seconds_total{worker=\"0\"} ",
            "adit_queue_length{queue=\"control-packets\"} 0\n",
            "adit_queue_limit{queue=\"unauthenticated\"} 512\n",
            "adit_offload_downgrades_total{offload=\"udp-gso\",reason=\"device\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    /// The descriptor is never read, so the watcher must get an edge each time.
    #[tokio::test]
    async fn a_plane_calls_once_for_all_that_comes_until_the_next_drain_and_then_again() {
        use adit_engine::PeerId;
        use adit_engine::command::{Float, PeerSpec};

        use crate::trivial::Trivial;

        let config = adit_dataplane::PlaneConfig {
            tun: None,
            sockets: Vec::new(),
            relay: adit_dataplane::Relay::Kernel,
            gates: Offloads::ALL,
            client: false,
            ethernet: false,
        };
        let (plane, upcalls) = Plane::<Trivial>::start(config, crate::clock::now).unwrap();
        let mut backend = PlaneBackend::new(plane, upcalls, StreamOptions::default());
        let wakeup = driver::watch(backend.wakeup().unwrap(), tokio::io::Interest::READABLE);
        let wakeup = wakeup.unwrap();
        let spec = PeerSpec {
            float: Float::Refuse,
            ..PeerSpec::plain(Link::datagram(SocketId(0), None, ([192, 0, 2, 1], 1).into()))
        };
        let soon = std::time::Duration::from_millis(20);
        for _ in 0..3 {
            // An id that no peer can have is refused with a notice.
            backend.apply(Command::AddPeer(PeerId(u32::MAX), spec.clone()));
            wakeup.readable().await.unwrap().clear_ready();
            backend.apply(Command::AddPeer(PeerId(u32::MAX), spec.clone()));
            assert!(tokio::time::timeout(soon, wakeup.readable()).await.is_err(), "he is awake");
            let mut seen = 0;
            backend.drain(&mut |_| seen += 1);
            assert_eq!(seen, 2);
        }
    }

    #[test]
    fn histogram_bounds_are_those_of_the_planes_labels() {
        let bounds = buckets(&Histogram { buckets: [1; 8], ..Histogram::default() });
        for (bound, label) in bounds.keys().zip(Histogram::LABELS) {
            let lower = label.split(['-', '+']).next().unwrap();
            assert_eq!(bound.to_string(), lower);
        }
    }
}
