#!/usr/bin/env bash
# Builds a static binary with musl and runs it, and runs the unit tests of the crates without I/O for aarch64, under qemu.
# On Debian and its derivatives: apt-get install musl-tools gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for entry in musl-gcc:musl-tools aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user \
    /usr/aarch64-linux-gnu/include/stdio.h:libc6-dev-arm64-cross; do
    command -v "${entry%%:*}" >/dev/null || [[ -e ${entry%%:*} ]] || missing+=("${entry#*:}")
done
if ((${#missing[@]})); then
    echo "cross: missing: ${missing[*]}; install them with this system's package manager" >&2
    exit 1
fi
musl=x86_64-unknown-linux-musl
arm=aarch64-unknown-linux-gnu
rustup target add "$musl" "$arm"

# Rust links musl's objects itself; musl-gcc compiles only the C parts.
export CC_x86_64_unknown_linux_musl=musl-gcc
cargo build --locked -p adit-cli --target "$musl"
adit=target/$musl/debug/adit
"$adit" --version
# The demo starts everything that a server and a client start: helpers, filters of system calls, workers.
if ((EUID == 0)); then
    "$adit" demo
else
    echo "cross: SKIPPED: the demo of the static binary needs root" >&2
fi

export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
cargo build --locked -p adit-cli --target "$arm"
# Left out: valgrind does not run under qemu; two comparisons of random rules take minutes there.
cargo test --locked --lib --target "$arm" -p adit-wire -p adit-crypto -p adit-dns -p adit-engine -p adit-filter -p adit-openvpn \
    -p adit-openvpn-data -p adit-pki -p adit-postgres -p adit-bridge -- \
    --skip constant_time --skip a_map_of_many_single_pairs --skip compiled_rules_judge_as_the_written_ones
