module github.com/concourse/bc-image-plugin/integration/garden

go 1.26.0

// The version lists of the last three are refused by the module proxy, so their exact versions stand here: those that
// the Garden client was released with.
require (
	code.cloudfoundry.org/garden v0.0.0-20181108172608-62470dc86365
	code.cloudfoundry.org/lager v1.1.0 // indirect
	github.com/bmizerany/pat v0.0.0-20170815010413-6226ea591a40 // indirect
	github.com/tedsuo/rata v1.0.1-0.20170830210128-07d200713958 // indirect
)

// Only the tests of the modules above use these; `go mod tidy` wants them named.
require (
	github.com/onsi/ginkgo v1.16.5 // indirect
	github.com/onsi/gomega v1.44.0 // indirect
)
