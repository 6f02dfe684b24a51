package launch

import _ "embed"

//go:embed launch_arm64.bin
var binaryImage []byte
