#!/bin/sh
# Installs the tidegate binary of a release, after its checksum was verified.
#
#   sh install.sh                         the latest release, to ~/.local/bin
#   VERSION=0.1.0 PREFIX=/usr/local sh install.sh
#   BASE=https://mirror.example/tidegate sh install.sh     another place for the same files
set -eu

main() {
    base=${BASE:-https://github.com/tidegate/tidegate/releases}
    prefix=${PREFIX:-$HOME/.local}
    target=$(target)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    if [ -n "${VERSION:-}" ]; then from=$base/download/v$VERSION; else from=$base/latest/download; fi
    download "$from/SHA256SUMS-$target" "$work/sums"
    # "<sum>  tidegate-<version>-<target>.tar.gz"
    line=$(grep -E "  tidegate-[0-9][^ ]*-$target\.tar\.gz\$" "$work/sums") ||
        fail "this release has no file for $target"
    sum=${line%% *}
    file=${line##* }
    download "$from/$file" "$work/$file"
    [ "$(checksum "$work/$file")" = "$sum" ] ||
        fail "the checksum of $file is wrong; nothing was installed"
    tar -xzf "$work/$file" -C "$work"
    mkdir -p "$prefix/bin"
    # Renamed into place, so that a running server keeps its file.
    cp "$work/${file%.tar.gz}/tidegate" "$prefix/bin/.tidegate.new"
    chmod 755 "$prefix/bin/.tidegate.new"
    mv "$prefix/bin/.tidegate.new" "$prefix/bin/tidegate"
    echo "installed $("$prefix/bin/tidegate" --version) in $prefix/bin"
    case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) echo "$prefix/bin is not in PATH" ;;
    esac
}

target() {
    case $(uname -s)-$(uname -m) in
    Linux-x86_64 | Linux-amd64) echo x86_64-unknown-linux-musl ;;
    Linux-aarch64 | Linux-arm64) echo aarch64-unknown-linux-musl ;;
    *) fail "no binary for $(uname -s) $(uname -m); install with cargo" ;;
    esac
}

download() {
    if command -v curl >/dev/null; then
        curl -fsSL -o "$2" "$1" || fail "cannot download $1"
    else
        wget -qO "$2" "$1" || fail "cannot download $1"
    fi
}

checksum() {
    if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}

fail() {
    echo "install: $1" >&2
    exit 1
}

main
