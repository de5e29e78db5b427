// Command snowball loads a store as a scheduler does that checks many resources at intervals, each time in a fresh container, while everything goes wrong that
// makes containers and volumes pile up elsewhere: creates that fail in many ways, kills, timeouts, destroys that come twice, at once, or never.
//
// At the end no container, mount or layer may be left but those of the caches, and each cache must hold exactly what a reference model says. On the
// way their number must stay within what lives. The same load on a BaggageClaim server alone is measured beside it.
//
// A container here is a process of the container's root on the host, that works on the paths which the plugin printed: what piles up does not depend on it, and it
// costs a tenth. One in 40 is a real one, in runc.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/concourse/bc-image-plugin/integration/bctest"
)

func main() {
	var o options
	flag.IntVar(&o.checks, "checks", 10000, "run so many checks")
	flag.IntVar(&o.resources, "resources", 50, "of so many resources")
	flag.Uint64Var(&o.seed, "seed", 1, "what goes wrong in which check follows from it")
	flag.StringVar(&o.plugin, "plugin", "bin/bc-image-plugin", "the built plugin")
	flag.StringVar(&o.dir, "store", "", "an empty directory for the store, crossed by everybody (default: one that is made, and removed)")
	flag.StringVar(&o.url, "baggageclaim-url", "", "keep the store's layers on this server")
	flag.BoolVar(&o.compare, "compare", true, "measure a BaggageClaim server alone as well")
	report := flag.String("report", "", "write the report to this file, too")
	flag.Parse()
	text, err := o.run()
	fmt.Print(text)
	if err == nil && *report != "" {
		err = os.WriteFile(*report, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "snowball:", err)
		os.Exit(1)
	}
}

type options struct {
	checks, resources int
	seed              uint64
	plugin, dir, url  string
	compare           bool
}

// workers is how many checks run at once.
const workers = 4

// samples is how often it is looked at on the way. The plugin's gc runs then, as by a timer; a row of the report is every fifth.
const (
	samples = 50
	perRow  = 5
)

// aloneShare of the checks run on the BaggageClaim server alone: what they leave stays there, 300 inodes each, and slows down all that follow.
const aloneShare = 5

// run runs both loads and returns the report. It leaves nothing.
func (o options) run() (text string, err error) {
	if os.Geteuid() != 0 {
		return "", errors.New("it mounts file systems and starts containers: run it as root")
	}
	if o.plugin, err = filepath.Abs(o.plugin); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp("", "snowball-")
	if err != nil {
		return "", err
	}
	defer func() {
		// A run that failed leaves mounts, and they must not be walked into.
		if uerr := unmountAll(work); uerr != nil {
			err = errors.Join(err, uerr)
			return
		}
		err = errors.Join(err, os.RemoveAll(work))
	}()
	if err := os.Chmod(work, 0o711); err != nil { // containers' roots have to cross it
		return "", err
	}
	if o.dir == "" {
		o.dir = work + "/store"
	}
	if _, err := makeImage(work+"/volumes", "image"); err != nil {
		return "", err
	}
	ours, err := o.ours(work)
	if err != nil {
		return "", err
	}
	var alone *plainResult
	if o.compare {
		if alone, err = o.alone(work); err != nil {
			return "", err
		}
	}
	return report(o, ours, alone), nil
}

// row is a line of the table: what there was after so many checks.
type row struct {
	checks int
	counts
}

// result is what a load on the plugin left and met.
type result struct {
	rows          []row
	before, after counts // without a cache
	caches        counts // at the end, before they are dropped
	happened      map[string]int
	generations   int
	took          time.Duration
}

// newSnow is a load that has not begun.
func (o options) newSnow(work string) (*snow, error) {
	s := &snow{seed: o.seed, dir: o.dir, url: o.url, work: work, happened: map[string]int{}, forgotten: map[int]bool{}}
	s.gdn = gdn{plugin: o.plugin, flags: []string{"--store", o.dir, "--baggageclaim-volumes", work + "/volumes"}}
	if o.url != "" {
		s.flags = append(s.flags, "--baggageclaim-url", o.url)
	}
	for i := range o.resources {
		s.resources = append(s.resources, newResource(fmt.Sprintf("team %d, secret", i)))
	}
	return s, os.Mkdir(s.depot(), 0o755)
}

