#!/usr/bin/env bash
# Unpacks Debian's plugins of openvpn for LDAP and RADIUS, with slapd, freeradius and the libraries that they need and that not
# every system has, into target/roots/plugins.
exec "$(dirname "$0")/debian-root.sh" plugins \
    usr/sbin/slapd usr/sbin/freeradius usr/lib/openvpn/openvpn-auth-ldap.so -- \
    openvpn-auth-ldap openvpn-auth-radius slapd freeradius freeradius-common libfreeradius3 libldap-2.5-0 libsasl2-2 \
    libltdl7 libodbc2 libpcre3 libtalloc2 libct4 libwbclient0 libgc1 libobjc4 libgcrypt20 libgpg-error0
