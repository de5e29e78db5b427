package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFieldCases holds docs/field-cases.md: each test that it names exists, and each test that is named for a case stands there.
func TestFieldCases(t *testing.T) {
	doc, err := os.ReadFile("../docs/field-cases.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "| ---: |")
	named := regexp.MustCompile(`\b(Test|Benchmark)[A-Z]\w*`).FindAllString(table, -1)
	var exist []string
	function := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)[A-Z]\w*)\(`)
	err = filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			exist = append(exist, m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range named {
		if !slices.Contains(exist, name) {
			t.Errorf("docs/field-cases.md names %s, which does not exist", name)
		}
	}
	for _, name := range exist {
		if regexp.MustCompile(`^TestCase\d`).MatchString(name) && !slices.Contains(named, name) {
			t.Errorf("docs/field-cases.md does not name %s", name)
		}
	}
	if len(named) < 80 {
		t.Errorf("only %d tests are named", len(named))
	}
}
