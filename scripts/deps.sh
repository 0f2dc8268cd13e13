#!/usr/bin/env bash
# Installs what the tests, the demo and the bench call, where it is missing. Nothing to do is a matter of milliseconds.
set -euo pipefail

# program:package, as Debian and its children name them. A file with a slash is looked for as it stands.
needed=(
    openvpn:openvpn iperf3:iperf3 nft:nftables ip:iproute2 ping:iputils-ping openssl:openssl
    tcpdump:tcpdump ethtool:ethtool unshare:util-linux cc:gcc make:make python3:python3
    valgrind:valgrind tinyproxy:tinyproxy-bin microsocks:microsocks danted:dante-server
    /usr/share/easy-rsa/easyrsa:easy-rsa
)

export PATH="$PATH:/usr/sbin:/sbin"
missing=()
for entry in "${needed[@]}"; do
    program=${entry%%:*}
    if [[ $program == */* ]]; then
        [[ -e $program ]] || missing+=("${entry#*:}")
    else
        command -v "$program" >/dev/null || missing+=("${entry#*:}")
    fi
done
# For scripts/deny.sh, which fetches a ready binary into a virtual environment.
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
if ! command -v cargo >/dev/null; then
    echo "deps: no cargo: install a Rust toolchain first, https://rustup.rs" >&2
    exit 1
fi

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
    # Debian starts no tunnel by installing openvpn, but other systems' policies differ.
    apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
fi

if command -v rustup >/dev/null; then
    for component in rustfmt clippy; do
        if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
            rustup component add "$component"
        fi
    done
fi

if [[ ! -c /dev/net/tun ]]; then
    if ((EUID == 0)); then
        mkdir -p /dev/net
        modprobe tun 2>/dev/null || true
        [[ -c /dev/net/tun ]] || mknod -m 0666 /dev/net/tun c 10 200
    else
        echo "deps: no /dev/net/tun; as root: modprobe tun" >&2
    fi
fi