// ours is the load on the plugin.
func (o options) ours(work string) (*result, error) {
	s, err := o.newSnow(work)
	if err != nil {
		return nil, err
	}
	res := &result{happened: s.happened}
	if res.before, err = s.warm(); err != nil {
		return res, err
	}
	if err := s.startBuild(); err != nil {
		return res, err
	}
	start := time.Now()
	looks := 0
	err = load(o.checks, s.check, func(done int) error {
		// Those that begin while it is looked are at most as many as the workers.
		s.mu.Lock()
		containers := len(s.forgotten) + workers + 1 // the build
		s.mu.Unlock()
		c, err := s.look()
		if err != nil {
			return err
		}
		s.mu.Lock()
		containers = max(containers, len(s.forgotten)+workers+1)
		s.mu.Unlock()
		if looks++; looks%perRow == 0 {
			res.rows = append(res.rows, row{done, c})
		}
		return errors.Join(s.bound(c, containers), s.gc(unnoted), s.sound(true))
	})
	res.took = time.Since(start)
	if err == nil {
		err = s.gc(time.Nanosecond)
	}
	if err == nil && len(s.forgotten) > 0 {
		err = broken{fmt.Errorf("gc did not find the containers of the checks %v", s.forgotten)}
	}
	if err == nil {
		err = s.endBuild()
	}
	if err == nil {
		res.caches, res.after, err = s.audit(res.before)
	}
	for _, r := range s.resources {
		res.generations += r.current.generation
	}
	return res, err
}

// unnoted is much longer than a container is there before it is in the depot.
const unnoted = 2 * time.Second

// load runs checks, as many at once as there are workers. The one who ends the last check of each part looks, while the others go on. The first error ends it.
func load(checks int, check func(int) error, look func(done int) error) error {
	var next, done atomic.Int64
	var looking, mu sync.Mutex
	var failed error
	fail := func(err error) (stop bool) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			failed = err
		}
		return failed != nil
	}
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= checks || fail(check(n)) {
					return
				}
				if done.Add(1)%int64(max(1, checks/samples)) != 0 {
					continue
				}
				looking.Lock()
				err := look(int(done.Load()))
				looking.Unlock()
				if fail(err) {
					return
				}
			}
		})
	}
	all.Wait()
	return failed
}

// plainResult is what the load on a BaggageClaim server left and met.
type plainResult struct {
	rows     []plainRow
	end      plainCounts // when the collector has had all the time it wants
	before   plainCounts
	happened map[string]int
	took     time.Duration
}

type plainRow struct {
	checks int
	plainCounts
}

// restarts is how often the server is killed and started again on the way. The plugin was killed hundreds of times.
const restarts = 2

// alone is the load on a BaggageClaim server without us.
func (o options) alone(work string) (_ *plainResult, err error) {
	dir := work + "/server"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	server, err := bctest.Start(bctest.Options{Dir: dir, Driver: "overlay"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	p := &plain{Server: server, seed: o.seed, running: map[string]bool{}, happened: map[string]int{}}
	res := &plainResult{happened: p.happened}
	if err := p.importImage(work + "/volumes/live/image/volume"); err != nil {
		return nil, err
	}
	if res.before, err = p.look(); err != nil {
		return nil, err
	}

	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- p.collector(stop) }()
	start := time.Now()
	looks := 0
	err = load(o.checks/aloneShare, p.check, func(done int) error {
		c, err := p.look()
		if looks++; looks%perRow == 0 {
			res.rows = append(res.rows, plainRow{done, c})
		}
		if part := samples / (restarts + 1); looks%part == 0 && looks/part <= restarts {
			err = errors.Join(err, p.restart())
		}
		return err
	})
	res.took = time.Since(start)
	close(stop)
	if err = errors.Join(err, <-stopped); err != nil {
		return res, err
	}
	// Now the collector gets all the time it wants: until a pass changes nothing.
	for last := -1; ; last = res.end.listed {
		time.Sleep(time.Second) // a process that outlived its container is gone
		if err := p.collect(); err != nil {
			return res, err
		}
		if res.end, err = p.look(); err != nil || res.end.listed == last {
			return res, err
		}
	}
}
