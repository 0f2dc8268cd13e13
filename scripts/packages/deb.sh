# The Debian packages; part of scripts/packages.sh.

# Prints the packages that a program needs, with the oldest version of glibc that has all its symbols.
depends() {
    local library packages=passwd glibc
    glibc=$(LC_ALL=C readelf --version-info "$1" | grep -o 'GLIBC_[0-9][0-9.]*' | sort -Vu | tail -n 1 || true)
    for library in $(libraries "$1"); do
        case $library in
        libc.so.6) packages+=", libc6 (>= ${glibc#GLIBC_})" ;;
        libgcc_s.so.1) packages+=", libgcc-s1" ;;
        # Part of libc6.
        libm.so.6 | libdl.so.2 | libpthread.so.0 | ld-linux-*) ;;
        *) echo "packages: $1 needs $library: name its package in scripts/packages/deb.sh" >&2 && return 1 ;;
        esac
    done
    echo "$packages"
}

# Builds the package $1 from the folder $2, with the architecture $3 and the dependencies $4.
deb() {
    local name=$1 root=$2 architecture=$3 depends=$4 script size
    local file=$out/${name}_${version}_$architecture.deb
    size=$(find "$root" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
    mkdir "$root/DEBIAN"
    sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@DEPENDS@/$depends/; s/@SIZE@/$size/" \
        "$top/packaging/deb/$name/control" >"$root/DEBIAN/control"
    for script in preinst postinst prerm postrm; do
        [[ ! -e $top/packaging/deb/$name/$script ]] || install -m 755 "$top/packaging/deb/$name/$script" "$root/DEBIAN/"
    done
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group --build ${fast:+-Znone} "$root" "$file" >/dev/null
    echo "$file"
}

build_deb() {
    local root=$scratch/deb needs unit
    needs=$(depends "$adit")
    cp -a "$files" "$root-adit"
    # Debian's zsh looks there.
    mv "$root-adit/usr/share/zsh/site-functions" "$root-adit/usr/share/zsh/vendor-completions"
    deb adit "$root-adit" "$debian" "$needs"

    mkdir -p "$root-openvpn/usr/sbin"
    ln -s ../bin/adit "$root-openvpn/usr/sbin/openvpn"
    for unit in openvpn openvpn-client openvpn-server; do
        install -D -m 644 "$top/packaging/adit-openvpn.conf" "$root-openvpn/usr/lib/systemd/system/$unit@.service.d/adit-openvpn.conf"
    done
    documents "$root-openvpn/usr/share/doc/adit-openvpn"
    deb adit-openvpn "$root-openvpn" all ''

    [[ -n $lab ]] || return 0
    program "$lab" "$root-lab/usr/bin/adit-lab"
    documents "$root-lab/usr/share/doc/adit-lab"
    needs=$(depends "$lab")
    deb adit-lab "$root-lab" "$debian" "$needs"
}
