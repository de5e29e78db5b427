package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// side is one of the things that are compared. In each round every side takes its turn, so that whatever else the machine does meanwhile meets all
// of them alike.
//
// To add one: write a function like oursSide, and add it to commandSides. What it times becomes a line of the table by its name.
type side struct {
	round func(m *meter) error // does its work once, and has m time the parts
}

// meter collects how long things took, by name, in the order in which they were first seen.
type meter struct {
	names []string
	took  map[string][]time.Duration
}

func newMeter() *meter { return &meter{took: map[string][]time.Duration{}} }

// time does one thing and notes how long it took. What fails is not noted.
func (m *meter) time(name string, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	m.add(name, time.Since(start))
	return nil
}

func (m *meter) add(name string, took time.Duration) {
	if _, ok := m.took[name]; !ok {
		m.names = append(m.names, name)
	}
	m.took[name] = append(m.took[name], took)
}

// rounds has every side take its turn n times. Each round begins with another one, and one round before is not noted: it fills the caches.
func rounds(m *meter, n int, sides []side) error {
	for _, s := range sides {
		if err := s.round(newMeter()); err != nil {
			return err
		}
	}
	for r := range n {
		for i := range sides {
			if err := sides[(r+i)%len(sides)].round(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// quantile of 0.5 is the median.
func (m *meter) quantile(name string, q float64) time.Duration {
	took := slices.Sorted(slices.Values(m.took[name]))
	if len(took) == 0 {
		return 0
	}
	return took[min(len(took)-1, int(q*float64(len(took))))]
}

func (m *meter) median(name string) time.Duration { return m.quantile(name, 0.5) }

// ratio is the median of a over the median of b.
func (m *meter) ratio(a, b string) float64 { return float64(m.median(a)) / float64(m.median(b)) }

// command runs a program to its end. Its output is part of the error.
func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// output is command for one whose standard output is asked for.
func output(name string, args ...string) (string, error) {
	var errors strings.Builder
	c := exec.Command(name, args...)
	c.Stderr = &errors
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errors.String())
	}
	return strings.TrimSpace(string(out)), nil
}
