package main

import (
	"fmt"
	"strings"
	"time"
)

// report is the document: markdown, and charts beside it. What is printed before the first goal stands above the goals, all else below.
type report struct {
	head, text strings.Builder
	goals      []goal
	limits     string
	charts     map[string]string // by file name
}

// String is the whole document.
func (r *report) String() string {
	var b strings.Builder
	b.WriteString(r.head.String())
	fmt.Fprintf(&b, "## Goals\n\n| goal | | measured | |\n|---|--:|--:|---|\n")
	for _, g := range r.goals {
		bound, met := fmt.Sprintf("≤ %g", g.atMost), g.measured <= g.atMost
		if g.atLeast > 0 {
			bound, met = fmt.Sprintf("≥ %g", g.atLeast), g.measured >= g.atLeast
		}
		verdict := "met"
		if !met {
			verdict = "**not met**"
		}
		fmt.Fprintf(&b, "| %s | %s | %.2f | %s |\n", g.what, bound, g.measured, verdict)
	}
	b.WriteString("\n" + r.limits + "\n" + r.text.String())
	return b.String()
}

func (r *report) printf(format string, args ...any) { fmt.Fprintf(&r.text, format, args...) }

// table writes what m holds: the ratio to base first, as that is what another machine will find alike.
func (r *report) table(m *meter, base string) {
	r.printf("| | × | quiet × | median ms | p95 ms | n |\n|---|--:|--:|--:|--:|--:|\n")
	for _, name := range m.names {
		quiet := float64(m.quantile(name, 0.1)) / float64(m.quantile(base, 0.1))
		r.printf("| %s | %.2f | %.2f | %s | %s | %d |\n", name, m.ratio(name, base), quiet, ms(m.median(name)), ms(m.quantile(name, 0.95)), len(m.took[name]))
	}
	r.printf("\n")
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// goal is a number that we want to stay below, or above.
type goal struct {
	what            string
	atMost, atLeast float64 // one of them
	measured        float64
}

func (r *report) goal(what string, atMost, measured float64) {
	r.goals = append(r.goals, goal{what: what, atMost: atMost, measured: measured})
}

func (r *report) goalAtLeast(what string, atLeast, measured float64) {
	r.goals = append(r.goals, goal{what: what, atLeast: atLeast, measured: measured})
}

// bar is one line of a chart.
type bar struct {
	name   string
	value  float64
	colour string
}

const (
	colourFloor  = "#9aa5b1"
	colourOurs   = "#2f6fde"
	colourOthers = "#d9822b"
)

// chart adds a bar chart as an SVG beside the document.
func (r *report) chart(file, title, unit string, bars []bar) {
	const left, width, height = 230, 460, 22
	most := 0.0
	for _, b := range bars {
		most = max(most, b.value)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", left+width+90, len(bars)*height+40)
	fmt.Fprintf(&s, `<rect width="100%%" height="100%%" fill="white"/><text x="8" y="20" font-size="14">%s</text>`+"\n", escape(title))
	for i, b := range bars {
		y := 32 + i*height
		w := int(b.value/most*width + 0.5)
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%d" height="%d" fill="%s"/><text x="%d" y="%d">%.2f %s</text>`+"\n",
			left-8, y+14, escape(b.name), left, y+2, max(w, 1), height-6, b.colour, left+w+6, y+14, b.value, escape(unit))
	}
	s.WriteString("</svg>\n")
	if r.charts == nil {
		r.charts = map[string]string{}
	}
	r.charts[file] = s.String()
	r.printf("![%s](%s)\n\n", title, file)
}

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace
