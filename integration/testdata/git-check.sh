# What a git resource's check does, as the container's root (sh -eu). The upstream is mounted at /upstream, the check's cache at $CACHE. The URL is a
# file:// one, so git speaks its own protocol with git-upload-pack, through a pipe in which the bytes can be counted.
#
# Prints a line "received BYTES", which is all that upload-pack sent, and a line "head COMMIT". Commits the cache when all is well.
#
# STALL_AFTER: after about that many bytes nothing more comes, as when the network is gone.

repository=$CACHE/repository
cat > /tmp/upload-pack <<'SCRIPT'
#!/bin/sh
if [ -n "${STALL_AFTER:-}" ]; then
	git-upload-pack "$@" | { dd bs=64k iflag=count_bytes count="$STALL_AFTER" 2>/dev/null; sleep 600; }
else
	LC_ALL=C git-upload-pack "$@" | LC_ALL=C dd bs=64k 2>/tmp/received
fi
SCRIPT
chmod 755 /tmp/upload-pack

if [ -d "$repository" ]; then
	git -C "$repository" fetch --quiet --upload-pack /tmp/upload-pack origin main
	git -C "$repository" reset --quiet --hard FETCH_HEAD
else
	git clone --quiet --no-local --single-branch --branch main --upload-pack /tmp/upload-pack file:///upstream "$repository"
fi
test -z "$(git -C "$repository" status --porcelain)"
echo "received $(sed -n 's/ bytes.*//p' /tmp/received)"
echo "head $(git -C "$repository" rev-parse HEAD)"
: > "$CACHE/.bc-cache-commit"
