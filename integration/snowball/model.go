package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// tree is what a cache holds: the SHA-256 of each file by its path, "directory" for a directory.
type tree map[string]string

// state is one generation of a cache, as the model knows it. No two have the same tree: each check writes its own name into one file.
type state struct {
	check      int // which made it; -1: the cache is empty
	generation int
	tree       tree
}

// pending is a state that a delete made, or may have made, and no later check has seen yet.
type pending struct {
	state
	base    int  // check of the state it was made from
	certain bool // its container is gone for sure. Else the delete was killed or never came: it may happen at any time
}

// resource is one thing that is checked again and again, and the reference model of its cache.
//
// The rule: a committed copy becomes the next generation when its container is deleted, if its base still is the current one. All creates of a
// resource, and all deletes whose end is known, happen under mu; those of gc do not. So what the cache holds is not always known, but always one of few
// states, and no two of these are equal: the next check's create shows which.
type resource struct {
	mu      sync.Mutex
	key     string
	current state
	pending []pending
}

func newResource(key string) *resource {
	return &resource{key: key, current: state{check: -1, tree: tree{}}}
}

// committed notes the end of a container whose committed copy had base and holds t.
func (r *resource) committed(check int, base state, t tree, certain bool) {
	overtaken := slices.ContainsFunc(r.pending, func(p pending) bool { return p.certain && p.base == base.check })
	reachable := slices.ContainsFunc(r.possible(nil, r.current, true), func(s state) bool { return s.check == base.check })
	if reachable && !overtaken {
		r.pending = append(r.pending, pending{state{check, base.generation + 1, t}, base.check, certain})
	}
}

// gone notes that the containers of these checks are gone for sure.
func (r *resource) gone(checks map[int]bool) {
	for i := range r.pending {
		if checks[r.pending[i].check] {
			r.pending[i].certain = true
		}
	}
}

// possible appends the states that the cache may have now, if it had s once. All: also those that were certainly followed by another one.
func (r *resource) possible(list []state, s state, all bool) []state {
	followed := false
	for _, p := range r.pending {
		if p.base == s.check {
			followed = followed || p.certain
			list = r.possible(list, p.state, all)
		}
	}
	if all || !followed {
		list = append(list, s)
	}
	return list
}

// observe finds the state that a new copy, which holds t, shows. It is an error if the cache cannot be in that state.
func (r *resource) observe(t tree) (state, error) {
	possible := r.possible(nil, r.current, false)
	i := slices.IndexFunc(possible, func(s state) bool { return maps.Equal(s.tree, t) })
	if i < 0 {
		return state{}, broken{fmt.Errorf("%s holds %v, and not one of the %d states it may have: %v", r.key, t, len(possible), possible)}
	}
	r.current = possible[i]
	later := r.possible(nil, r.current, true)
	r.pending = slices.DeleteFunc(r.pending, func(p pending) bool {
		return !slices.ContainsFunc(later, func(s state) bool { return s.check == p.base })
	})
	return r.current, nil
}
