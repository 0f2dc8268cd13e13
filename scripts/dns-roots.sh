#!/usr/bin/env bash
# Unpacks the programs that manage a machine's DNS into target/roots/dns, for tests that run them in private namespaces. They are
# never installed: systemd-resolved, NetworkManager and resolvconf rewrite /etc/resolv.conf. Unavailable programs are listed and
# left out.
set -uo pipefail
cd "$(dirname "$0")/.."
base=$PWD/target/roots/dns

# Folder, the program that shows that it is complete, packages. openresolv and resolvconf exclude each other.
roots=(
    "resolved:usr/bin/resolvectl:systemd-resolved dbus"
    "manager:usr/bin/nmcli:network-manager dbus"
    "openresolv:usr/sbin/resolvconf:openresolv"
    "resolvconf:usr/sbin/resolvconf:resolvconf"
)

not_had() {
    echo "dns-roots: not fetched: $1: $2" >&2
    rm -rf "$base/$1.new"
}

unpack() {
    local name=$1 program=$2 packages=$3 new=$base/$1.new missing part
    # The packages that this machine lacks for them, according to apt; the rest comes from the machine itself.
    # shellcheck disable=SC2086
    missing=$(apt-get install -s -q --no-install-recommends $packages 2>/dev/null | awk '$1 == "Inst" {print $2}')
    [[ -n $missing ]] || return 1
    rm -rf "$new"
    mkdir -p "$new/archives" "$new/root"
    # shellcheck disable=SC2086
    (cd "$new/archives" && apt-get download -q $missing >/dev/null 2>&1) || return 1
    for part in "$new"/archives/*.deb; do
        dpkg -x "$part" "$new/root" || return 1
    done
    # A folder here would hide the link of that name on a machine whose /bin, /sbin and /lib are links.
    for part in bin sbin lib lib64; do
        if [[ -d $new/root/$part && ! -L $new/root/$part && -L /$part ]]; then
            mkdir -p "$new/root/usr/$part"
            cp -a "$new/root/$part/." "$new/root/usr/$part/" && rm -rf "${new:?}/root/$part"
        fi
    done
    [[ -x $new/root/$program || -L $new/root/$program ]] || return 1
    rm -rf "${base:?}/$name"
    mv "$new/root" "$base/$name"
    rm -rf "$new"
}

fetched=
for entry in "${roots[@]}"; do
    IFS=: read -r name program packages <<<"$entry"
    [[ -e $base/$name/$program || -L $base/$name/$program ]] && continue
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        not_had "$name" "no apt-get and dpkg on this machine"
        continue
    fi
    if [[ -z $fetched ]]; then
        fetched=1
        ((EUID != 0)) || apt-get update -q >/dev/null 2>&1 || true
    fi
    unpack "$name" "$program" "$packages" || not_had "$name" "$packages could not be fetched"
done
