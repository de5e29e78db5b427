package torture

import "strings"

// changing are the calls at which the plugin is killed, and which fail, by their errors: those of the manual pages (section 2) and of the kernel's fs/namespace.c,
// fs/overlayfs and fs/quota that can come and go while the plugin does everything right. Left out:
//
//   - EINTR but for open, write, ftruncate and fsync: the others wait for nothing that a signal ends (signal(7)), or only for a fatal one.
//   - EMFILE where no descriptor is made, EBUSY where nothing can be in use, EROFS, ENOSPC and EDQUOT where no disk is written.
//   - what only a wrong argument or another state of the disk gives: EINVAL, EBADF, ENOENT, EEXIST, ENOTEMPTY. Their place is in the other tests.
var changing = map[string]string{
	"mkdirat":       "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"symlinkat":     "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"linkat":        "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"mknodat":       "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"renameat":      "ENOSPC EDQUOT EROFS EIO ENOMEM EBUSY",
	"renameat2":     "ENOSPC EDQUOT EROFS EIO ENOMEM EBUSY",
	"unlinkat":      "EROFS EIO ENOMEM EBUSY",
	"openat":        "ENOSPC EDQUOT EROFS EIO ENOMEM EMFILE EINTR", // with O_CREAT; else as in looking
	"write":         "ENOSPC EDQUOT EIO ENOMEM EINTR",
	"pwrite64":      "ENOSPC EDQUOT EIO ENOMEM EINTR",
	"ftruncate":     "EIO EROFS EINTR",
	"fsync":         "EIO ENOSPC EDQUOT EROFS EINTR",
	"fdatasync":     "EIO ENOSPC EDQUOT EROFS EINTR",
	"syncfs":        "EIO ENOSPC EDQUOT",
	"fchmod":        "EIO EROFS ENOMEM",
	"fchmodat":      "EIO EROFS ENOMEM",
	"fchmodat2":     "EIO EROFS ENOMEM",
	"fchown":        "EIO EROFS ENOMEM EDQUOT",
	"fchownat":      "EIO EROFS ENOMEM EDQUOT",
	"lchown":        "EIO EROFS ENOMEM EDQUOT",
	"utimensat":     "EIO EROFS ENOMEM",
	"setxattr":      "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"lsetxattr":     "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"fsetxattr":     "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"removexattr":   "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"lremovexattr":  "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"fremovexattr":  "ENOSPC EDQUOT EROFS EIO ENOMEM",
	"mount":         "EBUSY ENOMEM ENOSPC", // ENOSPC: fs.mount-max
	"umount2":       "EBUSY ENOMEM",
	"open_tree":     "EMFILE ENOMEM ENOSPC",
	"mount_setattr": "EBUSY ENOMEM",
	"fsopen":        "EMFILE ENOMEM",
	"fsconfig":      "EBUSY ENOMEM EIO",
	"fsmount":       "EMFILE ENOMEM",
	"move_mount":    "EBUSY ENOMEM ENOSPC",
	"clone":         "ENOMEM ENOSPC", // ENOSPC: user.max_user_namespaces
}

// network are calls to a server, which dies, and answers, and is far away as it likes. What a kill, or a failure, leaves there is not known here. EOF is no error: the server
// closed the connection.
var network = map[string]string{
	"socket":   "EMFILE ENFILE ENOMEM ENOBUFS",
	"connect":  "ECONNREFUSED ETIMEDOUT ENETUNREACH ENOMEM EADDRNOTAVAIL",
	"sendmsg":  "EPIPE ECONNRESET ETIMEDOUT ENOBUFS",
	"recvfrom": "ECONNRESET ETIMEDOUT ENOMEM EOF",
}

// looking are calls that change nothing, so that nobody dies at them in another state than at the next call that does; but what they say is believed.
var looking = map[string]string{
	"openat":     "EIO ENOMEM EMFILE EINTR",
	"openat2":    "EIO ENOMEM EMFILE EINTR",
	"readlinkat": "EIO ENOMEM",
	"getdents64": "EIO",
	"newfstatat": "EIO ENOMEM",
	"statfs":     "EIO ENOMEM",
	"read":       "EIO EINTR",
}

// words are what a sentence says of each error, beside strerror(3): volumes says which limit it was, if it knows.
var words = map[string][]string{
	"ENOSPC": {"no space left on device", "full", "mount-max", "max_user_namespaces"},
	"EDQUOT": {"disk quota exceeded"},
	"EROFS":  {"read-only file system"},
	"EIO":    {"input/output error"},
	"ENOMEM": {"cannot allocate memory"},
	"EMFILE": {"too many open files"},
	"EBUSY":  {"device or resource busy", "busy"},
	"EINTR":  {"interrupted system call"},

	"ENFILE": {"too many open files in system"}, "ENOBUFS": {"no buffer space available"},
	"ECONNREFUSED": {"refused the connection"}, "ETIMEDOUT": {"did not answer", "connection timed out"}, "ENETUNREACH": {"network is unreachable"}, "EADDRNOTAVAIL": {"cannot assign requested address"},
	"EPIPE": {"broke off"}, "ECONNRESET": {"broke off"}, "EOF": {"broke off"},
}

// errorsOf are the errors that a call gets.
func errorsOf(c call) []string {
	if c.name == "openat" && !strings.Contains(c.args, "O_CREAT") {
		return strings.Fields(looking["openat"])
	}
	for _, calls := range []map[string]string{changing, network} {
		if list, ok := calls[c.name]; ok {
			return strings.Fields(list)
		}
	}
	return strings.Fields(looking[c.name])
}

// isChange says whether somebody may die at a call with another result than at the next.
func isChange(c call) bool {
	_, ok := changing[c.name]
	return network[c.name] != "" || ok && (c.name != "openat" || strings.Contains(c.args, "O_CREAT"))
}

// ofTheRuntime are calls of Go's runtime, which ends at an error of some, and changes nothing: new threads, its wake-ups, what it reads before main.
func ofTheRuntime(c call) bool {
	switch c.name {
	case "clone":
		return strings.Contains(c.args, "CLONE_THREAD")
	case "write":
		return strings.Contains(c.args, `"\1\0\0\0\0\0\0\0", 8`) // an eventfd
	case "read":
		return strings.Contains(c.args, `"\1\0\0\0\0\0\0\0", `) || strings.Contains(c.args, `/sysfs`) || strings.Contains(c.args, `cpuset:/`) // what it opened, below
	case "openat":
		return strings.Contains(c.args, `"/sys/`) || strings.Contains(c.args, `"/proc/self/cgroup"`) || strings.Contains(c.args, `"/proc/self/mountinfo"`)
	}
	return false
}
