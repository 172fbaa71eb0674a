package tidegate

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

const maxBody = 8 << 20

// exchange sends one request and decodes a response of 200, or of 429 to a check or a reservation,
// into answer. Any other response, and none within the timeout, is an *Error. A timeout of 0 is
// none.
func (c *Client) exchange(
	ctx context.Context, timeout time.Duration, method, path string, body, answer any,
) (http.Header, error) {
	limited := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, &Error{Kind: Invalid, Detail: err.Error()}
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(limited, method, c.url+path, content)
	if err != nil {
		return nil, &Error{Kind: Invalid, Detail: err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	if c.options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.Token)
	}
	// Not sent: it lets the transport repeat a request on a connection that the server had closed.
	request.Header["X-Idempotency-Key"] = nil
	response, err := c.http.Do(request)
	if err != nil {
		c.failed(ctx)
		return nil, &Error{Kind: NoAnswer, Detail: err.Error()}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		c.failed(ctx)
		return nil, &Error{Kind: NoAnswer, Status: response.StatusCode, Detail: err.Error()}
	}
	c.record(true)
	isDecision := path == "/v1/check" || path == "/v1/reserve"
	if response.StatusCode == http.StatusOK ||
		response.StatusCode == http.StatusTooManyRequests && isDecision {
		if err := json.Unmarshal(text, answer); err != nil {
			return nil, &Error{Kind: NoAnswer, Status: response.StatusCode, Detail: err.Error()}
		}
		return response.Header, nil
	}
	return nil, errorOf(path, response, text)
}

// failed counts a call without an answer, unless the context of the caller has ended: a deadline
// shorter than that of the client says nothing of the server.
func (c *Client) failed(ctx context.Context) {
	if ctx.Err() == nil {
		c.record(false)
	}
}

func errorOf(path string, response *http.Response, text []byte) *Error {
	var problem struct{ Detail, Field string }
	_ = json.Unmarshal(text, &problem)
	failure := &Error{Invalid, response.StatusCode, problem.Field, problem.Detail}
	if failure.Detail == "" {
		failure.Detail = response.Status
	}
	switch status := response.StatusCode; {
	case status >= 500:
		failure.Kind = NoAnswer
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		failure.Kind = Unauthorized
	case status == http.StatusConflict:
		failure.Kind = Conflict
	case status == http.StatusNotFound && strings.HasPrefix(path, "/v1/c") && path != "/v1/check":
		failure.Kind = UnknownReservation
	case status == http.StatusNotFound:
		failure.Kind = UnknownRule
	}
	return failure
}
