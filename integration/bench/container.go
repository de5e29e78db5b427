package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/concourse/bc-image-plugin/integration/bundle"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// container times the life of a real container whose program ends at once: our create, runc's run and delete, our delete.
func (p *place) container(n int) (*meter, error) {
	image, o := filepath.Join(p.fs, "busybox"), p.ours("store")
	for _, dir := range []string{"bin", "tmp", "proc", "dev", "sys", "etc"} {
		if err := os.MkdirAll(filepath.Join(image, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := command("cp", p.busybox, image+"/bin/busybox"); err != nil {
		return nil, err
	}
	m := newMeter()
	dir := filepath.Join(p.dir, "bundle")
	return m, rounds(m, n, []side{{func(m *meter) error {
		var answer string
		err := m.time("create", func() (err error) {
			answer, err = output(o.plugin, "--store", o.store, "create", image, "h")
			return err
		})
		if err != nil {
			return err
		}
		var spec specs.Spec
		if err := json.Unmarshal([]byte(answer), &spec); err != nil {
			return err
		}
		if err := writeBundle(dir, spec); err != nil {
			return err
		}
		return errors.Join(
			m.time("runc run", func() error { return command(p.runc, "run", "--bundle", dir, "bc-image-plugin-bench") }),
			m.time("delete", func() error { return o.run("delete", "h") }))
	}}})
}

func writeBundle(dir string, plugin specs.Spec) error {
	if plugin.Root == nil {
		return errors.New("the plugin named no root")
	}
	config, err := bundle.Config(plugin, bundle.Container{Argv: []string{"/bin/busybox", "true"}, MaxID: 4294967294})
	if err != nil {
		return err
	}
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600))
}

// inGdn has the tests with a real gdn measure a container's life and our share of it in per cent, if there is a gdn. It is another module: the plugin has none of its dependencies.
func (p *place) inGdn(n int) (ms, share float64, ok bool, err error) {
	if os.Getenv("GDN_BIN") == "" {
		return 0, 0, false, nil
	}
	out, err := output("env", "PLUGIN_BIN="+p.plugin, "go", "test", "-C", filepath.Join(p.modules, "../garden"), "-run", "^$", "-bench", "Container$", "-benchtime", fmt.Sprint(n, "x"), ".")
	if err != nil {
		return 0, 0, false, err
	}
	words := strings.Fields(out)
	for i, unit := range words {
		var to *float64
		switch unit {
		case "ms/life":
			to = &ms
		case "%ours":
			to = &share
		default:
			continue
		}
		if *to, err = strconv.ParseFloat(words[i-1], 64); err != nil {
			return 0, 0, false, err
		}
	}
	return ms, share, true, nil
}
