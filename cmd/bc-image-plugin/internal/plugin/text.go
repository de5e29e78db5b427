package plugin

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// readable returns s with all that cannot be shown written as Go writes it in a string: bytes that are not UTF-8
// as \xff, control characters as \n, \x1b or \u2028. A handle may be any bytes.
func readable(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !unicode.IsPrint(r):
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Quote returns s in quotes for a sentence, cut to a length that leaves room for the sentence.
func Quote(s string) string {
	const maxBytes = 300
	return strconv.Quote(cut(s, maxBytes))
}

// cut returns s if it has at most maxBytes, or as much of its beginning and a mark that says how much is missing.
func cut(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	end := maxBytes
	for end > 0 && end > maxBytes-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s…[%d bytes more]", s[:end], len(s)-end)
}
