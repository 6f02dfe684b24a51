namespace "ml" {
  quota = "small"
}
