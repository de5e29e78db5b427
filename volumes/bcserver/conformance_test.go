package bcserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/concourse/bc-image-plugin/volumes/overlay"
	"github.com/concourse/bc-image-plugin/volumes/volumetest"
	"github.com/concourse/bc-image-plugin/volumes/volumetest/inspect"
)

func TestConformance(t *testing.T) {
	inspect.NeedRoot(t)
	port := 7800
	for _, kind := range []string{"overlay", "naive"} {
		t.Run(kind, func(t *testing.T) {
			dir := inspect.NewDir(t)
			port += 2
			for _, d := range []string{"vol", "ov"} {
				os.Mkdir(dir+"/"+d, 0o755)
			}
			log, _ := os.Create("/tmp/bc-" + kind + ".log")
			cmd := exec.Command("/root/bc/baggageclaim", "--volumes", dir+"/vol", "--overlays-dir", dir+"/ov", "--driver", kind, "--bind-port", fmt.Sprint(port), "--debug-bind-port", fmt.Sprint(port+1), "--log-level=debug")
			cmd.Stdout = log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			url := fmt.Sprintf("http://127.0.0.1:%d", port)
			c := NewClient(url)
			for {
				if _, err := c.List(context.Background(), nil); err == nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Cleanup(func() {
				l, err := c.List(context.Background(), nil)
				if err != nil {
					t.Error(err)
				}
				for _, v := range l {
					if v.Properties[propRole] != roleImage {
						t.Errorf("left: %v", v)
					}
					if err := c.Destroy(context.Background(), v.Handle); err != nil {
						t.Error(err)
					}
				}
				for _, d := range []string{"vol/live", "vol/init", "vol/dead", "ov"} {
					n, _ := os.ReadDir(dir + "/" + d)
					for _, x := range n {
						if x.Name() != "work" {
							t.Errorf("%s: %v left", d, x)
						}
					}
				}
				cmd.Process.Kill()
				cmd.Wait()
			})
			for _, m := range []struct {
				idMap             overlay.IDMap
				canMap, neverCopy bool
			}{
				{overlay.Auto, true, false},
				{overlay.Copy, false, false},
			} {
				t.Run(string(m.idMap), func(t *testing.T) {
					sub := dir + "/" + string(m.idMap)
					os.Mkdir(sub, 0o755)
					volumetest.Run(t, volumetest.Config{
						Driver: New(Options{URL: url, Overlay: overlay.Options{IDMap: m.idMap}}), Dir: sub, Upper: "volume/fs", Record: "server.json", CanMap: m.canMap, NeverCopy: m.neverCopy,
					})
				})
			}
		})
	}
}
