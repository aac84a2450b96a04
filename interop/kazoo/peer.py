"""The locks of kazoo, driven by lines. ../README.md has the protocol.

Each label is one thread with locks of its own: commands of one label run in order, commands of
different labels at the same time.

Arguments: the connection string, and the session's time-out in milliseconds.
"""

import os
import queue
import sys
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from kazoo.version import __version__

KILLED = 137
output = threading.Lock()


def answer(number, text):
    """One write per line, so that lines of different threads do not mix."""
    with output:
        sys.stdout.write(f"@ {number} {text}\n")
        sys.stdout.flush()


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
            raise ValueError(f"{verb} needs a path")
        path, *options = arguments
        options = dict(option.split("=", 1) for option in options)
        kind, _, verb = verb.rpartition(".")
        if (kind, path) not in self.locks:
            make = {"": self.client.Lock, "read": self.client.ReadLock, "write": self.client.WriteLock}
            self.locks[kind, path] = make[kind](path, "kazoo")
        lock = self.locks[kind, path]
        if verb == "lock":
            lock.acquire()
        elif verb == "tryLock":
            return self.take(lock, int(options.get("wait", "0")))
        elif verb == "unlock":
            lock.release()
        elif verb == "isHeld":
            return str(lock.is_acquired).lower()
        else:
            raise ValueError(f"unknown command {verb}")
        return ""

    def take(self, lock, wait):
        try:
            taken = lock.acquire(timeout=wait / 1000) if wait else lock.acquire(blocking=False)
        except LockTimeout:
            taken = False
        return str(taken).lower()


def main():
    client = KazooClient(sys.argv[1], timeout=int(sys.argv[2]) / 1000)
    client.start()
    answer(0, f"ok kazoo {__version__}")
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
            client.stop()
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
