package endpoint

// Register registers every method that servers answer themselves.
func (s *Set) Register() {
	s.registerNodes()
	s.registerServers()
	s.registerJobs()
	s.registerScheduler()
	s.registerQueues()
	s.registerVariables()
	s.registerServices()
	s.registerAllocs()
	s.registerDeployments()
	s.registerNodeUsers()
	s.registerACL()
	s.registerOperator()
	s.registerSearch()
	s.registerEvents()
	s.registerBundles()
}
