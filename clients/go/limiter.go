package tidegate

import (
	"context"
	"time"
)

// The longest that one call waits at the server. A server that stops answering is noticed then.
const maxServerWait = 2 * time.Second

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
		// The server waits for the rest, in the order in which callers came.
		pause := time.NewTimer(max(decision.RetryAfter-wait, 10*time.Millisecond))
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// Reserve holds n permits of this key until the reservation is committed or cancelled, or for a
// minute.
func (l *Limiter) Reserve(ctx context.Context, n int64, key ...string) (*Reservation, error) {
	return l.client.Reserve(ctx, ReserveOptions{}, l.check(n, key))
}

func (l *Limiter) check(n int64, key []string) Check {
	return Check{Rule: l.rule, Key: key, Cost: n, Peek: n == 0}
}
