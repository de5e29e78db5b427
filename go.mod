module github.com/concourse/bc-image-plugin

go 1.26
