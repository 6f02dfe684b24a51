reservation "exam" {
  nodes    = ["node-0"]
  users    = ["bob"]
  duration = "3h"
}
