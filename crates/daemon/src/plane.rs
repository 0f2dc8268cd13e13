//! The data plane behind the driver's face.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use adit_engine::{Op, SocketId};
use adit_linux::udp::UdpSocket;
use adit_plane::{Plane, Upcall, Upcalls};

use crate::driver::{Arrival, Backend};

/// Plane and upcalls together.
#[derive(Debug)]
pub(crate) struct Planes {
    plane: Plane,
    upcalls: Upcalls,
}

impl Planes {
    pub(crate) fn new(plane: Plane, upcalls: Upcalls) -> Self {
        Self { plane, upcalls }
    }

    pub(crate) fn plane(&self) -> &Plane {
        &self.plane
    }

    pub(crate) fn into_plane(self) -> Plane {
        self.plane
    }
}

impl Backend for Planes {
    fn apply(&self, op: Op) {
        self.plane.apply(op);
    }

    fn add_socket(&self, id: SocketId, socket: Arc<UdpSocket>) -> io::Result<()> {
        self.plane.add_socket(id, socket)
    }

    fn remove_socket(&self, id: SocketId) {
        self.plane.remove_socket(id);
    }

    fn wakeup(&self) -> io::Result<OwnedFd> {
        self.upcalls.as_fd().try_clone_to_owned()
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Arrival)) {
        self.upcalls.drain(|upcall| {
            sink(match upcall {
                Upcall::Frame(link, packet) | Upcall::Stranger(link, packet) => {
                    Arrival::Frame(link, packet)
                }
                Upcall::Notice(notice) => Arrival::Notice(notice),
            });
        });
    }
}
