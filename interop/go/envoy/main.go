// A gRPC client of Envoy's rate limit service, with the generated types of go-control-plane. It
// sends ten requests to the address given as first argument, each with the hits given as second
// argument: 0 is not sent at all. It prints how many passed, and the seconds until the last status
// is reset.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	service "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	hits, err := strconv.ParseUint(os.Args[2], 10, 32)
	check(err)
	transport := grpc.WithTransportCredentials(insecure.NewCredentials())
	connection, err := grpc.NewClient(os.Args[1], transport)
	check(err)
	client := service.NewRateLimitServiceClient(connection)
	entry := &common.RateLimitDescriptor_Entry{Key: "bucket", Value: os.Args[2]}
	descriptor := &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{entry}}
	request := &service.RateLimitRequest{
		Domain:      "d",
		Descriptors: []*common.RateLimitDescriptor{descriptor},
		HitsAddend:  uint32(hits),
	}
	passed, reset := 0, int64(0)
	for i := 0; i < 10; i++ {
		response, err := client.ShouldRateLimit(context.Background(), request)
		check(err)
		if response.OverallCode == service.RateLimitResponse_OK {
			passed++
		}
		reset = response.Statuses[0].DurationUntilReset.Seconds
	}
	fmt.Println(passed, reset)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
