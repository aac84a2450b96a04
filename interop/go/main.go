// The Mutex of redsync, driven by lines, on one Redis server or on several (RedLock).
// ../README.md has the protocol.
//
// Each label is one goroutine with mutexes of its own: commands of one label run in order, commands
// of different labels at the same time.
//
// Arguments: the URLs of the Redis servers.
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
)

const killed = 137

var output sync.Mutex

// One write per line, so that lines of different goroutines do not mix.
func answer(id, text string) {
	output.Lock()
	defer output.Unlock()
	fmt.Printf("@ %s %s\n", id, text)
}

type command struct {
	id, verb string
	words    []string
}

// The option's value, or the default.
func (c command) option(key string, otherwise int) (int, error) {
	for _, word := range c.words[1:] {
		if value, found := strings.CutPrefix(word, key+"="); found {
			return strconv.Atoi(value)
		}
	}
	return otherwise, nil
}

type label struct {
	sync    *redsync.Redsync
	mutexes map[string]*redsync.Mutex
}

func (l *label) run(commands <-chan command) {
	for c := range commands {
		value, err := l.command(c)
		switch {
		case err != nil:
			text := strings.Join(strings.Fields(err.Error()), " ")
			answer(c.id, fmt.Sprintf("err %s %s", kind(err), text))
		case value == "":
			answer(c.id, "ok")
		default:
			answer(c.id, "ok "+value)
		}
	}
}

var errUsage = errors.New("unknown command, or one without a name")

func (l *label) command(c command) (string, error) {
	if len(c.words) == 0 {
		return "", errUsage
	}
	name := c.words[0]
	if c.verb == "lock" || c.verb == "try" {
		return l.take(c, name)
	}
	mutex := l.mutexes[name]
	if mutex == nil {
		return "", fmt.Errorf("this label never took %s", name)
	}
	switch c.verb {
	case "unlock":
		return "", must(mutex.Unlock())
	case "extend":
		// By what it was taken with: redsync has no other.
		return "", must(mutex.Extend())
	case "owned":
		valid, err := mutex.Valid()
		if isTaken(err) {
			return "false", nil
		}
		return strconv.FormatBool(valid), err
	case "owner":
		return mutex.Value(), nil
	}
	return "", errUsage
}

func (l *label) take(c command, name string) (string, error) {
	ttl, err1 := c.option("ttl", 10000)
	tries, err2 := c.option("tries", 400)
	delay, err3 := c.option("delay", 50)
	if err := errors.Join(err1, err2, err3); err != nil {
		return "", err
	}
	mutex := l.sync.NewMutex(name,
		redsync.WithExpiry(time.Duration(ttl)*time.Millisecond),
		redsync.WithTries(tries),
		redsync.WithRetryDelay(time.Duration(delay)*time.Millisecond))
	if c.verb == "try" {
		err := mutex.TryLock()
		if isTaken(err) {
			return "false", nil
		}
		if err == nil {
			l.mutexes[name] = mutex
		}
		return "true", err
	}
	err := mutex.Lock()
	if err == nil {
		l.mutexes[name] = mutex
	}
	return "", err
}

// redsync may say "no" without an error.
func must(done bool, err error) error {
	if err == nil && !done {
		return errors.New("refused")
	}
	return err
}

// Somebody else's on a majority of the nodes.
func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

func kind(err error) string {
	var server *redsync.RedisError
	switch {
	case isTaken(err):
		return "ErrTaken"
	case errors.Is(err, redsync.ErrLockAlreadyExpired):
		return "ErrLockAlreadyExpired"
	case errors.Is(err, redsync.ErrFailed):
		return "ErrFailed"
	case errors.Is(err, redsync.ErrExtendFailed):
		return "ErrExtendFailed"
	case errors.As(err, &server):
		return "RedisError"
	}
	return "Error"
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/go-redsync/redsync/v4" {
				return strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return "unknown"
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "the URLs of the Redis servers are missing")
		os.Exit(64)
	}
	var pools []redsyncredis.Pool
	for _, url := range os.Args[1:] {
		options, err := redis.ParseURL(url)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(64)
		}
		if len(os.Args) > 2 {
			// One of several that hangs must not hold the majority back: by default the client waits
			// for seconds, ignores redsync's own bound, and tries again.
			options.ContextTimeoutEnabled = true
			options.ReadTimeout = time.Second
			options.MaxRetries = -1
		}
		client := redis.NewClient(options)
		// A node that is down is a case to be tested, so this is only to be connected early.
		_ = client.Ping(context.Background()).Err()
		pools = append(pools, goredis.NewPool(client))
	}
	sync := redsync.New(pools...)
	answer("0", "ok redsync "+version())

	labels := map[string]chan command{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 3 {
			answer(strings.Join(append(words, "0")[:1], ""), "err usage ID LABEL VERB ARGUMENTS")
			continue
		}
		id, name, verb := words[0], words[1], words[2]
		switch verb {
		case "crash":
			os.Exit(killed)
		case "quit":
			answer(id, "ok")
			os.Exit(0)
		}
		commands := labels[name]
		if commands == nil {
			commands = make(chan command, 1024)
			labels[name] = commands
			l := &label{sync: sync, mutexes: map[string]*redsync.Mutex{}}
			go l.run(commands)
		}
		commands <- command{id: id, verb: verb, words: words[3:]}
	}
	// Whoever drove us is gone: as a crash, so that no test is helped by a tidy end.
	os.Exit(killed)
}
