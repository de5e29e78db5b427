package volumetest

import (
	"crypto/rand"
	"os"

	"github.com/concourse/bc-image-plugin/volumes"
)

const mib = 1 << 20

// data makes a file of bytes that no file system can make smaller, and has the file system decide where they go.
func (p *place) data(path string, size int) {
	p.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content)
	f, err := os.Create(path)
	p.check(err)
	p.check(f.Truncate(int64(size))) // a file that grows takes more on xfs, until some time after it was closed
	_, err = f.Write(content)
	p.check(err)
	p.check(f.Sync())
	p.check(f.Close())
}

// within fails the test if got is not want to one part in a hundred.
func (p *place) within(what string, got, want uint64) {
	p.Helper()
	if got < want-want/100 || got > want+want/100 {
		p.Errorf("%s: %d bytes, want %d to one part in a hundred", what, got, want)
	}
}

func (p *place) stats(handle string) volumes.Usage {
	p.Helper()
	u, err := p.Stats(p.Context(), p.handle(handle))
	p.check(err)
	if u.Partial {
		p.Errorf("the numbers are only a part: %+v", u)
	}
	return u
}

// numbers is field case 77: what is written counts, holes do not, a file with two links does once, and what was deleted of the image
// is still there.
func numbers(p *place) {
	image := p.path("image")
	p.check(os.Mkdir(image, 0o755))
	p.data(image+"/kept", 30*mib)
	p.data(image+"/deleted", 20*mib)
	v := p.create("h", image, privileged)
	if u := p.stats("h"); u.ExclusiveBytes > 64<<10 {
		p.Errorf("before anything was written: %+v", u)
	}
	p.data(v.Root+"/written", 10*mib)
	p.check(os.Link(v.Root+"/written", v.Root+"/link"))
	p.check(os.Remove(v.Root + "/deleted"))
	p.write(v.Root+"/sparse", "")
	p.check(os.Truncate(v.Root+"/sparse", 1<<30))
	u := p.stats("h")
	p.within("exclusive", u.ExclusiveBytes, 10*mib)
	p.within("total", u.TotalBytes, 60*mib)
	p.delete("h")
}

// imageMeasuredOnce: stats of all containers are asked for at once and often; an image is not walked for each (field case 47).
func imageMeasuredOnce(p *place) {
	image := p.path("image")
	p.check(os.MkdirAll(image+"/deep/inside", 0o755))
	p.data(image+"/deep/inside/first", 4*mib)
	p.create("h", image, privileged)
	p.create("k", image, privileged)
	before := p.stats("h")
	p.within("total", before.TotalBytes, 4*mib)
	p.data(image+"/deep/inside/second", 8*mib) // which nobody should do: it tells whether somebody looks
	if u := p.stats("h"); u != before {
		p.Errorf("%+v became %+v: the image was walked again", before, u)
	}
	if u := p.stats("k"); u.TotalBytes != before.TotalBytes {
		p.Errorf("%+v for another container: the image was walked again", u)
	}
	p.data(image+"/at-the-top", 1*mib) // this makes it another image
	p.create("l", image, privileged)
	p.within("total of a changed image", p.stats("l").TotalBytes, 13*mib)
	for _, h := range []string{"h", "k", "l"} {
		p.delete(h)
	}
}
