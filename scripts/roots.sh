#!/usr/bin/env bash
# Unpacks older and newer programs into private roots under target/roots, which are never entered: they run through the dynamic
# linker of their root. Without arguments, unpacks bullseye and sid, whose openvpn is tested against; with arguments, these roots.
# Needs mmdebstrap; unavailable roots are reported and left out.
set -uo pipefail
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

# Programs by root. The wireguard-go of a stable release may be years old and several times slower than a current one.
declare -A programs=(
    [bullseye]="usr/sbin/openvpn"
    [sid]="usr/sbin/openvpn usr/bin/wireguard-go"
    [nebula]="usr/bin/nebula usr/bin/nebula-cert"
    [tinc]="usr/sbin/tincd usr/sbin/tinc"
)
declare -A packages=(
    [bullseye]="openvpn"
    [sid]="openvpn,wireguard-go"
    [nebula]="nebula"
    [tinc]="tinc/experimental"
)
# The suites of each root. tinc 1.1 is only in experimental, and was built with the libraries of bookworm.
declare -A suites=(
    [bullseye]="bullseye"
    [sid]="sid"
    [nebula]="sid"
    [tinc]="bookworm experimental"
)
roots=("$@")
((${#roots[@]})) || roots=(bullseye sid)

complete() {
    local program
    for program in ${programs[$2]}; do
        [[ -x $1/$program ]] || return 1
    done
}

mkdir -p target/roots
for name in "${roots[@]}"; do
    if [[ -z ${programs[$name]:-} ]]; then
        echo "roots: no root is called $name here: ${!programs[*]}" >&2
        exit 2
    fi
    root=target/roots/$name
    complete "$root" "$name" && continue
    if ! command -v mmdebstrap >/dev/null; then
        apt-get install -y -q --no-install-recommends mmdebstrap >/dev/null 2>&1
    fi
    read -ra from <<<"${suites[$name]}"
    sources=()
    for suite in "${from[@]}"; do
        sources+=("deb $mirror $suite main")
    done
    rm -rf "$root.new"
    # A mirror that is no longer updated serves sid with an expired date; its signature is checked nevertheless.
    if mmdebstrap --quiet --variant=extract --include="${packages[$name]}" \
        --aptopt='Acquire::Check-Valid-Until "false"' "${from[0]}" "$root.new" "${sources[@]}" &&
        complete "$root.new" "$name"; then
        rm -rf "$root"
        mv "$root.new" "$root"
    else
        echo "roots: SKIPPED: ${packages[$name]} of Debian ${suites[$name]} could not be fetched from $mirror" >&2
        rm -rf "$root.new"
    fi
done
