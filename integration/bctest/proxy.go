package bctest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault is what becomes of a request. Those below "not passed on" never reach the server; the others do, and only its answer suffers.
type Fault string

const (
	// Pass changes nothing: for a rule that only has a Before.
	Pass Fault = "pass"

	// Not passed on:

	Reset  Fault = "reset"       // the connection is reset
	Silent Fault = "silent"      // no answer, until the client goes away or the proxy is closed
	Fail   Fault = "fail"        // 500 and an error in JSON, as the server says it
	NoPage Fault = "no page"     // 404 and a page of HTML, as another web server says it
	Absent Fault = "not found"   // 404 and an error in JSON, as the server says it
	Moved  Fault = "moved"       // 302 to the same path at the true server
	Empty  Fault = "empty"       // 200 and nothing
	Odd    Fault = "odd type"    // 200 and JSON of another shape: a list where an object is expected, and the other way round
	Later  Fault = "unavailable" // 503, as a proxy says it that cannot reach the server

	// Passed on. An answer without a body (204) cannot be cut, garbage, huge or slow:

	Drop    Fault = "drop"    // the connection is reset instead of the answer
	Hang    Fault = "hang"    // as Silent, instead of the answer
	Cut     Fault = "cut"     // half of the body that was announced, and the connection is closed
	Garbage Fault = "garbage" // the true status, and no JSON
	Huge    Fault = "huge"    // the true status, and a body without an end
	Slow    Fault = "slow"    // the true answer, a byte in 100 ms
)

// Rule chooses requests, and says what becomes of them.
type Rule struct {
	Method string // "": any
	Path   string // as path.Match has it, e.g. "/volumes/*"; "": any
	Skip   int    // so many go by first
	Count  int    // so many it is for then; 0: all
	Fault  Fault

	// Before, if not nil, is called before anything else is done with the request, e.g. to kill the server.
	Before func()
}

// Proxy stands before a server, and does to chosen requests what networks and servers do at their worst. It serves requests
// concurrently; Refuse, Accept and Close are for one goroutine.
type Proxy struct {
	URL string

	target   string
	client   http.Transport
	closed   chan struct{}
	server   *http.Server
	listener net.Listener
	addr     string

	mu    sync.Mutex
	rules []*Rule
	seen  []string
}

// NewProxy returns a proxy of the server at url, which passes everything on as long as it has no rules.
func NewProxy(url string) (*Proxy, error) {
	// A connection of its own for each request: an old one may lead to a server that has been restarted.
	p := &Proxy{target: url, client: http.Transport{DisableCompression: true, DisableKeepAlives: true}, closed: make(chan struct{})}
	if err := p.listen("127.0.0.1:0"); err != nil {
		return nil, err
	}
	p.URL = "http://" + p.addr
	return p, nil
}

func (p *Proxy) listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p.addr, p.listener = l.Addr().String(), l
	p.server = &http.Server{Handler: p}
	go p.server.Serve(l) // ends with Close
	return nil
}

// Refuse makes the proxy close its connections and refuse new ones.
func (p *Proxy) Refuse() error {
	p.listener.Close() // by itself: the server closes it only once it serves, and then says that it did already
	if err := p.server.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Accept ends Refuse.
func (p *Proxy) Accept() error { return p.listen(p.addr) }

// Close ends the proxy.
func (p *Proxy) Close() error {
	close(p.closed)
	return p.Refuse()
}

// Set replaces the rules. The first that is for a request counts.
func (p *Proxy) Set(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
	for _, r := range rules {
		p.rules = append(p.rules, &r)
	}
}

// Requests returns the requests that came since the last call, e.g. "DELETE /volumes/x".
func (p *Proxy) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	return seen
}

