#!/usr/bin/env bash
# Unpacks PostgreSQL's servers of other Debian suites into target/roots/postgres-VERSION, for `make interop-postgres`: they are
# not installed, and run by chroot in a separate mount namespace. With arguments, unpacks only these versions. Needs mmdebstrap.
set -uo pipefail
cd "$(dirname "$0")/.."
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

declare -A suites=([17]=trixie [18]=sid)
versions=("$@")
((${#versions[@]})) || versions=(17 18)

status=0
mkdir -p target/roots
for version in "${versions[@]}"; do
    suite=${suites[$version]:-}
    if [[ -z $suite ]]; then
        echo "postgres-roots: no suite with PostgreSQL $version is known here: ${!suites[*]}" >&2
        exit 2
    fi
    root=target/roots/postgres-$version
    [[ -x $root/usr/lib/postgresql/$version/bin/postgres ]] && continue
    if ! command -v mmdebstrap >/dev/null; then
        apt-get install -y -q --no-install-recommends mmdebstrap >/dev/null 2>&1
    fi
    rm -rf "$root.new"
    # The server, the shell that its programs call, and the program that drops root. A mirror that is no longer updated serves sid
    # with an expired date; its signature is checked nevertheless.
    if mmdebstrap --quiet --variant=extract --include="postgresql-$version,base-files,dash,coreutils,util-linux" \
        --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$root.new" "$mirror" &&
        [[ -x $root.new/usr/lib/postgresql/$version/bin/postgres ]]; then
        # The server's user has the same id and name as on the machine.
        install -m 644 /etc/passwd /etc/group "$root.new/etc/"
        rm -rf "$root"
        mv "$root.new" "$root"
    else
        echo "postgres-roots: PostgreSQL $version of Debian $suite could not be fetched from $mirror" >&2
        rm -rf "$root.new"
        status=1
    fi
done
exit $status
