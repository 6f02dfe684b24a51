package wire

func checkSupport(*Job, *Problems) {}
