// Package queue holds the orders of pending work, one small file each, and the choosers that decide which running and
// pending work should hold places.
package queue
