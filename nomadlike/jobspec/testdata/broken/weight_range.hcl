job "a" {
  affinity {
    attribute = "x"
    weight    = 500
  }
}
