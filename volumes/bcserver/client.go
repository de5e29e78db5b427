package bcserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/concourse/baggageclaim"
)

// Client talks to a BaggageClaim server. It is safe for concurrent use, and keeps one idle connection.
//
// It is not the client of github.com/concourse/baggageclaim, whose API types it uses, because that one retries a refused connection for an hour, knows no
// context and no time limit, and waits 250 to 750 ms before it looks a second time whether a volume is ready (v1.11.0, client/client.go). Proxies
// of the environment are not used, and redirects not followed: the server is on this host.
type Client struct {
	url   string
	http  *http.Client
	limit time.Duration

	silent sync.Map // handles of volumes of which a call had no answer in time
}

const (
	// callTime bounds one call, but for destroying a volume: that removes its files.
	callTime    = 10 * time.Second
	destroyTime = 5 * time.Minute
	// silentTime bounds each call about a volume after one about it had no answer in time: what is undone then must not wait as long again.
	silentTime = time.Second
)

// limitOf returns the time for one call about a volume.
func (c *Client) limitOf(method, at, handle string) time.Duration {
	switch _, silent := c.silent.Load(handle); {
	case silent:
		return silentTime
	case method == http.MethodDelete && strings.HasPrefix(at, "/volumes/"):
		return destroyTime
	}
	return c.limit
}

