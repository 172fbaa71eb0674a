package tidegate

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// ReserveOptions of a reservation. The zero value holds for a minute.
type ReserveOptions struct {
	TTL time.Duration
	// Model and Usage compute the costs of checks that have none.
	Model string
	Usage any
}

// Commit is what the work came to. The zero value is what was reserved.
type Commit struct {
	Cost  *int64
	Costs map[string]int64
	// Model and Usage are those of the provider's response.
	Model string
	Usage any
}

// CommitCost is a commit of one cost for all rules.
func CommitCost(cost int64) Commit { return Commit{Cost: &cost} }

// SettledRule is what settling a reservation did to one limit.
type SettledRule struct {
	Rule      string `json:"rule"`
	Policy    string `json:"policy"`
	Reserved  int64  `json:"reserved"`
	Charged   int64  `json:"charged"`
	Uncharged int64  `json:"uncharged"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
}

// Settlement is the result of a commit or a cancel; not Settled if the server made no reservation.
type Settlement struct {
	Settled   bool          `json:"settled"`
	Late      bool          `json:"late"`
	Overdrawn bool          `json:"overdrawn"`
	Rules     []SettledRule `json:"rules"`
}

// Reservation is a set of permits that are held until they are committed or cancelled.
type Reservation struct {
	client *Client
	// ID is empty if the reservation was denied, or if the server did not make it.
	ID        string
	Decision  Decision
	ExpiresIn time.Duration
}

// OK reports whether the work may begin.
func (r *Reservation) OK() bool { return r.Decision.Allowed }

// Reserve holds all of the checks or none.
func (c *Client) Reserve(
	ctx context.Context, options ReserveOptions, checks ...Check,
) (*Reservation, error) {
	fields := usageFields(options.Model, options.Usage)
	if options.TTL != 0 {
		fields["ttl_ms"] = options.TTL.Milliseconds()
	}
	decision, answer, err := c.decide(ctx, "/v1/reserve", checks, fields, 0)
	if err != nil {
		return nil, err
	}
	return &Reservation{c, answer.Reservation, decision, milliseconds(answer.ExpiresInMs)}, nil
}

// Reservation returns one that was made elsewhere, to settle it.
func (c *Client) Reservation(id string) *Reservation { return &Reservation{client: c, ID: id} }

// Commit charges what the work came to.
func (r *Reservation) Commit(ctx context.Context, commit Commit) (Settlement, error) {
	fields := usageFields(commit.Model, commit.Usage)
	if commit.Cost != nil {
		fields["cost"] = *commit.Cost
	}
	if commit.Costs != nil {
		fields["costs"] = commit.Costs
	}
	return r.settle(ctx, "/v1/commit", fields)
}

// Cancel releases what was reserved.
func (r *Reservation) Cancel(ctx context.Context) (Settlement, error) {
	return r.settle(ctx, "/v1/cancel", map[string]any{})
}

// settle repeats a call without an answer, as repeating it is harmless.
func (r *Reservation) settle(
	ctx context.Context, path string, fields map[string]any,
) (settlement Settlement, err error) {
	if r.ID == "" {
		return Settlement{}, nil
	}
	fields["reservation"] = r.ID
	for attempt := 0; attempt < attemptsToSettle && ctx.Err() == nil; attempt++ {
		deadline := r.client.options.Deadline
		_, err = r.client.exchange(ctx, deadline, http.MethodPost, path, fields, &settlement)
		var failure *Error
		if !errors.As(err, &failure) || failure.Kind != NoAnswer {
			return settlement, err
		}
	}
	if ctx.Err() != nil {
		return Settlement{}, ctx.Err()
	}
	return Settlement{}, err
}

func usageFields(model string, usage any) map[string]any {
	fields := map[string]any{}
	if model != "" {
		fields["model"] = model
	}
	if usage != nil {
		fields["usage"] = usage
	}
	return fields
}
