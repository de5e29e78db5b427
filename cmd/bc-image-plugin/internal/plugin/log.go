package plugin

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/concourse/bc-image-plugin/internal/appendjson"
)

// The values of --log-format.
const (
	formatLager = "lager"
	formatText  = "text"
)

// maxLineBytes keeps a log line below PIPE_BUF (4096, pipe(7)): so much is written to a pipe in one piece, and gdn
// takes what it reads at once for whole lines.
const maxLineBytes = 4095

// logLevels returns what --log-level can be. Warnings are shown at every level, see lagerLevel.
func logLevels() map[string]logrus.Level {
	return map[string]logrus.Level{
		"debug": logrus.DebugLevel, "info": logrus.InfoLevel, "error": logrus.WarnLevel,
	}
}

// newLogger returns a logger to w. Values that the flags do not know count as the default: what is wrong with them
// is going to be logged here.
func newLogger(w io.Writer, level, format string) *logrus.Logger {
	log := &logrus.Logger{Out: quietWriter{w}, Hooks: logrus.LevelHooks{}, Formatter: lagerFormatter{}, Level: logrus.InfoLevel}
	if l, ok := logLevels()[level]; ok {
		log.Level = l
	}
	if logFormat(format, w) == formatText {
		log.Formatter = textFormatter{}
	}
	return log
}

// logFormat returns the format to use for a --log-format on w.
func logFormat(format string, w io.Writer) string {
	if format == formatText || format != formatLager && isTerminal(w) {
		return formatText
	}
	return formatLager
}

// isTerminal tells whether a person may be reading w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// quietWriter drops what cannot be written: logrus would complain on os.Stderr, in a form that is not ours.
type quietWriter struct{ io.Writer }

func (w quietWriter) Write(b []byte) (int, error) {
	_, _ = w.Writer.Write(b)
	return len(b), nil
}

// lagerFormatter writes a log entry as one line of lager JSON, at most maxLineBytes long.
type lagerFormatter struct{}

// Format never fails: a value that is no JSON is written as text, and what is too long is cut, with a mark.
func (lagerFormatter) Format(e *logrus.Entry) ([]byte, error) {
	for maxValueBytes := 1024; maxValueBytes > 8; maxValueBytes /= 2 {
		if b, ok := formatLine(e, maxValueBytes); ok {
			return b, nil
		}
	}
	// Hundreds of fields: their names alone fill the line.
	bare := &logrus.Entry{Time: e.Time, Level: e.Level, Message: e.Message, Data: logrus.Fields{"cut": len(e.Data)}}
	b, _ := formatLine(bare, 256)
	return b, nil
}

// formatLine writes e with every text cut to maxValueBytes. It is not ok if the line is too long even so.
//
// A log line is as gdn's relogger reads it (lager's chug package). data must be an object: gdn writes into it and panics where it is absent or null. Of the
// keys in it, "error", "trace" and "session" have to be strings, or gdn takes the line for garbage.
//
// It is appended by hand: encoding/json takes 0.05 ms for it, reflection over its types and all, of the 1.3 ms of a whole command.
func formatLine(e *logrus.Entry, maxValueBytes int) (line []byte, ok bool) {
	b := e.Time.UTC().AppendFormat(append(make([]byte, 0, 1024), `{"timestamp":"`...), time.RFC3339Nano)
	b = appendjson.String(append(b, `","level":`...), lagerLevel(e.Level))
	b = appendjson.String(append(b, `,"source":`...), Name)
	b = appendjson.String(append(b, `,"message":`...), cut(readable(e.Message), maxValueBytes))
	b = append(b, `,"data":{`...)
	data := make(map[string]any, len(e.Data))
	for key, value := range e.Data {
		data[cut(readable(key), maxValueBytes)] = value
	}
	for i, key := range slices.Sorted(maps.Keys(data)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(append(appendjson.String(b, key), ':'), key, data[key], maxValueBytes)
	}
	b = append(b, "}}\n"...)
	return b, len(b) <= maxLineBytes
}

// appendValue appends value in a form that always encodes: numbers, truth values, times and lists as they are where gdn takes them, the rest as
// text. A list or times that take more than maxBytes are text, too, and cut.
func appendValue(b []byte, key string, value any, maxBytes int) []byte {
	start := len(b)
	switch key {
	case "error", "trace", "session": // strings, see formatLine
		return appendjson.String(b, logText(value, maxBytes))
	}
	switch v := value.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	case durations:
		var ok bool
		if b, ok = v.append(b); ok && len(b)-start <= maxBytes {
			return b
		}
	case []string:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = logText(v[i], maxBytes)
		}
		if b = appendjson.Strings(b, texts); len(b)-start <= maxBytes {
			return b
		}
	}
	return appendjson.String(b[:start], logText(value, maxBytes))
}

func logText(value any, maxBytes int) string {
	return cut(readable(fmt.Sprint(value)), maxBytes)
}

// lagerLevel returns lager's name of a level: it knows four. Warnings become errors: they are about something that
// a person has to look after, and at info they would drown among the lines of every create and delete.
func lagerLevel(l logrus.Level) string {
	switch l {
	case logrus.TraceLevel, logrus.DebugLevel:
		return "debug"
	case logrus.InfoLevel:
		return "info"
	case logrus.WarnLevel, logrus.ErrorLevel:
		return "error"
	default:
		return "fatal"
	}
}

// textFormatter writes a log entry for a person at a terminal: one line, and nothing in it that moves the cursor.
type textFormatter struct{}

func (textFormatter) Format(e *logrus.Entry) ([]byte, error) {
	keys := make([]string, 0, len(e.Data))
	for key := range e.Data {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", e.Level, readable(e.Message))
	for _, key := range keys {
		value := fmt.Sprint(e.Data[key])
		if quoted := strconv.Quote(value); value == "" || len(quoted) != len(value)+len(`""`) || strings.ContainsAny(value, " =") {
			value = quoted
		}
		fmt.Fprintf(&b, " %s=%s", readable(key), value)
	}
	b.WriteByte('\n')
	return []byte(b.String()), nil
}
