#!/usr/bin/env bash
# install.sh [ENVIRONMENT ...]: virtual environments of the peers, all or those named, with the versions of
# requirements/, in the folder that BENCH_PEERS_DIR names (default ~/.cache/tierd-peers). Nothing is installed into
# tierd's own. One that fails does not stop the others; make bench-peers lists it as not installed.
# TORCH_INDEX: another index for torch, such as https://download.pytorch.org/whl/cpu.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
base=${BENCH_PEERS_DIR:-$HOME/.cache/tierd-peers}
all=(redis redis-hiredis glide mooncake ray lmcache)
torch=torch==2.13.0
libraries=(libibverbs1 librdmacm1 libnuma1 libnl-3-200 libnl-route-3-200)

main() {
    local failed=()
    mkdir -p "$base"
    for name in "${@:-${all[@]}}"; do
        echo "$name ..."
        (environment "$name") || failed+=("$name")
    done
    if ((${#failed[@]})); then
        echo "not installed: ${failed[*]}" >&2
        exit 1
    fi
}

# A subshell's set -e does not hold under ||, so each step is joined to the next.
environment() {
    local pip=("$base/$1/bin/python" -m pip --disable-pip-version-check install --quiet)
    rm -rf "${base:?}/$1" &&
        "${PYTHON:-python3}" -m venv "$base/$1" &&
        case $1 in
            lmcache) "${pip[@]}" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch" ;;
            mooncake) unpack_libraries ;;
        esac &&
        "${pip[@]}" --no-deps -r "$here/requirements/$1.txt" # without LMCache's packages for CUDA
}

# Mooncake's wheel needs RDMA's libraries to be loaded, not to be used.
unpack_libraries() {
    local folder
    folder=$(mktemp -d) &&
        (cd "$folder" && apt-get download -qq "${libraries[@]}") &&
        for package in "$folder"/*.deb; do dpkg-deb -x "$package" "$base/libraries" || return 1; done
    local status=$?
    rm -rf "$folder"
    return $status
}

main "$@"
