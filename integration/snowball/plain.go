package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/concourse/bc-image-plugin/integration/bctest"
)

// plain is the same load on a BaggageClaim server without us, as schedulers use it: a copy-on-write volume of the image for each check, asked for by its
// HTTP API, and a collector that destroys what a listing showed and no running check owns. There is no cache to look at: each check would clone anew.
type plain struct {
	*bctest.Server
	seed uint64
	down sync.RWMutex // held while the server is being restarted

	mu       sync.Mutex
	running  map[string]bool
	happened map[string]int
}

// plainCounts are what is there at one moment. Listed is what a collector can know of; all else is what it would have to.
type plainCounts struct {
	listed, onDisk, mounts int
	inodes                 int64
	listing                time.Duration // how long the server took to list
}

func (p *plain) count(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.happened[what]++
}

// ask returns the status of an answer, and decodes a body of 200 into answer.
func (p *plain) ask(ctx context.Context, method, path, body string, answer any) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && answer != nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(b, answer)
	}
	return resp.StatusCode, err
}

// check asks for a volume, works in it, and is done: destroying is the collector's. The kinds of trouble are those of snow.check, as far as they exist here.
func (p *plain) check(n int) error {
	rng := rand.New(rand.NewPCG(p.seed, uint64(n)))
	privileged := rng.IntN(2) == 0
	handle, parent := handleOf(n), "image"
	p.mu.Lock()
	p.running[handle] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, handle)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	what := draw(rng, creates)
	switch what {
	case "missing image":
		parent = "nowhere"
	case "out of time", "killed create", "answer unread":
		// The client is gone before the answer. It never heard whether there is a volume.
		var gone context.CancelFunc
		ctx, gone = context.WithTimeout(ctx, time.Duration(1+rng.IntN(12000))*time.Microsecond)
		defer gone()
	}
	body := fmt.Sprintf(`{"handle":%q,"strategy":{"type":"cow","volume":%q},"properties":{},"privileged":%t}`, handle, parent, privileged)
	status, err := p.ask(ctx, "POST", "/volumes", body, nil)
	switch {
	case ctx.Err() != nil:
		p.count("client gone before the answer")
		return nil
	case err != nil:
		p.count("check failed by the server's death")
		p.down.RLock() // the scheduler waits for the server
		p.down.RUnlock()
		return nil
	case status != http.StatusCreated:
		p.count("create refused")
		return nil
	}
	root := filepath.Join(p.Volumes, "live", handle, "volume/rootfs")
	if !exists(root + "/etc/motd") {
		p.count("volume without its image")
		return nil
	}
	p.count("volume for a check")
	cache := root + cacheAt
	if err := errors.Join(os.Mkdir(cache, 0o777), os.Chmod(cache, 0o777)); err != nil {
		return err
	}
	spec := specs.Spec{Root: &specs.Root{Path: root}, Mounts: []specs.Mount{{Source: cache}}}
	if err := standIn(spec, privileged, plan(rng, handle, tree{}, false, false).script); err != nil {
		return err
	}
	if draw(rng, destroys) == "busy, then destroyed" {
		p.count("a process outlives its container")
		f, err := os.Open(root + "/result")
		if err != nil {
			return err
		}
		time.AfterFunc(500*time.Millisecond, func() { f.Close() })
	}
	return nil
}

// restart kills the server wherever it is, and starts it again.
func (p *plain) restart() error {
	p.down.Lock()
	defer p.down.Unlock()
	p.count("server killed and restarted")
	return errors.Join(p.Kill(), p.Restart())
}

// importImage has the server make the volume "image" of a directory.
func (p *plain) importImage(dir string) error {
	body := fmt.Sprintf(`{"handle":"image","strategy":{"type":"import","path":%q},"properties":{},"privileged":true}`, dir)
	status, err := p.ask(context.Background(), "POST", "/volumes", body, nil)
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("import of the image: status %d", status)
	}
	return err
}

// interval is how long the collector rests: a hundredth of what Concourse does (30 s), as a check here takes about a hundredth of one there.
const interval = 300 * time.Millisecond

// collector collects at intervals until stop is closed.
func (p *plain) collector(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(interval):
			if err := p.collect(); err != nil {
				return err
			}
		}
	}
}

// collect destroys, one after another, what the listing of this moment shows and nobody uses.
func (p *plain) collect() error {
	var list []struct {
		Handle string `json:"handle"`
	}
	if status, err := p.ask(context.Background(), "GET", "/volumes", "", &list); err != nil || status != http.StatusOK {
		p.count("listings that failed") // the server is being restarted
		return nil                      // the next one will do
	}
	for _, v := range list {
		p.mu.Lock()
		used := p.running[v.Handle]
		p.mu.Unlock()
		if used || v.Handle == "image" {
			continue
		}
		status, err := p.ask(context.Background(), "DELETE", "/volumes/"+v.Handle, "", nil)
		if err != nil || status != http.StatusNoContent {
			p.count("destroys that failed")
		} else {
			p.count("destroyed")
		}
	}
	return nil
}

// look counts what the server lists, and what is on its disk and mounted.
func (p *plain) look() (c plainCounts, err error) {
	var list []json.RawMessage
	start := time.Now()
	if _, err := p.ask(context.Background(), "GET", "/volumes", "", &list); err != nil {
		return c, err
	}
	c.listing, c.listed = time.Since(start), len(list)
	for _, dir := range []string{p.Volumes + "/init", p.Volumes + "/live", p.Volumes + "/dead"} {
		n, nerr := names(dir)
		err = errors.Join(err, nerr)
		c.onDisk += n
	}
	mounts, merr := mountsBelow(p.Volumes)
	c.mounts = len(mounts)
	inodes, _, _, uerr := usage(filepath.Dir(p.Volumes))
	c.inodes = inodes
	return c, errors.Join(err, merr, uerr)
}
