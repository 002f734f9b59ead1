#!/usr/bin/env bash
# Sees that the programs are there which Python's packages do not bring.
#
#   requirements/debian.sh run      for `make run`: an interpreter that can make environments
#   requirements/debian.sh test     besides, for `make test`: Java for ZooKeeper and Spark, openssl, git, curl
#   requirements/debian.sh kafka    besides, for `make test-kafka`: Maven, which fetches a Kafka broker
#   requirements/debian.sh system   besides, for `make test-system`: etcd, strace, gcc, systemd, Prometheus
#   requirements/debian.sh image    for `make test-image`: podman and a base of Debian packages
#
# As root on Debian it installs what is missing. Elsewhere it ends with the one command to type.
set -euo pipefail
level="${1:?run, test, kafka, system or image}"
python="${PYTHON:-python3}"

missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }  # a program, its package

has_java() {
  local version
  version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p') || true
  [[ ${version:-0} -ge 17 ]]
}

case $level in
  run | test | kafka | system)
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3 python3-venv)
    ;;&
  test | kafka | system)
    has_java || missing+=(default-jre-headless)
    need openssl openssl
    need git git
    need curl curl
    ;;&
  kafka)
    need mvn maven
    ;;
  system)
    need systemd-analyze systemd
    need mkfs.ext4 e2fsprogs
    need mount mount
    need strace strace
    need etcd etcd-server
    need gcc gcc
    need promtool prometheus
    [[ -e /usr/include/stdio.h ]] || missing+=(libc6-dev)
    ;;
  image)
    need podman podman
    need runc runc
    need debootstrap debootstrap
    ;;
  run | test) ;;
  *)
    echo "$0: there is no level $level" >&2
    exit 2
    ;;
esac
((${#missing[@]})) || exit 0

if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "this needs ${missing[*]}; as root: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Servers among the packages are for tests to start; the packages must not start them.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
