package tidegate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// OnNoAnswer is what a check or a reservation without an answer means.
type OnNoAnswer int

// The zero value is Local: a share of the limit, counted in this process.
const (
	Local OnNoAnswer = iota
	Allow
	Deny
)

const (
	defaultDeadline  = 150 * time.Millisecond
	failuresToOpen   = 5
	openFor          = time.Second
	limitsFor        = time.Minute
	reportEvery      = 10 * time.Second
	attemptsToSettle = 3
)

// Options of a Client. The zero value is ready to use.
type Options struct {
	// Token is sent as Authorization: Bearer.
	Token string
	// Deadline of a whole call: 150 ms if 0. The server gives its store 100 ms.
	Deadline   time.Duration
	OnNoAnswer OnNoAnswer
	// LocalShare of the limits with Local: 0.5 if 0.
	LocalShare float64
	// Limits of rules before the first contact with the server: {"login": {"5/min"}}.
	Limits map[string][]string
	// Transport in place of one with up to 64 idle connections, for example with TLS settings.
	Transport http.RoundTripper
	// Logger is warned of decisions without the server; slog.Default() if nil.
	Logger *slog.Logger
}

// Client sends checks to a server. It is safe for concurrent use; one serves a whole process.
type Client struct {
	url     string
	options Options
	http    *http.Client
	shares  *localShares
	started time.Time

	mutex      sync.Mutex
	failures   int
	openUntil  time.Time
	limitsDue  time.Time
	reportAt   time.Time
	unreported int
}

// New returns a client of the server at a URL such as "http://127.0.0.1:8080". It does not connect.
func New(server string, options Options) (*Client, error) {
	parsed, err := url.Parse(server)
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, fmt.Errorf("tidegate: %q: a server is at http://host:port", server)
	}
	if options.Deadline == 0 {
		options.Deadline = defaultDeadline
	}
	if options.LocalShare == 0 {
		options.LocalShare = 0.5
	}
	options.Token = strings.TrimSpace(options.Token)
	if strings.ContainsFunc(options.Token, func(r rune) bool { return r < '!' || r > '~' }) {
		return nil, errors.New(
			"tidegate: Token has spaces, control characters or characters beyond ASCII")
	}
	if options.Deadline < 0 || options.OnNoAnswer < Local || options.OnNoAnswer > Deny {
		return nil, errors.New("tidegate: Deadline or OnNoAnswer is invalid")
	}
	shares, err := newLocalShares(options.LocalShare, options.Limits)
	if err != nil {
		return nil, err
	}
	transport := options.Transport
	if transport == nil {
		dialer := &net.Dialer{Timeout: max(options.Deadline, time.Second)}
		transport = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     time.Minute,
			TLSHandshakeTimeout: max(options.Deadline, time.Second),
		}
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{
		url:     strings.TrimRight(server, "/"),
		options: options,
		http:    &http.Client{Transport: transport, CheckRedirect: noRedirect},
		shares:  shares,
		started: time.Now(),
	}, nil
}

// Check charges all of the checks or none. The error is of the caller (an *Error), or of the
// context; a check without an answer has a decision.
func (c *Client) Check(ctx context.Context, checks ...Check) (Decision, error) {
	decision, _, err := c.decide(ctx, "/v1/check", checks, nil, 0)
	return decision, err
}

// CheckID is Check with an idempotency key: repeated with the same id, it is charged once.
func (c *Client) CheckID(ctx context.Context, id string, checks ...Check) (Decision, error) {
	decision, _, err := c.decide(ctx, "/v1/check", checks, map[string]any{"id": id}, 0)
	return decision, err
}

// LoadLimits reads the limits of all rules, for the local share. Call it when a service starts.
func (c *Client) LoadLimits(ctx context.Context) error {
	var answer struct {
		Rules []wireRule `json:"rules"`
	}
	due := limitsFor
	_, err := c.exchange(ctx, 0, http.MethodGet, "/v1/rules", nil, &answer)
	if err == nil {
		c.shares.learn(answer.Rules)
	} else {
		due = openFor
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.limitsDue = time.Now().Add(due)
	return err
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) decide(
	ctx context.Context, path string, checks []Check, fields map[string]any, wait time.Duration,
) (Decision, wireDecision, error) {
	if len(checks) == 0 {
		return Decision{}, wireDecision{}, errors.New("tidegate: a call has at least one check")
	}
	for _, check := range checks {
		if check.Cost < 0 {
			detail := fmt.Sprintf("is %d; it is a whole number from 0", check.Cost)
			return Decision{}, wireDecision{}, &Error{Kind: Invalid, Field: "cost", Detail: detail}
		}
	}
	if ctx.Err() != nil {
		return Decision{}, wireDecision{}, ctx.Err()
	}
	missing := costOne
	if path == "/v1/reserve" {
		missing = costEstimate
		if fields["usage"] != nil {
			missing = costByUsage
		}
	}
	if !c.letsPass() {
		return c.withoutAnswer(checks, missing, nil), wireDecision{}, nil
	}
	body := map[string]any{"checks": checks}
	if len(checks) == 1 {
		body = checks[0].body()
	}
	for name, value := range fields {
		body[name] = value
	}
	var answer wireDecision
	header, err := c.exchange(ctx, c.options.Deadline+wait, http.MethodPost, path, body, &answer)
	if err == nil && answer.Allowed == nil {
		err = &Error{Kind: NoAnswer, Detail: "the response is not a decision"}
	}
	var failure *Error
	switch {
	case err == nil:
		c.refreshLimits()
		return answer.decision(header), answer, nil
	case ctx.Err() != nil:
		return Decision{}, wireDecision{}, ctx.Err()
	case errors.As(err, &failure) && failure.Kind == NoAnswer:
		return c.withoutAnswer(checks, missing, err), wireDecision{}, nil
	}
	return Decision{}, wireDecision{}, err
}

func (c *Client) withoutAnswer(checks []Check, missing missingCost, err error) Decision {
	c.report(err)
	if c.options.OnNoAnswer == Local {
		return c.shares.decide(checks, missing, float64(time.Since(c.started)))
	}
	allowed := c.options.OnNoAnswer == Allow
	if !allowed {
		allowed = true
		for _, check := range checks {
			allowed = allowed && check.cost() == 0
		}
	}
	decision := Decision{Allowed: allowed, Rule: checks[0].name(), Source: "none"}
	if !allowed {
		decision.RetryAfter = retryLater
	}
	return decision
}

// report logs decisions without the server: the first at once, then once in a while.
func (c *Client) report(err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.unreported++
	if err == nil || time.Now().Before(c.reportAt) {
		return
	}
	logger := c.options.Logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.Warn("tidegate: decided without the server", "count", c.unreported, "error", err)
	c.unreported, c.reportAt = 0, time.Now().Add(reportEvery)
}

// letsPass is false while the server has not answered some calls in a row, except for one call a
// second, which tries it.
func (c *Client) letsPass() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.failures < failuresToOpen {
		return true
	}
	now := time.Now()
	if now.Before(c.openUntil) {
		return false
	}
	c.openUntil = now.Add(openFor)
	return true
}

func (c *Client) record(isAnswered bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if isAnswered {
		c.failures = 0
		return
	}
	c.failures++
	if c.failures >= failuresToOpen {
		c.openUntil = time.Now().Add(openFor)
	}
}

// refreshLimits reads the limits in the background, once a minute, if they are needed.
func (c *Client) refreshLimits() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now := time.Now()
	if c.options.OnNoAnswer != Local || now.Before(c.limitsDue) {
		return
	}
	c.limitsDue = now.Add(limitsFor)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.LoadLimits(ctx)
	}()
}
