#!/bin/sh
# Stops the agent when the package is removed. Running tasks go on until they end: drain the node first.
if [ "$1" = remove ] && [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl disable --now muster.service || true
fi
exit 0
