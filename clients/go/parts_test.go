package tidegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheNotationGivesCapacityAndRecovery(t *testing.T) {
	expected := map[string]parsedLimit{
		"5/min":                                {5, 60e9},
		"10/30s":                               {10, 30e9},
		"100/s burst 20":                       {20, 0.2e9},
		"leaky-bucket 10/s capacity 30 queue":  {30, 3e9},
		"fixed-window 1000/d tz Asia/Shanghai": {1000, 86400e9},
		"2/5days":                              {2, 5 * 86400e9},
		"0/s burst 5":                          {0, 1e9},
	}
	for text, limit := range expected {
		found, err := parseLimit(text)
		if err != nil || found.capacity != limit.capacity || math.Abs(found.recovery-limit.recovery) > 1 {
			t.Errorf("%s: %v, %v", text, found, err)
		}
	}
	for _, text := range []string{"5", "5/fortnight", "-1/s", "1.5/s", ""} {
		if found, err := parseLimit(text); err == nil {
			t.Errorf("%q: %v", text, found)
		}
	}
}

func TestAShareRecoversWithTimeAndNeverExceedsItself(t *testing.T) {
	shares, _ := newLocalShares(0.5, map[string][]string{"a": {"10/s"}})
	var allowed []int
	for now := 0; now < 10_000; now += 7 {
		if shares.decide([]Check{{Rule: "a", Key: Key{"k"}}}, costOne, float64(now)*1e6).Allowed {
			allowed = append(allowed, now)
		}
	}
	for i, start := range allowed {
		within := 0
		for _, at := range allowed[i:] {
			if at < start+1000 {
				within++
			}
		}
		if within > 10 {
			t.Fatalf("%d from %d ms on", within, start)
		}
	}
	if len(allowed) < 50 {
		t.Fatalf("%d allowed", len(allowed))
	}
}

func TestTheStateIsBounded(t *testing.T) {
	shares, _ := newLocalShares(1, map[string][]string{"a": {"1/h"}})
	admitted := 0
	for i := 0; i < 3*slots; i++ {
		if shares.decide([]Check{{Rule: "a", Key: Key{fmt.Sprint(i)}}}, costOne, 0).Allowed {
			admitted++
		}
	}
	if admitted > slots || admitted < slots/2 {
		t.Fatalf("%d admitted", admitted)
	}
	for i := 1; i < maxLimits; i++ {
		shares.decide([]Check{{Limit: fmt.Sprintf("5/%ds", i)}}, costOne, 0)
	}
	if shares.decide([]Check{{Limit: "7/h"}}, costOne, 0).Allowed || len(shares.shares) != maxLimits {
		t.Fatalf("%d limits", len(shares.shares))
	}
}

func TestRulesInShadowModeNeverDenyAndChangedLimitsStartAnew(t *testing.T) {
	shares, _ := newLocalShares(1, nil)
	shares.learn([]wireRule{{Name: "s", Limits: []string{"0/s"}, Shadow: true}})
	if !shares.decide([]Check{{Rule: "s"}}, costOne, 0).Allowed {
		t.Fatal("a shadow rule denied")
	}
	for i, limit := range []string{"1/h", "1/h", "2/h"} {
		shares.learn([]wireRule{{Name: "r", Limits: []string{limit}}})
		if shares.decide([]Check{{Rule: "r"}}, costOne, 0).Allowed != (i != 1) {
			t.Fatalf("step %d", i)
		}
	}
}

func TestARemovedRuleFallsBackToTheSettings(t *testing.T) {
	shares, _ := newLocalShares(1, map[string][]string{"a": {"5/h"}})
	limits := func() (found [2]int64) {
		for i, rule := range []string{"a", "b"} {
			found[i] = shares.decide([]Check{{Rule: rule}}, costOne, 0).Limit
		}
		return found
	}
	seven := []string{"7/h"}
	shares.learn([]wireRule{{Name: "a", Limits: seven}, {Name: "b", Limits: seven}})
	if found := limits(); found != [2]int64{7, 7} {
		t.Fatal(found)
	}
	shares.learn(nil)
	if found := limits(); found != [2]int64{5, 0} {
		t.Fatal(found)
	}
}

