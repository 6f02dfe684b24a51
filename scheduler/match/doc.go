// Package match is what a group asks for and what one node can give it: conditions on attributes, devices and their
// alternatives, cores by NUMA node, ports, MIG. It looks at one node, or one class of equal nodes, at a time; which node is
// the best is package search's question.
package match
