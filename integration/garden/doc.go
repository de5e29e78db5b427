// Package garden holds the tests that run bc-image-plugin below a real Garden server.
//
// Everything in it is real: gdn (Guardian) and its helpers, runc, the kernel's mounts, the plugin's binary in both of
// gdn's slots, and the Garden client of code.cloudfoundry.org/garden. It is a Go module of its own, because that client's
// dependencies are no business of the plugin's users.
//
// # Running it
//
// The tests need root, a statically linked busybox in PATH, runc and a gdn binary:
//
//	GDN_BIN=/somewhere/gdn go test ./...
//
// Without GDN_BIN every test that needs it says so and skips. With it, nothing skips: what is missing is a failure.
//
//	GDN_BIN     the gdn binary. dadoo, init and nstar are used where they stand beside it
//	GDN_ARGS    further arguments of `gdn server`, split at blanks; they come last, so they win
//	PLUGIN_BIN  the plugin's binary; without it, it is built from this repository
//
// gdn listens on a unix socket below a temporary directory only. It has a network plugin that does nothing, so it touches
// neither iptables nor interfaces, and it leaves the set-up of cgroups alone (--skip-setup). What the tests cannot keep to
// themselves are runc's state directory, /run/runc, and cgroups named "garden": gdn has no option for either. So run one
// of these test binaries at a time on a machine.
//
// # What is checked
//
// Beside what each test says, every one of them ends with the same three questions: is the store, path by path, what it
// was before; is no mount of the store left in the mount table; and did gdn find nothing to complain about in what the
// plugin said? See (*server).check.
package garden
