package launch

import _ "embed"

//go:embed launch_amd64.bin
var binaryImage []byte
