// An OpenTelemetry Collector with nothing but its OTLP receiver. Prints each batch of spans as a
// line of JSON, and its address first.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func main() {
	log.SetFlags(0)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	address := free.Addr().String()
	check(free.Close())

	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	http := config.Protocols.HTTP.GetOrInsertDefault()
	http.ServerConfig.NetAddr = confignet.AddrConfig{Endpoint: address, Transport: confignet.TransportTypeTCP}
	config.Protocols.GRPC = configoptional.None[configgrpc.ServerConfig]()
	print, err := consumer.NewTraces(func(_ context.Context, traces ptrace.Traces) error {
		line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
		if err == nil {
			fmt.Println(string(line))
		}
		return err
	})
	check(err)
	settings := receiver.Settings{
		ID:                component.NewID(factory.Type()),
		TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}
	traces, err := factory.CreateTraces(context.Background(), settings, config, print)
	check(err)
	check(traces.Start(context.Background(), componenttest.NewNopHost()))
	fmt.Println(address)
	// Ends with the test, which closes the input.
	os.Stdin.Read(make([]byte, 1))
	check(traces.Shutdown(context.Background()))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
