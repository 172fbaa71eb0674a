// Runs a cluster of gubernator in one process, on traffic that reaches its worst case.
//
// bench/peers/run builds and starts it. It listens on ports of the loopback interface.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"sync"
	"sync/atomic"
	"time"

	guber "github.com/mailgun/gubernator/v2"
	"github.com/mailgun/gubernator/v2/cluster"
	"github.com/sirupsen/logrus"
)

const limit = 100

func main() {
	logrus.SetOutput(io.Discard)
	var peers []guber.PeerInfo
	for port := 18300; port < 18306; port += 2 {
		peers = append(peers, guber.PeerInfo{
			HTTPAddress: fmt.Sprintf("127.0.0.1:%d", port),
			GRPCAddress: fmt.Sprintf("127.0.0.1:%d", port+1),
		})
	}
	if err := cluster.StartWith(peers); err != nil {
		log.Fatal(err)
	}
	defer cluster.Stop()

	row("gubernator, 3 nodes, BATCHING", "100 concurrent requests to each node",
		concurrent("batching", guber.Behavior_BATCHING))
	row("gubernator, 3 nodes, GLOBAL", "100 concurrent requests to each node",
		concurrent("global", guber.Behavior_GLOBAL))
	row("gubernator, token bucket of 100 in 1 s", "1 request, then 99 at 0.95 s and 100 at 1.05 s, within 0.1 s",
		boundary())
}

func row(limiter, traffic string, admitted int) {
	fmt.Printf("| %s | %s | %d | %d |\n", limiter, traffic, admitted, limit)
}

// take sends one request to a node and returns 1 if it is admitted.
func take(node int, name string, duration time.Duration, behavior guber.Behavior) int {
	response, err := cluster.DaemonAt(node).V1Server.GetRateLimits(context.Background(),
		&guber.GetRateLimitsReq{Requests: []*guber.RateLimitReq{{
			Name: "peers", UniqueKey: name, Hits: 1, Limit: limit,
			Duration: duration.Milliseconds(), Behavior: behavior,
		}}})
	if err != nil {
		log.Fatal(err)
	}
	if message := response.Responses[0].Error; message != "" {
		log.Fatal(message)
	}
	if response.Responses[0].Status == guber.Status_UNDER_LIMIT {
		return 1
	}
	return 0
}

func concurrent(name string, behavior guber.Behavior) int {
	var admitted atomic.Int64
	var done sync.WaitGroup
	for request := 0; request < 300; request++ {
		done.Add(1)
		go func() {
			defer done.Done()
			admitted.Add(int64(take(request%3, name, time.Hour, behavior)))
		}()
	}
	done.Wait()
	return int(admitted.Load())
}

func boundary() int {
	start := time.Now()
	take(0, "boundary", time.Second, guber.Behavior_NO_BATCHING)
	admitted := 0
	for _, at := range []time.Duration{950 * time.Millisecond, 1050 * time.Millisecond} {
		time.Sleep(time.Until(start.Add(at)))
		for request := 0; request < 100; request++ {
			admitted += take(0, "boundary", time.Second, guber.Behavior_NO_BATCHING)
		}
	}
	return admitted
}
