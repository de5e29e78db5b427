# Two commands do everything on a fresh Debian machine, as root: `make demo` and `make test`.

# urfave_cli_no_docs leaves cli's manual page generator out: it costs half a millisecond at each start. nethttpomithttp2 leaves HTTP/2 out, which a
# BaggageClaim server does not speak.
TAGS      := urfave_cli_no_docs,nethttpomithttp2
PREFIX    ?= /usr/local
# Images that are expensive to make (debootstrap) and survive `make clean`.
CACHE     ?= $(CURDIR)/.cache
FUZZTIME  ?= 2m
# Where `make demo` keeps volumes: embedded, or baggageclaim (a server that it starts).
BACKEND   ?= embedded
# How many checks `make snowball` runs.
CHECKS    ?= 10000
PKG       := github.com/concourse/bc-image-plugin
GO        ?= go
# The version is the commit that was built; outside a checkout it is "unknown".
VERSION   := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

export BC_TEST_CACHE = $(CACHE)

# The BaggageClaim servers that tests and the demo run (integration/bctest builds them as well, if they are missing).
SERVERS := $(CACHE)/baggageclaim-v1.11.0 $(CACHE)/baggageclaim-v1.9.1

.PHONY: build test torture power demo bench snowball fuzz lint install setup clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '-s -w -X $(PKG)/cmd/bc-image-plugin/internal/plugin.buildVersion=$(VERSION)' -o bin/bc-image-plugin ./cmd/bc-image-plugin

# Debian packages, the servers and the images that tests share, so that no test's time limit includes a download.
setup: $(SERVERS)
	integration/setup.sh
	@set -e; if [ "$$(id -u)" = 0 ]; then integration/debian-rootfs.sh $(CACHE)/debian; \
		integration/debian-rootfs.sh $(CACHE)/debian-git git,ca-certificates,attr,acl; \
		integration/testdata/git-upstream.sh make $(CACHE)/git-upstream >/dev/null; fi

$(CACHE)/baggageclaim-v1.11.0: integration/baggageclaim/go.mod
$(CACHE)/baggageclaim-v1.9.1: integration/baggageclaim/v1.9.1/go.mod
$(SERVERS):
	CGO_ENABLED=0 $(GO) build -C $(<D) -o $(abspath $@) github.com/concourse/baggageclaim/cmd/baggageclaim

# -p 2: much of what the tests do is to wait, for unmounts, for loop devices and for each other.
test: setup lint
	$(GO) test -race -p 2 -tags $(TAGS) -timeout 14m ./...
	cd integration/garden && $(GO) vet ./... && $(GO) test ./...
	@[ -n "$$GDN_BIN" ] || echo "integration/garden was only built: set GDN_BIN to a real gdn to run it"

# Every system call of every command, killed and failing: docs/reliability.md. `make test` does a sample.
torture:
	mkdir -p bin
	BC_TORTURE=$${BC_TORTURE:-all} BC_TORTURE_REPORT=$(CURDIR)/bin/torture.md $(GO) test -tags $(TAGS) -count 1 -timeout 6h -run TestTorture -v ./integration/torture

# The disk at each system call of every command, as a power cut leaves it, on ext4, xfs and btrfs: docs/reliability.md. `make test` does a sample.
power:
	mkdir -p bin
	BC_POWER=$${BC_POWER:-all} BC_POWER_REPORT=$(CURDIR)/bin/power.md $(GO) test -tags $(TAGS) -count 1 -timeout 6h -run TestPower -v ./integration/power

demo: setup build
	$(GO) run -tags $(TAGS) ./integration/demo -plugin bin/bc-image-plugin -image $(CACHE)/debian -backend $(BACKEND) \
		-git-image $(CACHE)/debian-git -git-upstream $(CACHE)/git-upstream

# One table of everything, which goes to docs/benchmarks.md as well. Its tests are of the disk: some minutes.
bench: setup build
	$(GO) run -tags $(TAGS) ./integration/bench -plugin bin/bc-image-plugin

# So many checks by a scheduler for which everything goes wrong, and the same on a BaggageClaim server alone; the report is docs/snowball.md.
snowball: setup build
	$(GO) run -tags $(TAGS) ./integration/snowball -plugin bin/bc-image-plugin -checks $(CHECKS) -report docs/snowball.md

# Each fuzz target for FUZZTIME; their corpora also run in `make test`.
fuzz:
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -tags $(TAGS) -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; $(GO) test -tags $(TAGS) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s $$pkg; \
		done; \
	done

lint:
	@bad=$$(gofmt -l cmd imagespec internal volumes integration $(wildcard cachecopy)); [ -z "$$bad" ] || { echo "gofmt: $$bad"; exit 1; }
	$(GO) vet -tags $(TAGS) ./...
	$(GO) run $(STATICCHECK) -tags $(TAGS) ./...

install: build
	install -D -m 0755 bin/bc-image-plugin $(DESTDIR)$(PREFIX)/bin/bc-image-plugin

clean:
	rm -rf bin
