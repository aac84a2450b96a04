// Plain cache-aside with go-redis, timed: GET, and on a miss a load and SET EX. ../../README.md has the protocol.
//
// Argument: the URL of one Redis server. The load costs nothing: what is timed is the cache.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	keys = 10_000
	ttl  = 600 * time.Second
)

type article struct {
	Id    int      `json:"id"`
	Name  string   `json:"name"`
	Price float64  `json:"price"`
	Tags  []string `json:"tags"`
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func load(number int) article {
	value := article{Id: number, Name: fmt.Sprintf("article %d", number), Price: 12.5}
	for tag := range 6 {
		value.Tags = append(value.Tags, fmt.Sprintf("tag number %d of %d", tag, number))
	}
	return value
}

func read(client *redis.Client, prefix string, number int) (value article) {
	key := fmt.Sprintf("%s:article:%d", prefix, number)
	found, err := client.Get(context.Background(), key).Bytes()
	if err == nil {
		must(json.Unmarshal(found, &value))
		return value
	}
	if !errors.Is(err, redis.Nil) {
		must(err)
	}
	value = load(number)
	text, err := json.Marshal(value)
	must(err)
	must(client.Set(context.Background(), key, text, ttl).Err())
	return value
}

// How long that many reads take, by so many goroutines.
func reads(client *redis.Client, prefix string, tasks, count int) time.Duration {
	each := count / tasks
	since := time.Now()
	var running sync.WaitGroup
	for task := range tasks {
		running.Go(func() {
			for at := task * each; at < (task+1)*each; at++ {
				read(client, prefix, at%keys)
			}
		})
	}
	running.Wait()
	return time.Since(since)
}

func main() {
	options, err := redis.ParseURL(os.Args[1])
	must(err)
	client := redis.NewClient(options)
	must(client.Ping(context.Background()).Err())
	fmt.Printf("@ ok go-redis %s\n", redis.Version())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var prefix string
		var tasks, count int
		_, err := fmt.Sscan(lines.Text(), &prefix, &tasks, &count)
		must(err)
		fmt.Printf("@ ok %d\n", reads(client, prefix, tasks, count).Nanoseconds())
	}
}
