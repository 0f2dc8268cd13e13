//! Selection of a socket of a group by the first bytes of a datagram.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use super::UdpSocket;

/// The position of the sender's id in a datagram: some bits of the first four bytes. Other bits indicate whether the id
/// is present.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SenderField {
    /// The mask of the bits that indicate whether a datagram contains a sender id. Like all masks here, it applies to
    /// the first four bytes in network order.
    pub lead: u32,
    /// The value of these bits in a datagram that contains one.
    pub value: u32,
    /// The mask of the lowest bits, which contain the sender's number; all bits set means that there is none.
    pub sender: u32,
}

/// The index of a socket that no group has: the kernel falls back to the hash of the addresses.
const BY_ADDRESS: u32 = u32::MAX;

/// Makes the kernel deliver datagrams that contain a sender's number to the socket with that number, modulo the size of a group that
/// [`UdpSocket::bind_group`] created. So consecutive numbers are spread evenly, and a sender keeps its socket when its address changes. All
/// other datagrams are distributed by address, as without this call. A group of one socket is left unchanged.
///
/// # Errors
/// The kernel's: `ENOPROTOOPT` before Linux 4.5. The group works nevertheless.
pub fn steer(group: &[UdpSocket], field: &SenderField) -> io::Result<()> {
    let count = u32::try_from(group.len()).unwrap_or(u32::MAX);
    let Some(first) = group.first().filter(|_| count > 1) else { return Ok(()) };
    let mut program = program(field, count);
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, of the given length, during the call; both live
    // through it.
    let rc = unsafe {
        libc::setsockopt(
            first.socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Builds a classic BPF program over a datagram's payload; datagrams too short for it go to the first socket. See the
/// kernel's Documentation/networking/filter.rst and `SO_ATTACH_REUSEPORT_CBPF` in socket(7).
fn program(field: &SenderField, count: u32) -> [libc::sock_filter; 10] {
    let op = |code: u32, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let (and, modulo) = (libc::BPF_ALU | libc::BPF_AND, libc::BPF_ALU | libc::BPF_MOD);
    [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
        op(and, field.lead, 0, 0),
        op(is, field.value, 0, 5),
        op(libc::BPF_MISC | libc::BPF_TXA, 0, 0, 0),
        op(and, field.sender, 0, 0),
        op(is, field.sender, 2, 0),
        op(modulo, count, 0, 0),
        op(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
        op(libc::BPF_RET | libc::BPF_K, BY_ADDRESS, 0, 0),
    ]
}
