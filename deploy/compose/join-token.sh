#!/bin/sh
# Makes a join token for all replicas of the agent, new at each start of the services. May be run any number of times.
#
#   join-token.sh FILE MOST ARGUMENT...     makes FILE, for `gpuward agent --join-token-file`; MOST agents may join with it
#
# ARGUMENT... are for `gpuward join-token create`. A replica that takes the number of a deleted worker needs `--name` once.
#
# GPUWARD_URL says where the controller is. GPUWARD_API_KEY is a key of an administrator; where it is empty, the one in
# CLIENT_ENV is used, the file that the controller wrote. That key may be revoked: replicas that have joined have
# credentials of their own, and need no key. For more replicas: gpuward key reset.
set -eu
umask 077

file=$1
most=$2
shift 2
# The controller may be on its way up, or back. Where it does not come, the call below says why.
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

status=0
gpuward join-token create --uses "$most" "$@" >"$file.new" || status=$?
if [ "$status" -eq 0 ]; then
    mv "$file.new" "$file"
    echo "up to $most agents may join within an hour"
    exit 0
fi
rm -f "$file.new"
[ -s "$file" ] || exit "$status"
echo "no token was made; agents that have joined go on with their credentials"
