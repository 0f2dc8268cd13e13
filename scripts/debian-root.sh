#!/usr/bin/env bash
# Unpacks Debian packages into target/roots/NAME without installing them, because some of them start services:
#     scripts/debian-root.sh NAME FILE... -- PACKAGE...
# The root is complete if it has all files. Tests that need it are skipped, and counted as such, if it is unavailable.
set -uo pipefail
cd "$(dirname "$0")/.."
name=$1
shift
files=()
while [[ $1 != -- ]]; do
    files+=("$1")
    shift
done
shift
root=target/roots/$name
complete() {
    local file
    for file in "${files[@]}"; do
        [[ -e $1/$file ]] || return 1
    done
}
complete "$root" && exit 0
if ! command -v apt-get >/dev/null; then
    echo "$name: not fetched: no apt-get here" >&2
    exit 0
fi
new=$(pwd)/$root.new
rm -rf "$new"
mkdir -p "$new"
chmod 755 "$new"
cd "$new" || exit 1
# All at once is faster. It fails if one of them has another name in this release.
if ! apt-get download -q "$@" >/dev/null 2>&1; then
    for package in "$@"; do
        apt-get download -q "$package" >/dev/null 2>&1 || apt-get download -q "${package}t64" >/dev/null 2>&1
    done
fi
for archive in *.deb; do
    [[ -e $archive ]] && dpkg -x "$archive" . && rm -f "$archive"
done
cd - >/dev/null || exit 1
if complete "$root.new"; then
    rm -rf "$root"
    mv "$root.new" "$root"
else
    echo "$name: not fetched: Debian's packages could not be fetched" >&2
    rm -rf "$root.new"
fi
