package tidegate

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// When to retry after a denial whose end is not known: the server may be back then.
	retryLater = time.Second
	slots      = 4096
	maxLimits  = 256
	day        = 24 * time.Hour
)

var (
	notationPattern = regexp.MustCompile(`^(?:[a-z-]+ )?(\d+)/(\d*)([a-z]+)((?: \S+)*)$`)
	burstPattern    = regexp.MustCompile(` (?:burst|capacity) (\d+)`)
	units           = map[string]time.Duration{
		"us": time.Microsecond, "ms": time.Millisecond, "s": time.Second, "sec": time.Second,
		"m": time.Minute, "min": time.Minute, "minute": time.Minute, "h": time.Hour,
		"hour": time.Hour, "d": day, "day": day, "w": 7 * day, "week": 7 * day, "month": 31 * day,
	}
)

// parsedLimit is the capacity of a limit and the nanoseconds in which it recovers.
type parsedLimit struct {
	capacity int64
	recovery float64
}

// parseLimit returns nil for a concurrency limit, which has no time of recovery.
func parseLimit(notation string) (*parsedLimit, error) {
	if strings.HasPrefix(notation, "concurrency ") {
		return nil, nil
	}
	found := notationPattern.FindStringSubmatch(strings.TrimSpace(notation))
	if found == nil {
		return nil, fmt.Errorf("tidegate: %q is not a limit; write 5/min or sliding-log 5/1m", notation)
	}
	unit, known := units[found[3]]
	if !known && len(found[3]) > 2 {
		unit, known = units[strings.TrimSuffix(found[3], "s")]
	}
	count, countErr := strconv.ParseInt(found[1], 10, 64)
	number := 1.0
	if found[2] != "" {
		number, _ = strconv.ParseFloat(found[2], 64)
	}
	if !known || countErr != nil {
		return nil, fmt.Errorf("tidegate: %q is not a limit: unknown unit or count", notation)
	}
	limit := &parsedLimit{count, float64(unit) * number}
	if burst := burstPattern.FindStringSubmatch(found[4]); burst != nil && count > 0 {
		capacity, err := strconv.ParseInt(burst[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("tidegate: %q: %w", notation, err)
		}
		limit = &parsedLimit{capacity, limit.recovery * float64(capacity) / float64(count)}
	}
	return limit, nil
}

// localShare is a token bucket for each slot of keys. A slot holds the time at which it is full
// again, in nanoseconds since the start of the client.
type localShare struct {
	capacity int64
	interval float64
	fullAt   []float64
}

func newLocalShare(limit *parsedLimit, share float64) *localShare {
	if limit.capacity == 0 {
		return &localShare{}
	}
	capacity := max(1, int64(math.Floor(float64(limit.capacity)*share+1e-9)))
	return &localShare{capacity: capacity, interval: limit.recovery / float64(capacity)}
}

func (s *localShare) verdict(slot int, cost int64, now float64) Verdict {
	full, left := now, 0.0
	if s.fullAt != nil {
		full = max(now, s.fullAt[slot])
	}
	if s.capacity > 0 {
		left = float64(s.capacity) - (full-now)/s.interval
	}
	verdict := Verdict{Limit: s.capacity, Allowed: cost == 0 || left+1e-9 >= float64(cost)}
	charged := float64(cost)
	if !verdict.Allowed {
		charged = 0
		switch {
		case s.capacity == 0:
			verdict.RetryAfter = InfDuration
		case cost > s.capacity:
			verdict.RetryAfter = retryLater
		default:
			verdict.RetryAfter = ceilMs((float64(cost) - left) * s.interval)
		}
	}
	verdict.Remaining = max(0, int64(math.Floor(left-charged+1e-9)))
	verdict.ResetAfter = ceilMs(full - now + charged*s.interval)
	return verdict
}

func ceilMs(nanoseconds float64) time.Duration {
	return time.Duration(math.Ceil(nanoseconds/1e6)) * time.Millisecond
}

func (s *localShare) charge(slot int, cost int64, now float64) {
	if s.fullAt == nil {
		s.fullAt = make([]float64, slots)
	}
	s.fullAt[slot] = max(now, s.fullAt[slot]) + float64(cost)*s.interval
}

type shareKey struct {
	rule     string
	index    int
	notation string
}

// missingCost is what a check without a cost costs.
type missingCost int

const (
	costOne missingCost = iota
	costEstimate
	// costByUsage is known by the server only.
	costByUsage
)

// slotOf is where a check is counted.
type slotOf struct {
	share *localShare
	slot  int
}

// charge is what a check costs under one limit, or its verdict if there is no share.
type charge struct {
	slotOf
	cost    int64
	verdict Verdict
}

// localShares are the limits that are known, and what this process has used of its share of them.
type localShares struct {
	share      float64
	seed       maphash.Seed
	configured map[string]*localRule
	mutex      sync.Mutex
	rules      map[string]*localRule
	shares     map[shareKey]*localShare
}

func newLocalShares(share float64, limits map[string][]string) (*localShares, error) {
	if !(share > 0 && share <= 1) {
		return nil, fmt.Errorf("tidegate: LocalShare is %v; it is above 0 and at most 1", share)
	}
	configured := map[string]*localRule{}
	for name, notations := range limits {
		for _, notation := range notations {
			if _, err := parseLimit(notation); err != nil {
				return nil, err
			}
		}
		configured[name] = newLocalRule(wireRule{Limits: slices.Clone(notations)})
	}
	return &localShares{
		share: share, seed: maphash.MakeSeed(), configured: configured, rules: configured,
		shares: map[shareKey]*localShare{},
	}, nil
}

// learn takes over the rules of GET /v1/rules; unchanged limits keep their counts.
func (l *localShares) learn(rules []wireRule) {
	learned, notations := maps.Clone(l.configured), map[string]map[string]bool{}
	for _, rule := range rules {
		learned[rule.Name] = newLocalRule(rule)
	}
	for name, rule := range learned {
		notations[name] = rule.notations()
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.rules = learned
	for key := range l.shares {
		if key.rule != "" && !notations[key.rule][key.notation] {
			delete(l.shares, key)
		}
	}
}

// decide charges every limit of every check, or none.
func (l *localShares) decide(checks []Check, missing missingCost, now float64) Decision {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var charges []charge
	// Checks of one slot are judged by their sum, as all of them are charged.
	totals := map[slotOf]int64{}
	for _, check := range checks {
		for _, one := range l.plan(check, missing) {
			charges = append(charges, one)
			totals[one.slotOf] = addCosts(totals[one.slotOf], one.cost)
		}
	}
	var verdicts []Verdict
	allowed := true
	for _, one := range charges {
		verdict := one.verdict
		if one.share != nil {
			verdict = one.share.verdict(one.slot, totals[one.slotOf], now)
			verdict.Rule, verdict.Policy = one.verdict.Rule, one.verdict.Policy
		}
		verdicts = append(verdicts, verdict)
		allowed = allowed && verdict.Allowed
	}
	for at, cost := range totals {
		if allowed && at.share != nil {
			at.share.charge(at.slot, cost, now)
		}
	}
	return localDecision(checks[0].name(), verdicts, allowed)
}

// addCosts stops at the largest number.
func addCosts(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// plan is what a check costs under each limit, or its verdict if that is known without counting.
func (l *localShares) plan(check Check, missing missingCost) []charge {
	name := check.name()
	without := func(allowed bool, wait time.Duration) []charge {
		verdict := Verdict{Rule: name, Policy: name, Allowed: allowed, RetryAfter: wait}
		return []charge{{verdict: verdict}}
	}
	rule := l.rules[check.Rule]
	if check.Rule == "" {
		rule = newLocalRule(wireRule{Limits: []string{check.Limit}})
	}
	if rule == nil {
		return without(check.Peek, retryLater)
	}
	key := rule.keyOf(check.Key)
	if rule.deny.has(key) {
		return without(false, InfDuration)
	}
	if rule.allow.has(key) {
		return nil
	}
	shares, known := l.sharesOf(check.Rule, rule.limitsOf(key))
	hasCost := check.Peek || check.Cost != 0
	if !known || !hasCost && missing == costByUsage {
		return without(check.Peek, retryLater)
	}
	cost := check.cost()
	if !hasCost && missing == costEstimate {
		cost = rule.estimate
	}
	slot := int(maphash.String(l.seed, key.text) % slots)
	var charges []charge
	for i, share := range shares {
		policy := name
		if len(shares) > 1 {
			policy = fmt.Sprintf("%s.%d", name, i+1)
		}
		verdict := Verdict{Rule: name, Policy: policy}
		charges = append(charges, charge{slotOf{share, slot}, cost, verdict})
	}
	return charges
}

// sharesOf makes the shares of limits at their first use; false if one cannot be counted.
func (l *localShares) sharesOf(rule string, notations []string) ([]*localShare, bool) {
	var shares []*localShare
	for i, notation := range notations {
		key := shareKey{rule, i, notation}
		if l.shares[key] == nil {
			limit, err := parseLimit(notation)
			if err != nil || limit == nil || len(l.shares) >= maxLimits {
				return nil, false
			}
			l.shares[key] = newLocalShare(limit, l.share)
		}
		shares = append(shares, l.shares[key])
	}
	return shares, true
}

// localDecision reports the most restrictive limit: the longest wait, or the least remaining.
func localDecision(rule string, verdicts []Verdict, allowed bool) Decision {
	decision := Decision{Allowed: allowed, Rule: rule, Source: "local", Rules: verdicts}
	chosen := -1
	for i, v := range verdicts {
		if v.Allowed != allowed {
			continue
		}
		best := chosen < 0
		if !best && allowed {
			other := verdicts[chosen]
			best = v.Remaining < other.Remaining ||
				v.Remaining == other.Remaining && v.ResetAfter > other.ResetAfter
		} else if !best {
			best = v.RetryAfter > verdicts[chosen].RetryAfter
		}
		if best {
			chosen = i
		}
	}
	if chosen < 0 {
		return decision
	}
	found := verdicts[chosen]
	decision.Limit, decision.Remaining, decision.Rule = found.Limit, found.Remaining, found.Rule
	decision.ResetAfter = found.ResetAfter
	if !allowed {
		decision.RetryAfter, decision.Never = found.RetryAfter, found.RetryAfter == InfDuration
	}
	return decision
}
