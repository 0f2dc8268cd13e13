#!/usr/bin/env bash
# Unpacks programs of Debian that start openvpn or that its scripts call, with the libraries that they need and that not every
# system has: openresolv into target/roots/openresolv, because another package has a program of the same name; NetworkManager with
# its OpenVPN plugin, systemd with systemd-resolved, the script of openvpn-systemd-resolved, and openvpn with its service files and
# examples, which containers leave out, into target/roots/frontends.
folder=$(dirname "$0")
"$folder/debian-root.sh" openresolv sbin/resolvconf -- openresolv
exec "$folder/debian-root.sh" frontends \
    usr/sbin/NetworkManager usr/lib/NetworkManager/nm-openvpn-service usr/bin/dbus-daemon lib/systemd/systemd-resolved \
    usr/share/doc/openvpn/examples/sample-config-files/server.conf -- \
    network-manager network-manager-openvpn libnm0 libndp0 libteamdctl0 libmm-glib0 libbluetooth3 libnewt0.52 libslang2 \
    libcurl3-gnutls libnghttp2-14 librtmp1 libssh2-1 libbrotli1 libldap-2.5-0 libsasl2-2 libpsl5 libjansson4 libglib2.0-0 \
    libreadline8 libudev1 dbus-daemon libdbus-1-3 libapparmor1 libcap-ng0 libexpat1 \
    openvpn openvpn-systemd-resolved systemd-resolved systemd libsystemd-shared libkmod2 libseccomp2 libfdisk1 libip4tc2
