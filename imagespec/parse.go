package imagespec

import (
	"errors"
	"fmt"
	"strings"
)

// supported ends a sentence about a URL of a kind that we do not take.
const supported = "use baggageclaim://VOLUME[/SUB/PATH] or file:///ABS/DIR"

// ParseRef reads a rootfs URL as gdn passes it on, or as a client wrote it.
//
// Whatever does not parse, leaves the image ("..") or has no meaning for us (a user name, a port, a fragment, an
// unknown scheme or parameter) is refused with one sentence: half of a URL names some other image. Paths are
// percent-decoded, and a "+" in them is a plus; doubled and trailing slashes are dropped; a slash that is part of
// a name (%2F) is refused. In the query values "+" is a blank, as url.Values.Encode writes it.
//
// Errors contain no cache key, no password and nothing else of the query but the names of unknown parameters.
func ParseRef(s string) (Ref, error) {
	if s == "" {
		return Ref{}, errors.New("no rootfs URL: gdn sent none, as the client named no image and gdn was started without --default-rootfs")
	}
	r, err := parseRef(s)
	if err != nil {
		return Ref{}, fmt.Errorf("rootfs URL %s: %w", shown(s), err)
	}
	return r, nil
}

func parseRef(s string) (Ref, error) {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return Ref{}, errors.New("contains a control character: percent-encode it")
		}
	}
	if strings.Contains(s, "#") {
		return Ref{}, errors.New(`has a fragment: write a "#" that belongs to a name as %23`)
	}

	where, query, hasQuery := strings.Cut(s, "?")
	r, err := parseLocation(where)
	if err != nil {
		return Ref{}, err
	}
	if hasQuery && query != "" {
		if r.Caches, err = parseCaches(query); err != nil {
			return Ref{}, err
		}
	}
	return r, nil
}

// parseLocation reads the part before the query.
func parseLocation(s string) (Ref, error) {
	if strings.HasPrefix(s, "//") {
		return Ref{}, errors.New(`begins with "//", which names a host: begin a path with one slash`)
	}
	if strings.HasPrefix(s, "/") {
		return parseDir(s)
	}
	scheme, rest, ok := cutScheme(s)
	if !ok {
		return Ref{}, errors.New("is neither a URL nor an absolute path: " + supported)
	}
	switch scheme {
	case schemeVolume, schemeFile:
	case "raw", "docker", "oci":
		return Ref{}, fmt.Errorf("scheme %q is not supported by this version: %s", scheme, supported)
	default:
		return Ref{}, fmt.Errorf("scheme %s is unknown: %s", clip(scheme), supported)
	}

	rest, ok = strings.CutPrefix(rest, "//")
	if !ok {
		return Ref{}, fmt.Errorf(`has no "//" after the scheme: %s`, supported)
	}
	host, dir := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		host, dir = rest[:i], rest[i:]
	}
	if strings.Contains(host, "@") {
		return Ref{}, errors.New("carries a user name or a password: images need none, leave it out")
	}
	if scheme == schemeFile {
		if host != "" {
			return Ref{}, errors.New("names a host before the path: write file:///ABS/DIR, with three slashes")
		}
		return parseDir(dir)
	}
	return parseVolume(host, dir)
}

// cutScheme splits off a URL scheme as RFC 3986 spells one, in lower case: net/url, which the URL went through
// on its way here, lowers it as well.
func cutScheme(s string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(s, ":")
	if !ok || scheme == "" {
		return "", "", false
	}
	for i := 0; i < len(scheme); i++ {
		c := scheme[i]
		isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		isOther := '0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'
		if !isLetter && (i == 0 || !isOther) {
			return "", "", false
		}
	}
	return strings.ToLower(scheme), rest, true
}

func parseDir(encoded string) (Ref, error) {
	sub, err := parsePath(encoded)
	if err != nil {
		return Ref{}, err
	}
	if sub == "" {
		return Ref{}, errors.New("names the host's own root directory: name the directory that holds the image")
	}
	return Ref{Dir: "/" + sub}, nil
}

func parseVolume(host, encodedPath string) (Ref, error) {
	if strings.Contains(host, ":") {
		return Ref{}, errors.New(`has a ":" after the volume handle: volumes have no port (and gdn makes a ":" of a "#"), leave it out`)
	}
	if err := checkVolume(host); err != nil {
		return Ref{}, err
	}
	sub, err := parsePath(encodedPath)
	if err != nil {
		return Ref{}, err
	}
	return Ref{Volume: host, SubPath: sub}, nil
}

// checkVolume refuses what is no volume handle. The characters are those that mean themselves in a URL, so a
// handle is never encoded and never another one after decoding.
func checkVolume(handle string) error {
	switch {
	case handle == "":
		return errors.New("names no volume: write baggageclaim://VOLUME[/SUB/PATH]")
	case handle == "." || handle == "..":
		return fmt.Errorf("the volume handle is %q, which names a directory above the volumes", handle)
	case len(handle) > maxVolumeBytes:
		return fmt.Errorf("the volume handle has %d bytes: at most %d are possible", len(handle), maxVolumeBytes)
	}
	for i := 0; i < len(handle); i++ {
		if !isUnreserved(handle[i]) {
			return fmt.Errorf("the volume handle contains %q: only letters, digits and - _ . ~ are possible", handle[i:i+1])
		}
	}
	return nil
}

// parsePath decodes the path of a URL into clean names joined by slashes, without a slash in front.
func parsePath(encoded string) (string, error) {
	decoded, err := unescape(encoded)
	switch {
	case err != nil:
		return "", errors.New(`has a "%" in its path that two hexadecimal digits do not follow: write a percent sign as %25`)
	case strings.Contains(decoded, "\x00"):
		return "", errors.New("has a zero byte (%00) in its path: no file name has one")
	case strings.Count(decoded, "/") != strings.Count(encoded, "/"):
		return "", errors.New("has an encoded slash (%2F) in its path: no file name has one, write / between names")
	case strings.Contains(decoded, "&cache=") || strings.Contains(decoded, "?cache="):
		// Taken as a name it would put a cache key, which may be a secret, into paths and messages.
		return "", errors.New(`has a "cache" parameter inside its path: parameters come after an unencoded "?"`)
	}
	var names []string
	for name := range strings.SplitSeq(decoded, "/") {
		switch name {
		case "":
		case ".", "..":
			return "", fmt.Errorf("has %q in its path: write the path without it", name)
		default:
			names = append(names, name)
		}
	}
	return strings.Join(names, "/"), nil
}

// shown returns s, quoted, for an error: cut where a query begins or where a mistyped one may begin, and with
// the scheme alone where it may hold a password.
func shown(s string) string {
	end := len(s)
	for _, mark := range []string{"?", "#", "&", "%3F", "%3f", "%26", "cache="} {
		if i := strings.Index(s, mark); i >= 0 && i < end {
			end = i
		}
	}
	s = s[:end]
	if strings.Contains(s, "@") {
		scheme, rest, ok := cutScheme(s)
		if !ok || !strings.HasPrefix(rest, "//") {
			return `"…"`
		}
		return clip(scheme + "://…")
	}
	return clip(s)
}

// clip quotes s, cut to a length that fits into a message.
func clip(s string) string {
	const maxBytes = 256
	if len(s) <= maxBytes {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q…", s[:maxBytes])
}
