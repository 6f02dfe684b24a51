#!/bin/sh
# Nomad's own client test suite with muster in nomad's place. Arguments go to the runner: -run REGEXP, -want N, -v.
set -e
cd "$(dirname "$0")"
exec go run ./suite "$@"
