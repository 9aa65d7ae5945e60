#!/bin/sh
# Runs the agent of one replica as the first worker whose folder no other replica uses.
#
#   agent.sh FOLDER PREFIX MOST ARGUMENT...     runs `gpuward agent ARGUMENT... --name PREFIX-N` in FOLDER/PREFIX-N
#
# The folders are in one volume of all replicas. A lock tells which are in use: it ends with the agent, however that
# ends. A container that is restarted tries the folder that it had before first, then the others in order, so that the
# replicas that come back are the workers that were there, with their credentials and journals.
set -eu
umask 077

folder=$1
prefix=$2
most=$3
shift 3
replica=$(hostname)

# Runs the agent there if the folder is free. The lock is on descriptor 9, which the agent keeps and its engines do not get.
take() {
    name=$1
    shift
    mkdir -p "$folder/$name"
    exec 9>>"$folder/$name/replica.lock"
    flock --nonblock 9 || return 0
    printf '%s\n' "$replica" >"$folder/$name/replica"
    exec gpuward agent "$@" --name "$name" --data-dir "$folder/$name/agent" --cache-dir "$folder/$name/models"
}

number=0
while [ "$number" -lt "$most" ]; do
    name=$prefix-$number
    if [ "$(cat "$folder/$name/replica" 2>/dev/null)" = "$replica" ]; then
        take "$name" "$@"
    fi
    number=$((number + 1))
done
number=0
while [ "$number" -lt "$most" ]; do
    name=$prefix-$number
    take "$name" "$@"
    number=$((number + 1))
done
echo "agent.sh: $folder: all $most folders are in use; start fewer replicas, or raise the number" >&2
exit 1
