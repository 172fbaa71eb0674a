package tidegate

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const clientsFolder = ".."

func binary() string {
	if path := os.Getenv("TIDEGATE_BIN"); path != "" {
		return path
	}
	return filepath.Join(clientsFolder, "../target/debug/tidegate")
}

func waitUntil(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// output keeps what a process prints.
type output struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (o *output) Write(data []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

// server is `tidegate serve`, and a redis-server if it counts there.
type server struct {
	t       *testing.T
	address string
	policy  string
	token   string
	socket  string
	process *exec.Cmd
	redis   *exec.Cmd
}

// startServer uses the policy of the cases, or the sample policy if it is "".
func startServer(t *testing.T, store, token, policy string) *server {
	s := &server{t: t, address: "127.0.0.1:0", policy: policy, token: token}
	if store == "redis" {
		// A short path: that of a socket is bounded.
		folder, err := os.MkdirTemp("", "tidegate-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(folder) })
		s.socket = filepath.Join(folder, "redis.sock")
		s.startStore()
		t.Cleanup(s.stopStore)
	}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func policyOfCases() string { return filepath.Join(clientsFolder, "policy.yaml") }

func (s *server) url() string { return "http://" + s.address }

func (s *server) startStore() {
	s.redis = exec.Command("redis-server", "--port", "0", "--unixsocket", s.socket, "--save", "",
		"--appendonly", "no", "--dir", filepath.Dir(s.socket))
	if err := s.redis.Start(); err != nil {
		s.t.Fatal(err)
	}
	waitUntil(s.t, "redis-server accepts connections", func() bool {
		connection, err := net.Dial("unix", s.socket)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
}

func (s *server) stopStore() {
	_ = s.redis.Process.Kill()
	_ = s.redis.Wait()
}

func (s *server) start() {
	arguments := []string{"serve", "--http", s.address, "--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"}
	if s.policy != "" {
		arguments = append(arguments, "--config", s.policy)
	}
	if s.socket != "" {
		arguments = append(arguments, "--store", "unix://"+s.socket)
	}
	log := &output{}
	s.process = exec.Command(binary(), arguments...)
	s.process.Env = os.Environ()
	if s.token != "" {
		s.process.Env = append(s.process.Env, "TIDEGATE_TOKEN="+s.token)
	}
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	waitUntil(s.t, "the server listens", func() bool {
		for _, line := range strings.Split(log.String(), "\n") {
			var entry struct {
				Fields struct{ Message, HTTP string }
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Fields.Message == "listening" {
				s.address = entry.Fields.HTTP
				return true
			}
		}
		return false
	})
}

func (s *server) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

func (s *server) freeze() {
	_ = s.process.Process.Signal(syscall.SIGSTOP)
	tasks := fmt.Sprintf("/proc/%d/task/*/stat", s.process.Process.Pid)
	// Threads on other processors go on for a moment.
	waitUntil(s.t, "all threads are stopped", func() bool {
		found, _ := filepath.Glob(tasks)
		for _, path := range found {
			stat, _ := os.ReadFile(path)
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
}

func (s *server) thaw() { _ = s.process.Process.Signal(syscall.SIGCONT) }

func newClient(t *testing.T, url string, options Options) *Client {
	t.Helper()
	if options.Deadline == 0 {
		options.Deadline = 5 * time.Second
	}
	client, err := New(url, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}
