package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/concourse/bc-image-plugin/integration/bctest"
)

// The names of what a server is asked for.
const (
	postEmpty        = "BaggageClaim: POST /volumes, empty"
	postPrivileged   = "BaggageClaim: POST /volumes, copy of the image, privileged"
	postUnprivileged = "BaggageClaim: POST /volumes, copy of the image, not privileged"
)

// server is a real BaggageClaim server with the overlay driver, on the same file system, that has imported an image.
type server struct {
	*bctest.Server
	client  *exec.Cmd // its own client library
	in      io.WriteCloser
	answers *bufio.Scanner
	volumes int
}

func (p *place) newServer(image string) (_ *server, err error) {
	dir := filepath.Join(p.fs, "server")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s := &server{}
	if s.Server, err = bctest.Start(bctest.Options{Dir: dir, Driver: "overlay"}); err != nil {
		return nil, err
	}
	program := filepath.Join(p.dir, "client")
	if err := command("go", "build", "-C", filepath.Join(p.modules, "../baggageclaim"), "-o", program, "./client"); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.client = exec.Command(program, s.URL)
	s.client.Stderr = os.Stderr
	if s.in, err = s.client.StdinPipe(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	out, err := s.client.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.answers = bufio.NewScanner(out)
	if err := s.client.Start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.ask(http.MethodPost, "/volumes", http.StatusCreated, volumeRequest("image", fmt.Sprintf(`{"type":"import","path":%q}`, image), true)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) close() error {
	return errors.Join(s.in.Close(), s.client.Wait(), s.ask(http.MethodDelete, "/volumes/image", http.StatusNoContent, ""), s.Close())
}

// ask makes a request on a connection that is kept.
func (s *server) ask(method, path string, status int, body string) error {
	req, err := http.NewRequest(method, s.URL+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return err
}

func volumeRequest(handle, strategy string, privileged bool) string {
	return fmt.Sprintf(`{"handle":%q,"strategy":%s,"properties":{},"privileged":%t}`, handle, strategy, privileged)
}

// post times one volume by a bare request, and removes it.
func (s *server) post(name, strategy string, privileged bool) side {
	return side{func(m *meter) error {
		h := s.fresh()
		err := m.time(name, func() error {
			return s.ask(http.MethodPost, "/volumes", http.StatusCreated, volumeRequest(h, strategy, privileged))
		})
		return errors.Join(err, s.ask(http.MethodDelete, "/volumes/"+h, http.StatusNoContent, ""))
	}}
}

// library times one copy of the image by the server's client library, and removes it.
func (s *server) library(name, how string) side {
	return side{func(m *meter) error {
		h := s.fresh()
		if _, err := fmt.Fprintln(s.in, h, "image", how); err != nil {
			return err
		}
		if !s.answers.Scan() {
			return fmt.Errorf("%s: the client has ended: %w", name, s.answers.Err())
		}
		us, err := strconv.Atoi(s.answers.Text())
		if err != nil {
			return err
		}
		m.add(name, time.Duration(us)*time.Microsecond)
		return s.ask(http.MethodDelete, "/volumes/"+h, http.StatusNoContent, "")
	}}
}

func (s *server) fresh() string {
	s.volumes++
	return fmt.Sprint("bench-", s.volumes)
}

// seldom is a side that takes its turn only n times, since it takes seconds.
func seldom(n int, s side) side {
	turns := 0
	return side{func(m *meter) error {
		if turns++; turns > n+1 { // one round is not noted
			return nil
		}
		return s.round(m)
	}}
}

// onServer compares creates of ours, in our own store and on a server, with what the server does itself. All are of one image.
func (p *place) onServer(n int, image string) (m *meter, err error) {
	s, err := p.newServer(image)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	embedded, unprivileged := p.ours("store-beside"), p.ours("store-server", "--baggageclaim-url", s.URL)
	privileged := p.ours("store-server", "--baggageclaim-url", s.URL, "--privileged")
	whole := func(o ours, how string) side {
		return side{func(m *meter) error {
			return errors.Join(m.time("create"+how, func() error { return o.run("create", image, "h") }), m.time("delete"+how, func() error { return o.run("delete", "h") }))
		}}
	}
	m = newMeter()
	return m, rounds(m, n, []side{
		whole(embedded, ""), whole(unprivileged, " on a server"), whole(privileged, " --privileged on a server"),
		s.post(postEmpty, `{"type":"empty"}`, true), s.post(postPrivileged, `{"type":"cow","volume":"image"}`, true),
		s.library("BaggageClaim's client library: copy of the image, privileged", ""),
		seldom(5, s.post(postUnprivileged, `{"type":"cow","volume":"image"}`, false)),
		seldom(5, s.library("BaggageClaim's client library: copy of the image, not privileged", "unprivileged")),
	})
}
