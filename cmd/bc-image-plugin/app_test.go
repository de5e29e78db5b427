package main

import (
	"io"
	"maps"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/plugin"
)

// gdn's commands end before the packages that only other command lines need are initialised.
func TestFirst(t *testing.T) {
	dir := t.TempDir()
	bin := dir + "/bc-image-plugin"
	if out, err := exec.Command("go", "build", "-o", bin, "-tags", "urfave_cli_no_docs,nethttpomithttp2", ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	initialised := func(args ...string) string {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(cmd.Environ(), "GODEBUG=inittrace=1")
		var trace strings.Builder
		cmd.Stderr = &trace
		_ = cmd.Run() // some fail: there is no such image, and no such container
		return trace.String()
	}
	for _, late := range []string{"github.com/urfave/cli/v2", "net/http", "net"} {
		said := "init " + late + " @"
		if !strings.Contains(initialised("--help"), said) {
			t.Errorf("--help does not need %s: look for another package here", late)
		}
		for _, args := range [][]string{{"delete", "h"}, {"create", "file:///none", "h"}, {"stats", "h"}, {"capacity"}} {
			if strings.Contains(initialised(append([]string{"--store", dir + "/store"}, args...)...), said) {
				t.Errorf("%q waits for %s", args, late)
			}
		}
	}
}

// Both readers of the command line take the same from the same flags and environment, or Quick leaves it to cli.
func TestQuickReadsAsCliDoes(t *testing.T) {
	values := map[string][]string{
		"store": {"/s", ""}, "privileged": {"true", "false", "1", "", "maybe"}, "baggageclaim-volumes": {"/b"}, "baggageclaim-url": {"http://127.0.0.1:1"},
		"ignore-disk-limit": {"T"}, "idmap": {"copy", "no"}, "cache-max-bytes": {"10", "0x10", "1_000", "-1", "", "1e3"}, "cache-max-age": {"1h", "0", "", "1"},
		"timeout": {"5s", "-1s", "x"}, "log-level": {"debug", ""}, "log-format": {"text"},
	}
	flagsOf := func(p *plugin.Program) map[string]any {
		flags := map[string]any{}
		for _, f := range p.Flags() {
			switch v := f.Value.(type) {
			case *string:
				flags[f.Name] = *v
			case *bool:
				flags[f.Name] = *v
			case *uint64:
				flags[f.Name] = *v
			case *time.Duration:
				flags[f.Name] = *v
			}
		}
		return flags
	}
	agree := func(args ...string) {
		t.Helper()
		args = append(append([]string{plugin.Name}, args...), "version")
		quick, byCli := plugin.New(io.Discard, io.Discard), plugin.New(io.Discard, io.Discard)
		code, ok := quick.Quick(t.Context(), args)
		if !ok {
			return
		}
		want := byCli.Exit(reader{byCli, io.Discard, io.Discard}.app().RunContext(t.Context(), args))
		if code != want || !maps.Equal(flagsOf(quick), flagsOf(byCli)) {
			t.Errorf("%q: exit code %d and %v, by cli %d and %v", args, code, flagsOf(quick), want, flagsOf(byCli))
		}
	}
	for _, f := range plugin.New(io.Discard, io.Discard).Flags() {
		if len(values[f.Name]) == 0 {
			t.Errorf("no values for --%s", f.Name)
		}
		for _, v := range values[f.Name] {
			for _, args := range [][]string{{"--" + f.Name + "=" + v}, {"-" + f.Name, v}, {"--" + f.Name, v}} {
				agree(args...)
			}
			t.Run(f.Name+"="+v, func(t *testing.T) {
				t.Setenv(plugin.EnvVar(f.Name), v)
				agree()
				agree("--" + f.Name + "=" + values[f.Name][0])
			})
		}
	}
}
