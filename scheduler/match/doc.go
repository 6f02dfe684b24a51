// Package match compiles what a group asks for and checks what one node can provide: conditions on attributes, devices
// and their alternatives, cores by NUMA node, ports, MIG. It looks at one node, or one class of equal nodes, at a time;
// package search finds the best node.
package match
