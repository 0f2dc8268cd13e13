#!/usr/bin/env bash
# Handles the programs that the checks call. `deps.sh check` installs nothing and lists what is missing; `deps.sh install` (make
# setup) installs it with apt-get. Without missing programs it takes milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."

# program:package, with the names of Debian and its derivatives. A file with a slash is looked up unchanged.
# Needed for the build and the unit tests, which do not need root.
needed=(
    cc:gcc make:make openssl:openssl openvpn:openvpn python3:python3 valgrind:valgrind
    /usr/share/easy-rsa/easyrsa:easy-rsa
)
# Needed for everything else, which only root can run: network namespaces, peers, databases.
needed_by_root=(
    iperf3:iperf3 nft:nftables ip:iproute2 ping:iputils-ping tcpdump:tcpdump ethtool:ethtool unshare:util-linux
    tinyproxy:tinyproxy-bin microsocks:microsocks danted:dante-server tshark:tshark tincd:tinc wg:wireguard-tools
    wireguard-go:wireguard-go miniupnpd:miniupnpd-nftables rpmbuild:rpm crun:crun curl:curl
)
mode=${1:-check}
export PATH="$PATH:/usr/sbin:/sbin"
if ! command -v cargo >/dev/null; then
    echo "deps: no cargo: install a Rust toolchain first, https://rustup.rs" >&2
    exit 1
fi

missing=()
find_missing() {
    local entry program
    for entry in "$@"; do
        program=${entry%%:*}
        if [[ $program == */* ]]; then
            [[ -e $program ]] || missing+=("${entry#*:}")
        else
            command -v "$program" >/dev/null || missing+=("${entry#*:}")
        fi
    done
}
find_missing "${needed[@]}"
postgres=
if [[ $mode == install ]] || ((EUID == 0)); then
    find_missing "${needed_by_root[@]}"
    # The server's programs are outside of PATH on Debian. Tests create their own clusters in temporary folders.
    debian=/usr/lib/postgresql
    if ! compgen -G "$debian/1[5-9]/bin/postgres" >/dev/null && ! compgen -G "$debian/[2-9][0-9]/bin/postgres" >/dev/null &&
        ! command -v postgres >/dev/null; then
        postgres=postgresql
        missing+=(postgresql)
    fi
fi

if [[ $mode == check ]]; then
    ((${#missing[@]})) || exit 0
    echo "deps: missing: ${missing[*]}" >&2
    echo "deps: nothing was installed; as root, make setup does it (Debian and its children)" >&2
    exit 1
fi

# For scripts/deny.sh, which fetches a binary into a virtual environment.
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
if ((${#missing[@]})); then
    if ! command -v apt-get >/dev/null; then
        echo "deps: missing ${missing[*]} and no apt-get here: install them with this system's package manager" >&2
        exit 1
    fi
    if ((EUID != 0)); then
        echo "deps: missing ${missing[*]}; run as root, or: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    echo "deps: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >/dev/null || echo "deps: apt-get update failed, trying with the lists at hand" >&2
    # Debian's server package creates a cluster and starts it unless a setting prevents it; the setting is removed afterwards.
    if [[ -n $postgres ]]; then
        told=()
        trap 'rm -f "${told[@]}"' EXIT
        conf=/etc/postgresql-common/createcluster.d/adit-deps.conf policy=/usr/sbin/policy-rc.d
        mkdir -p "${conf%/*}"
        told+=("$conf")
        echo "create_main_cluster = false" >"$conf"
        if [[ ! -e $policy ]]; then
            told+=("$policy")
            printf '#!/bin/sh\ncase $1 in postgresql*) exit 101 ;; esac\n' >"$policy"
            chmod 755 "$policy"
        fi
        # Installed first, together with the configuration that reads the file above.
        apt-get install -y -q --no-install-recommends postgresql-common >/dev/null
    fi
    # On Debian, installing openvpn starts no tunnel, but the policies of other systems differ.
    apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
fi

if command -v rustup >/dev/null; then
    for component in rustfmt clippy; do
        if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
            rustup component add "$component"
        fi
    done
fi

if ((EUID == 0)) && [[ ! -c /dev/net/tun ]]; then
    mkdir -p /dev/net
    modprobe tun 2>/dev/null || true
    [[ -c /dev/net/tun ]] || mknod -m 0666 /dev/net/tun c 10 200
fi

# Programs for tests of DNS settings that must not be installed, and cargo-deny. Missing ones are listed here, and counted by the
# test that needs them.
scripts/dns-roots.sh
scripts/deny.sh setup
