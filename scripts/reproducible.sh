#!/usr/bin/env bash
# Builds all packages of the current commit twice, in two folders, and fails unless both have the same bytes:
#
#   reproducible.sh [PROFILE]
#
# Two releases take a quarter of an hour; the profile try takes a third of that.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-release}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
folders=(target/reproducible/one target/reproducible/another-name)
for folder in "${folders[@]}"; do
    rm -rf "$folder"
    mkdir -p "$folder"
    git archive HEAD | tar -x -C "$folder"
    # The compiler of the static program, if scripts/musl.sh brings it.
    mkdir -p target/roots "$folder/target"
    ln -s "$PWD/target/roots" "$folder/target/roots"
    "$folder/scripts/packages-build.sh" "$profile"
    # Room for the second build.
    rm -rf "$folder/target/packages/build"
done
diff "${folders[0]}/target/packages/SHA256SUMS" "${folders[1]}/target/packages/SHA256SUMS"
echo "reproducible: $(wc -l <"${folders[0]}/target/packages/SHA256SUMS") files, the same in both builds"
rm -rf target/reproducible
