#!/bin/sh
# Makes this host a worker: the agent's settings, its join token and its systemd unit, and starts it.
#
#   gpuward join-token create | ssh gpu-3 sudo /opt/gpuward/assets/install-agent.sh https://gpuward.example [NAME]
#
# The token comes on standard input, so that it stands in no list of processes. Repeated, it keeps the other lines of
# agent.env. On a host that is new, each engine gets a uid of its own, from a range that systemd gives to nothing.
# ROOT=DIR writes below a folder and starts nothing. GPUWARD names the program where it is not beside python3.
set -eu

url=${1:?usage: install-agent.sh CONTROLLER_URL [NAME] with the join token on standard input}
name=${2:-}
root=${ROOT:-}
here=$(cd "$(dirname "$0")" && pwd)
program=${GPUWARD:-$(command -v gpuward || echo /opt/gpuward/bin/gpuward)}
case $url in http://* | https://*) ;; *) echo "install-agent.sh: $url: must begin with http:// or https://" >&2; exit 2 ;; esac
[ -x "$program" ] || { echo "install-agent.sh: $program: not found; install gpuward[agent], or set GPUWARD" >&2; exit 1; }
[ -n "$root" ] || [ "$(id -u)" -eq 0 ] || { echo "install-agent.sh: run it as root" >&2; exit 1; }

umask 077
mkdir -p "$root/etc/gpuward" "$root/etc/systemd/system"
settings=$root/etc/gpuward/agent.env
token=$(cat)
if [ -n "$token" ]; then
    printf '%s\n' "$token" > "$root/etc/gpuward/join-token"
elif [ ! -s "$root/etc/gpuward/join-token" ]; then
    echo "install-agent.sh: no join token on standard input; make one: gpuward join-token create" >&2
    exit 1
fi
fresh=$([ -e "$settings" ] || echo yes)
touch "$settings"
{
    grep -v -e '^GPUWARD_AGENT_CONTROLLER_URL=' -e '^GPUWARD_AGENT_JOIN_TOKEN_FILE=' \
        ${name:+-e '^GPUWARD_AGENT_NAME='} "$settings" || true
    echo "GPUWARD_AGENT_CONTROLLER_URL=$url"
    echo "GPUWARD_AGENT_JOIN_TOKEN_FILE=/etc/gpuward/join-token"
    if [ -n "$name" ]; then echo "GPUWARD_AGENT_NAME=$name"; fi
    grep -q '^GPUWARD_AGENT_ON_EXIT=' "$settings" || echo "GPUWARD_AGENT_ON_EXIT=keep"
    # On a host that is new: models of one that exists may be readable to root alone.
    if [ -n "$fresh" ]; then echo "GPUWARD_AGENT_ENGINE_USER=60706-61183"; fi
} > "$settings.new"
mv "$settings.new" "$settings"
sed "s|^ExecStart=[^ ]*|ExecStart=$program|" "$here/systemd/gpuward-agent.service" \
    > "$root/etc/systemd/system/gpuward-agent.service"
chmod 644 "$root/etc/systemd/system/gpuward-agent.service"
[ -z "$root" ] || exit 0
systemctl daemon-reload
systemctl enable --quiet gpuward-agent.service
systemctl restart gpuward-agent.service
"$program" doctor || echo "install-agent.sh: the agent is started; see the findings above" >&2
