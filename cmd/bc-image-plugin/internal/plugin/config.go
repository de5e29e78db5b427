package plugin

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/concourse/bc-image-plugin/cachecopy"
	"github.com/concourse/bc-image-plugin/volumes/overlay"
)

// config is what the global flags say. Each is also an environment variable, as gdn's extra args are fixed when it
// starts. They stand before the command word.
type config struct {
	store               string
	privileged          bool
	baggageclaimVolumes string
	baggageclaimURL     string
	ignoreDiskLimit     bool
	idMap               string
	cacheMaxBytes       uint64
	cacheMaxAge         time.Duration
	timeout             time.Duration
	logLevel            string
	logFormat           string
}

// Flag is a global flag: what is read into Value, which is a *string, *bool, *uint64 or *time.Duration and has the default.
type Flag struct {
	Name, Usage string
	Value       any
}

// newConfig returns the defaults.
func newConfig() config {
	return config{
		store: "/var/lib/bc-image-plugin", idMap: string(overlay.Auto), cacheMaxAge: cachecopy.DefaultMaxAge, timeout: 30 * time.Second, logLevel: "info",
	}
}

// flags returns the flags that fill c.
func (c *config) flags() []Flag {
	return []Flag{
		{"store", "keep our volumes in `DIR`", &c.store},
		{"privileged", "serve privileged containers: their ids are not mapped", &c.privileged},
		{"baggageclaim-volumes", "find baggageclaim:// images in `DIR`, a worker's BaggageClaim volumes directory", &c.baggageclaimVolumes},
		{"baggageclaim-url", "keep containers' files in volumes of the BaggageClaim server at `URL`, such as http://127.0.0.1:7790; it must not be a worker's own", &c.baggageclaimURL},
		{"ignore-disk-limit", "accept a disk limit although nothing enforces it", &c.ignoreDiskLimit},
		{"idmap", "make unprivileged ownership `HOW`: auto, mount or copy", &c.idMap},
		{"cache-max-bytes", "keep at most `N` bytes of caches, the least recently used go first (default: a quarter of the store's file system)", &c.cacheMaxBytes},
		{"cache-max-age", "forget caches that were not used for `D`, such as 168h", &c.cacheMaxAge},
		{"timeout", "end every command within `D`, such as 30s", &c.timeout},
		{"log-level", "log from `LEVEL` on: debug, info or error", &c.logLevel},
		{"log-format", "log in `FORMAT`: lager or text (default: lager; text when stderr is a terminal)", &c.logFormat},
	}
}

// EnvVar returns the environment variable of a flag.
func EnvVar(flag string) string {
	return "BC_IMAGE_PLUGIN_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// check refuses values that no command can work with, and brings the directories into their clean form.
func (c *config) check() error {
	dirs := []struct {
		flag string
		dir  *string
	}{{"store", &c.store}, {"baggageclaim-volumes", &c.baggageclaimVolumes}}
	for _, d := range dirs {
		if *d.dir == "" && d.flag != "store" {
			continue
		}
		if err := checkDir(*d.dir); err != nil {
			return fmt.Errorf("--%s %s: %w", d.flag, Quote(*d.dir), err)
		}
		*d.dir = path.Clean(*d.dir)
	}
	if c.baggageclaimURL != "" {
		url, err := Server.ParseURL(c.baggageclaimURL)
		if err != nil {
			return fmt.Errorf("--baggageclaim-url: %w; use one such as http://127.0.0.1:7790", err) // it may hold a password: not said
		}
		c.baggageclaimURL = url
	}
	switch overlay.IDMap(c.idMap) {
	case overlay.Auto, overlay.Mount, overlay.Copy:
	default:
		return fmt.Errorf("--idmap %s: must be auto, mount or copy", Quote(c.idMap))
	}
	if c.timeout <= 0 {
		return fmt.Errorf("--timeout %s: must be longer than 0", c.timeout)
	}
	if c.cacheMaxAge <= 0 {
		return fmt.Errorf("--cache-max-age %s: must be longer than 0", c.cacheMaxAge)
	}
	if _, ok := logLevels()[c.logLevel]; !ok {
		return fmt.Errorf("--log-level %s: must be debug, info or error", Quote(c.logLevel))
	}
	switch c.logFormat {
	case "", formatLager, formatText:
		return nil
	}
	return fmt.Errorf("--log-format %s: must be lager or text", Quote(c.logFormat))
}

// checkDir refuses a directory that means another one in gdn's working directory, or in the JSON that gdn reads.
func checkDir(dir string) error {
	switch {
	case !strings.HasPrefix(dir, "/"):
		return errors.New("must be an absolute path")
	case path.Clean(dir) == "/":
		return errors.New("must be a directory below /")
	case !utf8.ValidString(dir):
		return errors.New("must be UTF-8")
	}
	return nil
}
