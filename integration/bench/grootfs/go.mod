module github.com/concourse/bc-image-plugin/integration/bench/grootfs

go 1.26.0

require code.cloudfoundry.org/grootfs v0.30.0

require (
	github.com/containerd/continuity v0.5.0 // indirect
	github.com/docker/go-units v0.5.0 // indirect
	github.com/mailru/easyjson v0.9.2 // indirect
)

// GrootFS is from before modules: these are about as old as it is.
require (
	code.cloudfoundry.org/commandrunner v0.0.0-20180212143422-501fd662150b
	code.cloudfoundry.org/idmapper v0.0.0-20170928154045-bd44efed5494
	code.cloudfoundry.org/lager v1.1.0
	github.com/alecthomas/units v0.0.0-20240927000941-0f3dac36c52b
	github.com/cloudfoundry/dropsonde v1.0.0
	github.com/cloudfoundry/gosteno v0.0.0-20150423193413-0c8581caea35
	github.com/cloudfoundry/loggregatorlib v0.0.0-20170823162133-36eddf15ef12
	github.com/cloudfoundry/sonde-go v0.0.0-20171206171820-b33733203bb4
	github.com/containers/image v1.5.1
	github.com/containers/storage v1.12.2
	github.com/docker/distribution v2.7.1+incompatible
	github.com/docker/docker v0.7.3-0.20190329212828-d7ab8ad145fa
	github.com/gogo/protobuf v1.0.0
	github.com/golang/protobuf v1.3.1
	github.com/nu7hatch/gouuid v0.0.0-20131221200532-179d4d0c4d8d
	github.com/opencontainers/go-digest v1.0.0
	github.com/opencontainers/image-spec v1.0.1
	github.com/opencontainers/runc v1.0.0-rc7
	github.com/opencontainers/runtime-spec v1.0.1
	github.com/pkg/errors v0.8.1
	github.com/sirupsen/logrus v1.9.3
	github.com/tscolari/lagregator v0.0.0-20161103133944-b0fb43b01861
	github.com/urfave/cli v1.20.0
	github.com/ventu-io/go-shortid v0.0.0-20201117134242-e59966efd125
	golang.org/x/sys v0.30.0
	gopkg.in/yaml.v2 v2.2.2
)

replace github.com/containers/image => ./image
