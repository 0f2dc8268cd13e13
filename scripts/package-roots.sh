#!/usr/bin/env bash
# Makes a small installed Debian of each suite under target/roots/packages-SUITE, for the tests of the packages: they install and
# remove packages in it by chroot. Without arguments, makes oldstable's (make setup); make packages-test makes the others.
# Needs root and mmdebstrap.
set -uo pipefail
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
suites=("$@")
((${#suites[@]})) || suites=(bookworm)

status=0
mkdir -p target/roots
for suite in "${suites[@]}"; do
    root=target/roots/packages-$suite
    # The program that adit-openvpn replaces, and the one that checks units.
    [[ -e $root/usr/sbin/openvpn && -e $root/usr/bin/systemd-analyze ]] && continue
    if ! command -v mmdebstrap >/dev/null; then
        apt-get install -y -q --no-install-recommends mmdebstrap >/dev/null 2>&1
    fi
    rm -rf "$root.new"
    # A mirror that is no longer updated serves sid with an expired date; its signature is checked nevertheless.
    if mmdebstrap --quiet --variant=essential --include=passwd,systemd,libseccomp2,nftables,openvpn,iproute2 \
        --aptopt='Acquire::Check-Valid-Until "false"' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --customize-hook='rm "$1"/etc/dpkg/dpkg.cfg.d/*' \
        "$suite" "$root.new" "$mirror"; then
        rm -rf "$root"
        mv "$root.new" "$root"
    else
        echo "package-roots: Debian $suite could not be fetched from $mirror" >&2
        rm -rf "$root.new"
        status=1
    fi
done
exit $status
