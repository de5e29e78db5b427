package bcserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/concourse/baggageclaim"
	"github.com/concourse/bc-image-plugin/integration/bctest"
	"github.com/concourse/bc-image-plugin/volumes"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

// BenchmarkCreate compares, interleaved in one run, what a root file system costs through this driver with what the server's own requests cost:
// an empty volume and copies of an image volume by POST /volumes, with a connection that is kept, and by the server's client library. The image has 20,000
// files of 25 kB.
//
//	go test ./volumes/bcserver -run '^$' -bench Create -benchtime 50x
func BenchmarkCreate(b *testing.B) {
	s := start(b, bctest.Options{Driver: "overlay"})
	dir := inspect.NewDir(b)
	data := make([]byte, 25<<10)
	for i := range 20000 {
		d := fmt.Sprintf("%s/image/%d", dir, i/100)
		check(b, os.MkdirAll(d, 0o755))
		check(b, os.WriteFile(fmt.Sprintf("%s/%d", d, i), data, 0o644))
	}
	c := NewClient(s.URL)
	post := func(handle string, strategy baggageclaim.Strategy, privileged bool) {
		_, err := c.call(b.Context(), "create", http.MethodPost, "/volumes", baggageclaim.VolumeRequest{
			Handle: handle, Strategy: strategy.Encode(), Properties: baggageclaim.VolumeProperties{}, Privileged: privileged,
		}, nil, http.StatusCreated)
		check(b, err)
	}
	post("image", baggageclaim.ImportStrategy{Path: dir + "/image"}, true)
	caches, _ := storeAt(b, s.URL)
	img, err := volumes.OpenVolumeImage(s.Volumes, "image", "")
	check(b, err)

	n := 0
	fresh := func() string { n++; return fmt.Sprintf("bench-%d", n) }
	server := func(strategy baggageclaim.Strategy, privileged bool) func() (time.Duration, func()) {
		return func() (time.Duration, func()) {
			h := fresh()
			began := time.Now()
			post(h, strategy, privileged)
			return time.Since(began), func() { check(b, c.Destroy(context.Background(), h)) }
		}
	}
	ours := func(privileged bool) func() (time.Duration, func()) {
		return func() (time.Duration, func()) {
			h := fresh()
			began := time.Now()
			_, err := caches.Create(b.Context(), handle(b, h), volumes.Request{Image: img, Privileged: privileged})
			took := time.Since(began)
			check(b, err)
			return took, func() { remove(b, caches, h) }
		}
	}
	client := exec.Command("go", "run", "-C", "../../integration/baggageclaim", "./client", s.URL)
	client.Stderr = os.Stderr
	in, err := client.StdinPipe()
	check(b, err)
	out, err := client.StdoutPipe()
	check(b, err)
	check(b, client.Start())
	defer func() { check(b, in.Close()); check(b, client.Wait()) }()
	answers := bufio.NewScanner(out)
	library := func() (time.Duration, func()) {
		h := fresh()
		fmt.Fprintln(in, h, "image")
		if !answers.Scan() {
			b.Fatal("the client library's program ended")
		}
		us, err := strconv.Atoi(answers.Text())
		check(b, err)
		return time.Duration(us) * time.Microsecond, func() { check(b, c.Destroy(context.Background(), h)) }
	}
	sides := []struct {
		name string
		f    func() (time.Duration, func())
		few  bool
	}{
		{"POST-empty", server(baggageclaim.EmptyStrategy{}, true), false},
		{"POST-cow-privileged", server(cow("image"), true), false},
		{"POST-cow-unprivileged", server(cow("image"), false), true},
		{"library-cow-privileged", library, true},
		{"ours-privileged", ours(true), false},
		{"ours-unprivileged", ours(false), false},
	}
	took := map[string][]time.Duration{}
	for i := 0; b.Loop(); i++ {
		for _, s := range sides {
			if s.few && i >= 3 {
				continue
			}
			d, undo := s.f()
			undo()
			took[s.name] = append(took[s.name], d)
		}
	}
	check(b, img.Close())
	check(b, c.Destroy(context.Background(), "image"))
	for _, s := range sides {
		all := took[s.name]
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, strings.ReplaceAll(s.name, "-", "_")+"_ms")
	}
	b.ReportMetric(0, "ns/op")
}

// cow is a strategy of the server, which its client library only makes of a volume of its own.
type cow string

func (c cow) Encode() *json.RawMessage {
	t := json.RawMessage(fmt.Sprintf(`{"type":"cow","volume":%q}`, string(c)))
	return &t
}
