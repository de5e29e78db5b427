package tree

import (
	"bytes"
	"encoding/binary"
)

// parseEntries reads linux_dirent64 records (getdents64(2)): ino u64, off s64, reclen u16, type u8, name NUL-terminated.
func parseEntries(buf []byte) []dirent {
	var entries []dirent
	for len(buf) >= 19 {
		size := int(binary.NativeEndian.Uint16(buf[16:]))
		if size < 19 || size > len(buf) {
			break
		}
		name := buf[19:size]
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		if s := string(name); s != "." && s != ".." {
			entries = append(entries, dirent{name: s, kind: buf[18], next: int64(binary.NativeEndian.Uint64(buf[8:]))})
		}
		buf = buf[size:]
	}
	return entries
}
