#!/usr/bin/env bash
# Unpacks Debian's pgbouncer, with the libraries that it needs and that not every system has, into target/roots/pgbouncer.
exec "$(dirname "$0")/debian-root.sh" pgbouncer usr/sbin/pgbouncer -- pgbouncer libc-ares2 'libevent-2.1-7'
