package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/concourse/bc-image-plugin/cmd/bc-image-plugin/internal/lagerline"
)

func TestLagerLine(t *testing.T) {
	b, err := lagerFormatter{}.Format(&logrus.Entry{
		Time: time.Date(2026, 8, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600)), Level: logrus.InfoLevel, Message: "delete: deleted",
		Data: logrus.Fields{"handle": "h", "privileged": true, "bytes": uint64(1 << 63), "ms": durations{"total": 1.5}, "none": nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"timestamp":"2026-08-01T11:00:00.123456789Z","level":"info","source":"bc-image-plugin","message":"delete: deleted",` +
		`"data":{"bytes":9223372036854775808,"handle":"h","ms":{"total":1.5},"none":"<nil>","privileged":true}}` + "\n"
	if string(b) != want {
		t.Errorf("got  %swant %s", b, want)
	}
}

func TestLagerLineIsAlwaysOne(t *testing.T) {
	many := logrus.Fields{}
	for i := range 500 {
		many[fmt.Sprintf("key %d", i)] = strings.Repeat("v", i)
	}
	for name, e := range map[string]*logrus.Entry{
		"empty":                {},
		"no data":              {Message: "m", Level: logrus.WarnLevel},
		"panic":                {Level: logrus.PanicLevel},
		"trace":                {Level: logrus.TraceLevel},
		"long message":         {Message: strings.Repeat("m", 10000)},
		"long value":           {Data: logrus.Fields{"handle": strings.Repeat("\x01", 10000)}},
		"long values":          {Data: logrus.Fields{"a": strings.Repeat("<", 3000), "b": strings.Repeat("\\", 3000), "c": strings.Repeat("\xff", 3000)}},
		"long key":             {Data: logrus.Fields{strings.Repeat("k", 9000): 1}},
		"many values":          {Data: many},
		"handle of any bytes":  {Data: logrus.Fields{"handle": "\xff\n\x00\"\\\u2028ä"}},
		"error that is none":   {Data: logrus.Fields{"error": 5, "trace": durations{"a": 1}, "session": true}},
		"error":                {Data: logrus.Fields{"error": errors.New("no")}},
		"not a number":         {Data: logrus.Fields{"ms": durations{"total": nan()}}},
		"what JSON cannot say": {Data: logrus.Fields{"c": make(chan int), "f": 1i}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := lagerFormatter{}.Format(e)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lagerline.Check(b); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLogShowsBytesReadably(t *testing.T) {
	b, _ := lagerFormatter{}.Format(&logrus.Entry{Data: logrus.Fields{"handle": "a\xffb\nc\\ä\ufffd"}})
	data, err := lagerline.Check(b)
	if want := "a\\xffb\\nc\\ä\ufffd"; err != nil || data["handle"] != want {
		t.Errorf("got %q, %v; want %q", data["handle"], err, want)
	}
}

func TestLogMarksWhatItCuts(t *testing.T) {
	b, _ := lagerFormatter{}.Format(&logrus.Entry{Data: logrus.Fields{"handle": strings.Repeat("ä", 1000)}})
	data, err := lagerline.Check(b)
	if err != nil || !strings.HasSuffix(data["handle"].(string), "ä…[976 bytes more]") {
		t.Errorf("got %q, %v", data["handle"], err)
	}
}

func TestTextLine(t *testing.T) {
	b, err := textFormatter{}.Format(&logrus.Entry{Level: logrus.WarnLevel, Message: "m\x1b[2J", Data: logrus.Fields{
		"b": "x y\n\xff", "a": 1, "c": "", "d": `x"y`, "e": "plain",
	}})
	want := `warning: m\x1b[2J a=1 b="x y\n\xff" c="" d="x\"y" e=plain` + "\n"
	if err != nil || string(b) != want {
		t.Errorf("got %q, %v; want %q", b, err, want)
	}
}

// writes counts what would be calls of write(2).
type writes [][]byte

func (w *writes) Write(b []byte) (int, error) {
	*w = append(*w, bytes.Clone(b))
	return len(b), nil
}

func TestLoggerWritesEachLineAtOnceAndFromItsLevelOn(t *testing.T) {
	for level, want := range map[string]int{"debug": 4, "info": 3, "error": 2, "nonsense": 3} {
		var w writes
		log := newLogger(&w, level, "lager")
		log.Debug("d")
		log.Info("i")
		log.Warn("w")
		log.Error("e")
		if len(w) != want {
			t.Errorf("%s: %d writes, want %d", level, len(w), want)
		}
		for _, line := range w {
			if _, err := lagerline.Check(line); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestLogFormat(t *testing.T) {
	var b bytes.Buffer
	for format, want := range map[string]string{"": "lager", "lager": "lager", "text": "text", "nonsense": "lager"} {
		if got := logFormat(format, &b); got != want {
			t.Errorf("%q: got %q, want %q", format, got, want)
		}
	}
}

func FuzzLagerLine(f *testing.F) {
	f.Add("create: failed", "error", "create \"h\": no", "handle", "-dash", int64(1), 1.5)
	f.Add("m", "trace", "\xff\n", "session", strings.Repeat("\x00", 5000), int64(-1), nan())
	f.Fuzz(func(t *testing.T, message, key1, value1, key2, value2 string, n int64, ms float64) {
		b, err := lagerFormatter{}.Format(&logrus.Entry{Time: time.Unix(n, 0), Level: logrus.Level(uint32(n) % 7), Message: message, Data: logrus.Fields{
			key1: value1, key2: value2, key1 + key2: n, value1: errors.New(value2), "ms": durations{key1: ms},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lagerline.Check(b); err != nil {
			t.Error(err)
		}
		b, err = textFormatter{}.Format(&logrus.Entry{Message: message, Data: logrus.Fields{key1: value1, key2: value2}})
		if err != nil || bytes.IndexByte(b, '\n') != len(b)-1 || bytes.IndexByte(b, 0x1b) >= 0 {
			t.Errorf("%q is no line for a terminal: %v", b, err)
		}
	})
}

func nan() float64 {
	var zero float64
	return zero / zero
}
