# what it runs
name: x
steps:
  - run
