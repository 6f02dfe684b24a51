#!/bin/sh
# Announces to systemd the new unit. The agent is neither started nor restarted: an operator upgrades one machine after another.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
exit 0
