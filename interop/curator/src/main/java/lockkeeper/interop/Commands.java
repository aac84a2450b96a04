package lockkeeper.interop;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;

/** {@code ID LABEL [KIND.]VERB PATH [wait=MILLIS] [n=NUMBER]}: one recipe, one call. */
final class Commands {
    private final CuratorFramework curator;
    private final Map<String, Object> recipes = new ConcurrentHashMap<>();
    private final Map<String, Deque<Lease>> leases = new ConcurrentHashMap<>();

    Commands(CuratorFramework curator) {
        this.curator = curator;
    }

    String run(String[] words) throws Exception {
        int dot = words[2].indexOf('.');
        String kind = dot < 0 ? "" : words[2].substring(0, dot);
        String verb = words[2].substring(dot + 1);
        String path = words[3];
        if (kind.equals("permit")) {
            return permit(words, verb, path);
        }
        InterProcessLock lock = lock(kind, path);
        switch (verb) {
            case "lock":
                lock.acquire();
                return "";
            case "tryLock":
                long wait = option(words, "wait", 0);
                return String.valueOf(lock.acquire(wait, TimeUnit.MILLISECONDS));
            case "unlock":
                lock.release();
                return "";
            case "isHeld":
                return String.valueOf(lock.isAcquiredInThisProcess());
            default:
                throw new IllegalArgumentException("unknown command " + words[2]);
        }
    }

    private InterProcessLock lock(String kind, String path) {
        switch (kind) {
            case "":
                return recipe(kind, path, at -> new InterProcessMutex(curator, at));
            case "once":
                return recipe(kind, path, at -> new InterProcessSemaphoreMutex(curator, at));
            case "read":
                return readWrite(path).readLock();
            case "write":
                return readWrite(path).writeLock();
            default:
                throw new IllegalArgumentException("unknown kind " + kind);
        }
    }

    private InterProcessReadWriteLock readWrite(String path) {
        return recipe("readWrite", path, at -> new InterProcessReadWriteLock(curator, at));
    }

    private String permit(String[] words, String verb, String path) throws Exception {
        int n = (int) option(words, "n", 1);
        InterProcessSemaphoreV2 semaphore =
                recipe("permit" + n, path, at -> new InterProcessSemaphoreV2(curator, at, n));
        Deque<Lease> mine =
                leases.computeIfAbsent(words[1] + " " + path, at -> new ArrayDeque<>());
        switch (verb) {
            case "acquire":
                mine.push(semaphore.acquire());
                return "";
            case "tryAcquire":
                Lease lease = semaphore.acquire(option(words, "wait", 0), TimeUnit.MILLISECONDS);
                if (lease != null) {
                    mine.push(lease);
                }
                return String.valueOf(lease != null);
            case "release":
                semaphore.returnLease(mine.pop());
                return "";
            default:
                throw new IllegalArgumentException("unknown command " + words[2]);
        }
    }

    @SuppressWarnings("unchecked")
    private <T> T recipe(String kind, String path, Function<String, T> make) {
        return (T) recipes.computeIfAbsent(kind + " " + path, key -> make.apply(path));
    }

    private static long option(String[] words, String key, long otherwise) {
        for (int at = 4; at < words.length; at++) {
            if (words[at].startsWith(key + "=")) {
                return Long.parseLong(words[at].substring(key.length() + 1));
            }
        }
        return otherwise;
    }
}
