#!/bin/sh
# Purging removes the configuration of the package. State in /var/lib/muster, and files that an operator has put into
# /etc/muster.d, remain: they may be the only copy of the cluster's state and keys.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
  rmdir "${DPKG_ROOT:-}/var/lib/muster" "${DPKG_ROOT:-}/etc/muster.d" 2>/dev/null || true
fi
exit 0
