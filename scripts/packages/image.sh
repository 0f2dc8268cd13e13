# The container image, in OCI's layout; part of scripts/packages.sh. It is made from scratch: adit, nft, which a server calls, and
# the libraries of both, from this machine.

# Copies a program and its libraries.
with_libraries() {
    local root=$1 file=$2 to=$3 library
    mkdir -p "$root/${to%/*}"
    cp -L "$file" "$root/$to"
    # A static program has none.
    { ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do
        mkdir -p "$root${library%/*}"
        cp -L "$library" "$root$library"
    done
}

# Adds a file to the layout under the name of its hash. Prints it as a descriptor of the media type $2.
blob() {
    local hash
    hash=$(sha256sum <"$1" | cut -d' ' -f1)
    cp "$1" "$scratch/layout/blobs/sha256/$hash"
    printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d' "$2" "$hash" "$(stat -c %s "$1")"
}

build_image() {
    local root=$scratch/image layout=$scratch/layout nft hash layer config manifest created
    nft=$(PATH=$PATH:/usr/sbin:/sbin command -v nft) || {
        echo "packages: no nft, which a server in a container calls (Debian: apt-get install nftables)" >&2
        return 1
    }
    mkdir -p "$root"/{etc/adit,var/lib/adit,run,tmp,usr/bin} "$layout/blobs/sha256"
    with_libraries "$root" "$files/usr/bin/adit" usr/bin/adit
    with_libraries "$root" "$nft" usr/sbin/nft
    chmod 1777 "$root/tmp"
    printf 'root:x:0:0::/:/usr/sbin/nologin\nadit:x:100:100:adit VPN:/:/usr/sbin/nologin\n' >"$root/etc/passwd"
    printf 'root:x:0:\nadit:x:100:\n' >"$root/etc/group"
    documents "$root/usr/share/doc/adit"

    pack "$root" . >"$scratch/layer.tar"
    hash=$(sha256sum <"$scratch/layer.tar" | cut -d' ' -f1)
    if [[ -n $fast ]]; then gzip -1n "$scratch/layer.tar"; else gzip -9n "$scratch/layer.tar"; fi
    layer=$(blob "$scratch/layer.tar.gz" layer.v1.tar+gzip)
    created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
    printf '{"created":"%s","architecture":"%s","os":"linux","config":{"Entrypoint":["/usr/bin/adit"],"Cmd":["server","up"],%s},%s}' \
        "$created" "$oci" '"Env":["PATH=/usr/sbin:/usr/bin"],"Volumes":{"/etc/adit":{},"/var/lib/adit":{}}' \
        "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$hash\"]}" >"$scratch/config.json"
    config=$(blob "$scratch/config.json" config.v1+json)
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s},"layers":[%s}]}' \
        "$config" "$layer" >"$scratch/manifest.json"
    manifest=$(blob "$scratch/manifest.json" manifest.v1+json)
    printf '{"schemaVersion":2,"manifests":[%s,"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' \
        "$manifest" "$version" >"$layout/index.json"
    printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
    local file=$out/adit-$version-$machine.oci.tar
    pack "$layout" blobs index.json oci-layout >"$file"
    echo "$file"
}
