// Package integration holds tests only. They build the plugin's binary and use it the way it is used: called as gdn calls it
// (see gdn_test.go), on real mounts and real file systems, with containers that runc starts from the spec it printed.
//
// Almost everything here needs root. A test that cannot run where it is skips and says why; with BC_TEST_REQUIRE_ROOT=1, as in
// CI, it fails instead, so that nothing is skipped there unnoticed.
//
// The Debian root file system (debian-rootfs.sh) and one Debian package are downloaded once, through this host's own apt
// configuration, and kept in BC_TEST_CACHE or the user's cache directory.
package integration
