#!/usr/bin/env bash
# Private roots with older and newer openvpn under target/roots, unpacked and never entered: their programs run through
# their own dynamic linker. Asks for mmdebstrap; what cannot be had is said and left out.
set -uo pipefail
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

if ! command -v mmdebstrap >/dev/null; then
    apt-get install -y -q --no-install-recommends mmdebstrap >/dev/null 2>&1
fi
mkdir -p target/roots
for suite in bullseye sid; do
    root=target/roots/$suite
    [[ -x $root/usr/sbin/openvpn ]] && continue
    rm -rf "$root"
    # A mirror that stands still serves sid with an expired date; its signature is checked all the same.
    if ! mmdebstrap --quiet --variant=extract --include=openvpn \
        --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$root" "$mirror"; then
        echo "roots: SKIPPED: openvpn of Debian $suite could not be fetched from $mirror" >&2
        rm -rf "$root"
    fi
done
