#!/usr/bin/env bash
# Build the image without a container daemon or a registry of images, and run a bookie from it.
#
# As root on Debian; the base is made of Debian packages alone. Takes three to four minutes. The
# packages: podman runc debootstrap. Everything is made under a temporary directory and removed.
# Every container shares the host's network: `--network=host` needs no helper of podman's.
set -euo pipefail
cd "$(dirname "$0")/../.."
for command in podman runc debootstrap; do
  command -v "$command" >/dev/null || {
    echo "as root: apt-get install --no-install-recommends podman runc debootstrap" >&2
    exit 1
  }
done

work=$(mktemp -d)
# No limits of podman's own: raising them takes rights that a container host need not give us.
printf '[containers]\ndefault_ulimits = []\n' >"$work/containers.conf"
export CONTAINERS_CONF="$work/containers.conf"
podman=(podman --root "$work/storage" --runroot "$work/run" --storage-driver=vfs
  --runtime "$(command -v runc)" --cgroup-manager=cgroupfs)
run=("${podman[@]}" run --network=host --no-healthcheck --ulimit host -v b1:/var/lib/bookie)
cleanup() {
  "${podman[@]}" rm --force --all >/dev/null 2>&1 || true
  "${podman[@]}" rmi --force --all >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT

echo "== a base image of Debian packages"
debootstrap --variant=minbase --include=python3,python3-venv,python-is-python3,ca-certificates \
  bookworm "$work/base" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$work/debootstrap.log" ||
  { tail "$work/debootstrap.log" >&2; exit 1; }
# Whoever signs for the packages' hosts here signs for them inside as well.
cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/"
tar -C "$work/base" -c . | "${podman[@]}" import --quiet - localhost/base >/dev/null

echo "== the image"
# As the guide of operations has it, with what this machine's podman needs besides.
printf '#!/bin/sh\nverb=$1; shift\nexec %s "$verb" --quiet --format docker --network=host --isolation=chroot "$@"\n' \
  "${podman[*]}" >"$work/podman"
chmod +x "$work/podman"
make --no-print-directory docker DOCKER="$work/podman" BASE_IMAGE=localhost/base

echo "== a bookie in it"
uri=local:///var/lib/bookie/metadata
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${run[@]}" --rm bookie cluster init -m "$uri"
"${run[@]}" --detach --name b1 -e BOOKIE_BOOKIE__ID=b1 -e BOOKIE_LISTEN__HOST=127.0.0.1 \
  -e BOOKIE_SECURITY__ALLOW_PLAINTEXT=true -e BOOKIE_LISTEN__PORT=0 -e BOOKIE_HTTP__PORT="$port" bookie >/dev/null
inside=("${podman[@]}" exec b1)
[[ $("${inside[@]}" id --user) == 10001 ]]
# What the image says of its health, until it is well or half a minute has gone.
health=$("${podman[@]}" inspect bookie --format '{{index .HealthCheck.Test 3}}')
for attempt in $(seq 30); do
  "${inside[@]}" python -c "$health" 2>/dev/null && break
  [[ $attempt != 30 ]] || { "${podman[@]}" logs b1 >&2; exit 1; }
  sleep 1
done
"${inside[@]}" sh -ec "
  export BOOKIE_METADATA=$uri
  id=\$(bookie ledger create -E 1 -W 1 -A 1)
  seq 1000 | bookie ledger append \$id >/dev/null
  [ \"\$(bookie ledger read \$id | tail -n 1)\" = 1000 ]
  bookie log create first --set ensemble_size=1 --set write_quorum_size=1 --set ack_quorum_size=1
  seq 1000 | bookie log append first >/dev/null
  [ \"\$(bookie log read first | tail -n 1)\" = 1000 ]
  bookie cluster health
  bookie node info b1 >/dev/null
  bookie node readonly b1 on >/dev/null
  bookie node readonly b1 off >/dev/null"
"${podman[@]}" stop --time 20 b1 >/dev/null
status=$("${podman[@]}" inspect b1 --format '{{.State.ExitCode}}')
[[ $status == 0 ]] || { echo "the bookie ended with status $status" >&2; exit 1; }
size=$("${podman[@]}" image inspect bookie --format '{{.Size}}')
base=$("${podman[@]}" image inspect localhost/base --format '{{.Size}}')
echo "the image works: $(((size - base) >> 20)) MiB on a base of $((base >> 20)) MiB"
