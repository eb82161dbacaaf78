#!/usr/bin/env bash
# Installs newer servers into .servers, beside those of this machine: `make servers NEXT=1`. Starts none.
# They come from Debian's unstable, into a root of their own (1.5 GB), and Kafka's from Maven Central.
set -euo pipefail
cd "$(dirname "$0")/../.."

ROOT=$PWD/.servers/next
PACKAGES=(rabbitmq-server redis-server redis-sentinel valkey-server postgresql-18 mariadb-server galera-4 nats-server pgbouncer)
EXPERIMENTAL=(postgresql-19 postgresql-client-19 libpq5) # PostgreSQL's release candidate, while there is one

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "newer servers are installed into a root of their own: that needs Debian or Ubuntu, and root" >&2
    exit 1
fi
tests/harness/install_brokers.sh next
[ ! -e "$ROOT/.complete" ] || exit 0

# The mirror that this machine uses: of Debian's archive, else name one.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(SITE)' 'Created-By: Packages' |
    awk '$1 == "Debian" { print $2; exit }')}
if [ -z "$mirror" ]; then
    echo "this machine uses no mirror of Debian: name one, DEBIAN_MIRROR=... make servers NEXT=1" >&2
    exit 1
fi
command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get -y -qq --no-install-recommends install debootstrap

inside() { # inside COMMAND...: run it in the root, in a mount namespace that ends with it
    unshare --mount --propagation private sh -c '
        mount --rbind /proc "$0/proc"
        mount --rbind /dev "$0/dev"
        DEBIAN_FRONTEND=noninteractive exec chroot "$0" "$@"' "$ROOT" "$@"
}

install=(apt-get -y -qq --no-install-recommends -o Acquire::Retries=3 install)
rm -rf "$ROOT"
mkdir -p "$ROOT"
echo "installing: Debian's unstable into .servers/next"
debootstrap --variant=minbase sid "$ROOT" "$mirror" >"$ROOT.log" || { tail "$ROOT.log" >&2; exit 1; }
printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d" # the packages start nothing
chmod 755 "$ROOT/usr/sbin/policy-rc.d"
echo '127.0.0.1 localhost' >"$ROOT/etc/hosts"
cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
echo "deb $mirror experimental main" >>"$ROOT/etc/apt/sources.list"
# A mirror may lag: what it serves is signed, but its date may have passed.
inside apt-get -qq -o Acquire::Check-Valid-Until=false update >>"$ROOT.log"
echo "installing: ${PACKAGES[*]}"
inside "${install[@]}" "${PACKAGES[@]}" >>"$ROOT.log" 2>&1 || { tail "$ROOT.log" >&2; exit 1; }
inside "${install[@]}" "${EXPERIMENTAL[@]/%//experimental}" >>"$ROOT.log" 2>&1 || echo "no PostgreSQL 19 there" >&2
inside apt-get clean
rm "$ROOT.log"
touch "$ROOT/.complete"
echo "servers: the newer ones are installed in .servers, none started"
