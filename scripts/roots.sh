#!/usr/bin/env bash
# Unpacks older and newer programs into private roots under target/roots, which are never entered: openvpn runs through its own
# dynamic linker there. With arguments, unpacks only these suites. Needs mmdebstrap; unavailable suites are reported and left out.
set -uo pipefail
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

# Programs by suite. The wireguard-go of a stable release may be years old and several times slower than a current one.
declare -A programs=(
    [bullseye]="usr/sbin/openvpn"
    [sid]="usr/sbin/openvpn usr/bin/wireguard-go"
)
suites=("$@")
((${#suites[@]})) || suites=(bullseye sid)

complete() {
    local program
    for program in ${programs[$2]}; do
        [[ -x $1/$program ]] || return 1
    done
}

mkdir -p target/roots
for suite in "${suites[@]}"; do
    if [[ -z ${programs[$suite]:-} ]]; then
        echo "roots: no suite is called $suite here: ${!programs[*]}" >&2
        exit 2
    fi
    root=target/roots/$suite
    complete "$root" "$suite" && continue
    if ! command -v mmdebstrap >/dev/null; then
        apt-get install -y -q --no-install-recommends mmdebstrap >/dev/null 2>&1
    fi
    names=(${programs[$suite]})
    packages=$(IFS=,; echo "${names[*]##*/}")
    rm -rf "$root.new"
    # A mirror that is no longer updated serves sid with an expired date; its signature is checked nevertheless.
    if mmdebstrap --quiet --variant=extract --include="$packages" \
        --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$root.new" "$mirror" &&
        complete "$root.new" "$suite"; then
        rm -rf "$root"
        mv "$root.new" "$root"
    else
        echo "roots: SKIPPED: $packages of Debian $suite could not be fetched from $mirror" >&2
        rm -rf "$root.new"
    fi
done
