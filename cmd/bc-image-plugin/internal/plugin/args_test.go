package plugin

import (
	"slices"
	"strings"
	"testing"
)

func TestParseCreate(t *testing.T) {
	for _, tt := range []struct {
		name string
		argv []string
		want createArgs
	}{
		{"as gdn sends it", []string{"file:///i", "h"}, createArgs{image: "file:///i", handle: "h"}},
		{"everything gdn can send", []string{"--disk-limit-size-bytes", "10", "--exclude-image-from-quota", "--username", "u", "--password", "p", "/i", "h"},
			createArgs{image: "/i", handle: "h", diskLimitBytes: 10, excludeImage: true}},
		{"no image", []string{"", "h"}, createArgs{handle: "h"}},
		{"empty handle", []string{"/i", ""}, createArgs{image: "/i"}},
		{"equals signs", []string{"--disk-limit-size-bytes=10", "--username=u=v", "--password=", "/i", "h"},
			createArgs{image: "/i", handle: "h", diskLimitBytes: 10}},
		{"largest limit", []string{"--disk-limit-size-bytes", "18446744073709551615", "/i", "h"},
			createArgs{image: "/i", handle: "h", diskLimitBytes: 1<<64 - 1}},
		{"limit of nothing", []string{"--disk-limit-size-bytes", "0", "--exclude-image-from-quota", "/i", "h"},
			createArgs{image: "/i", handle: "h", excludeImage: true}},

		{"handle with a dash", []string{"/i", "-dash"}, createArgs{image: "/i", handle: "-dash"}},
		{"handle is help", []string{"/i", "--help"}, createArgs{image: "/i", handle: "--help"}},
		{"handle is a flag of ours", []string{"/i", "--username"}, createArgs{image: "/i", handle: "--username"}},
		{"handle is a flag with a value", []string{"/i", "--username=u"}, createArgs{image: "/i", handle: "--username=u"}},
		{"handle is a flag given before", []string{"--username", "u", "/i", "--username"}, createArgs{image: "/i", handle: "--username"}},
		{"handle is a wrong flag", []string{"/i", "--disk-limit-size-bytes=x"}, createArgs{image: "/i", handle: "--disk-limit-size-bytes=x"}},
		{"handle ends flags", []string{"/i", "--"}, createArgs{image: "/i", handle: "--"}},
		{"password with a dash", []string{"--password", "--username", "/i", "h"}, createArgs{image: "/i", handle: "h"}},
		{"password ends flags", []string{"--password", "--", "/i", "h"}, createArgs{image: "/i", handle: "h"}},

		{"flags between", []string{"/i", "--disk-limit-size-bytes", "10", "h"}, createArgs{image: "/i", handle: "h", diskLimitBytes: 10}},
		{"flags last", []string{"/i", "h", "--disk-limit-size-bytes", "10"}, createArgs{image: "/i", handle: "h", diskLimitBytes: 10}},
		{"flag and flag last", []string{"/i", "h", "--disk-limit-size-bytes", "10", "--exclude-image-from-quota"},
			createArgs{image: "/i", handle: "h", diskLimitBytes: 10, excludeImage: true}},
		{"flags around", []string{"--username", "u", "/i", "h", "--password=p"}, createArgs{image: "/i", handle: "h"}},
		{"end of flags", []string{"--username", "u", "--", "/i", "--password"}, createArgs{image: "/i", handle: "--password"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseCreate(tt.argv)
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseCreateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		argv []string
		want string
	}{
		{"nothing", nil, "0 arguments"},
		{"one argument", []string{"/i"}, "1 arguments"},
		{"three arguments", []string{"/i", "hunter2", "h"}, "3 arguments"},
		{"only flags", []string{"--username", "u", "--password", "hunter2"}, "0 arguments"},
		{"no image", []string{"--password", "hunter2", "h"}, "1 arguments"},
		{"unknown flag", []string{"--bogus", "/i", "h"}, "unknown flag --bogus"},
		{"mistyped flag", []string{"--passwort", "hunter2", "/i", "h"}, "unknown flag --passwort"},
		{"short flag", []string{"-phunter2", "/i", "h"}, "unknown flag:"},
		{"what may be a password", []string{"--username", "u", "--hunter2", "/i", "h"}, "unknown flag:"},
		{"flag of another place", []string{"--store", "/s", "/i", "h"}, "unknown flag --store"},
		{"given twice", []string{"--password", "hunter2", "--password", "hunter3", "/i", "h"}, "--password is given twice"},
		{"limit without a value", []string{"/i", "h", "--disk-limit-size-bytes"}, "--disk-limit-size-bytes needs a value"},
		{"limit is no number", []string{"--disk-limit-size-bytes", "hunter2", "/i", "h"}, "whole number"},
		{"limit is negative", []string{"--disk-limit-size-bytes", "-1", "/i", "h"}, "whole number"},
		{"limit has a sign", []string{"--disk-limit-size-bytes=+1", "/i", "h"}, "whole number"},
		{"limit has a unit", []string{"--disk-limit-size-bytes", "10M", "/i", "h"}, "whole number"},
		{"limit is hexadecimal", []string{"--disk-limit-size-bytes", "0x10", "/i", "h"}, "whole number"},
		{"limit with an underscore", []string{"--disk-limit-size-bytes", "1_0", "/i", "h"}, "whole number"},
		{"limit is too large", []string{"--disk-limit-size-bytes", "18446744073709551616", "/i", "h"}, "whole number"},
		{"limit is empty", []string{"--disk-limit-size-bytes", "", "/i", "h"}, "whole number"},
		{"exclude without a limit", []string{"--exclude-image-from-quota", "/i", "h"}, "needs --disk-limit-size-bytes"},
		{"exclude with a value", []string{"--exclude-image-from-quota=hunter2", "/i", "h"}, "takes no value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseCreate(tt.argv)
			if err == nil {
				t.Fatalf("taken as %+v", got)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q does not say %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter") {
				t.Errorf("%q shows a secret", err)
			}
		})
	}
}

// Whatever stands last is the handle when gdn calls, and no value is ever shown.
func FuzzParseCreate(f *testing.F) {
	f.Add("--disk-limit-size-bytes\x0010\x00--exclude-image-from-quota\x00--username\x00u\x00--password\x00p\x00/i\x00h", "h")
	f.Add("/i\x00--username", "-dash")
	f.Add("--password\x00--\x00/i\x00h", "--help")
	f.Fuzz(func(t *testing.T, joined, handle string) {
		if strings.Contains(handle, "\x00") {
			t.Skip("no argument of a process has one")
		}
		argv := strings.Split(joined, "\x00")
		a, err := parseCreate(argv)
		if err == nil && (!slices.Contains(argv, a.handle) || !slices.Contains(argv, a.image)) {
			t.Errorf("%q: %+v was not said", argv, a)
		}

		for _, flags := range [][]string{nil, {"--username", "u", "--password", handle}, {"--disk-limit-size-bytes", "5", "--exclude-image-from-quota"}} {
			sent := append(flags, "file:///i", handle)
			a, err := parseCreate(sent)
			if err != nil || a.handle != handle || a.image != "file:///i" {
				t.Errorf("%q: %+v, %v", sent, a, err)
			}
		}

		const secret = "HuNtEr2"
		if _, err := parseCreate(append(argv, "--password", secret+handle, "x", "y", "z")); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q shows a secret", err)
		}
	})
}

func TestOneHandle(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
		ok   bool
	}{
		{[]string{"h"}, "h", true},
		{[]string{""}, "", true},
		{[]string{"--help"}, "--help", true},
		{[]string{"--"}, "--", true},
		{[]string{"--", "h"}, "h", true},
		{[]string{"--", "--"}, "--", true},
		{nil, "", false},
		{[]string{"a", "b"}, "", false},
		{[]string{"--", "a", "b"}, "", false},
	} {
		got, err := oneHandle("delete", tt.args)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%q: got %q, %v", tt.args, got, err)
		}
	}
}
