#!/bin/sh
# Makes a minimal Debian root file system at DIR: a real image for the tests and for `make demo`.
#
#     debian-rootfs.sh DIR [PACKAGE,PACKAGE…]
#
# Packages are added to the minimal system.
# Does nothing if DIR exists. Otherwise the tree is built beside DIR and renamed into place when it is complete, so DIR is
# either absent or whole, also when two callers race or this one is killed. The mirror and the release are the ones this
# host's own apt is configured with: a machine that can install packages can make the image, behind whatever proxy it sits.
set -eu

[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] || { echo "usage: $0 DIR [PACKAGE,PACKAGE…]" >&2; exit 2; }
dir=$1 packages=${2:-}
[ ! -d "$dir" ] || exit 0

fail() { echo "$0: $*" >&2; exit 1; }
command -v debootstrap >/dev/null || fail "debootstrap is not installed (apt-get install debootstrap)"
[ "$(id -u)" = 0 ] || fail "debootstrap has to run as root"

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$codename" ] || fail "/etc/os-release does not name this host's release"
mirror() {
	apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
		awk -v release="$codename" '$1 == release && $2 == "main" { print $3; exit }'
}
mirror=$(mirror)
if [ -z "$mirror" ]; then
	# apt lists only what it has downloaded, and a fresh machine has nothing.
	apt-get update -qq >&2 || fail "apt-get update failed"
	mirror=$(mirror)
fi
[ -n "$mirror" ] || fail "apt's sources name no mirror for $codename main"

mkdir -p "$(dirname "$dir")"
building=$(mktemp -d "$dir.building.XXXXXX")
# One file system: should debootstrap die with its /proc still mounted there, the clean-up must not walk into it.
trap 'rm -rf --one-file-system "$building"' EXIT
trap 'exit 1' HUP INT TERM
chmod 0755 "$building"

log=$building.log
if ! debootstrap --variant=minbase ${packages:+"--include=$packages"} "$codename" "$building" "$mirror" >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	fail "debootstrap $codename from $mirror failed, the whole log is $log"
fi
rm -f "$log"
rm -f "$building"/var/cache/apt/archives/*.deb

# mv -T renames, and refuses when another caller's tree is already there; that one is as good as ours.
mv -T "$building" "$dir" 2>/dev/null || [ -d "$dir" ] || fail "cannot rename $building to $dir"
