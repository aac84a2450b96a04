package lockkeeper.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.Arrays;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** What the lines mean: one call of Redisson each. */
final class Commands {
    /** Redisson's "no lease": then its watchdog renews the lock. */
    private static final long WATCHDOG = -1;

    private final RedissonClient redisson;

    Commands(RedissonClient redisson) {
        this.redisson = redisson;
    }

    /** The answer after {@code ok}. */
    String run(Words words) throws InterruptedException {
        int dot = words.verb().indexOf('.');
        String kind = dot < 0 ? "plain" : words.verb().substring(0, dot);
        String verb = words.verb().substring(dot + 1);
        if (kind.equals("plain") && verb.equals("owner")) {
            return redisson.getId() + ":" + Thread.currentThread().getId();
        }
        String name = words.name();
        switch (kind) {
            case "plain": return lock(redisson.getLock(name), verb, words);
            case "fair": return lock(redisson.getFairLock(name), verb, words);
            case "spin": return lock(redisson.getSpinLock(name), verb, words);
            case "read": return lock(redisson.getReadWriteLock(name).readLock(), verb, words);
            case "write": return lock(redisson.getReadWriteLock(name).writeLock(), verb, words);
            case "multi": return lock(multi(name), verb, words);
            case "fenced": return fenced(redisson.getFencedLock(name), verb, words);
            case "semaphore": return semaphore(redisson.getSemaphore(name), verb, words);
            case "permit": return permit(redisson.getPermitExpirableSemaphore(name), verb, words);
            case "latch": return latch(redisson.getCountDownLatch(name), verb, words);
            default: throw unknown(words);
        }
    }

    private RLock multi(String names) {
        return redisson.getMultiLock(
                Arrays.stream(names.split(",")).map(redisson::getLock).toArray(RLock[]::new));
    }

    private static String lock(RLock lock, String verb, Words words) throws InterruptedException {
        long lease = words.option("lease", WATCHDOG);
        switch (verb) {
            case "lock":
                if (lease == WATCHDOG) {
                    lock.lock();
                } else {
                    lock.lock(lease, MILLISECONDS);
                }
                return "";
            case "tryLock":
                // Without a wait it is another script of the fair lock, one that does not queue.
                boolean taken = words.has("wait") || words.has("lease")
                        ? lock.tryLock(words.option("wait", 0), lease, MILLISECONDS)
                        : lock.tryLock();
                return String.valueOf(taken);
            case "unlock":
                lock.unlock();
                return "";
            case "forceUnlock": return String.valueOf(lock.forceUnlock());
            case "isLocked": return String.valueOf(lock.isLocked());
            case "isHeld": return String.valueOf(lock.isHeldByCurrentThread());
            case "holdCount": return String.valueOf(lock.getHoldCount());
            case "remainTtl": return String.valueOf(lock.remainTimeToLive());
            default: throw unknown(words);
        }
    }

    /** As any lock, but taking it gives the token. */
    private static String fenced(RFencedLock lock, String verb, Words words)
            throws InterruptedException {
        switch (verb) {
            case "lock": return String.valueOf(lock.lockAndGetToken());
            case "tryLock":
                // A wait always: without one, the call waits for ever.
                Long token = lock.tryLockAndGetToken(
                        words.option("wait", 0), words.option("lease", WATCHDOG), MILLISECONDS);
                return token == null ? "none" : token.toString();
            case "token": return String.valueOf(lock.getToken());
            default: return lock(lock, verb, words);
        }
    }

    private static String semaphore(RSemaphore semaphore, String verb, Words words)
            throws InterruptedException {
        int n = (int) words.option("n", 1);
        switch (verb) {
            case "trySetPermits": return String.valueOf(semaphore.trySetPermits(n));
            case "addPermits":
                semaphore.addPermits(n);
                return "";
            case "acquire":
                semaphore.acquire(n);
                return "";
            case "tryAcquire":
                boolean taken = words.has("wait")
                        ? semaphore.tryAcquire(n, words.option("wait", 0), MILLISECONDS)
                        : semaphore.tryAcquire(n);
                return String.valueOf(taken);
            case "release":
                semaphore.release(n);
                return "";
            case "drain": return String.valueOf(semaphore.drainPermits());
            case "available": return String.valueOf(semaphore.availablePermits());
            default: throw unknown(words);
        }
    }

    private static String permit(RPermitExpirableSemaphore semaphore, String verb, Words words)
            throws InterruptedException {
        long lease = words.option("lease", WATCHDOG);
        switch (verb) {
            case "trySetPermits":
                return String.valueOf(semaphore.trySetPermits((int) words.option("n", 1)));
            case "acquire":
                return lease == WATCHDOG
                        ? semaphore.acquire()
                        : semaphore.acquire(lease, MILLISECONDS);
            case "tryAcquire":
                String id = semaphore.tryAcquire(words.option("wait", 0), lease, MILLISECONDS);
                return id == null ? "none" : id;
            case "release": return String.valueOf(semaphore.tryRelease(words.text("id", "")));
            case "extend":
                boolean extended =
                        semaphore.updateLeaseTime(words.text("id", ""), lease, MILLISECONDS);
                return String.valueOf(extended);
            case "available": return String.valueOf(semaphore.availablePermits());
            default: throw unknown(words);
        }
    }

    private static String latch(RCountDownLatch latch, String verb, Words words)
            throws InterruptedException {
        switch (verb) {
            case "trySetCount": return String.valueOf(latch.trySetCount(words.option("n", 1)));
            case "countDown":
                latch.countDown();
                return "";
            case "await":
                if (words.has("wait")) {
                    return String.valueOf(latch.await(words.option("wait", 0), MILLISECONDS));
                }
                latch.await();
                return "true";
            case "getCount": return String.valueOf(latch.getCount());
            case "delete": return String.valueOf(latch.delete());
            default: throw unknown(words);
        }
    }

    private static IllegalArgumentException unknown(Words words) {
        return new IllegalArgumentException("unknown command " + words.verb());
    }
}
