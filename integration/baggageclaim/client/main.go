// Command client creates volumes with BaggageClaim's own client library, for the benchmark: one for each line on stdin, "HANDLE PARENT [unprivileged]",
// and prints how many microseconds it took. It lives in the module of the server, whose dependencies the plugin does not have.
package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"code.cloudfoundry.org/lager"
	"github.com/concourse/baggageclaim"
	"github.com/concourse/baggageclaim/client"
)

func main() {
	c := client.New(os.Args[1], http.DefaultTransport)
	logger := lager.NewLogger("client")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		handle, parent := words[0], words[1]
		p, found, err := c.LookupVolume(logger, parent)
		if err != nil || !found {
			fmt.Fprintln(os.Stderr, "client: parent:", found, err)
			os.Exit(1)
		}
		began := time.Now()
		if _, err := c.CreateVolume(logger, handle, baggageclaim.VolumeSpec{Strategy: baggageclaim.COWStrategy{Parent: p}, Privileged: len(words) == 2}); err != nil {
			fmt.Fprintln(os.Stderr, "client: create:", err)
			os.Exit(1)
		}
		fmt.Println(time.Since(began).Microseconds())
	}
}
