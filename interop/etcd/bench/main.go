// Turns with the locks of etcd's own, timed. ../../README.md has the protocol of the bench programs.
//
// Arguments: etcd://HOST:PORT, the library, which is go-concurrency (concurrency.Mutex) or lock-rpc (the
// server's own Lock call), and the lease in milliseconds.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"golang.org/x/sys/unix"
)

var forever = context.Background()

// The clock that all processes of the machine share; Go's own has no common zero.
func now() int64 {
	var at unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
	return at.Nano()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	must(err)
	return value
}

// What is taken in turns: concurrency.Mutex is one.
type lock interface {
	Lock(context.Context) error
	Unlock(context.Context) error
}

// The server's own Lock call.
type remote struct {
	calls v3lockpb.LockClient
	lease int64
	name  string
	key   []byte
}

func (r *remote) Lock(ctx context.Context) error {
	request := &v3lockpb.LockRequest{Name: []byte(r.name), Lease: r.lease}
	answer, err := r.calls.Lock(ctx, request)
	if err == nil {
		r.key = answer.Key
	}
	return err
}

func (r *remote) Unlock(ctx context.Context) error {
	_, err := r.calls.Unlock(ctx, &v3lockpb.UnlockRequest{Key: r.key})
	return err
}

// A connection, and the sessions that its tasks have. To both libraries the lease is the owner, so tasks
// that shared one would share the lock.
type client struct {
	*clientv3.Client
	library  string
	ttl      int
	sessions map[int64]*concurrency.Session
}

func connect(url, library string, ttl int) *client {
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{strings.TrimPrefix(url, "etcd://")},
		DialTimeout: 5 * time.Second,
	})
	must(err)
	return &client{etcd, library, ttl, map[int64]*concurrency.Session{}}
}

func (c *client) lock(task int64, name string) lock {
	session := c.sessions[task]
	if session == nil {
		var err error
		session, err = concurrency.NewSession(c.Client, concurrency.WithTTL(c.ttl))
		must(err)
		c.sessions[task] = session
	}
	if c.library == "lock-rpc" {
		calls := v3lockpb.NewLockClient(c.ActiveConnection())
		return &remote{calls: calls, lease: int64(session.Lease()), name: name}
	}
	return concurrency.NewMutex(session, name)
}

type turn struct{ task, asked, granted, done int64 }

// Turns until the time is over.
func take(task int64, lock lock, until int64) (turns []turn) {
	for asked := now(); asked < until; asked = now() {
		must(lock.Lock(forever))
		granted := now()
		must(lock.Unlock(forever))
		turns = append(turns, turn{task, asked, granted, now()})
	}
	return turns
}

func takeTurns(clients []*client, words []string) string {
	prefix, tasks, names := words[0], number(words[1]), number(words[2])
	from, until, log := number(words[3]), number(words[4]), words[5] == "1"
	results := make([][]turn, tasks)
	var running sync.WaitGroup
	for task := range tasks {
		client := clients[task%int64(len(clients))]
		lock := client.lock(task, fmt.Sprintf("%s%d", prefix, task%names))
		running.Go(func() { results[task] = take(task, lock, until) })
	}
	running.Wait()
	count := 0
	var text strings.Builder
	for _, turns := range results {
		for _, turn := range turns {
			if from <= turn.done && turn.done < until {
				count++
			}
			if log {
				fmt.Fprintf(&text, " %d %d %d %d", turn.task, turn.asked, turn.granted, turn.done)
			}
		}
	}
	// What fails ends the program.
	return fmt.Sprintf("%d 0%s", count, text.String())
}

// What the module list says of a dependency.
func version(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == path {
				return strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return "unknown"
}

func main() {
	url, library, ttl := os.Args[1], os.Args[2], int(number(os.Args[3])/1000)
	clients := []*client{connect(url, library, ttl)}
	fmt.Printf("@ ok %s, client %s\n", library, version("go.etcd.io/etcd/client/v3"))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer := ""
		switch words[0] {
		case "connect":
			clients = nil
			for range number(words[1]) {
				clients = append(clients, connect(url, library, ttl))
			}
		case "turns":
			answer = takeTurns(clients, words[1:])
		default:
			must(fmt.Errorf("unknown command %s", words[0]))
		}
		fmt.Printf("@ ok %s\n", answer)
	}
}
