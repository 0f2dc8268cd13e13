#!/usr/bin/env bash
# Builds packages from a finished program; it compiles nothing, and the same program gives the same bytes:
#
#   packages.sh [--adit FILE] [--native FILE] [--lab FILE] [--sbom FILE] [--version VERSION] [--out FOLDER] [--fast] FORMAT...
#
#   deb      adit and adit-openvpn, and adit-lab with --lab
#   rpm      adit
#   tarball  the files below / of a machine
#   image    a container image in OCI's layout: adit, nft and their libraries
#
# --native is an adit that runs here and prints the man pages, if --adit is for another machine. --fast hardly compresses, for
# tests. The version is the program's if it is not given. deb and rpm are written by dpkg-deb and
# rpmbuild themselves: cargo-deb and cargo-generate-rpm take minutes to compile, and would repeat what these files say.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)

adit=$top/target/release/adit native='' lab='' sbom='' version='' out=$top/target/packages fast='' formats=()
while (($#)); do
    case $1 in
    --adit) adit=$2 && shift 2 ;;
    --native) native=$2 && shift 2 ;;
    --lab) lab=$2 && shift 2 ;;
    --sbom) sbom=$2 && shift 2 ;;
    --version) version=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --fast) fast=yes && shift ;;
    deb | rpm | tarball | image) formats+=("$1") && shift ;;
    *) echo "packages: $1: not an option or a format: see the first lines of $0" >&2 && exit 2 ;;
    esac
done
if ((${#formats[@]} == 0)); then
    echo "packages: name a format: deb, rpm, tarball or image" >&2
    exit 2
fi
native=${native:-$adit}
for file in "$adit" "$native" ${lab:+"$lab"} ${sbom:+"$sbom"}; do
    if [[ ! -f $file ]]; then
        echo "packages: $file: no such file: make packages builds everything" >&2
        exit 2
    fi
done
version=${version:-$("$native" --version | sed -n 's/^adit \([^ ]*\).*/\1/p')}
# The time of all files, so that a second build gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
case $(LC_ALL=C readelf -h "$adit" | sed -n 's/^ *Machine: *//p') in
*X86-64) machine=x86_64 debian=amd64 oci=amd64 ;;
AArch64) machine=aarch64 debian=arm64 oci=arm64 ;;
*) echo "packages: $adit: packages exist for x86-64 and ARM64" >&2 && exit 2 ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 022

# Copies a program without its symbols.
program() {
    install -D -m 755 "$1" "$2"
    strip "$2"
}

# Lays out the files of the package adit.
stage() {
    local root=$1 share=$1/usr/share unit
    program "$adit" "$root/usr/bin/adit"
    for unit in "$top"/packaging/*.service; do
        install -D -m 644 "$unit" "$root/usr/lib/systemd/system/${unit##*/}"
    done
    install -D -m 644 "$top/packaging/sysusers.conf" "$root/usr/lib/sysusers.d/adit.conf"
    install -D -m 644 "$top/packaging/tmpfiles.conf" "$root/usr/lib/tmpfiles.d/adit.conf"
    "$native" man "$share/man/man1"
    find "$share/man" -type f -exec gzip -9n {} +
    mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
    "$native" completions bash >"$share/bash-completion/completions/adit"
    "$native" completions zsh >"$share/zsh/site-functions/_adit"
    "$native" completions fish >"$share/fish/vendor_completions.d/adit.fish"
    documents "$share/doc/adit"
    install -m 644 "$top/README.md" "$share/doc/adit/"
    install -D -m 644 -t "$share/doc/adit/docs" "$top"/docs/*.md
    install -D -m 644 -t "$share/doc/adit/docs/guides" "$top"/docs/guides/*.md
    install -D -m 644 -t "$share/doc/adit/packaging/metrics" "$top"/packaging/metrics/*
    install -D -m 644 -t "$share/doc/adit/packaging/examples" "$top"/packaging/examples/*
    [[ -z $sbom ]] || install -m 644 "$sbom" "$share/doc/adit/sbom.cdx.json"
}

# Installs the licences and the changelog.
documents() {
    mkdir -p "$1"
    install -m 644 "$top/packaging/copyright" "$top"/LICENSE-* "$1/"
    gzip -9nc "$top/CHANGELOG.md" >"$1/changelog.gz"
    chmod 644 "$1/changelog.gz"
}

# Packs a folder with the same order, owners and times each time.
pack() {
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu -C "$1" -cf - "${@:2}"
}

# Prints the libraries that a program names, one a line.
libraries() {
    LC_ALL=C readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

build_tarball() {
    local libc=gnu name
    [[ -n $(libraries "$adit") ]] || libc=musl
    name=adit-$version-$machine-linux-$libc
    mkdir "$scratch/tarball"
    cp -a "$files" "$scratch/tarball/$name"
    pack "$scratch/tarball" "$name" | if [[ -n $fast ]]; then gzip -1n; else gzip -9n; fi >"$out/$name.tar.gz"
    echo "$out/$name.tar.gz"
}

mkdir -p "$out"
files=$scratch/files
stage "$files"
for format in "${formats[@]}"; do
    # shellcheck source=/dev/null
    [[ ! -e $top/scripts/packages/$format.sh ]] || source "$top/scripts/packages/$format.sh"
    "build_$format"
done
