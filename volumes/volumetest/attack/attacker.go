package attack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Plan says what the second process does: all that somebody can do who may write to Tree, and has root's rights in it.
type Plan struct {
	Tree   string   // is attacked; it may vanish and come back
	Stock  string   // on the same mount, perhaps in Tree: what is put in the place of the tree's own. Its vault is never changed
	Dirs   []string // names in Tree that are exchanged with what is in Stock, again and again
	Files  []string // likewise; and with each other
	Deep   []string // directories in Tree that are moved to Away and back
	Away   string   // another directory on that mount
	Canary string   // where symlinks lead
	Seed   uint64

	// Inside: it stands in Tree, as the processes of a container do, and so stays in a mount that is taken off wherever it can be seen.
	Inside bool

	// Flood: it makes files in Tree, as fast as it can, and does nothing else.
	Flood bool
}

// planEnv, in the environment of a test binary, makes it the attacker.
const planEnv = "BC_TEST_ATTACK"

// Serve makes this process an attacker if it was started as one, and does not return then. A package that uses attackers calls it from its TestMain.
func Serve() {
	text, ok := os.LookupEnv(planEnv)
	if !ok {
		return
	}
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
	if p.Inside {
		if err := p.enter(); err != nil {
			fmt.Fprintln(os.Stderr, "attacker:", err)
			os.Exit(1)
		}
	}
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is closed
		over.Store(true)
	}()
	a := &attacker{Plan: p, rand: rand.New(rand.NewPCG(p.Seed, 1))}
	fmt.Println("ready")
	for !over.Load() {
		a.move()
	}
	fmt.Println(a.done)
	os.Exit(0)
}

// enter goes into Tree, and makes all paths relative to it.
func (p *Plan) enter() error {
	var err error
	for _, dir := range []*string{&p.Stock, &p.Away} {
		if *dir, err = filepath.Rel(p.Tree, *dir); err != nil {
			return err
		}
	}
	err = os.Chdir(p.Tree)
	p.Tree = "."
	return err
}

type attacker struct {
	Plan
	rand *rand.Rand
	done int // moves that worked
}

// For directories and for files, stock are the names in Stock that are put in the place of one. What was used up is linked there from its vault again.
var stock = [2][]string{
	{"link to a directory", "link up", "magic link", "directory", "file"},
	{"link to a file", "pipe", "socket", "device", "other file", "loop"},
}

// move does one thing, many times as fast as it can, and takes it back. What fails is not its business: the other side removes things meanwhile.
func (a *attacker) move() {
	if a.Flood {
		a.count(unix.Mknod(filepath.Join(a.Tree, fmt.Sprint("flood-", a.rand.Uint32())), unix.S_IFREG|0o600, 0))
		return
	}
	switch n := a.rand.IntN(10); {
	case n == 0 && len(a.Deep) > 0:
		a.moveAway(filepath.Join(a.Tree, a.pick(a.Deep)))
	case n == 1 && len(a.Files) > 1:
		one, other := filepath.Join(a.Tree, a.pick(a.Files)), filepath.Join(a.Tree, a.pick(a.Files))
		for range a.rand.IntN(50) {
			a.exchange(one, other)
		}
	default:
		kind := a.rand.IntN(2)
		names := [][]string{a.Dirs, a.Files}[kind]
		if n == 2 { // a file where a directory was, or the other way round
			kind = 1 - kind
		}
		if len(names) > 0 {
			a.replace(filepath.Join(a.Tree, a.pick(names)), a.pick(stock[kind]))
		}
	}
}

// replace exchanges what is at a path with a thing from Stock and back.
func (a *attacker) replace(at, item string) {
	with := filepath.Join(a.Stock, item)
	for range 1 + a.rand.IntN(50) {
		ok := a.exchange(at, with)
		if ok && a.rand.IntN(10) == 0 {
			a.pause()
		}
		if ok && a.exchange(at, with) {
			continue
		}
		if _, err := os.Lstat(filepath.Dir(at)); err == nil {
			a.restock(item)
		}
		return
	}
}

// moveAway moves a directory to Away and back.
func (a *attacker) moveAway(from string) {
	to := filepath.Join(a.Away, "moved")
	a.count(unix.Rename(from, to))
	a.pause()
	a.count(unix.Rename(to, from))
	if _, err := os.Lstat(to); err == nil { // its place is gone
		_ = os.RemoveAll(filepath.Join(a.Stock, "gone"))
		_ = unix.Rename(to, filepath.Join(a.Stock, "gone"))
	}
}

func (a *attacker) pick(of []string) string { return of[a.rand.IntN(len(of))] }

func (a *attacker) exchange(one, other string) bool {
	return a.count(unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE))
}

func (a *attacker) count(err error) bool {
	if err == nil {
		a.done++
	}
	return err == nil
}

// pause lets the other side do one to some ten calls.
func (a *attacker) pause() {
	for end := time.Now().Add(time.Duration(a.rand.IntN(60)) * time.Microsecond); time.Now().Before(end); {
	}
}

// restock puts what belongs at a name in Stock there again.
func (a *attacker) restock(item string) {
	path := filepath.Join(a.Stock, item)
	_ = os.RemoveAll(path)
	if err := unix.Link(filepath.Join(a.Stock, "vault", item), path); errors.Is(err, unix.EPERM) {
		_ = os.Mkdir(path, 0o755)
		_ = os.WriteFile(filepath.Join(path, "in it"), nil, 0o644)
	}
}
