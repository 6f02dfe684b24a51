reservation "repair" {
  nodes       = ["node-0"]
  start       = "2026-01-31T08:00:00Z"
  end         = "2026-01-31T12:00:00Z"
  maintenance = true
}
