// Package generation writes what tests keep in a cache: files that a list of hashes in it describes, so that whoever reads a copy knows whether it is one generation, and
// which.
package generation

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sums is the file in which a generation says what else belongs to it.
const sums = "sums"

// Write makes the next contents of a cache of what it holds: files that change, one that is new, one that goes; and commits. The first has also heavy files
// that stay: what they weigh decides which layers are merged. What the caller put there belongs to it.
func Write(dir string, g, heavy int) error {
	files := map[string]string{"number": strconv.Itoa(g), "dir/number": strconv.Itoa(g), fmt.Sprintf("only-%d", g): "x"}
	if g == 1 {
		for i := range heavy {
			files[fmt.Sprintf("stays-%d", i)] = "x"
		}
	}
	err := os.MkdirAll(dir+"/dir", 0o755)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(dir+"/"+name, []byte(text), 0o644))
	}
	if g > 1 {
		err = errors.Join(err, os.Remove(fmt.Sprintf("%s/only-%d", dir, g-1)))
	}
	sum, failed := contents(dir)
	return errors.Join(err, failed, os.WriteFile(dir+"/"+sums, []byte(sum), 0o644), os.WriteFile(dir+"/.bc-cache-commit", nil, 0o644))
}

// Read returns which one a cache shows, 0 for an empty one. It has to be whole, and nothing else.
func Read(dir string) (int, error) {
	names, err := os.ReadDir(dir)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	want, err := os.ReadFile(dir + "/" + sums)
	if err != nil {
		return 0, err
	}
	got, err := contents(dir)
	if err != nil {
		return 0, err
	}
	if got != string(want) {
		return 0, fmt.Errorf("the cache is no generation: it holds\n%s and its list says\n%s", got, want)
	}
	number, err := os.ReadFile(dir + "/number")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(number))
}

// contents lists a cache's files with their hashes.
func contents(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == sums {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%x %s\n", sha256.Sum256(text), strings.TrimPrefix(path, dir))
		return err
	})
	return b.String(), err
}
