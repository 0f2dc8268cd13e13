#!/usr/bin/env bash
# Builds the static program with the compiler of Debian's sid, on a machine whose Rust has no standard library for musl:
#
#   musl.sh root              makes target/roots/rust-sid, with the compiler, the source of its standard library, and musl
#   musl.sh build [PROFILE]   compiles the standard library and adit there; the program is target/packages/musl/adit
#   musl.sh check [FILE]      runs a static program in a root that has nothing else: version, server, demo
#
# Needs root, and mmdebstrap for the first. No package is installed on this machine. The profile is release if it is not given.
set -euo pipefail
cd "$(dirname "$0")/.."
action=${1:-} root=$PWD/target/roots/rust-sid out=$PWD/target/packages/musl
musl=x86_64-unknown-linux-musl
# The newest LLVM unwinder in sid that does without glibc's _dl_find_object, which musl lacks.
unwinder=libunwind-19-dev

# Fails with a reason.
fail() {
    echo "musl: $*" >&2
    exit 1
}

# Lays out what rustup's standard library has next to it: the start files and libraries of musl, gcc and LLVM. $1 is the root.
lay_out() {
    local folder=$1/usr/lib/rustlib/$musl/lib/self-contained
    mkdir -p "$folder"
    cp -L "$1"/usr/lib/x86_64-linux-musl/{crt1,Scrt1,rcrt1,crti,crtn}.o "$1/usr/lib/x86_64-linux-musl/libc.a" "$folder/"
    cp -L "$1"/usr/lib/gcc/x86_64-linux-gnu/*/crt{begin,beginS,end,endS}.o "$folder/"
    cp -L "$1"/usr/lib/llvm-*/lib/libunwind.a "$folder/"
    # Debian compiles the unwinder with functions of glibc that check the buffer's size, which musl lacks.
    cat >"$1/tmp/checked.c" <<'SOURCE'
#include <stdarg.h>
#include <stdio.h>

int __fprintf_chk(FILE *file, int level, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int written = vfprintf(file, format, values);
    va_end(values);
    (void)level;
    return written;
}

int __vfprintf_chk(FILE *file, int level, const char *format, va_list values)
{
    (void)level;
    return vfprintf(file, format, values);
}

int __vsnprintf_chk(char *to, size_t limit, int level, size_t size, const char *format, va_list values)
{
    (void)level;
    return vsnprintf(to, limit < size ? limit : size, format, values);
}
SOURCE
    # The headers of Linux, which musl's do not include.
    ln -s ../linux "$1/usr/include/x86_64-linux-musl/linux"
    ln -s ../asm-generic "$1/usr/include/x86_64-linux-musl/asm-generic"
    ln -s ../x86_64-linux-gnu/asm "$1/usr/include/x86_64-linux-musl/asm"
    enter "$1" musl-gcc -O2 -c -o /tmp/checked.o /tmp/checked.c
    # mimalloc calls __popcountdi2 of the library of gcc, which Rust does not link.
    enter "$1" sh -c 'cd /tmp && ar x "$(gcc -print-libgcc-file-name)" _popcountsi2.o _popcount_tab.o'
    enter "$1" ar r "${folder#"$1"}/libunwind.a" /tmp/checked.o /tmp/_popcountsi2.o /tmp/_popcount_tab.o
}

# Runs a program in a root. No variable of this shell enters it.
enter() {
    chroot "$1" /usr/bin/env -i PATH=/usr/bin HOME=/tmp LC_ALL=C "${@:2}"
}

make_root() {
    [[ ! -e $root/usr/bin/musl-gcc || ! -e $root/usr/lib/rustlib/$musl/lib/self-contained/libunwind.a ]] || return 0
    ((EUID == 0)) || fail "the root needs root"
    [[ $(uname -m) == x86_64 ]] || fail "this way exists for x86-64"
    command -v mmdebstrap >/dev/null || fail "no mmdebstrap (Debian: apt-get install mmdebstrap)"
    local mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian} new=$root.new folder
    rm -rf "$new"
    mkdir -p "${root%/*}"
    # Only unpacked, because no maintainer script is needed. A mirror that is no longer updated serves sid with an expired date; its
    # signature is checked nevertheless.
    mmdebstrap --quiet --variant=extract --include="coreutils,dash,gcc,libc6-dev,musl-tools,rustc,cargo,rust-src,$unwinder" \
        --aptopt='Acquire::Check-Valid-Until "false"' sid "$new" "$mirror" || fail "Debian's sid could not be fetched from $mirror"
    for folder in bin lib lib64; do
        [[ -e $new/$folder ]] || ln -s "usr/$folder" "$new/$folder"
    done
    ln -sf dash "$new/usr/bin/sh"
    ln -sf gcc "$new/usr/bin/cc"
    mkdir -p "$new"/{adit,cargo,dev,proc,tmp}
    lay_out "$new"
    rm -rf "$root"
    mv "$new" "$root"
}

# Compiles adit. The crates are fetched by this machine's cargo, and the root has no network. All folders have the same name in
# each build.
build() {
    local profile=${1:-release} library
    library=$(echo "$root"/usr/src/rustc-*/library)
    cargo fetch --locked --quiet
    RUSTC_BOOTSTRAP=1 cargo fetch --locked --quiet --manifest-path "$library/Cargo.toml"
    mkdir -p "$out" "$root"/{adit,cargo/registry}
    # shellcheck disable=SC2016
    unshare --mount --net --propagation private bash -c '
        set -e
        mount --bind "$1" "$2/adit"
        mount --bind "$3/registry" "$2/cargo/registry"
        mount -t proc proc "$2/proc"
        mount --rbind /dev "$2/dev"
        exec chroot "$2" "${@:4}"
    ' bash "$PWD" "$root" "${CARGO_HOME:-$HOME/.cargo}" \
        /usr/bin/env -i -C /adit PATH=/usr/bin HOME=/tmp LC_ALL=C CARGO_HOME=/cargo RUSTC_BOOTSTRAP=1 \
        ${CARGO_BUILD_JOBS:+"CARGO_BUILD_JOBS=$CARGO_BUILD_JOBS"} ${ADIT_REVISION:+"ADIT_REVISION=$ADIT_REVISION"} \
        ${SOURCE_DATE_EPOCH:+"SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH"} "CC_${musl//-/_}=musl-gcc" \
        cargo build --offline --locked -Z build-std=std --profile "$profile" --target "$musl" \
        --target-dir target/packages/musl/build -p adit-cli
    cp "$out/build/$musl/$profile/adit" "$out/adit"
}

# Checks that a program needs no other file: it has no interpreter, and works in a root without one.
check() {
    local adit=${1:-$out/adit}
    ! LC_ALL=C readelf -l "$adit" | grep INTERP || fail "$adit needs a dynamic linker"
    bare=$(mktemp -d)
    trap 'rm -rf "$bare"' EXIT
    mkdir -p "$bare"/{dev,proc}
    cp "$adit" "$bare/adit"
    # shellcheck disable=SC2016
    unshare --mount --net --pid --fork --kill-child --propagation private sh -c '
        set -e
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        for words in "--version" "server init --host 192.0.2.1" "server client add laptop -o /laptop.ovpn" "demo"; do
            echo "adit $words"
            chroot "$1" /adit $words
        done
    ' sh "$bare"
    echo "musl: $adit works in a root that has nothing else"
}

case $action in
root) make_root ;;
build) build "${2:-}" ;;
check) check "${2:-}" ;;
*) fail "write root, build or check: see the first lines of $0" ;;
esac
