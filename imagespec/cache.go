package imagespec

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// Promote says when the container's private copy of a cache becomes the cache that the next container starts from.
type Promote string

const (
	// PromoteOnCommit promotes the copy if the container left the commit marker in it. It is the default.
	PromoteOnCommit Promote = "on-commit"
	// PromoteAlways promotes the copy of every container that was created and deleted, also of one that failed.
	PromoteAlways Promote = "always"
	// PromoteNever drops the copy: the container reads the cache and changes nothing for others.
	PromoteNever Promote = "never"
)

// Cache is one check cache of a container.
type Cache struct {
	// Key names the cache. It is opaque and may hold secrets: only CacheID(Key) may be written anywhere.
	Key string

	// Path is where the cache is mounted in the container: absolute, clean, UTF-8, not "/".
	Path string

	// Promote is never "" in what ParseRef returns; Ref.String takes "" for PromoteOnCommit.
	Promote Promote
}

// CacheID returns the name under which a worker keeps the cache of key: the hex SHA-256 of its bytes. A scheduler
// can compare it with what a worker lists, without either of them showing the key.
func CacheID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// The parameters of a rootfs URL. The n-th of each belong together.
const (
	paramCache   = "cache"
	paramPath    = "cache-path"
	paramPromote = "cache-promote"
)

// encodeCaches writes the query. Trailing default promotes are left out.
func encodeCaches(caches []Cache) string {
	promotes := 0
	for i, c := range caches {
		if c.Promote != "" && c.Promote != PromoteOnCommit {
			promotes = i + 1
		}
	}
	var b strings.Builder
	for i, c := range caches {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(paramCache + "=" + escape(c.Key) + "&" + paramPath + "=" + escape(c.Path))
		if i < promotes {
			b.WriteString("&" + paramPromote + "=" + escape(string(c.Promote.orDefault())))
		}
	}
	return b.String()
}

// orDefault returns p, or the default for the zero value.
func (p Promote) orDefault() Promote {
	if p == "" {
		return PromoteOnCommit
	}
	return p
}

// parseCaches reads the query. Its errors name a parameter by its number and never by its value: where a client
// has mixed up two parameters, any value may be a key.
func parseCaches(query string) ([]Cache, error) {
	keys, paths, promotes, shifted, err := splitQuery(query)
	if err != nil {
		return nil, err
	}
	switch {
	case len(keys) != len(paths):
		return nil, fmt.Errorf("has %d %q and %d %q parameters: each cache needs one of both", len(keys), paramCache, len(paths), paramPath)
	case len(promotes) > len(keys):
		return nil, fmt.Errorf("has %d %q parameters for %d caches: at most one for each is possible", len(promotes), paramPromote, len(keys))
	}
	if shifted && len(promotes) < len(keys) {
		return nil, fmt.Errorf("has %d %q parameters for %d caches, and not behind the first ones: give each cache its own", len(promotes), paramPromote, len(keys))
	}
	caches := make([]Cache, len(keys))
	for i := range keys {
		c := Cache{Key: keys[i], Path: paths[i], Promote: PromoteOnCommit}
		if i < len(promotes) {
			c.Promote = Promote(promotes[i])
		}
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("cache %d: %w", i+1, err)
		}
		for j, other := range caches[:i] {
			if err := c.conflict(other); err != nil {
				return nil, fmt.Errorf("caches %d and %d: %w", j+1, i+1, err)
			}
		}
		caches[i] = c
	}
	return caches, nil
}

// splitQuery returns the decoded values of the three parameters, each in the order of the query. shifted: a promote stands behind a later
// cache than the one it belongs to by its number; if some are left out, whoever wrote that may mean the later one.
func splitQuery(query string) (keys, paths, promotes []string, shifted bool, err error) {
	if strings.Contains(query, ";") {
		return nil, nil, nil, false, errors.New(`has a ";" in its query: separate parameters by "&", write a semicolon as %3B`)
	}
	afterKey := false
	for pair := range strings.SplitSeq(query, "&") {
		name, encoded, hasValue := strings.Cut(pair, "=")
		if !hasValue && afterKey {
			// An "&" inside a key that was not encoded: what follows it is a part of a secret, not a name.
			return nil, nil, nil, false, fmt.Errorf(`has something without "=" after a %q parameter: write an "&" inside a key as %%26`, paramCache)
		}
		value, err := unescape(strings.ReplaceAll(encoded, "+", " "))
		if err != nil {
			return nil, nil, nil, false, errors.New(`has a "%" in its query that two hexadecimal digits do not follow: write a percent sign as %25`)
		}
		switch name {
		case paramCache:
			keys = append(keys, value)
		case paramPath:
			paths = append(paths, value)
		case paramPromote:
			shifted = shifted || len(keys) > len(promotes)+1
			promotes = append(promotes, value)
		default:
			return nil, nil, nil, false, unknownParameter(name)
		}
		afterKey = name == paramCache
	}
	return keys, paths, promotes, shifted, nil
}

// unknownParameter refuses a parameter by its name, if that looks like one.
func unknownParameter(name string) error {
	const maxNameBytes = 32
	isName := name != "" && len(name) <= maxNameBytes
	for i := 0; i < len(name); i++ {
		isName = isName && isUnreserved(name[i])
	}
	if !isName {
		return fmt.Errorf("has a query parameter without a proper name: only %s, %s and %s are known", paramCache, paramPath, paramPromote)
	}
	return fmt.Errorf("has the unknown query parameter %q: only %s, %s and %s are known", name, paramCache, paramPath, paramPromote)
}

// check refuses a cache that cannot be on its own.
func (c Cache) check() error {
	switch {
	case c.Key == "":
		return fmt.Errorf("%q is empty: give it a key", paramCache)
	case !strings.HasPrefix(c.Path, "/"):
		return fmt.Errorf("%q is not absolute: begin it with /", paramPath)
	case c.Path == "/":
		return fmt.Errorf("%q is /, where the image is: name a directory below it", paramPath)
	case path.Clean(c.Path) != c.Path:
		return fmt.Errorf(`%q has a doubled or trailing slash, "." or "..": write it without`, paramPath)
	case strings.Contains(c.Path, "\x00"):
		return fmt.Errorf("%q has a zero byte (%%00): no file name has one", paramPath)
	case !utf8.ValidString(c.Path):
		// It goes to gdn as JSON, which would turn it into another path.
		return fmt.Errorf("%q is not UTF-8: name a directory that is", paramPath)
	}
	switch c.Promote {
	case PromoteOnCommit, PromoteAlways, PromoteNever:
		return nil
	default:
		return fmt.Errorf("%q is none of %s, %s and %s", paramPromote, PromoteOnCommit, PromoteAlways, PromoteNever)
	}
}

// conflict refuses two caches that cannot be in one container: two copies of one cache would overwrite each
// other's promotion, and of two nested mounts the order decides which one is seen.
func (c Cache) conflict(other Cache) error {
	switch {
	case c.Key == other.Key:
		return errors.New("have the same key: a container has one copy of a cache")
	case c.Path == other.Path:
		return fmt.Errorf("have the same %q: mount each on a directory of its own", paramPath)
	case isBelow(c.Path, other.Path) || isBelow(other.Path, c.Path):
		return fmt.Errorf("are mounted one inside the other by their %q: mount each beside the other", paramPath)
	}
	return nil
}

// isBelow tells whether the clean path p lies inside dir.
func isBelow(p, dir string) bool {
	return strings.HasPrefix(p, dir+"/")
}
