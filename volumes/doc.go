// Package volumes is the embedded store: copy-on-write root file systems on a local disk that live exactly as long as their
// containers, kept by no daemon.
package volumes
