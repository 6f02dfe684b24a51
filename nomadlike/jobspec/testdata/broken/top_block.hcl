jb "a" {}
