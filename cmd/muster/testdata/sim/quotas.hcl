quota "small" {
  limit {
    region = "global"
    region_limit {
      device "nvidia/gpu" {
        count = 2
      }
    }
  }
}
