#!/usr/bin/env bash
# Unpacks Debian's promtool, which checks metrics and alert rules, into target/roots/prometheus. The rest of its package has 50 MB,
# and is removed.
set -euo pipefail
folder=$(dirname "$0")
"$folder/debian-root.sh" prometheus usr/bin/promtool -- prometheus
root=$folder/../target/roots/prometheus
[[ ! -d $root ]] || find "$root" -type f ! -name promtool -delete
