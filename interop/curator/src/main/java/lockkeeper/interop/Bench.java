package lockkeeper.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;

/**
 * Turns with Curator's {@code InterProcessMutex}, timed. {@code ../README.md} has the protocol of the
 * bench programs.
 *
 * <p>Arguments: {@code zookeeper://HOST:PORT}, {@code curator}, and the session's time-out in
 * milliseconds.
 */
public final class Bench {
    private final String servers;
    private final int session;
    private List<CuratorFramework> clients;
    private final AtomicLong failed = new AtomicLong();

    private Bench(String[] args) throws InterruptedException {
        servers = args[0].replaceFirst("^zookeeper://", "");
        session = Integer.parseInt(args[2]);
        connect(1);
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
            default: throw new IllegalArgumentException("unknown command " + words[0]);
        }
    }

    private void connect(int count) throws InterruptedException {
        List<CuratorFramework> connected = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            connected.add(Peer.connect(servers, session));
        }
        clients = connected;
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
            String path = "/" + words[1] + task % names;
            InterProcessMutex lock = new InterProcessMutex(clients.get(task % clients.size()), path);
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
    private void take(int task, InterProcessMutex lock, long until, List<long[]> turns) {
        for (long asked = System.nanoTime(); asked < until; asked = System.nanoTime()) {
            try {
                lock.acquire();
                long granted = System.nanoTime();
                lock.release();
                turns.add(new long[] {task, asked, granted, System.nanoTime()});
            } catch (Exception error) { // InterProcessMutex declares no less
                failed.incrementAndGet();
            }
        }
    }
}
