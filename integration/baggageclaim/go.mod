// This module only pins the BaggageClaim server that tests and the demo run: go build github.com/concourse/baggageclaim/cmd/baggageclaim
module github.com/concourse/bc-image-plugin/integration/baggageclaim

go 1.26.0

tool github.com/concourse/baggageclaim/cmd/baggageclaim

require (
	code.cloudfoundry.org/lager v1.1.0
	github.com/concourse/baggageclaim v1.11.0
)

require (
	github.com/bmizerany/pat v0.0.0-20170815010413-6226ea591a40 // indirect
	github.com/cenkalti/backoff v2.1.1+incompatible // indirect
	github.com/concourse/flag v0.0.0-20180907155614-cb47f24fff1c // indirect
	github.com/concourse/go-archive v0.0.0-20180803203406-784931698f4f // indirect
	github.com/concourse/retryhttp v0.0.0-20170802173037-937335fd9545 // indirect
	github.com/dgrijalva/jwt-go v3.2.0+incompatible // indirect
	github.com/jessevdk/go-flags v1.4.0 // indirect
	github.com/klauspost/compress v1.9.7 // indirect
	github.com/nu7hatch/gouuid v0.0.0-20131221200532-179d4d0c4d8d // indirect
	github.com/tedsuo/ifrit v0.0.0-20180802180643-bea94bb476cc // indirect
	github.com/tedsuo/rata v1.0.1-0.20170830210128-07d200713958 // indirect
	golang.org/x/crypto v0.0.0-20180910181607-0e37d006457b // indirect
	golang.org/x/sys v0.0.0-20180918153733-ee1b12c67af4 // indirect
)