func TestListsCompareAddressesAndAnOverrideEnds(t *testing.T) {
	var rule wireRule
	text := `{"name": "r", "key": ["client_ip"], "limits": ["9/h"],
		"deny": ["203.0.113.0/24", "2001:db8::/32", "::ffff:198.51.100.0/120", "::9"],
		"allow": ["10.0.0.0/8"], "overrides": [
			{"key": "192.0.2.1", "limits": ["3/h"], "until": "2020-01-01T00:00:00.5Z"},
			{"key": ["2001:aaaa::5"], "limits": ["3/h"], "until": "2999-01-01T00:00:00Z"}]}`
	if err := json.Unmarshal([]byte(text), &rule); err != nil {
		t.Fatal(err)
	}
	shares, _ := newLocalShares(1, nil)
	shares.learn([]wireRule{rule})
	expected := map[string]string{
		"203.0.113.7":        "false 0 true",
		"::ffff:203.0.113.7": "false 0 true",
		"2001:DB8:1::1":      "false 0 true",
		"198.51.100.3":       "false 0 true",
		"0::9":               "false 0 true",
		"203.0.114.7":        "true 9 false",
		"no-address":         "true 9 false",
		"10.9.8.7":           "true 0 false",
		"192.0.2.1":          "true 9 false",
		// An IPv6 client is counted by its /64.
		"2001:aaaa::6":     "true 3 false",
		"2001:aaaa:0:1::6": "true 9 false",
	}
	for key, wanted := range expected {
		d := shares.decide([]Check{{Rule: "r", Key: Key{key}}}, costOne, 0)
		if found := fmt.Sprint(d.Allowed, d.Limit, d.Never); found != wanted {
			t.Errorf("%s: %s", key, found)
		}
	}
	last := shares.decide([]Check{{Rule: "r", Key: Key{"2001:aaaa::7"}}}, costOne, 0)
	if last.Remaining != 1 {
		t.Error(last)
	}
}

func TestASilentServerIsCalledByFew(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var accepted atomic.Int64
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			defer connection.Close()
		}
	}()
	log := &output{}
	options := Options{Deadline: 50 * time.Millisecond, OnNoAnswer: Deny}
	options.Logger = slog.New(slog.NewTextHandler(log, nil))
	limiter := newClient(t, "http://"+listener.Addr().String(), options).Limiter("login")
	for i := 0; i < 200; i++ {
		if allowed, err := limiter.Allow(context.Background(), "k"); allowed || err != nil {
			t.Fatal(allowed, err)
		}
	}
	if !strings.Contains(log.String(), "decided without the server\" count=1") {
		t.Fatal(log)
	}
	if found := accepted.Load(); found < 1 || found > 50 {
		t.Fatalf("%d connections", found)
	}
}

func TestARestartedServerDecides(t *testing.T) {
	server := startServer(t, "memory", "", policyOfCases())
	client := newClient(t, server.url(), Options{OnNoAnswer: Deny})
	for i := 0; i < 2; i++ {
		decision, err := client.Check(context.Background(), Check{Rule: "load", Key: Key{"k"}})
		if err != nil || decision.Source != "memory" {
			t.Fatal(decision, err)
		}
		server.kill()
		server.start()
	}
}

