# The RPM; part of scripts/packages.sh.

build_rpm() {
    if ! command -v rpmbuild >/dev/null; then
        echo "packages: no rpmbuild (Debian: apt-get install rpm)" >&2
        return 1
    fi
    local payload=w19.zstdio
    [[ -z $fast ]] || payload=w0.ufdio
    rpmbuild -bb --quiet --target "$machine-linux" \
        --define "adit_version $version" --define "adit_files $files" \
        --define "_topdir $scratch/rpm" --define "_rpmdir $scratch/rpm" --define "_binary_payload $payload" \
        --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
        --define "clamp_mtime_to_source_date_epoch 1" \
        "$top/packaging/rpm/adit.spec" >/dev/null
    local file=$out/adit-$version-1.$machine.rpm
    mv "$scratch/rpm/$machine/${file##*/}" "$file"
    echo "$file"
}
