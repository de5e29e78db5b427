// Package power takes the power away from a machine that uses a store, and looks whether what is promised holds in its next boot. What is promised, what this shows and what
// it does not: docs/reliability.md.
//
// A power cut is a snapshot of the disk (machine), at a moment of a traced command (commands) or of a workload (moments); what is done and looked for in the
// next boot is judge.
//
//	make power                       everything; the report is bin/power.md
//	go test ./integration/power      a sample of BC_POWER_SECONDS (30), by BC_POWER_SEED
//	BC_POWER_ONLY='KIND COMMAND'     one kind of file system, or its commands that begin so, such as 'xfs delete-merge'; 'xfs random': moments of the workload
//	BC_POWER_SOURCE=DIR              the plugin of another source, such as one with a mistake put in
//	BC_POWER_KEEP=DIR                keeps the disks that are violations there, as they were at that moment
package power
