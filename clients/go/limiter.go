package tidegate

import (
	"context"
	"math/rand"
	"time"
)

// The longest that one call waits at the server. A server that stops answering is noticed then.
const maxServerWait = 2 * time.Second

const minPause = 10 * time.Millisecond

// Limiter is one rule of a server.
type Limiter struct {
	client *Client
	rule   string
}

// Limiter returns the rule of this name.
func (c *Client) Limiter(rule string) *Limiter { return &Limiter{c, rule} }

// Allow reports whether a request of this key may pass now, and charges it if so.
func (l *Limiter) Allow(ctx context.Context, key ...string) (bool, error) {
	return l.AllowN(ctx, 1, key...)
}

// AllowN is Allow at a cost of n.
func (l *Limiter) AllowN(ctx context.Context, n int64, key ...string) (bool, error) {
	decision, err := l.client.Check(ctx, l.check(n, key))
	return decision.Allowed, err
}

// Wait blocks until a request of this key may pass, and charges it. It returns the error of the
// context, or a *DeniedError as soon as the request cannot pass before the context's deadline.
func (l *Limiter) Wait(ctx context.Context, key ...string) error {
	return l.WaitN(ctx, 1, key...)
}

// WaitN is Wait at a cost of n.
func (l *Limiter) WaitN(ctx context.Context, n int64, key ...string) error {
	checks := []Check{l.check(n, key)}
	for {
		wait := maxServerWait
		deadline, hasDeadline := ctx.Deadline()
		if hasDeadline {
			wait = min(wait, time.Until(deadline))
		}
		fields := map[string]any{"wait_ms": max(0, wait.Milliseconds())}
		decision, _, err := l.client.decide(ctx, "/v1/check", checks, fields, wait)
		if err != nil || decision.Allowed {
			return err
		}
		isLate := hasDeadline && time.Until(deadline) < decision.RetryAfter
		if decision.Never || isLate {
			return &DeniedError{decision}
		}
		pause := time.NewTimer(pauseBefore(decision.RetryAfter, wait))
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// pauseBefore is how long to wait after a denial, before the server is asked to wait for the rest.
// If the server could have waited for all of it and did not, too many callers wait for this key, or
// the server has not decided: it is asked again when the permits are due, not by all at once.
func pauseBefore(retryAfter, wait time.Duration) time.Duration {
	pause := retryAfter - wait
	if pause <= 0 {
		pause = retryAfter + time.Duration(rand.Int63n(int64(retryAfter)/4+1))
	}
	return max(pause, minPause)
}

// Reserve holds n permits of this key until the reservation is committed or cancelled, or for a
// minute.
func (l *Limiter) Reserve(ctx context.Context, n int64, key ...string) (*Reservation, error) {
	return l.client.Reserve(ctx, ReserveOptions{}, l.check(n, key))
}

func (l *Limiter) check(n int64, key []string) Check {
	return Check{Rule: l.rule, Key: key, Cost: n, Peek: n == 0}
}
