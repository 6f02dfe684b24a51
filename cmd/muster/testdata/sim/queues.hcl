queue "research" {
  limit {
    gpus = 4
  }
}
