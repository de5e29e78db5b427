package transports

import "github.com/containers/image/types"

func Get(string) types.ImageTransport { return nil }
