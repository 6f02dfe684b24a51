package nomadlike

import (
	"log"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/nomadlike/edge"
)

// Limits of the listener.
const (
	headerTime     = 10 * time.Second  // to send the headers of a request
	idleTime       = 120 * time.Second // of a kept-alive connection
	headerBytesMax = 64 << 10          // [431]
)

// NewHTTPServer returns an http.Server with the limits of this API. Bodies and answers have their own deadlines (see
// rawBody and frames), because streams and blocking queries may last.
func NewHTTPServer(h http.Handler, l hclog.Logger) *http.Server {
	return &http.Server{
		ConnContext: edge.Context,
		Handler:     h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytesMax,
		ErrorLog: log.New(l.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
	}
}
