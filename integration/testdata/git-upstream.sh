#!/bin/sh
# The upstream repository that checks look at, made by real git. What it makes depends on nothing but its arguments.
#
#     git-upstream.sh make DIR            a bare repository with 200 MiB of history that no compression makes smaller; does nothing
#                                         if DIR exists, and leaves it absent or whole
#     git-upstream.sh commit DIR N KIB    one more commit on its branch main, with a file of KIB KiB; N makes it differ from others
#
# Prints the commit that is the branch's tip.
set -eu

# stream writes what git fast-import reads: commits FIRST…LAST, each with FILES files of BYTES random bytes and a changed log.
# Perl's random numbers are its own, so each machine makes the same commits.
stream() {
	perl -e '
		my ($first, $last, $files, $bytes, $from) = @ARGV;
		binmode STDOUT;
		for my $n ($first .. $last) {
			srand($n);
			my $text = "commit $n of upstream\n";
			printf "commit refs/heads/main\ncommitter Upstream <upstream\@example.com> %d +0000\n", 1700000000 + 60 * $n;
			printf "data %d\n%s", length $text, $text;
			print "from $from\n" if $from ne "";
			$from = "";
			printf "M 100644 inline log\ndata %d\n%s", length $text, $text;
			for my $f (1 .. $files) {
				printf "M 100644 inline data/%d/%d\ndata %d\n", $n, $f, $bytes;
				print pack("L*", map { int rand 4294967296 } 1 .. $bytes / 4), "\n";
			}
		}' "$@"
}

import() { GIT_CONFIG_NOSYSTEM=1 git -c safe.directory='*' -C "$1" fast-import --quiet --depth=0; }
tip() { git -c safe.directory='*' -C "$1" rev-parse refs/heads/main; }

case "${1:-}:$#" in
make:2)
	dir=$2
	if [ ! -d "$dir" ]; then
		mkdir -p "$(dirname "$dir")"
		building=$(mktemp -d "$dir.building.XXXXXX")
		trap 'rm -rf "$building"' EXIT
		trap 'exit 1' HUP INT TERM
		chmod 0755 "$building"
		git init --quiet --bare --initial-branch=main "$building"
		stream 1 10 80 262144 "" | import "$building"
		mv -T "$building" "$dir" 2>/dev/null || [ -d "$dir" ]
	fi
	tip "$dir"
	;;
commit:4)
	stream "$((1000 + $3))" "$((1000 + $3))" 1 "$(($4 * 1024))" 'refs/heads/main^0' | import "$2"
	tip "$2"
	;;
*)
	echo "usage: $0 make DIR | commit DIR N KIB" >&2
	exit 2
	;;
esac
