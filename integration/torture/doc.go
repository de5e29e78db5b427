// Package torture kills the plugin, and lets its system calls fail, at every place where it changes something, and looks whether what is promised holds. What is
// promised, what this shows and what it does not: docs/reliability.md.
//
// strace does both: inject=CALL:signal=KILL:when=N ends the process on entry to its N-th CALL, inject=CALL:error=E:when=N lets that one fail. It counts by thread,
// and Go's work moves between threads. So the plugin is built with one more file, which keeps all work on the main thread
// (go build -overlay, see build; the source stays as it is). Then N counts what the command does, and a traced run tells every N there is. The log of each run tells what was
// really hit; one that hit something else is repeated.
//
//	make torture                     the whole matrix; the report is bin/torture.md
//	go test ./integration/torture    a sample of BC_TORTURE_SECONDS (52), by BC_TORTURE_SEED
//	BC_TORTURE_PAIRS=N               about so many runs of the matrix are repeated with a second fault (2,000)
//	BC_TORTURE=kill                  the kills only, each of them
//	BC_TORTURE_ONLY='SCENARIO FAULT CALL N'    one point, as the report names it; or all that begin so, such as 'drop KILL'
//	BC_TORTURE_SOURCE=DIR            the plugin of another source, such as one with a mistake put in
package torture
