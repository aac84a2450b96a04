"""Turns with a lock of Python, timed. ../README.md has the protocol of the bench programs.

Arguments: the URL of one Redis server, redis-py or python-redis-lock, and the lease in milliseconds.
"""

import sys
import threading
import time

import redis
import redis_lock

URL, LIBRARY, LEASE = sys.argv[1], sys.argv[2], int(sys.argv[3]) // 1000
now = time.monotonic_ns


def connect():
    # A connection for each thread that may need one at the same time; the default is 100.
    client = redis.Redis.from_url(URL, max_connections=2000)
    client.ping()
    return client


def lock_of(client, name):
    """With the library's own way to wait: redis-py asks every 100 ms, python-redis-lock blocks."""
    if LIBRARY == "redis-py":
        return client.lock(name, timeout=LEASE)
    return redis_lock.Lock(client, name, expire=LEASE)


def task(number, lock, until, turns, failures):
    """Turns until the time is over, as (task, asked, granted, done), and what failed."""
    while (asked := now()) < until:
        try:
            lock.acquire()
            granted = now()
            lock.release()
            turns.append((number, asked, granted, now()))
        except (redis.RedisError, RuntimeError) as error:
            failures.append(error)


def take_turns(clients, prefix, tasks, names, since, until, log):
    turns = [[] for _ in range(tasks)]
    failures = []
    threads = []
    for number in range(tasks):
        lock = lock_of(clients[number % len(clients)], f"{prefix}{number % names}")
        arguments = (number, lock, until, turns[number], failures)
        threads.append(threading.Thread(target=task, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns = [turn for some in turns for turn in some]
    count = sum(1 for turn in turns if since <= turn[3] < until)
    words = [str(word) for turn in turns for word in turn] if log else []
    return " ".join([str(count), str(len(failures)), *words])


def hold(client, prefix, count):
    """Locks that the library renews; it has a thread for each."""
    if LIBRARY == "redis-py":
        raise ValueError("it does not renew")
    locks = [
        redis_lock.Lock(client, f"{prefix}{number}", expire=LEASE, auto_renewal=True)
        for number in range(count)
    ]
    for lock in locks:
        lock.acquire()
    return locks


def main():
    clients = [connect()]
    held = []
    version = redis.__version__
    if LIBRARY != "redis-py":
        version = f"{redis_lock.__version__} on redis-py {version}"
    print(f"@ ok {LIBRARY} {version}", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        answer = ""
        if verb == "connect":
            clients = [connect() for _ in range(int(words[0]))]
        elif verb == "turns":
            answer = take_turns(clients, words[0], *map(int, words[1:]))
        elif verb == "hold":
            held += hold(clients[0], words[0], int(words[1]))
        else:
            raise ValueError(f"unknown command {verb}")
        print(f"@ ok {answer}", flush=True)


main()
