package integration

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/concourse/bc-image-plugin"

// TestImportDirection holds who may import whom: the program the libraries, never the other way round; and the heavy dependencies only where
// they are needed, so that a user of a library does not get them.
func TestImportDirection(t *testing.T) {
	mayImport := map[string][]string{ // of our own packages, by directory prefix; the longest prefix counts
		"cmd/":                  {"cmd/bc-image-plugin/internal/", "imagespec", "volumes", "volumes/overlay", "volumes/bcserver", "cachecopy", "internal/"},
		"internal/":             {},
		"imagespec":             {"internal/"},
		"volumes":               {"volumes/internal/", "internal/"},
		"volumes/internal/":     {"volumes/internal/"},
		"volumes/overlay":       {"volumes", "volumes/internal/"},
		"volumes/volumetest":    {"volumes", "volumes/overlay", "volumes/internal/", "volumes/volumetest/"},
		"volumes/bcserver":      {"volumes", "volumes/overlay", "volumes/internal/"},
		"cachecopy":             {"volumes"},
		"integration/bench":     {"volumes", "volumes/overlay", "cachecopy", "integration/"},
		"integration/":          {"imagespec", "volumes", "cachecopy", "integration/"},
		"integration/snowball/": {"volumes", "volumes/overlay", "volumes/bcserver", "cachecopy", "integration/"},
	}
	onlyIn := map[string]string{
		"github.com/urfave/cli/":              "cmd/",
		"github.com/sirupsen/logrus":          "cmd/",
		"github.com/concourse/baggageclaim":   "volumes/bcserver",
		"github.com/opencontainers/runtime-s": "imagespec cmd/ integration/",
	}
	root := ".."
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(path, "go.mod")); d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || err == nil) {
			return fs.SkipDir // a module of its own
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		dir := filepath.Dir(rel)
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			for prefix, where := range onlyIn {
				if strings.HasPrefix(name, prefix) && !slices.ContainsFunc(strings.Fields(where), func(w string) bool { return strings.HasPrefix(dir+"/", w) }) {
					t.Errorf("%s imports %s, which only %s may", rel, name, where)
				}
			}
			ours, ok := strings.CutPrefix(name, module+"/")
			if ok && !slices.ContainsFunc(allowed(mayImport, dir), func(w string) bool { return ours == w || strings.HasSuffix(w, "/") && strings.HasPrefix(ours, w) }) {
				t.Errorf("%s imports %s, against the direction of imports", rel, ours)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 40 {
		t.Fatalf("only %d files were looked at", seen)
	}
}

// allowed returns what the longest prefix of dir in may allows.
func allowed(may map[string][]string, dir string) []string {
	best := ""
	for prefix := range may {
		if (dir == prefix || strings.HasPrefix(dir+"/", strings.TrimSuffix(prefix, "/")+"/")) && len(prefix) > len(best) {
			best = prefix
		}
	}
	return may[best]
}
