package lockkeeper.interop;

import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Turns with Redisson, timed. {@code ../README.md} has the protocol of the bench programs.
 *
 * <p>Arguments: the URL of the Redis server, or of several (RedLock) separated by commas, {@code redisson}
 * or {@code redisson-fair}, and the lease in milliseconds, which is the watchdog's time-out.
 */
public final class Bench {
    /** Threads that take the locks to be held: a lock belongs to the thread that took it. */
    private static final int HOLDERS = 16;

    private final String[] urls;
    private final boolean fair;
    private final long lease;
    /** Each with a connection to every server. */
    private List<List<RedissonClient>> clients;
    private final List<RLock> held = new ArrayList<>();
    private final AtomicLong failed = new AtomicLong();

    private Bench(String[] args) {
        urls = args[0].split(",");
        fair = args[1].endsWith("fair");
        lease = Long.parseLong(args[2]);
        // One client is what a program has: Redisson's own settings.
        clients = List.of(connect(config -> {}));
    }

    public static void main(String[] args) throws Exception {
        Bench bench = new Bench(args);
        System.out.println("@ ok " + args[1] + " " + Peer.version());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println("@ ok " + bench.run(line.trim().split("\\s+")));
        }
        Runtime.getRuntime().halt(0);
    }

    private String run(String[] words) throws InterruptedException {
        switch (words[0]) {
            case "connect":
                connect(Integer.parseInt(words[1]));
                return "";
            case "turns": return turns(words);
            case "hold":
                hold(words[1], Integer.parseInt(words[2]));
                return "";
            default: throw new IllegalArgumentException("unknown command " + words[0]);
        }
    }

    private List<RedissonClient> connect(Consumer<Config> settings) {
        List<RedissonClient> connected = new ArrayList<>();
        for (String url : urls) {
            Config config = new Config().setLockWatchdogTimeout(lease);
            config.useSingleServer().setAddress(url);
            settings.accept(config);
            connected.add(Redisson.create(config));
        }
        return connected;
    }

    /** Many clients in one process: they share threads, and have no more connections than needed. */
    private void connect(int count) {
        EventLoopGroup loops = new NioEventLoopGroup(4);
        ExecutorService executor = Executors.newFixedThreadPool(16);
        List<List<RedissonClient>> connected = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            connected.add(connect(config -> config.setEventLoopGroup(loops).setExecutor(executor)
                    .useSingleServer()
                    .setConnectionMinimumIdleSize(1).setConnectionPoolSize(2)
                    .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(2)));
        }
        clients = connected;
    }

    private RLock lock(int client, String name) {
        List<RLock> locks = new ArrayList<>();
        for (RedissonClient redisson : clients.get(client % clients.size())) {
            locks.add(fair ? redisson.getFairLock(name) : redisson.getLock(name));
        }
        return locks.size() == 1 ? locks.get(0) : new RedissonRedLock(locks.toArray(RLock[]::new));
    }

    private String turns(String[] words) throws InterruptedException {
        int tasks = Integer.parseInt(words[2]);
        int names = Integer.parseInt(words[3]);
        long from = Long.parseLong(words[4]);
        long until = Long.parseLong(words[5]);
        List<List<long[]>> turns = new ArrayList<>();
        failed.set(0);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < tasks; i++) {
            int task = i;
            RLock lock = lock(task, words[1] + task % names);
            List<long[]> own = new ArrayList<>();
            turns.add(own);
            threads.add(new Thread(() -> take(task, lock, until, own)));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        long count = 0;
        StringBuilder log = new StringBuilder();
        for (List<long[]> own : turns) {
            for (long[] turn : own) {
                if (from <= turn[3] && turn[3] < until) {
                    count++;
                }
                for (int i = 0; i < turn.length && words[6].equals("1"); i++) {
                    log.append(' ').append(turn[i]);
                }
            }
        }
        return count + " " + failed + log;
    }

    /** Turns until the time is over, as (task, asked, granted, done). */
    private void take(int task, RLock lock, long until, List<long[]> turns) {
        for (long asked = System.nanoTime(); asked < until; asked = System.nanoTime()) {
            try {
                lock.lock();
                long granted = System.nanoTime();
                lock.unlock();
                turns.add(new long[] {task, asked, granted, System.nanoTime()});
            } catch (RuntimeException error) {
                failed.incrementAndGet();
            }
        }
    }

    /** Locks that the watchdog renews. */
    private void hold(String prefix, int count) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < HOLDERS; i++) {
            int first = i;
            threads.add(new Thread(() -> {
                for (int number = first; number < count; number += HOLDERS) {
                    RLock lock = lock(0, prefix + number);
                    lock.lock();
                    synchronized (held) {
                        held.add(lock);
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
