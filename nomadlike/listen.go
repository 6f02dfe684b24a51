package nomadlike

import (
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Limits of the listener.
const (
	ConnsPerIPDefault = 100
	headerTime        = 10 * time.Second  // to send the headers of a request
	idleTime          = 120 * time.Second // of a kept-alive connection
	headerBytesMax    = 64 << 10          // [431]
)

// NewHTTPServer returns an http.Server with the limits of this API. Bodies and answers have their own deadlines (see
// rawBody and frames), because streams and blocking queries may last.
func NewHTTPServer(h http.Handler, l hclog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytesMax,
		ErrorLog: log.New(l.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
	}
}

// LimitListener refuses connections from an address that has perIP open ones; 0 is ConnsPerIPDefault, negative is no
// limit. A refused connection is closed at once.
func LimitListener(l net.Listener, perIP int) net.Listener {
	if perIP < 0 {
		return l
	}
	if perIP == 0 {
		perIP = ConnsPerIPDefault
	}
	return &limited{Listener: l, perIP: perIP, open: map[string]int{}}
}

type limited struct {
	net.Listener
	perIP int
	mu    sync.Mutex
	open  map[string]int // by IP; guarded by mu
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		ip, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			return c, nil
		}
		l.mu.Lock()
		if l.open[ip] >= l.perIP {
			l.mu.Unlock()
			c.Close()
			continue
		}
		l.open[ip]++
		l.mu.Unlock()
		return &counted{Conn: c, done: sync.OnceFunc(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.open[ip]--; l.open[ip] <= 0 {
				delete(l.open, ip)
			}
		})}, nil
	}
}

type counted struct {
	net.Conn
	done func()
}

func (c *counted) Close() error {
	c.done()
	return c.Conn.Close()
}
