"""Plain cache-aside with redis-py, timed: GET, and on a miss a load and SET EX. ../README.md has the protocol.

Argument: the URL of one Redis server. The load costs nothing: what is timed is the cache.
"""

import json
import sys
import threading
import time

import redis

KEYS = 10_000
TTL = 600
client = redis.Redis.from_url(sys.argv[1], max_connections=100)


def load(number):
    tags = [f"tag number {tag} of {number}" for tag in range(6)]
    return {"id": number, "name": f"article {number}", "price": 12.5, "tags": tags}


def read(prefix, number):
    key = f"{prefix}:article:{number}"
    found = client.get(key)
    if found is not None:
        return json.loads(found)
    value = load(number)
    client.set(key, json.dumps(value, separators=(",", ":")), ex=TTL)
    return value


def task(prefix, begin, count):
    for at in range(begin, begin + count):
        read(prefix, at % KEYS)


def reads(prefix, tasks, count):
    """How long that many reads take, by so many threads."""
    each = count // tasks
    threads = [threading.Thread(target=task, args=(prefix, number * each, each)) for number in range(tasks)]
    since = time.monotonic_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic_ns() - since


def main():
    client.ping()
    print(f"@ ok redis-py {redis.__version__}", flush=True)
    for line in sys.stdin:
        prefix, tasks, count = line.split()
        print(f"@ ok {reads(prefix, int(tasks), int(count))}", flush=True)


main()
