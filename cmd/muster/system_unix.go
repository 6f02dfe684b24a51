//go:build unix

package main

import (
	"fmt"
	"syscall"
)

// umask returns the umask of this process, in octal.
func umask() string {
	mask := syscall.Umask(0o077)
	syscall.Umask(mask)
	return fmt.Sprintf("%04o", mask)
}
