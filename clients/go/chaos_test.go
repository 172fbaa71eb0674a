package tidegate

import (
	"context"
	"fmt"
	"os"
	"sort"
	"sync"
	"testing"
	"time"
)

const (
	chaosDeadline = 150 * time.Millisecond
	chaosCallers  = 16
	chaosPause    = 5 * time.Millisecond
)

type chaosCall struct {
	start, end time.Time
	decision   Decision
}

// chaosLoad is callers, and a bare timer beside them.
type chaosLoad struct {
	client, shares *Client
	stop           chan struct{}
	group          sync.WaitGroup
	mutex          sync.Mutex
	calls          []chaosCall
	timers         []time.Duration
	local          map[string]int
	failures       []error
}

func (l *chaosLoad) repeat(pause time.Duration, work func()) {
	l.group.Add(1)
	go func() {
		defer l.group.Done()
		for {
			select {
			case <-l.stop:
				return
			default:
				work()
				time.Sleep(pause)
			}
		}
	}()
}

func (l *chaosLoad) call() {
	start := time.Now()
	decision, err := l.client.Check(context.Background(), Check{Rule: "load", Key: Key{"k"}})
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.calls = append(l.calls, chaosCall{start, time.Now(), decision})
	if err != nil {
		l.failures = append(l.failures, err)
	}
}

func (l *chaosLoad) callLocally() {
	for _, key := range []string{"a", "b", "c"} {
		decision, _ := l.shares.Check(context.Background(), Check{Rule: "api", Key: Key{key}})
		if decision.Source == "local" && decision.Allowed {
			l.local[key]++
		}
	}
}

func (l *chaosLoad) timer() {
	start := time.Now()
	<-time.After(chaosDeadline)
	l.timers = append(l.timers, time.Since(start))
}

// bySource returns the calls from an index on that the server decided, and the others.
func (l *chaosLoad) bySource(from int) (byServer, without []chaosCall) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, call := range l.calls[from:] {
		if call.decision.Source == "memory" {
			byServer = append(byServer, call)
		} else {
			without = append(without, call)
		}
	}
	return byServer, without
}

// untilTheServerDecides waits until it decides again, not only now and then.
func (l *chaosLoad) untilTheServerDecides(t *testing.T) {
	t.Helper()
	l.mutex.Lock()
	from := len(l.calls)
	l.mutex.Unlock()
	waitUntil(t, "the server decides again", func() bool {
		byServer, _ := l.bySource(from)
		return len(byServer) > 100
	})
}

// The server is killed and restarted, then frozen for 5 s, while callers send checks. Times are
// goals: they are printed, and bounds only with TIDEGATE_TIMING=1.
func TestCallersWaitNoLongerThanTheDeadlineAndFollowTheSetting(t *testing.T) {
	server := startServer(t, "memory", "", policyOfCases())
	load := &chaosLoad{
		client: newClient(t, server.url(), Options{Deadline: chaosDeadline, OnNoAnswer: Deny}),
		shares: newClient(t, server.url(), Options{Deadline: chaosDeadline}),
		stop:   make(chan struct{}),
		local:  map[string]int{},
	}
	if err := load.shares.LoadLimits(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < chaosCallers; i++ {
		load.repeat(chaosPause, load.call)
	}
	load.repeat(chaosPause, load.callLocally)
	load.repeat(0, load.timer)

	load.untilTheServerDecides(t)
	server.kill()
	time.Sleep(1500 * time.Millisecond)
	server.start()
	load.untilTheServerDecides(t)
	server.freeze()
	frozen := time.Now()
	time.Sleep(5 * time.Second)
	thawed := time.Now()
	server.thaw()
	load.untilTheServerDecides(t)
	close(load.stop)
	load.group.Wait()
	judge(t, load, frozen, thawed)
}

func judge(t *testing.T, load *chaosLoad, frozen, thawed time.Time) {
	byServer, without := load.bySource(0)
	for _, call := range byServer {
		if !call.decision.Allowed {
			t.Fatalf("the server denied: %+v", call.decision)
		}
	}
	during := 0
	for _, call := range without {
		if call.decision.Allowed || call.decision.Source != "none" {
			t.Fatalf("not as configured: %+v", call.decision)
		}
		if call.start.After(frozen) && call.start.Before(thawed.Add(-time.Second)) {
			during++
			if call.end.After(thawed) {
				t.Fatal("a call waited for the thaw")
			}
		}
	}
	// Half of `10/h`, and a share does not recover a permit within this test.
	local := fmt.Sprint(load.local)
	if len(load.failures) > 0 || during < 100 || local != "map[a:5 b:5 c:5]" {
		t.Fatal(load.failures, during, local)
	}
	var waits []time.Duration
	for _, call := range load.calls {
		waits = append(waits, call.end.Sub(call.start))
	}
	goal := chaosDeadline * 12 / 10
	found, timer := quantile(waits, 0.999), quantile(load.timers, 0.999)
	fmt.Printf("chaos: %d calls decided by the server, %d without it; wait p50 %s, p99.9 %s, "+
		"longest %s (goal p99.9 <= %s); bare timers of %s: p99.9 %s\n", len(byServer), len(without),
		quantile(waits, 0.5), found, quantile(waits, 1), goal, chaosDeadline, timer)
	if found > max(goal, timer) {
		fmt.Printf("late: go client: p99.9 %s\n", found)
		if os.Getenv("TIDEGATE_TIMING") == "1" {
			t.Fail()
		}
	}
}

func quantile(values []time.Duration, share float64) time.Duration {
	ordered := append([]time.Duration(nil), values...)
	sort.Slice(ordered, func(i, j int) bool { return ordered[i] < ordered[j] })
	index := min(len(ordered)-1, int(share*float64(len(ordered))))
	return ordered[index].Round(100 * time.Microsecond)
}