// volumeOf is the handle of the volume that a request is about, "" if it is about none.
func volumeOf(at string, in any) string {
	if r, ok := in.(baggageclaim.VolumeRequest); ok {
		return r.Handle
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/")
	handle, _, _ := strings.Cut(rest, "/")
	return handle
}

// maxAnswer bounds what is read of an answer. A volume takes about 500 bytes in a list.
const maxAnswer = 16 << 20

// NewClient returns a client of the server at url, which [ParseURL] returned. It makes no connection.
func NewClient(url string) *Client {
	return &Client{url: url, limit: callTime, http: &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: callTime}).DialContext,
			MaxIdleConnsPerHost: 1,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ParseURL checks that s can be a server's address, and returns it without a slash at its end. It must not hold credentials: the server knows
// none, and the address is written to logs.
func ParseURL(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", errors.New("it is no URL")
	case u.User != nil:
		return "", errors.New("it has a user name or password: BaggageClaim knows none")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("it has to begin with http:// or https://")
	case u.Host == "" || u.Hostname() == "":
		return "", errors.New("it names no host")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || (u.Path != "" && u.Path != "/"):
		return "", errors.New("there must be nothing behind the host and port")
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String(), nil // not put together: a zone of IPv6 is escaped in it
}

// Start asks the server to make a volume, and does not wait for it. Whatever it returns, the server may be making the volume: [Client.Wait] and
// [Client.Forget] tell, and Destroy is needed. It must not be called again with one handle: the server would destroy what that volume holds.
func (c *Client) Start(ctx context.Context, r baggageclaim.VolumeRequest) error {
	if r.Properties == nil {
		r.Properties = baggageclaim.VolumeProperties{} // never null
	}
	var future baggageclaim.VolumeFutureResponse
	_, err := c.call(ctx, fmt.Sprintf("create volume %q", r.Handle), http.MethodPost, "/volumes-async", r, &future, http.StatusCreated)
	if err == nil && future.Handle != r.Handle {
		err = c.bad(fmt.Sprintf("create volume %q", r.Handle), fmt.Sprintf("it makes %q", future.Handle))
	}
	return err
}

// Wait returns the volume that Start began, as soon as it is ready. The server then forgets that it was asked for.
func (c *Client) Wait(ctx context.Context, handle string) (baggageclaim.VolumeResponse, error) {
	do := fmt.Sprintf("create volume %q", handle)
	var v baggageclaim.VolumeResponse
	// An empty volume is made in less than a millisecond on most file systems.
	for delay := time.Millisecond / 2; ; delay = min(delay*3/2, 50*time.Millisecond) {
		status, err := c.call(ctx, do, http.MethodGet, "/volumes-async/"+handle, nil, &v, http.StatusOK, http.StatusNoContent)
		if errors.Is(err, ErrNoVolume) {
			return v, c.bad(do, "it has forgotten that it was asked: was it restarted?")
		}
		if err != nil {
			return v, err
		}
		if status == http.StatusOK {
			break
		}
		select {
		case <-ctx.Done():
			return v, &callError{c.url, do, fmt.Errorf("it is not ready yet: %w", context.Cause(ctx))}
		case <-time.After(delay):
		}
	}
	if v.Handle != handle || !path.IsAbs(v.Path) || path.Clean(v.Path) != v.Path {
		return v, c.bad(do, fmt.Sprintf("volume %q at %q", v.Handle, v.Path))
	}
	_, err := c.Forget(ctx, handle)
	return v, err
}

// Pending says whether the server is still making a volume that Start began. An error: it was not asked, or failed, or does not say.
func (c *Client) Pending(ctx context.Context, handle string) (bool, error) {
	status, err := c.call(ctx, fmt.Sprintf("create volume %q", handle), http.MethodGet, "/volumes-async/"+handle, nil, nil, http.StatusOK, http.StatusNoContent)
	return status == http.StatusNoContent, err
}

// Forget makes the server forget that it was asked for a volume: one that is not ready yet is destroyed as soon as it is. It says whether the
// server remembered.
func (c *Client) Forget(ctx context.Context, handle string) (remembered bool, err error) {
	_, err = c.call(ctx, fmt.Sprintf("cancel volume %q", handle), http.MethodDelete, "/volumes-async/"+handle, nil, nil, http.StatusNoContent)
	if errors.Is(err, ErrNoVolume) {
		return false, nil
	}
	return err == nil, err
}

// Destroy destroys a volume. ErrNoVolume and ErrServer do not say that nothing of it is left.
func (c *Client) Destroy(ctx context.Context, handle string) error {
	_, err := c.call(ctx, fmt.Sprintf("destroy volume %q", handle), http.MethodDelete, "/volumes/"+handle, nil, nil, http.StatusNoContent)
	return err
}

// Volume returns a volume.
func (c *Client) Volume(ctx context.Context, handle string) (baggageclaim.VolumeResponse, error) {
	do := fmt.Sprintf("look up volume %q", handle)
	var v baggageclaim.VolumeResponse
	_, err := c.call(ctx, do, http.MethodGet, "/volumes/"+url.PathEscape(handle), nil, &v, http.StatusOK)
	if err == nil && (v.Handle != handle || !path.IsAbs(v.Path)) {
		err = c.bad(do, fmt.Sprintf("volume %q at %q", v.Handle, v.Path))
	}
	return v, err
}

// List returns the volumes that have all of the properties. The server reads the records of all its volumes for it.
func (c *Client) List(ctx context.Context, properties map[string]string) ([]baggageclaim.VolumeResponse, error) {
	q := url.Values{}
	for k, v := range properties {
		q.Set(k, v)
	}
	var all []baggageclaim.VolumeResponse
	at := "/volumes"
	if len(q) > 0 {
		at += "?" + q.Encode()
	}
	_, err := c.call(ctx, "list volumes", http.MethodGet, at, nil, &all, http.StatusOK)
	return all, err
}

// SetProperty sets one property of a volume.
func (c *Client) SetProperty(ctx context.Context, handle, name, value string) error {
	_, err := c.call(ctx, fmt.Sprintf("set property %q of volume %q", name, handle), http.MethodPut,
		"/volumes/"+handle+"/properties/"+name, baggageclaim.PropertyRequest{Value: value}, nil, http.StatusNoContent)
	return err
}

// Sees says whether the server finds a file of that name at the top of a volume.
func (c *Client) Sees(ctx context.Context, handle, name string) (bool, error) {
	do := fmt.Sprintf("look for file %q in volume %q", name, handle)
	at := "/volumes/" + handle + "/stream-out?path=" + url.QueryEscape(name)
	_, err := c.call(ctx, do, http.MethodPut, at, nil, nil, http.StatusOK)
	if errors.Is(err, ErrNoVolume) {
		return false, nil
	}
	return err == nil, err
}

// knowsP2P says whether the server has an API that came with version 1.10.
func (c *Client) knowsP2P(ctx context.Context) bool {
	status, _, err := c.exchange(ctx, http.MethodGet, "/p2p-url", nil)
	return err == nil && status != http.StatusNotFound
}

// call makes one request. in, if not nil, is sent as JSON, and an answer with a body is read into out. A status that is not wanted is an error.
func (c *Client) call(ctx context.Context, do, method, at string, in, out any, want ...int) (int, error) {
	status, body, err := c.exchange(ctx, method, at, in)
	switch {
	case err != nil:
		return 0, &callError{c.url, do, err}
	case slices.Contains(want, status):
	case status >= 500:
		return status, &callError{c.url, do, fmt.Errorf("it answered %d %q: it %w, and its own log says why", status, excerpt(body), ErrServer)}
	case status == http.StatusNotFound && isBaggageClaims(body):
		return status, &callError{c.url, do, fmt.Errorf("it %w", ErrNoVolume)}
	default:
		return status, c.bad(do, fmt.Sprintf("%d %q: is it a BaggageClaim server?", status, excerpt(body)))
	}
	if out == nil || status == http.StatusNoContent {
		return status, nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return status, c.bad(do, fmt.Sprintf("%d %q: %v", status, excerpt(body), err))
	}
	return status, nil
}

// isBaggageClaims tells the server's "not found" from that of any other web server: it has an error in JSON, or no body.
func isBaggageClaims(body []byte) bool {
	if len(body) == 0 {
		return true
	}
	var e struct {
		Error string `json:"error"`
	}
	return json.Unmarshal(body, &e) == nil && e.Error != ""
}

func (c *Client) bad(do, what string) error {
	return &callError{c.url, do, fmt.Errorf("it %w: %s", ErrBadAnswer, what)}
}

// exchange sends a request and reads the whole answer. Without a whole answer the error says how it is missing.
func (c *Client) exchange(ctx context.Context, method, at string, in any) (status int, body []byte, err error) {
	handle := volumeOf(at, in)
	limit := c.limitOf(method, at, handle)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() {
		switch {
		case handle == "":
		case err == nil:
			c.silent.Delete(handle)
		case limited.Err() != nil:
			c.silent.Store(handle, true)
		}
	}()
	var b io.Reader
	if in != nil {
		j, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		b = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(limited, method, c.url+at, b)
	if err != nil {
		return 0, nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept-Encoding", "gzip") // the server asks for it where it sends files; JSON is never compressed
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, classify(ctx, limit, err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return 0, nil, classify(ctx, limit, err)
	}
	if len(body) > maxAnswer {
		return 0, nil, fmt.Errorf("%w: it has more than %d bytes", ErrBadAnswer, maxAnswer)
	}
	return resp.StatusCode, body, nil
}