func TestWaitReturnsWhenItsTurnComesOrWhenItCannotCome(t *testing.T) {
	server := startServer(t, "memory", "", policyOfCases())
	client := newClient(t, server.url(), Options{})
	ctx := context.Background()
	// A rule of two an hour: the third cannot pass in time, and four never.
	limiter := client.Limiter("login")
	if err := limiter.WaitN(ctx, 2, "w"); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var denied *DeniedError
	if err := limiter.Wait(limited, "w"); !errors.As(err, &denied) || denied.Decision.Never {
		t.Fatal(err)
	}
	if err := limiter.WaitN(ctx, 4, "w"); !errors.As(err, &denied) || !denied.Decision.Never {
		t.Fatal(err)
	}
	cancelled, stop := context.WithCancel(ctx)
	time.AfterFunc(100*time.Millisecond, stop)
	if err := limiter.Wait(cancelled, "w"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// `1000000/s` recovers at once: waiting for all of it twice returns.
	for i := 0; i < 2; i++ {
		if err := client.Limiter("load").WaitN(ctx, 1_000_000, "w"); err != nil {
			t.Fatal(err)
		}
	}
}

// countingTransport denies every check at once, as a server does whose queue is full.
type countingTransport struct{ calls atomic.Int64 }

func (c *countingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	c.calls.Add(1)
	body := `{"allowed": false, "retry_after_ms": 300, "rule": "login", "source": "memory"}`
	content := io.NopCloser(strings.NewReader(body))
	return &http.Response{StatusCode: 429, Header: http.Header{}, Body: content}, nil
}

func TestWaitDoesNotPollAServerThatDidNotWait(t *testing.T) {
	transport := &countingTransport{}
	options := Options{OnNoAnswer: Deny, Transport: transport}
	limiter := newClient(t, "http://127.0.0.1:1", options).Limiter("login")
	limited, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := limiter.Wait(limited, "k"); err == nil {
		t.Fatal("it is always denied")
	}
	if calls := transport.calls.Load(); calls < 2 || calls > 4 {
		t.Fatalf("%d calls in a second", calls)
	}
	for i := 0; i < 100; i++ {
		pause := pauseBefore(time.Second, 2*time.Second)
		if pause < time.Second || pause > 5*time.Second/4 {
			t.Fatal(pause)
		}
	}
	if pause := pauseBefore(5*time.Second, 2*time.Second); pause != 3*time.Second {
		t.Fatal(pause)
	}
	if pause := pauseBefore(0, 2*time.Second); pause != minPause {
		t.Fatal(pause)
	}
}

func TestAContextThatIsOverIsNoDecision(t *testing.T) {
	client := newClient(t, "http://127.0.0.1:1", Options{OnNoAnswer: Allow})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := client.Check(ctx, Check{Rule: "login"}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// The caller's deadline says nothing of the server: it opens no circuit.
func TestTheDeadlineOfACallerOpensNoCircuit(t *testing.T) {
	server := startServer(t, "memory", "", policyOfCases())
	client := newClient(t, server.url(), Options{OnNoAnswer: Deny})
	server.freeze()
	for i := 0; i < 2*failuresToOpen; i++ {
		limited, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		_, err := client.Check(limited, Check{Rule: "load", Key: Key{"k"}})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err = client.Check(limited, Check{Rule: "load", Key: Key{"k"}}); err == nil {
			t.Fatal("a decision for a caller whose time is over")
		}
	}
	server.thaw()
	decision, err := client.Check(context.Background(), Check{Rule: "load", Key: Key{"k"}})
	if err != nil || decision.Source != "memory" {
		t.Fatal(decision, err)
	}
}

func TestMiddlewareDeniesWithProblemJSONAndHeaders(t *testing.T) {
	server := startServer(t, "memory", "", policyOfCases())
	middleware := Middleware{
		Client: newClient(t, server.url(), Options{}),
		Rule:   "login",
		Key:    func(r *http.Request) Key { return r.Header["X-User"] },
	}
	home := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "home") })
	get := func(user ...string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Header["X-User"] = user
		recorder := httptest.NewRecorder()
		middleware.Wrap(home).ServeHTTP(recorder, request)
		return recorder
	}
	for _, remaining := range []string{"1", "0"} {
		allowed := get("ann")
		if allowed.Code != 200 || allowed.Header().Get("X-RateLimit-Remaining") != remaining {
			t.Fatal(allowed.Code, allowed.Header())
		}
	}
	denied := get("ann")
	body := denied.Body.String()
	if denied.Code != 429 || len(denied.Header().Get("Retry-After")) != 4 ||
		denied.Header().Get("Content-Type") != "application/problem+json" ||
		!strings.Contains(body, `"violated-policies":["login"]`) {
		t.Fatal(denied.Code, denied.Header(), body)
	}
	if missing := get(); missing.Code != 500 {
		t.Fatal(missing.Code)
	}
}

