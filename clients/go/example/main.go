// A service with three limits. Run `tidegate serve`, then `go run ./example`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
)

func main() {
	deadline, _ := time.ParseDuration(os.Getenv("TIDEGATE_DEADLINE"))
	client, err := tidegate.New(environment("TIDEGATE_URL", "http://127.0.0.1:8080"), tidegate.Options{
		Token:      os.Getenv("TIDEGATE_TOKEN"),
		Deadline:   deadline,
		OnNoAnswer: tidegate.Local,
		Limits:     map[string][]string{"api": {"10/s burst 20"}, "login": {"sliding-log 5/m"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	login := tidegate.Middleware{Client: client, Rule: "login"}
	api := tidegate.Middleware{Client: client, Rule: "api", Key: func(r *http.Request) tidegate.Key {
		return tidegate.Key{r.Header.Get("X-Api-Key")}
	}}
	mux := http.NewServeMux()
	mux.Handle("/login", login.Wrap(http.HandlerFunc(signIn)))
	mux.Handle("/chat", chat(client))

	listener, err := net.Listen("tcp", environment("ADDRESS", "127.0.0.1:3000"))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %s", listener.Addr())
	log.Fatal(http.Serve(listener, api.Wrap(mux)))
}

func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func signIn(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("signed in\n"))
}

type usage struct{ Input, Output int64 }

// askModel stands for the call to a provider, and returns its usage.
func askModel(_ context.Context, prompt string) (usage, error) {
	if prompt == "" {
		return usage{}, errors.New("no prompt")
	}
	return usage{int64(len(prompt)), int64(2 * len(prompt))}, nil
}

func chat(client *tidegate.Client) http.HandlerFunc {
	budget := client.Limiter("budget")
	return func(w http.ResponseWriter, r *http.Request) {
		reservation, err := budget.Reserve(r.Context(), 1000, r.Header.Get("X-User"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if !reservation.OK() {
			reservation.Decision.WriteHeaders(w.Header())
			http.Error(w, "no budget left", http.StatusTooManyRequests)
			return
		}
		used, err := askModel(r.Context(), r.URL.Query().Get("prompt"))
		// The work is done or has failed: settle it even if the caller has gone.
		ctx := context.WithoutCancel(r.Context())
		if err != nil {
			_, _ = reservation.Cancel(ctx)
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		if _, err := reservation.Commit(ctx, tidegate.CommitCost(used.Input+used.Output)); err != nil {
			log.Print(err)
		}
		_ = json.NewEncoder(w).Encode(used)
	}
}
