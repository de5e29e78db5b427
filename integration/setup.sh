#!/bin/sh
# Installs the Debian packages that the tests and the demo use, if one is missing: real mounts want real file systems, real
# containers want runc, real images want debootstrap. Does nothing where all are there.
set -eu

packages="acl attr btrfs-progs busybox-static debootstrap e2fsprogs git libcap2-bin runc strace util-linux xfsprogs"

missing=
for p in $packages; do
	dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -n "$missing" ]; then
	if [ "$(id -u)" != 0 ]; then
		echo "setup: missing$missing; run as root, or: apt-get install$missing" >&2
		exit 0 # tests that need them skip and say so
	fi
	echo "setup: installing$missing" >&2
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
command -v go >/dev/null || {
	echo "setup: the Go tool chain is not in PATH (go.mod says which version it has to be)" >&2
	exit 1
}
