#!/bin/sh
# Writes a join token for each worker that the controller does not know yet. May be run any number of times.
#
#   join-tokens.sh FOLDER WORKER...     makes FOLDER/WORKER, for `gpuward agent --join-token-file`
#
# GPUWARD_URL says where the controller is. GPUWARD_API_KEY is a key of an administrator; where it is empty, the one in
# CLIENT_ENV is used, the file that the controller wrote. That key may be revoked: a worker that was given a token at an
# earlier start has a credential of its own, and needs no key. For a new worker: gpuward key reset.
set -eu
umask 077

folder=$1
shift
# The controller may be on its way up, or back. Where it does not come, the first call below says why.
tries=60
until python3 -c 'import os, urllib.request as u; u.urlopen(os.environ["GPUWARD_URL"] + "/readyz", timeout=8)' 2>/dev/null; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || break
    sleep 1
done
if [ -z "${GPUWARD_API_KEY:-}" ]; then
    GPUWARD_API_KEY=$(sed -n 's/^GPUWARD_API_KEY=//p' "${CLIENT_ENV:-/var/lib/gpuward/client.env}")
fi
export GPUWARD_API_KEY

for worker in "$@"; do
    status=0
    gpuward get worker "$worker" >/dev/null 2>"$folder/.error" || status=$?
    case $status in
    0) echo "$worker has joined already" ;;
    3)
        gpuward join-token create >"$folder/.$worker"
        mv "$folder/.$worker" "$folder/$worker"
        echo "$worker may join"
        ;;
    *)
        cat "$folder/.error" >&2
        [ -s "$folder/$worker" ] || exit "$status"
        echo "$worker was given a token at an earlier start"
        ;;
    esac
done
