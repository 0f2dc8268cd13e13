//! The sockets of the plane, by id. If several workers receive, each has its own socket on the shared port
//! (`SO_REUSEPORT`). The kernel delivers all datagrams from one peer's address to the same socket, which preserves
//! their order.

use std::sync::Arc;

use adit_engine::SocketId;
use adit_linux::udp::UdpSocket;

/// All sockets of the plane.
pub(crate) type Sockets = Vec<Group>;

/// The sockets of one id. They share an address.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub id: SocketId,
    members: Vec<Arc<UdpSocket>>,
}

impl Group {
    pub(crate) fn new(id: SocketId, members: Vec<Arc<UdpSocket>>) -> Self {
        Self { id, members }
    }

    /// Returns the number of sockets.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the sockets that a worker receives from. Every socket belongs to exactly one worker; otherwise
    /// its packets would never be read.
    pub(crate) fn of_worker(
        &self,
        worker: usize,
        workers: usize,
    ) -> impl Iterator<Item = &Arc<UdpSocket>> {
        self.members.iter().skip(worker).step_by(workers.max(1))
    }

    /// Returns the socket that a worker sends through. It is the worker's own if there is one, so workers do not wait
    /// for each other.
    fn sender(&self, worker: usize) -> Option<&Arc<UdpSocket>> {
        self.members.get(worker.checked_rem(self.members.len())?)
    }
}

/// Groups sockets with the same id, in the order in which the ids first appear.
pub(crate) fn grouped(sockets: Vec<(SocketId, Arc<UdpSocket>)>) -> Sockets {
    let mut groups = Sockets::new();
    for (id, socket) in sockets {
        match groups.iter_mut().find(|group| group.id == id) {
            Some(group) => group.members.push(socket),
            None => groups.push(Group::new(id, vec![socket])),
        }
    }
    groups
}

/// Returns the socket through which a worker sends to a peer of this id. Control uses the first worker's.
pub(crate) fn find_socket(
    sockets: &Sockets,
    id: SocketId,
    worker: usize,
) -> Option<&Arc<UdpSocket>> {
    sockets.iter().find(|group| group.id == id)?.sender(worker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_linux::udp::UdpOptions;

    fn group(len: usize) -> Group {
        let bind = || UdpSocket::bind(&UdpOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        Group::new(SocketId(1), (0..len).map(|_| Arc::new(bind())).collect())
    }

    #[test]
    fn every_socket_is_read_by_exactly_one_worker() {
        for (len, workers) in [(1, 1), (1, 4), (4, 4), (4, 3), (5, 2)] {
            let group = group(len);
            let mut seen: Vec<_> = (0..workers)
                .flat_map(|worker| group.of_worker(worker, workers))
                .map(|socket| socket.local_addr())
                .collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), len, "{len} sockets, {workers} workers");
        }
    }

    #[test]
    fn a_worker_sends_through_its_own_socket_or_through_anothers() {
        let sockets = vec![group(2)];
        let port = |worker| find_socket(&sockets, SocketId(1), worker).unwrap().local_addr().port();
        assert_ne!(port(0), port(1));
        assert_eq!(port(0), port(2));
        assert!(find_socket(&sockets, SocketId(2), 0).is_none());
    }
}
