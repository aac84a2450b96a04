// The Mutex of etcd's own Go package, driven by lines. ../README.md has the protocol.
//
// Each label is one goroutine with a session (a lease) of its own: commands of one label run in order,
// commands of different labels at the same time.
//
// Argument: the addresses of the members, with commas.
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

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
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
	client  *clientv3.Client
	session *concurrency.Session
	mutexes map[string]*concurrency.Mutex
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
		return "", mutex.Unlock(context.Background())
	case "owned":
		response, err := l.client.Txn(context.Background()).If(mutex.IsOwner()).Commit()
		if err != nil {
			return "", err
		}
		return strconv.FormatBool(response.Succeeded), nil
	case "key":
		return mutex.Key(), nil
	case "revoke":
		_, err := l.client.Revoke(context.Background(), l.session.Lease())
		return "", err
	case "lost":
		<-l.session.Done()
		return "", nil
	}
	return "", errUsage
}

// The answer is the revision that the package offers as a token.
func (l *label) take(c command, name string) (string, error) {
	ttl, err := c.option("ttl", 10)
	if err != nil {
		return "", err
	}
	if l.session == nil {
		l.session, err = concurrency.NewSession(l.client, concurrency.WithTTL(ttl))
		if err != nil {
			return "", err
		}
	}
	mutex := concurrency.NewMutex(l.session, name)
	if c.verb == "try" {
		err = mutex.TryLock(context.Background())
		if errors.Is(err, concurrency.ErrLocked) {
			return "none", nil
		}
	} else {
		err = mutex.Lock(context.Background())
	}
	if err != nil {
		return "", err
	}
	l.mutexes[name] = mutex
	return strconv.FormatInt(mutex.Header().Revision, 10), nil
}

func kind(err error) string {
	switch {
	case errors.Is(err, concurrency.ErrSessionExpired):
		return "ErrSessionExpired"
	case errors.Is(err, concurrency.ErrLocked):
		return "ErrLocked"
	}
	return "Error"
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "go.etcd.io/etcd/client/v3" {
				return strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return "unknown"
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "the addresses of the members are missing")
		os.Exit(64)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   strings.Split(os.Args[1], ","),
		DialTimeout: 5 * time.Second,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(69)
	}
	answer("0", "ok etcd "+version())
	labels := map[string]chan command{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 3 {
			continue
		}
		c := command{id: words[0], verb: words[2], words: words[3:]}
		switch c.verb {
		case "crash":
			os.Exit(killed)
		case "quit":
			answer(c.id, "ok")
			os.Exit(0)
		}
		commands := labels[words[1]]
		if commands == nil {
			commands = make(chan command, 1000)
			labels[words[1]] = commands
			l := &label{client: client, mutexes: map[string]*concurrency.Mutex{}}
			go l.run(commands)
		}
		commands <- c
	}
	os.Exit(killed)
}