// choose returns what becomes of the request.
func (p *Proxy) choose(r *http.Request) Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, r.Method+" "+r.URL.RequestURI())
	for i, rule := range p.rules {
		if rule.Method != "" && rule.Method != r.Method {
			continue
		}
		if ok, err := path.Match(rule.Path, r.URL.Path); err != nil {
			panic(fmt.Sprintf("bctest: path %q of a rule: %v", rule.Path, err)) // a test's own mistake
		} else if !ok && rule.Path != "" {
			continue
		}
		if rule.Skip > 0 {
			rule.Skip--
			continue
		}
		chosen := *rule
		if rule.Count > 0 {
			if rule.Count--; rule.Count == 0 {
				p.rules = slices.Delete(p.rules, i, i+1)
			}
		}
		return chosen
	}
	return Rule{Fault: Pass}
}

// ServeHTTP is called for each request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rule := p.choose(r)
	if rule.Before != nil {
		rule.Before()
	}
	switch rule.Fault {
	case Reset:
		reset(w)
	case Silent:
		p.wait(r)
	case Fail:
		answer(w, http.StatusInternalServerError, "application/json", `{"error":"failed to do what was asked for"}`+"\n")
	case Absent:
		answer(w, http.StatusNotFound, "application/json", `{"error":"failed to find what was asked for"}`+"\n")
	case NoPage:
		answer(w, http.StatusNotFound, "text/html", "<!doctype html><title>404 Not Found</title><p>nginx\n")
	case Later:
		answer(w, http.StatusServiceUnavailable, "text/plain", "upstream connect error\n")
	case Empty:
		answer(w, http.StatusOK, "application/json", "")
	case Odd:
		body := `[{"handle":17}]`
		if r.Method == http.MethodGet && r.URL.Path == "/volumes" {
			body = `{"handle":17}`
		}
		answer(w, http.StatusOK, "application/json", body)
	case Moved:
		http.Redirect(w, r, p.target+r.URL.RequestURI(), http.StatusFound)
	default:
		p.pass(w, r, rule.Fault)
	}
}

// pass passes the request on, and the answer, as far as the fault lets it.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, fault Fault) {
	// The client's going away must not take the request from the server as well: then a lost answer would be a request that never was.
	req, err := http.NewRequest(r.Method, p.target+r.URL.RequestURI(), r.Body)
	if err != nil {
		reset(w)
		return
	}
	req.Header, req.ContentLength = r.Header.Clone(), r.ContentLength
	resp, err := p.client.RoundTrip(req)
	if err != nil {
		reset(w) // the server is not there
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		reset(w)
		return
	}
	kind := resp.Header.Get("Content-Type")
	switch fault {
	case Drop:
		reset(w)
	case Hang:
		p.wait(r)
	case Cut:
		w.Header().Set("Content-Length", fmt.Sprint(len(body)+2)) // also where there was no body
		answer(w, resp.StatusCode, kind, string(body[:len(body)/2]))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler) // closes the connection
	case Garbage:
		answer(w, resp.StatusCode, kind, "{\"handle\": \x00\xff")
	case Huge:
		w.WriteHeader(resp.StatusCode)
		for spaces := strings.Repeat(" ", 1<<16); ; { // JSON allows them before a value
			if _, err := io.WriteString(w, spaces); err != nil {
				return
			}
		}
	case Slow:
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		answer(w, resp.StatusCode, kind, "")
		for i := range body {
			select {
			case <-p.closed:
				return
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			if _, err := w.Write(body[i : i+1]); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
		}
	default:
		answer(w, resp.StatusCode, kind, string(body))
	}
}

func answer(w http.ResponseWriter, status int, kind, body string) {
	if kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	w.WriteHeader(status)
	io.WriteString(w, body) // whether it arrives is the client's business
}

// reset closes the connection so that the client sees a reset, and not an orderly end.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // closes the connection as well
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

func (p *Proxy) wait(r *http.Request) {
	io.Copy(io.Discard, r.Body) // without it, net/http does not look whether the client has gone
	select {
	case <-p.closed:
	case <-r.Context().Done():
	}
	panic(http.ErrAbortHandler)
}
