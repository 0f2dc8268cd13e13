#!/usr/bin/env bash
# Unpacks Debian's plugins of openvpn for LDAP and RADIUS, with slapd and freeradius, into target/roots/plugins without installing
# them, because the packages start services. Tests that need them are skipped, and counted as such, if they are unavailable.
set -uo pipefail
cd "$(dirname "$0")/.."
root=target/roots/plugins
complete() {
    [[ -x $1/usr/sbin/slapd && -x $1/usr/sbin/freeradius && -e $1/usr/lib/openvpn/openvpn-auth-ldap.so ]]
}
complete "$root" && exit 0
if ! command -v apt-get >/dev/null; then
    echo "plugins: not fetched: no apt-get here" >&2
    exit 0
fi
new=$(pwd)/$root.new
rm -rf "$new"
mkdir -p "$new"
chmod 755 "$new"
cd "$new" || exit 1
# With the libraries that they need and that not every system has.
for package in openvpn-auth-ldap openvpn-auth-radius slapd freeradius freeradius-common libfreeradius3 libldap-2.5-0 libsasl2-2 \
    libltdl7 libodbc2 libpcre3 libtalloc2 libct4 libwbclient0 libgc1 libobjc4 libgcrypt20 libgpg-error0; do
    apt-get download -q "$package" >/dev/null 2>&1 || apt-get download -q "${package}t64" >/dev/null 2>&1
done
for archive in *.deb; do
    [[ -e $archive ]] && dpkg -x "$archive" . && rm -f "$archive"
done
cd - >/dev/null || exit 1
if complete "$root.new"; then
    rm -rf "$root"
    mv "$root.new" "$root"
else
    echo "plugins: not fetched: Debian's packages could not be fetched" >&2
    rm -rf "$root.new"
fi
