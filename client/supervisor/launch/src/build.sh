#!/bin/sh
# build.sh [DIR] rebuilds launch_<arch>.bin from launch.c, in DIR or in the package. It needs gcc for the architecture; building
# muster does not. `make check-binaries` compares the committed files with the result.
set -eu
out=${1:-$(dirname "$0")/..}
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
build() { # arch compiler
	command -v "$2" >/dev/null || { echo "launch_$1.bin: not rebuilt: no $2"; return 0; }
	"$2" -Os -static -nostdlib -ffreestanding -fno-builtin -fno-stack-protector -fno-pic -fno-pie -no-pie -fno-asynchronous-unwind-tables \
		-fno-tree-loop-distribute-patterns -fcf-protection=none -Wall -Wextra -Werror -Wl,--build-id=none -Wl,-n -Wl,-z,noexecstack -s -o "$out/launch_$1.bin" launch.c 2>/dev/null || {
		# Not every target knows -fcf-protection.
		"$2" -Os -static -nostdlib -ffreestanding -fno-builtin -fno-stack-protector -fno-pic -fno-pie -no-pie -fno-asynchronous-unwind-tables \
			-fno-tree-loop-distribute-patterns -mno-outline-atomics -Wall -Wextra -Werror -Wl,--build-id=none -Wl,-n -Wl,-z,noexecstack -s -o "$out/launch_$1.bin" launch.c
	}
	echo "launch_$1.bin: $(wc -c <"$out/launch_$1.bin") bytes"
}
build amd64 "${CC_AMD64:-x86_64-linux-gnu-gcc}"
build arm64 "${CC_ARM64:-aarch64-linux-gnu-gcc}"
