package tidegate

import (
	"encoding/json"
	"net"
	"net/http"
)

// Middleware checks one rule for every request of a handler. A denied request gets 429 with
// problem+json and Retry-After.
type Middleware struct {
	Client *Client
	Rule   string
	// Key of a request; the address of the peer if nil. A nil Key is a check without one.
	Key func(*http.Request) Key
	// Cost of a request: 1 if 0.
	Cost int64
	// OnError responds to a request whose check is an error of the caller, such as an unknown rule.
	// If nil, the response is 500.
	OnError func(http.ResponseWriter, *http.Request, error)
}

// Wrap returns a handler that calls next for the requests that are allowed.
func (m Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keyOf := m.Key
		if keyOf == nil {
			keyOf = RemoteAddress
		}
		check := Check{Rule: m.Rule, Key: keyOf(r), Cost: m.Cost}
		decision, err := m.Client.Check(r.Context(), check)
		if err != nil {
			m.fail(w, r, err)
			return
		}
		decision.WriteHeaders(w.Header())
		if decision.Allowed {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		_ = json.NewEncoder(w).Encode(decision.Problem())
	})
}

func (m Middleware) fail(w http.ResponseWriter, r *http.Request, err error) {
	if m.OnError != nil {
		m.OnError(w, r, err)
		return
	}
	http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
}

// RemoteAddress is the address of the peer, without its port. Behind a proxy, use a key of your own.
func RemoteAddress(r *http.Request) Key {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return Key{r.RemoteAddr}
	}
	return Key{host}
}
