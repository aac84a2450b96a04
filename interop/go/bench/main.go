// Turns with redsync, timed. ../../README.md has the protocol of the bench programs.
//
// Arguments: the URL of the Redis server, or of several (RedLock) separated by commas, the library, and
// the lease in milliseconds.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

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

// A pool for each server, with the time-outs that go-redis has.
func connect(urls string) *redsync.Redsync {
	var pools []redsyncredis.Pool
	for url := range strings.SplitSeq(urls, ",") {
		options, err := redis.ParseURL(url)
		must(err)
		client := redis.NewClient(options)
		must(client.Ping(context.Background()).Err())
		pools = append(pools, goredis.NewPool(client))
	}
	return redsync.New(pools...)
}

type turn struct{ task, asked, granted, done int64 }

// Turns until the time is over. The mutex waits in the library's own way: 32 tries, 50 to 250 ms apart.
func take(task int64, mutex *redsync.Mutex, until int64) (turns []turn, failed int) {
	for asked := now(); asked < until; asked = now() {
		for {
			err := mutex.Lock()
			if err == nil {
				break
			}
			var taken *redsync.ErrTaken
			if !errors.As(err, &taken) {
				must(err)
			}
			// All its tries found the lock taken; whoever wants it asks again.
			failed++
			if now() >= until {
				return turns, failed
			}
		}
		granted := now()
		_, err := mutex.Unlock()
		must(err)
		turns = append(turns, turn{task, asked, granted, now()})
	}
	return turns, failed
}

func takeTurns(clients []*redsync.Redsync, words []string, lease time.Duration) string {
	prefix, tasks, names := words[0], number(words[1]), number(words[2])
	from, until, log := number(words[3]), number(words[4]), words[5] == "1"
	results, failures := make([][]turn, tasks), make([]int, tasks)
	var running sync.WaitGroup
	for task := range tasks {
		client := clients[task%int64(len(clients))]
		name := fmt.Sprintf("%s%d", prefix, task%names)
		mutex := client.NewMutex(name, redsync.WithExpiry(lease))
		running.Go(func() { results[task], failures[task] = take(task, mutex, until) })
	}
	running.Wait()
	count, failed := 0, 0
	var text strings.Builder
	for task, turns := range results {
		failed += failures[task]
		for _, turn := range turns {
			if from <= turn.done && turn.done < until {
				count++
			}
			if log {
				fmt.Fprintf(&text, " %d %d %d %d", turn.task, turn.asked, turn.granted, turn.done)
			}
		}
	}
	return fmt.Sprintf("%d %d%s", count, failed, text.String())
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
	urls, library, lease := os.Args[1], os.Args[2], time.Duration(number(os.Args[3]))*time.Millisecond
	clients := []*redsync.Redsync{connect(urls)}
	fmt.Printf("@ ok %s %s on go-redis %s\n", library,
		version("github.com/go-redsync/redsync/v4"), version("github.com/redis/go-redis/v9"))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer := ""
		switch words[0] {
		case "connect":
			clients = nil
			for range number(words[1]) {
				clients = append(clients, connect(urls))
			}
		case "turns":
			answer = takeTurns(clients, words[1:], lease)
		default:
			must(fmt.Errorf("unknown command %s", words[0]))
		}
		fmt.Printf("@ ok %s\n", answer)
	}
}
