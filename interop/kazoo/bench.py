"""Turns with the Lock of kazoo, timed. ../README.md has the protocol of the bench programs.

Arguments: zookeeper://HOST:PORT, kazoo, and the session's time-out in milliseconds.
"""

import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.version import __version__

HOSTS, LIBRARY, SESSION = sys.argv[1].split("://")[-1], sys.argv[2], int(sys.argv[3]) / 1000
now = time.monotonic_ns


def connect():
    client = KazooClient(HOSTS, timeout=SESSION)
    client.start()
    return client


def task(number, lock, until, turns, failures):
    """Turns until the time is over, as (task, asked, granted, done), and what failed."""
    while (asked := now()) < until:
        try:
            lock.acquire()
            granted = now()
            lock.release()
            turns.append((number, asked, granted, now()))
        except KazooException as error:
            failures.append(error)


def take_turns(clients, prefix, tasks, names, since, until, log):
    turns = [[] for _ in range(tasks)]
    failures = []
    threads = []
    for number in range(tasks):
        lock = clients[number % len(clients)].Lock(f"/{prefix}{number % names}", "bench")
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


def main():
    clients = [connect()]
    print(f"@ ok {LIBRARY} {__version__}", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        answer = ""
        if verb == "connect":
            clients = [connect() for _ in range(int(words[0]))]
        elif verb == "turns":
            answer = take_turns(clients, words[0], *map(int, words[1:]))
        else:
            raise ValueError(f"unknown command {verb}")
        print(f"@ ok {answer}", flush=True)


main()
