"""The Lock of redis-py, driven by lines. ../README.md has the protocol.

Each label is one thread with locks of its own: commands of one label run in order, commands of
different labels at the same time.

Arguments: the URL of one Redis server.
"""

import os
import queue
import sys
import threading

import redis

KILLED = 137
output = threading.Lock()


def answer(number, text):
    """One write per line, so that lines of different threads do not mix."""
    with output:
        sys.stdout.write(f"@ {number} {text}\n")
        sys.stdout.flush()


def seconds(milliseconds):
    """As redis-py wants it; `none` is its default, a lock that never expires."""
    return None if milliseconds == "none" else int(milliseconds) / 1000


class Label(threading.Thread):
    """One thread, and the locks that it took."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.client = client
        self.commands = queue.SimpleQueue()
        self.locks = {}

    def run(self):
        while True:
            number, verb, arguments = self.commands.get()
            try:
                value = self.command(verb, arguments)
                answer(number, f"ok {value}" if value else "ok")
            except Exception as error:  # whatever it is, it is the answer
                text = " ".join(str(error).split())
                answer(number, f"err {type(error).__name__} {text}")

    def command(self, verb, arguments):
        if not arguments:
            raise ValueError(f"{verb} needs a name")
        name, *options = arguments
        options = dict(option.split("=", 1) for option in options)
        if verb in ("lock", "try"):
            return self.take(verb, name, options)
        lock = self.locks.get(name)
        if lock is None:
            raise LookupError(f"this label never took {name}")
        if verb == "unlock":
            lock.release()
        elif verb == "extend":
            lock.extend(seconds(options.get("ttl", "10000")), replace_ttl=True)
        elif verb == "owned":
            return str(lock.owned()).lower()
        elif verb == "owner":
            return lock.local.token.decode() if lock.local.token else "none"
        else:
            raise ValueError(f"unknown command {verb}")
        return ""

    def take(self, verb, name, options):
        lock = self.client.lock(
            name,
            timeout=seconds(options.get("ttl", "10000")),
            sleep=seconds(options.get("delay", "50")),
            blocking=verb == "lock",
            blocking_timeout=seconds(options.get("wait", "20000")),
        )
        taken = lock.acquire()
        if taken:
            self.locks[name] = lock
        if verb == "try":
            return str(taken).lower()
        if not taken:
            raise TimeoutError("not acquired")
        return ""


def main():
    client = redis.Redis.from_url(sys.argv[1])
    client.ping()
    answer(0, f"ok redis-py {redis.__version__}")
    labels = {}
    for line in sys.stdin:
        words = line.split()
        if len(words) < 3:
            answer(words[0] if words else 0, "err usage ID LABEL VERB ARGUMENTS")
            continue
        number, label, verb, *arguments = words
        if verb == "crash":
            os._exit(KILLED)
        if verb == "quit":
            client.close()
            answer(number, "ok")
            os._exit(0)
        if label not in labels:
            labels[label] = Label(client)
            labels[label].start()
        labels[label].commands.put((number, verb, arguments))
    # Whoever drove us is gone: as a crash, so that no test is helped by a tidy end.
    os._exit(KILLED)


main()
