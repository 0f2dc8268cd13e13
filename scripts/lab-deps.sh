#!/usr/bin/env bash
# Installs the missing programs among those that adit-lab measures or uses to measure. Unavailable ones are listed and left out:
# the lab lists it again and continues without. With --local nothing is fetched into a private root.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive

# program:package:purpose
wanted=(
    "openvpn:openvpn:the subject openvpn"
    "tincd:tinc:the subject tinc"
    "wg:wireguard-tools:the subject wireguard-go"
    "iperf3:iperf3:the generator iperf3"
    "valgrind:valgrind:instruction counts"
    "perf:linux-perf:adit-lab profile"
)
updated=
for entry in "${wanted[@]}"; do
    IFS=: read -r program package purpose <<<"$entry"
    command -v "$program" >/dev/null && continue
    if ! command -v apt-get >/dev/null; then
        echo "lab-deps: SKIPPED: $program, for $purpose: install it with this system's package manager" >&2
        continue
    fi
    if ((EUID != 0)); then
        echo "lab-deps: SKIPPED: $program, for $purpose: run as root, or: sudo apt-get install $package" >&2
        continue
    fi
    if [[ -z $updated ]]; then
        updated=yes
        apt-get update -q >/dev/null 2>&1 || echo "lab-deps: apt-get update failed, trying with the lists at hand" >&2
    fi
    echo "lab-deps: installing $package, for $purpose"
    # Installed one by one, so that an unavailable package does not affect the others.
    if ! log=$(apt-get install -y -q --no-install-recommends "$package" 2>&1); then
        echo "lab-deps: SKIPPED: $package could not be installed, which is for $purpose: $(tail -n 1 <<<"$log")" >&2
    fi
done

if [[ ${1:-} != --local ]]; then
    wireguard=target/roots/sid/usr/bin/wireguard-go
    echo "lab-deps: fetching a recent wireguard-go, nebula and tinc 1.1 into target/roots, if they are not there"
    scripts/roots.sh sid nebula tinc || true
    if [[ -x $wireguard ]] && ! "$wireguard" --version >/dev/null 2>&1; then
        echo "lab-deps: SKIPPED: $wireguard does not run on this system" >&2
    fi
fi
exit 0
