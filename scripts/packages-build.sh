#!/usr/bin/env bash
# Compiles adit and adit-lab, and builds all packages of them under target/packages (make packages):
#
#   packages-build.sh [PROFILE]
#
# The profile is release if it is not given. The folders of the source and of cargo do not enter the programs, so builds of the
# same commit by the same compiler in other folders give the same bytes (make reproducible). The static program, for the tarball and the
# image, needs Rust's standard library for musl: rustup target add x86_64-unknown-linux-musl, and Debian's musl-tools. Without it,
# scripts/musl.sh builds the program with another compiler, if it can.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-release}
out=target/packages
host=$(rustc -vV | sed -n 's/^host: //p')
cargo_home=${CARGO_HOME:-$HOME/.cargo}

# Flags are separated by the byte 31.
map="$PWD=/adit" registry="$cargo_home=/cargo" rust="$(rustc --print sysroot)=/rust"
printf -v CARGO_ENCODED_RUSTFLAGS '%s\x1f%s\x1f%s' "--remap-path-prefix=$map" "--remap-path-prefix=$registry" "--remap-path-prefix=$rust"
export CARGO_ENCODED_RUSTFLAGS
export CFLAGS="-ffile-prefix-map=$map -ffile-prefix-map=$registry"

# The label `revision` of the metrics. A build without it does not know its commit, so that cargo does not compile everything again at each one.
ADIT_REVISION=${ADIT_REVISION:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
# The time that C code with __TIME__ contains.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export ADIT_REVISION SOURCE_DATE_EPOCH

# Compiles packages for a target.
compile() {
    local target=$1
    shift
    cargo build --locked --profile "$profile" --target "$target" --target-dir "$out/build" "$@"
}

compile "$host" -p adit-cli -p adit-lab
built=$out/build/$host/$profile
scripts/sbom.py adit-cli "$host" >"$out/adit.cdx.json"
scripts/packages.sh --adit "$built/adit" --lab "$built/adit-lab" --sbom "$out/adit.cdx.json" --out "$out" deb rpm

musl=${host%%-*}-unknown-linux-musl
static=''
if [[ -d $(rustc --print target-libdir --target "$musl") ]]; then
    if ! command -v musl-gcc >/dev/null; then
        echo "packages: no musl-gcc for the static program (Debian: apt-get install musl-tools)" >&2
        exit 1
    fi
    # Rust links musl's objects itself; musl-gcc compiles only the C parts.
    export "CC_${musl//-/_}=musl-gcc"
    compile "$musl" -p adit-cli
    static=$out/build/$musl/$profile/adit
elif scripts/musl.sh root; then
    scripts/musl.sh build "$profile"
    static=$out/musl/adit
fi
if [[ -n $static ]]; then
    scripts/sbom.py adit-cli "$musl" >"$out/adit-musl.cdx.json"
    scripts/packages.sh --adit "$static" --sbom "$out/adit-musl.cdx.json" --out "$out" tarball image
else
    echo "packages: unbuilt: the static program: no Rust standard library for $musl (rustup target add $musl)" >&2
    echo "packages: the tarball and the image have a program that needs glibc instead" >&2
    scripts/packages.sh --adit "$built/adit" --sbom "$out/adit.cdx.json" --out "$out" tarball image
fi
cd "$out"
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS
cat SHA256SUMS
