#!/usr/bin/env bash
# Unpacks Debian's pgbouncer into target/roots/pgbouncer without installing it, because the package starts a service. Tests that
# need it are skipped, and counted as such, if it is unavailable.
set -uo pipefail
cd "$(dirname "$0")/.."
root=target/roots/pgbouncer
[[ -x $root/usr/sbin/pgbouncer ]] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "pgbouncer: not fetched: no apt-get here" >&2
    exit 0
fi
new=$(pwd)/$root.new
rm -rf "$new"
mkdir -p "$new"
chmod 755 "$new"
cd "$new" || exit 1
# The libraries that it needs and that not every system has.
for package in pgbouncer libc-ares2 'libevent-2.1-7'; do
    apt-get download -q "$package" >/dev/null 2>&1 || apt-get download -q "${package}t64" >/dev/null 2>&1
done
for archive in *.deb; do
    [[ -e $archive ]] && dpkg -x "$archive" . && rm -f "$archive"
done
cd - >/dev/null || exit 1
if [[ -x $root.new/usr/sbin/pgbouncer ]]; then
    rm -rf "$root"
    mv "$root.new" "$root"
else
    echo "pgbouncer: not fetched: Debian's package could not be fetched" >&2
    rm -rf "$root.new"
fi
