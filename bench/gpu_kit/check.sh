#!/bin/sh
# Checks Gpuward on a host with a GPU and without a network. The other folders of the kit must lie beside this one.
#
#   sh part-1/check.sh --results FOLDER     it ends within eight minutes, and goes on after a failure
#
# Other options: --false-nvml FOLDER --small, for trying it on a host without a GPU; --steps NAME,NAME.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
exec timeout --kill-after 20 455 "${PYTHON:-python3}" -I "$here/host_setup.py" "$@"
