package plugin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// createUsage is what parseCreate reads.
const createUsage = "[--disk-limit-size-bytes N [--exclude-image-from-quota]] [--username U] [--password P] ROOTFS-URL HANDLE"

// createArgs is what gdn says after the word create. The user name and the password are read and forgotten: no
// image that we know needs them, and a secret that is not kept cannot be shown.
type createArgs struct {
	image          string
	handle         string
	diskLimitBytes uint64 // 0: none
	excludeImage   bool
}

// parseCreate reads the arguments of create. Its errors never quote one: a password may be among them.
//
// gdn puts the handle last, whatever it looks like, so that reading comes first: with "--username" as the last
// argument there is a container of that name. A person may also put flags at the end.
func parseCreate(argv []string) (createArgs, error) {
	if len(argv) < 2 {
		return createArgs{}, fmt.Errorf("create: needs a ROOTFS-URL and a HANDLE, and got %d arguments", len(argv))
	}
	last := len(argv) - 1
	if a, positionals, err := readCreate(argv[:last]); err == nil && len(positionals) == 1 {
		a.image, a.handle = positionals[0], argv[last]
		return a, nil
	}
	a, positionals, err := readCreate(argv)
	if err == nil && len(positionals) != 2 {
		err = fmt.Errorf("needs a ROOTFS-URL and a HANDLE, and got %d arguments beside the flags", len(positionals))
	}
	if err != nil {
		return createArgs{}, fmt.Errorf("create: %w", err)
	}
	a.image, a.handle = positionals[0], positionals[1]
	return a, nil
}

// readCreate separates flags from positional arguments.
func readCreate(argv []string) (a createArgs, positionals []string, err error) {
	given := map[string]bool{}
	for i := 0; i < len(argv); i++ {
		arg := argv[i]
		if arg == "--" {
			positionals = append(positionals, argv[i+1:]...)
			break
		}
		if !strings.HasPrefix(arg, "-") {
			positionals = append(positionals, arg)
			continue
		}
		flag, value, hasValue := strings.Cut(arg, "=")
		switch flag {
		case "--disk-limit-size-bytes", "--username", "--password":
			if !hasValue {
				if i++; i == len(argv) {
					return a, nil, fmt.Errorf("%s needs a value", flag)
				}
				value = argv[i]
			}
		case "--exclude-image-from-quota":
			if hasValue {
				return a, nil, fmt.Errorf("%s takes no value", flag)
			}
			a.excludeImage = true
		default:
			return a, nil, fmt.Errorf("unknown flag%s: use %s", flagName(flag), createUsage)
		}
		if given[flag] {
			return a, nil, fmt.Errorf("%s is given twice", flag)
		}
		given[flag] = true
		if flag == "--disk-limit-size-bytes" {
			if a.diskLimitBytes, err = strconv.ParseUint(value, 10, 64); err != nil {
				return a, nil, fmt.Errorf("%s must be a whole number of bytes, 0 for no limit", flag)
			}
		}
	}
	if a.excludeImage && !given["--disk-limit-size-bytes"] {
		return a, nil, errors.New("--exclude-image-from-quota needs --disk-limit-size-bytes")
	}
	return a, positionals, nil
}

// flagName returns the name of an unknown flag for a sentence, if it looks like one: it may as well be a password
// that begins with a dash.
func flagName(flag string) string {
	const maxBytes = 40
	name, ok := strings.CutPrefix(flag, "--")
	if !ok || len(name) > maxBytes || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz-") != "" {
		return ""
	}
	return " " + flag
}

// oneHandle returns the only argument of a command: the handle of a container, whatever it looks like.
func oneHandle(command string, args []string) (string, error) {
	if len(args) == 2 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) != 1 {
		return "", Usagef("%s: needs one HANDLE, and got %d arguments", command, len(args))
	}
	return args[0], nil
}

// noArgs refuses arguments of a command that takes none.
func noArgs(command string, args []string) error {
	if len(args) != 0 {
		return Usagef("%s: takes no arguments, and got %d: global flags stand before the command", command, len(args))
	}
	return nil
}
