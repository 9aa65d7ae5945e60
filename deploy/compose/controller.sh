#!/bin/sh
# Runs the controller with a key that encrypts secrets, which the first start makes.
#
#   controller.sh FILE ARGUMENT...     makes FILE where it is missing, and runs `gpuward controller ARGUMENT...`
#
# A cluster of before this script gets its key at the first start with it, and that start encrypts what is stored.
set -eu
umask 077

file=$1
shift
if [ ! -s "$file" ]; then
    head -c 32 /dev/urandom | base64 >"$file.new"
    sync "$file.new"
    mv "$file.new" "$file"
    echo "controller.sh: made a key that encrypts secrets in $file; back it up apart from the database"
fi
exec gpuward controller "$@"
