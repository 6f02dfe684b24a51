#!/bin/sh
# build.sh [DIR] rebuilds shim_<arch>.so from shim.c, which includes the other parts, in DIR or in the package. It needs gcc for the
# architecture; building muster does not. `make check-binaries` compares the committed files with the result.
set -eu
out=${1:-$(dirname "$0")/..}
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
build() { # arch compiler
	command -v "$2" >/dev/null || { echo "shim_$1.so: not rebuilt: no $2"; return 0; }
	"$2" -std=gnu11 -Os -fPIC -shared -fvisibility=hidden -fno-stack-protector -fno-asynchronous-unwind-tables -ffunction-sections \
		-U_FORTIFY_SOURCE -Wall -Wextra -Werror -Wl,--build-id=none -Wl,-z,noexecstack -Wl,-z,relro -Wl,--hash-style=gnu -Wl,--gc-sections -Wl,-Bsymbolic-functions \
		-Wl,--no-as-needed -l:libdl.so.2 -Wl,-soname,libmuster-gpu.so -s -o "$out/shim_$1.so" shim.c -l:libdl.so.2
	echo "shim_$1.so: $(wc -c <"$out/shim_$1.so") bytes"
}
build amd64 "${CC_AMD64:-x86_64-linux-gnu-gcc}"
build arm64 "${CC_ARM64:-aarch64-linux-gnu-gcc}"
