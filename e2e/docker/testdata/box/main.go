// Box is the one program in the images of the docker tests.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		args = []string{"env"}
	}
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			fail(err)
		}
		return n
	}
	switch args[0] {
	case "echo":
		fmt.Println(strings.Join(args[1:], " "))
	case "both":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
	case "sleep":
		time.Sleep(time.Duration(number(1)) * time.Second)
	case "exit":
		os.Exit(number(1))
	case "env":
		for _, e := range os.Environ() {
			fmt.Println(e)
		}
	case "cat":
		f, err := os.Open(args[1])
		if err != nil {
			fail(err)
		}
		_, _ = io.Copy(os.Stdout, f)
	case "stdin":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "write":
		if err := os.WriteFile(args[1], []byte(args[2]+"\n"), 0o644); err != nil {
			fail(err)
		}
	case "count": // lines, with so many milliseconds in between, for ever or up to a number
		for i := 1; len(args) < 3 || i <= number(2); i++ {
			fmt.Println("line", i)
			time.Sleep(time.Duration(number(1)) * time.Millisecond)
		}
	case "line": // a long one
		fmt.Println(strings.Repeat("x", number(1)))
	case "hog":
		var all [][]byte
		for i := range number(1) {
			b := make([]byte, 1<<20)
			for k := range b {
				b[k] = byte(i + k)
			}
			all = append(all, b)
		}
		fmt.Println(len(all))
		time.Sleep(time.Minute)
	case "trap": // prints the signal that came, and keeps running if asked to be stubborn
		c := make(chan os.Signal, 10)
		signal.Notify(c, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1)
		fmt.Println("ready")
		for s := range c {
			fmt.Println("got", s)
			if len(args) < 2 && s != syscall.SIGHUP {
				os.Exit(7)
			}
		}
	case "serve":
		l, err := net.Listen("tcp", ":"+args[1])
		if err != nil {
			fail(err)
		}
		fail(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "served") })))
	case "open": // reports whether device files can be opened
		for _, p := range args[1:] {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			fmt.Println(p, err)
			if err == nil {
				f.Close()
			}
		}
	case "spin":
		for end := time.Now().Add(time.Duration(number(1)) * time.Second); time.Now().Before(end); {
		}
	default:
		fail(fmt.Errorf("box does not know %q", args))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
