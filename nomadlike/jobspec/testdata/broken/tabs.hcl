job "a" {
		group "g" {
			cuont = 2
		}
}