func TestATokenLosesItsLineEndAndCannotAddAHeader(t *testing.T) {
	for _, token := range []string{"a\r\nx-forwarded-for: 10.0.0.1", "a b", "geheím", "a\x00"} {
		if _, err := New("http://127.0.0.1:1", Options{Token: token}); err == nil {
			t.Errorf("%q", token)
		}
	}
	for token, stored := range map[string]string{"secret\r\n": "secret", "\n": ""} {
		client := newClient(t, "http://127.0.0.1:1", Options{Token: token})
		if found := client.options.Token; found != stored {
			t.Errorf("%q: %q", token, found)
		}
	}
}

func TestTheReadmePrintsWhatItSays(t *testing.T) {
	server := startServer(t, "memory", "", "")
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "```go\n")
	code, _, _ := strings.Cut(after, "```")
	options := "Options{Deadline: 5e9, OnNoAnswer: "
	code = strings.Replace(code, "http://127.0.0.1:8080", server.url(), 1)
	code = strings.Replace(code, "Options{OnNoAnswer: ", options, 1)
	printed := goTool(t, "run", inFolder(t, code))
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	for i, line := range lines[:5] {
		if line != fmt.Sprintf("allowed, %d left", 4-i) {
			t.Fatal(printed)
		}
	}
	if len(lines) != 6 || !strings.HasPrefix(lines[5], "denied, retry in ") {
		t.Fatal(printed)
	}
}

// inFolder writes code into a package of this module that `./...` leaves out.
func inFolder(t *testing.T, code string) string {
	folder, err := os.MkdirTemp(".", "_program-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	return "./" + folder
}

func goTool(t *testing.T, arguments ...string) string {
	printed, err := exec.Command("go", arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	return string(printed)
}

func TestTheCodeOfThePageCompiles(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(clientsFolder, "../docs/use/go.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```go\n")[1:]
	if len(blocks) < 4 {
		t.Fatal("too few blocks")
	}
	arguments := []string{"vet"}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		arguments = append(arguments, inFolder(t, code))
	}
	goTool(t, arguments...)
}

func TestTheExampleServiceLimitsEachRoute(t *testing.T) {
	server := startServer(t, "memory", "", "")
	program := filepath.Join(t.TempDir(), "example")
	goTool(t, "build", "-o", program, "./example")
	service, log := exec.Command(program), &output{}
	service.Env = append(os.Environ(), "TIDEGATE_URL="+server.url(), "TIDEGATE_DEADLINE=5s",
		"ADDRESS=127.0.0.1:0")
	service.Stderr = log
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = service.Process.Kill(); _ = service.Wait() }()
	var url string
	waitUntil(t, "the example listens", func() bool {
		_, after, found := strings.Cut(log.String(), "listening on ")
		url = "http://" + strings.TrimSpace(after)
		return found
	})
	var found []int
	for i := 0; i < 7; i++ {
		path := "/login"
		if i == 6 {
			path = "/chat?prompt=hello"
		}
		response, err := http.Post(url+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		found = append(found, response.StatusCode)
	}
	if fmt.Sprint(found) != "[200 200 200 200 200 429 200]" {
		t.Fatal(found, log)
	}
}
