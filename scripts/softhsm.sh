#!/usr/bin/env bash
# Unpacks SoftHSM, the software token of the tests for PKCS#11, into target/roots/softhsm.
exec "$(dirname "$0")/debian-root.sh" softhsm usr/bin/softhsm2-util usr/lib/softhsm/libsofthsm2.so -- softhsm2 libsofthsm2
