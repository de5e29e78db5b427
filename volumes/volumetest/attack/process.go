package attack

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
	"golang.org/x/sys/unix"
)

// Fill makes the directories Stock and Away of the plan, with all that is put in other things' places.
func (p Plan) Fill(t testing.TB, c *Canary) {
	t.Helper()
	vault := filepath.Join(p.Stock, "vault")
	check(t, os.MkdirAll(vault, 0o755))
	for name, to := range map[string]string{
		"link to a directory": c.Dir + "/dir", "link to a file": c.Dir + "/file", "link up": strings.Repeat("../", 40) + c.Dir, "loop": "loop",
		"magic link": "/proc/self/root" + c.Dir,
	} {
		check(t, os.Symlink(to, vault+"/"+name))
	}
	for name, mode := range map[string]uint32{"pipe": unix.S_IFIFO, "socket": unix.S_IFSOCK, "device": unix.S_IFCHR} {
		check(t, unix.Mknod(vault+"/"+name, mode|0o666, int(unix.Mkdev(1, 3)))) // as /dev/null
	}
	check(t, os.Mkdir(vault+"/directory", 0o755)) // which cannot be linked
	for _, name := range []string{"file", "other file"} {
		check(t, os.WriteFile(vault+"/"+name, []byte(name), 0o644))
	}
	a := attacker{Plan: p}
	for _, name := range slices.Concat(stock[0], stock[1]) {
		a.restock(name)
	}
	if p.Away != "" {
		check(t, os.MkdirAll(p.Away, 0o755))
	}
}

// Process is an attacker that works.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	closed bool
}

// Start starts an attacker: this program, in a process of its own. attr may be nil. The test binary's TestMain must call Serve.
func Start(t testing.TB, p Plan, attr *syscall.SysProcAttr) *Process {
	t.Helper()
	inspect.NeedRoot(t)
	if p.Seed == 0 {
		p.Seed = uint64(time.Now().UnixNano())
		t.Logf("seed %d", p.Seed)
	}
	text, err := json.Marshal(p)
	check(t, err)
	a := &Process{cmd: exec.Command("/proc/self/exe")}
	a.cmd.Env = append(os.Environ(), planEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	a.cmd.Stderr, a.cmd.SysProcAttr = os.Stderr, attr
	a.in, err = a.cmd.StdinPipe()
	check(t, err)
	out, err := a.cmd.StdoutPipe()
	check(t, err)
	a.out = bufio.NewReader(out)
	check(t, a.cmd.Start())
	t.Cleanup(func() {
		if !a.closed {
			_ = a.cmd.Process.Kill()
			_ = a.cmd.Wait()
		}
	})
	if line, err := a.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the attacker says %q, %v", line, err)
	}
	return a
}

// Stop ends the attacker and returns how many moves it made.
func (a *Process) Stop(t testing.TB) int {
	t.Helper()
	check(t, a.in.Close())
	line, err := a.out.ReadString('\n')
	check(t, err)
	a.closed = true
	check(t, a.cmd.Wait())
	moves, err := strconv.Atoi(strings.TrimSpace(line))
	check(t, err)
	return moves
}

// secondsEnv gives each attack more time than the part of a second that it takes in `make test`.
const secondsEnv = "BC_TEST_ATTACK_SECONDS"

// hangs is how long one round may take: nothing that is attacked may wait for ever. It only bounds how long a test takes to fail.
const hangs = time.Minute

// Rounds calls op again and again until its time is over, at least ten times. An op may fail, with an error that says so; it must end. How often which error came is
// logged. It returns how often op worked.
func Rounds(t testing.TB, op func(round int) error) (worked int) {
	t.Helper()
	seconds := 0.7
	if s := os.Getenv(secondsEnv); s != "" {
		var err error
		seconds, err = strconv.ParseFloat(s, 64)
		check(t, err)
	}
	ends := map[string]int{}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for round := 0; (round < 10 || time.Now().Before(end)) && !t.Failed(); round++ {
		done := make(chan error, 1)
		go func() {
			err := errors.New("the test failed")
			defer func() { done <- err }() // also after a FailNow
			err = op(round)
		}()
		select {
		case err := <-done:
			if err == nil {
				worked++
				continue
			}
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error without words")
			}
			ends[kind(err)]++
		case <-time.After(hangs):
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
			t.Fatalf("round %d hangs", round)
		}
	}
	text := fmt.Sprintf("%d rounds worked", worked)
	for what, n := range ends {
		text += fmt.Sprintf("\n%6d: %s", n, what)
	}
	t.Log(text)
	return worked
}

// kind is an error without what it names.
func kind(err error) string {
	text := err.Error()
	for i := strings.IndexByte(text, '"'); i >= 0; i = strings.IndexByte(text, '"') {
		j := strings.IndexByte(text[i+1:], '"')
		if j < 0 {
			break
		}
		text = text[:i] + "…" + text[i+j+2:]
	}
	return text
}
