#!/bin/sh
# What a container runtime does with the image, as far as namespaces go: run as pid 1 of new mount, network and pid
# namespaces, it gives the daemon a small /dev/shm, a volume that is open to everybody, and no capability.
#
#   as_container.sh VOLUME SHM_BYTES HEALTHCHECK WORKER     python and tierd are found by PATH, settings in TIERD_*
#
# Prints what the worker prints; its status is that of the first thing that fails, 3 when there is no such runtime.
set -eu

volume=$1 shm_bytes=$2 healthcheck=$3 worker=$4
{
    mount -t tmpfs -o "size=$shm_bytes,mode=1777" tmpfs /dev/shm
    mount -t tmpfs -o mode=0777 tmpfs "$volume"
    ip link set lo up
} || exit 3

# Becomes the command: in the background or in parentheses, so that the pid is its own.
confined() {
    exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
}

confined tierd serve &
daemon=$!
tries=0
until (confined python -c "$healthcheck" 2>/dev/null); do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || exit 1
    kill -0 "$daemon"
    sleep 0.5
done
(confined python "$worker")
kill -TERM "$daemon"
wait "$daemon"
