package tidegate

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// InfDuration is the RetryAfter of a request that can never pass.
const InfDuration = time.Duration(math.MaxInt64)

// Key is whom a rule counts: one part or several, which are kept separate. A nil Key is none, for
// rules that count all requests together.
type Key []string

// MarshalJSON encodes a single part as a string.
func (k Key) MarshalJSON() ([]byte, error) {
	if len(k) == 1 {
		return json.Marshal(k[0])
	}
	return json.Marshal([]string(k))
}

// UnmarshalJSON decodes a single part, or a list of parts.
func (k *Key) UnmarshalJSON(text []byte) error {
	var part string
	if json.Unmarshal(text, &part) == nil {
		*k = Key{part}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(k))
}

// Check is one rule, or one ad-hoc limit, of a check or a reservation.
type Check struct {
	Rule string
	// Limit is an ad-hoc limit such as "5/min", in place of a rule.
	Limit string
	Key   Key
	// Cost 0 is the default: 1 for a check, the estimate of the rule for a reservation.
	Cost int64
	// Peek charges nothing.
	Peek bool
}

func (c Check) name() string {
	if c.Rule == "" {
		return "adhoc"
	}
	return c.Rule
}

func (c Check) cost() int64 {
	switch {
	case c.Peek:
		return 0
	case c.Cost == 0:
		return 1
	}
	return c.Cost
}

// MarshalJSON leaves out what is not set.
func (c Check) MarshalJSON() ([]byte, error) {
	return json.Marshal(c.body())
}

func (c Check) body() map[string]any {
	body := map[string]any{}
	if c.Rule != "" {
		body["rule"] = c.Rule
	}
	if c.Limit != "" {
		body["limit"] = c.Limit
	}
	if c.Key != nil {
		body["key"] = c.Key
	}
	if c.Peek || c.Cost != 0 {
		body["cost"] = c.cost()
	}
	return body
}

// Verdict is the result of one limit; Policy is its name in the RateLimit header.
type Verdict struct {
	Rule, Policy     string
	Allowed          bool
	Limit, Remaining int64
	RetryAfter       time.Duration
	ResetAfter       time.Duration
}

// Decision is the result of a check.
type Decision struct {
	Allowed          bool
	Limit, Remaining int64
	// RetryAfter is 0 if allowed, and InfDuration if Never.
	RetryAfter time.Duration
	ResetAfter time.Duration
	Delay      time.Duration
	Rule       string
	// Source is that of the server, "none" if OnNoAnswer decided, "local" if the local share did.
	Source string
	Never  bool
	Rules  []Verdict
	// Header has the rate limit headers of the response, to pass on.
	Header http.Header
}

// WriteHeaders adds the rate limit headers, and Retry-After if the request is denied.
func (d Decision) WriteHeaders(header http.Header) {
	for name, values := range d.Header {
		header[name] = values
	}
	if d.Allowed {
		return
	}
	header.Set("Cache-Control", "no-store")
	if !d.Never {
		seconds := (d.RetryAfter + time.Second - 1) / time.Second
		header.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
}

// Problem is the body of a 429, for application/problem+json.
func (d Decision) Problem() map[string]any {
	kind, title := "quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"
	switch d.Source {
	case "none", "local", "fallback":
		kind = "temporary-reduced-capacity"
		title = "Request cannot be satisfied due to temporary server capacity constraints"
	}
	problem := map[string]any{
		"type":   "https://iana.org/assignments/http-problem-types#" + kind,
		"title":  title,
		"status": http.StatusTooManyRequests,
	}
	var violated []string
	for _, verdict := range d.Rules {
		if !verdict.Allowed {
			violated = append(violated, verdict.Policy)
		}
	}
	if violated != nil {
		problem["violated-policies"] = violated
	}
	return problem
}

// Kind says what a call without a decision failed of.
type Kind string

// The kinds of errors. All but NoAnswer are errors of the caller.
const (
	Invalid            Kind = "invalid"
	Unauthorized       Kind = "unauthorized"
	UnknownRule        Kind = "unknown_rule"
	UnknownReservation Kind = "unknown_reservation"
	Conflict           Kind = "conflict"
	NoAnswer           Kind = "no_answer"
)

// Error is a call that has no decision.
type Error struct {
	Kind Kind
	// Status of the response, 0 if there was none.
	Status int
	// Field of the request that is invalid, if the server named one.
	Field  string
	Detail string
}

func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("tidegate: %s: %s: %s", e.Kind, e.Field, e.Detail)
	}
	return fmt.Sprintf("tidegate: %s: %s", e.Kind, e.Detail)
}

// DeniedError is returned by Wait if a request cannot pass in time.
type DeniedError struct{ Decision Decision }

func (e *DeniedError) Error() string {
	if e.Decision.Never {
		return fmt.Sprintf("tidegate: denied by %s: never passes", e.Decision.Rule)
	}
	return fmt.Sprintf("tidegate: denied by %s: retry in %s", e.Decision.Rule, e.Decision.RetryAfter)
}

// What the server sends.
type wireVerdict struct {
	Rule         string `json:"rule"`
	Policy       string `json:"policy"`
	Allowed      bool   `json:"allowed"`
	Limit        int64  `json:"limit"`
	Remaining    int64  `json:"remaining"`
	RetryAfterMs *int64 `json:"retry_after_ms"`
	ResetAfterMs int64  `json:"reset_after_ms"`
}

type wireDecision struct {
	Allowed      *bool         `json:"allowed"`
	Limit        int64         `json:"limit"`
	Remaining    int64         `json:"remaining"`
	RetryAfterMs *int64        `json:"retry_after_ms"`
	ResetAfterMs int64         `json:"reset_after_ms"`
	DelayMs      int64         `json:"delay_ms"`
	Rule         string        `json:"rule"`
	Source       string        `json:"source"`
	Never        bool          `json:"never"`
	Rules        []wireVerdict `json:"rules"`
	Reservation  string        `json:"reservation"`
	ExpiresInMs  int64         `json:"expires_in_ms"`
}

func (w wireDecision) decision(header http.Header) Decision {
	decision := Decision{
		Allowed: *w.Allowed, Limit: w.Limit, Remaining: w.Remaining,
		RetryAfter: retryAfter(w.RetryAfterMs), ResetAfter: milliseconds(w.ResetAfterMs),
		Delay: milliseconds(w.DelayMs), Rule: w.Rule, Source: w.Source, Never: w.Never,
		Header: http.Header{},
	}
	for _, row := range w.Rules {
		decision.Rules = append(decision.Rules, Verdict{
			Rule: row.Rule, Policy: row.Policy, Allowed: row.Allowed, Limit: row.Limit,
			Remaining: row.Remaining, RetryAfter: retryAfter(row.RetryAfterMs),
			ResetAfter: milliseconds(row.ResetAfterMs),
		})
	}
	for name, values := range header {
		lower := strings.ToLower(name)
		if strings.HasPrefix(strings.TrimPrefix(lower, "x-"), "ratelimit") || lower == "retry-after" {
			decision.Header[name] = values
		}
	}
	return decision
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func retryAfter(ms *int64) time.Duration {
	if ms == nil {
		return InfDuration
	}
	return milliseconds(*ms)
}
