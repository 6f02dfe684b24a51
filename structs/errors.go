package structs

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrorCode names a kind of failure that crosses a process boundary. Codes are part of the API and never renamed.
type ErrorCode string

// Every code that may cross a boundary, with the one HTTP status it maps to (see Status).
const (
	CodeInvalid       ErrorCode = "invalid"         // 400: the request makes no sense; the message says what would
	CodeDenied        ErrorCode = "denied"          // 403: the token lacks a capability
	CodeNotFound      ErrorCode = "not-found"       // 404: the named object does not exist
	CodeMethod        ErrorCode = "method"          // 405: wrong HTTP method
	CodeConflict      ErrorCode = "conflict"        // 409: check-and-set failed, or the object is in use
	CodeFenced        ErrorCode = "fenced"          // 409: another agent speaks for the node
	CodeTooLarge      ErrorCode = "too-large"       // 413: body, job or entry over its limit
	CodeUnprocessable ErrorCode = "unprocessable"   // 422: understood, but refused by a rule of the cluster
	CodeBusy          ErrorCode = "busy"            // 429: admission refused; retry after the stated time
	CodeInternal      ErrorCode = "internal"        // 500: a bug or a failed disk; detail is in the server's log
	CodeUnsupported   ErrorCode = "unsupported"     // 501: a known feature this build lacks
	CodeNoLeader      ErrorCode = "no-leader"       // 503: no leader known right now; retry
	CodeUnavailable   ErrorCode = "unavailable"     // 503: the peer or node cannot be reached
	CodeTimeout       ErrorCode = "timeout"         // 504: the deadline passed; the outcome may be unknown
	CodeUnknown       ErrorCode = "unknown-outcome" // 504: leadership was lost while a write was in flight
)

// Error is a failure that may cross a process boundary: a code, a human-readable sentence, and (through the code) one
// HTTP status. Internal detail is logged by the side that failed and never put in Msg.
type Error struct {
	Code       ErrorCode
	Msg        string
	RetryAfter time.Duration // of CodeBusy: when to try again; 0: the caller chooses
}

func (e *Error) Error() string { return e.Msg }

// Is makes errors.Is(err, &Error{Code: c}) true for any Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Msg == "" || t.Msg == e.Msg)
}

// Errorf makes an Error with a formatted sentence.
func Errorf(code ErrorCode, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// InvalidAll makes one error of all that is wrong with a request, at least one sentence, in the layout of Nomad's answers.
// more is how many mistakes there are besides.
func InvalidAll(problems []string, more int) *Error {
	list := strings.Join(problems, "\n\t* ")
	switch {
	case more > 0:
		list += fmt.Sprintf("\n\t* ... and %d more", more)
	case len(problems) == 1:
		return Errorf(CodeInvalid, "1 error occurred:\n\t* %s\n", list)
	}
	return Errorf(CodeInvalid, "%d errors occurred:\n\t* %s\n", len(problems)+more, list)
}

// Status returns the HTTP status of a code.
func (c ErrorCode) Status() int {
	switch c {
	case CodeInvalid:
		return 400
	case CodeDenied:
		return 403
	case CodeNotFound:
		return 404
	case CodeMethod:
		return 405
	case CodeConflict, CodeFenced:
		return 409
	case CodeTooLarge:
		return 413
	case CodeUnprocessable:
		return 422
	case CodeBusy:
		return 429
	case CodeUnsupported:
		return 501
	case CodeNoLeader, CodeUnavailable:
		return 503
	case CodeTimeout, CodeUnknown:
		return 504
	}
	return 500
}

// CodeOf returns the code of the first Error in err's chain, or CodeInternal.
func CodeOf(err error) ErrorCode {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// RetryAfter returns when a call that failed should be tried again, if its error says so; 0 if not.
func RetryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// ErrPermissionDenied is the answer to a refused authorization that no right would change. Nomad's clients match the
// text.
var ErrPermissionDenied = &Error{Code: CodeDenied, Msg: "Permission denied"}

// Denied returns the answer to a refused authorization. It names the missing right, never whether the object exists.
func Denied(format string, args ...any) *Error {
	return Errorf(CodeDenied, ErrPermissionDenied.Msg+": needs "+format, args...)
}

// ErrTokenNotFound refuses a token that does not exist. Nomad's clients match the text.
var ErrTokenNotFound = &Error{Code: CodeDenied, Msg: "ACL token not found"}

// ErrTokenExpired refuses a token whose time is over.
var ErrTokenExpired = &Error{Code: CodeDenied, Msg: "ACL token expired"}

// ErrNoLeader is returned while no leader is known.
var ErrNoLeader = &Error{Code: CodeNoLeader, Msg: "No cluster leader"}
