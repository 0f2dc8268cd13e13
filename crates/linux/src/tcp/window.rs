//! What the kernel may keep for a stream's reader, and what it knows of the path.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::TcpStream;

/// Where `tcpi_min_rtt` ends in `struct tcp_info`, which the C library's headers show only in part.
const MIN_RTT: std::ops::Range<usize> = 148..152;

/// `SOCK_RCVBUF_LOCK` of linux/socket.h.
const RCVBUF_LOCK: libc::c_int = 2;

impl TcpStream {
    /// Whether somebody has set the receive buffer's size, so that the kernel leaves it alone.
    pub fn is_recv_buffer_set(&self) -> io::Result<bool> {
        let mut locks: libc::c_int = 0;
        let mut len = size_of_val(&locks) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `locks`.
        let rc = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BUF_LOCK,
                (&raw mut locks).cast(),
                &raw mut len,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(locks & RCVBUF_LOCK != 0) }
    }

    /// Lets the kernel adapt the receive buffer again after [`TcpStream::set_buffers`]
    /// (`SO_BUF_LOCK`, Linux 5.14).
    pub fn free_recv_buffer(&self) -> io::Result<()> {
        let locks = 0;
        // SAFETY: the pointer and the length describe `locks`, which outlives the call.
        let rc = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BUF_LOCK,
                (&raw const locks).cast(),
                size_of_val::<libc::c_int>(&locks) as libc::socklen_t,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The shortest round trip of the last minutes, without what waited on the way (`tcpi_min_rtt`).
    pub fn shortest_round_trip(&self) -> io::Result<Duration> {
        let mut info = [0u8; 256];
        let mut len = info.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `info`, and says how many.
        let rc = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        let known = info.get(..len as usize).and_then(|info| info.get(MIN_RTT)?.first_chunk());
        let micros = known.map(|bytes| u32::from_ne_bytes(*bytes));
        // Before the first sample it is all ones.
        match micros {
            Some(micros) if micros != u32::MAX => Ok(Duration::from_micros(micros.into())),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
