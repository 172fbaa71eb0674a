// A transaction of go-redis against the RESP listener at the address given as argument.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: os.Args[1], Protocol: protocol})
		key := fmt.Sprintf("go%d", protocol)
		check := func(pipe redis.Pipeliner) { pipe.Do(ctx, "TG.CHECK", "login", key) }

		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			check(pipe)
			pipe.Do(ctx, "NO.SUCH.COMMAND")
			return nil
		})
		expect(err != nil && strings.HasPrefix(err.Error(), "EXECABORT"), err)
		expectLeft(ctx, client, key, 3)

		replies, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			check(pipe)
			check(pipe)
			return nil
		})
		expect(err == nil && len(replies) == 2, err)
		for i, reply := range replies {
			decision, err := reply.(*redis.Cmd).Slice()
			expect(err == nil && decision[0] == int64(1) && decision[2] == int64(2-i), decision)
		}
		expectLeft(ctx, client, key, 1)

		infos, err := client.Command(ctx).Result()
		expect(err == nil && infos["tg.check"].FirstKeyPos == 2, err)
		expect(client.Close() == nil, "close")
	}
	fmt.Println("go-redis", redis.Version())
}

func expectLeft(ctx context.Context, client *redis.Client, key string, left int64) {
	decision, err := client.Do(ctx, "TG.PEEK", "login", key).Slice()
	expect(err == nil && decision[2] == left, fmt.Sprint(decision, err))
}

func expect(holds bool, found any) {
	if !holds {
		panic(fmt.Sprint("unexpected: ", found))
	}
}
