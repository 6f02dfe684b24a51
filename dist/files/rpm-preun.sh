# Stops the agent when the package is removed, not when it is upgraded. Running tasks go on: drain the node first.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
  systemctl disable --now muster.service || true
fi
exit 0
