// Command floor makes and removes one unprivileged overlay volume with nothing but the system calls that this takes: no options, no checks, no
// locks, no second look, no answer. It says how much of a command's time is the kernel's, and is used by the benchmarks only.
//
//	floor                        nothing: the floor of all
//	floor create IMAGE STORE     one upper in STORE/layers/h, mounted on STORE/mnt/h/rootfs, both layers id-mapped 0↔4294967294
//	floor delete STORE
package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	switch args := arguments(); {
	case len(args) == 4 && args[1] == "create":
		create(args[2], args[3])
	case len(args) == 3 && args[1] == "delete":
		remove(args[2])
	}
}

func create(image, store string) {
	layers := try(unix.Open(store+"/layers", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	lower := try(unix.Open(image, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	ns := userNamespace()
	must(unix.Symlink("h", store+"/init"))
	must(unix.Mkdirat(layers, "h", 0o700))
	must(unix.Mkdir(store+"/mnt/h", 0o711))
	must(unix.Mkdir(store+"/mnt/h/rootfs", 0o755))
	uppers, lower := mapped(layers, ns), mapped(lower, ns)
	must(unix.Mkdirat(uppers, "h/fs", 0o755))
	must(unix.Mkdirat(uppers, "h/work", 0o700))
	upper := try(unix.Openat(uppers, "h/fs", unix.O_PATH|unix.O_DIRECTORY, 0))
	work := try(unix.Openat(uppers, "h/work", unix.O_PATH|unix.O_DIRECTORY, 0))
	must(unix.Fchownat(upper, "", 4294967294, 4294967294, unix.AT_EMPTY_PATH))
	fs := try(unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC))
	must(unix.FsconfigSetFlag(fs, "volatile"))
	must(unix.FsconfigSetFd(fs, "lowerdir+", lower))
	must(unix.FsconfigSetFd(fs, "upperdir", upper))
	must(unix.FsconfigSetFd(fs, "workdir", work))
	must(unix.FsconfigCreate(fs))
	mount := try(unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0))
	must(unix.MoveMount(mount, "", unix.AT_FDCWD, store+"/mnt/h/rootfs", unix.MOVE_MOUNT_F_EMPTY_PATH))
	must(unix.Rename(store+"/init", store+"/live"))
}

func remove(store string) {
	must(unix.Rename(store+"/live", store+"/dead"))
	must(unix.Unmount(store+"/mnt/h/rootfs", unix.UMOUNT_NOFOLLOW))
	must(unix.Rmdir(store + "/mnt/h/rootfs"))
	must(unix.Rmdir(store + "/mnt/h"))
	work := store + "/layers/h/work"
	must(unix.Unlink(work + "/work/incompat/volatile/dirty"))
	for _, dir := range []string{"/work/incompat/volatile", "/work/incompat", "/work", ""} {
		must(unix.Rmdir(work + dir))
	}
	must(unix.Rmdir(store + "/layers/h/fs"))
	must(unix.Rmdir(store + "/layers/h"))
	must(unix.Unlink(store + "/dead"))
}

// userNamespace makes a namespace with the swap of 0 and the highest id, as volumes/internal/userns does.
func userNamespace() int {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER, 0, 0, 0, 0, 0)
	if pid == 0 && e == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	if e != 0 {
		panic(e)
	}
	proc := "/proc/" + decimal(int(pid))
	for _, name := range []string{"/uid_map", "/gid_map"} {
		fd := try(unix.Open(proc+name, unix.O_WRONLY|unix.O_CLOEXEC, 0))
		try(unix.Write(fd, []byte("0 4294967294 1\n1 1 4294967293\n4294967294 0 1\n")))
		must(unix.Close(fd))
	}
	ns := try(unix.Open(proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0))
	try(unix.Wait4(int(pid), nil, unix.WALL, nil))
	return ns
}

func mapped(dir, ns int) int {
	clone := try(unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH))
	must(unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}))
	return clone
}

// arguments reads the command line without package os, whose initialisation is no part of the floor.
func arguments() []string {
	buf := make([]byte, 4096)
	fd := try(syscall.Open("/proc/self/cmdline", syscall.O_RDONLY, 0))
	n := try(syscall.Read(fd, buf))
	must(syscall.Close(fd))
	var args []string
	for start, i := 0, 0; i < n; i++ {
		if buf[i] == 0 {
			args = append(args, string(buf[start:i]))
			start = i + 1
		}
	}
	return args
}

func decimal(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return decimal(n/10) + decimal(n%10)
}

func try(n int, err error) int {
	must(err)
	return n
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
