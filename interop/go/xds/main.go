// A control plane from go-control-plane, which sends rate limit configurations to one node.
//
//	xds NODE [CERT KEY CLIENT_CA]
//
// Reads `VERSION LIMIT` lines: the domain "edge" with a limit per year for the key "user"; the
// limit "bad" is a configuration without a unit. Prints the address, and a line for each request:
// `VERSION NONCE ERROR`, quoted.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rls "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func main() {
	node := os.Args[1]
	var options []grpc.ServerOption
	if len(os.Args) == 5 {
		options = append(options, grpc.Creds(mutualTLS(os.Args[2], os.Args[3], os.Args[4])))
	}
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	callbacks := server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
			fmt.Printf("%q %q %q\n", request.VersionInfo, request.ResponseNonce, request.ErrorDetail.GetMessage())
			return nil
		},
	}
	service := grpc.NewServer(options...)
	ads := server.NewServer(context.Background(), snapshots, callbacks)
	discovery.RegisterAggregatedDiscoveryServiceServer(service, ads)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr())
	go func() { check(service.Serve(listener)) }()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		version, limit, _ := strings.Cut(lines.Text(), " ")
		resources := map[resource.Type][]types.Resource{resource.RateLimitConfigType: {config(limit)}}
		snapshot, err := cache.NewSnapshot(version, resources)
		check(err)
		check(snapshots.SetSnapshot(context.Background(), node, snapshot))
	}
}

func config(limit string) *rls.RateLimitConfig {
	policy := &rls.RateLimitPolicy{Unit: rls.RateLimitUnit_DAY}
	if requests, err := strconv.ParseUint(limit, 10, 32); err == nil {
		policy.RequestsPerUnit = uint32(requests)
	} else {
		policy.Unit = rls.RateLimitUnit_UNKNOWN
	}
	descriptor := &rls.RateLimitDescriptor{Key: "user", RateLimit: policy}
	return &rls.RateLimitConfig{Name: "edge", Domain: "edge", Descriptors: []*rls.RateLimitDescriptor{descriptor}}
}

func mutualTLS(cert, key, clientCA string) credentials.TransportCredentials {
	pair, err := tls.LoadX509KeyPair(cert, key)
	check(err)
	ca, err := os.ReadFile(clientCA)
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	})
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
