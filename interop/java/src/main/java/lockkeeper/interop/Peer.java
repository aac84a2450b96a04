package lockkeeper.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;

/**
 * The unmodified Redisson, driven by lines. {@code ../README.md} has the protocol.
 *
 * <p>Redisson's owner is a thread, so each label is one thread of its own: commands of one label run
 * in order, commands of different labels at the same time, and a blocked label blocks nobody else.
 *
 * <p>Arguments: the URL of one Redis server, of sentinels ({@code redis+sentinel://HOST,…/MASTER}) or of a
 * cluster ({@code redis+cluster://HOST,…}), and the watchdog's time-out in milliseconds.
 */
public final class Peer {
    private static final PrintStream OUT =
            new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final int KILLED = 137;

    private Peer() {}

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        if (args.length > 1) {
            config.setLockWatchdogTimeout(Long.parseLong(args[1]));
        }
        // Only so that it starts quickly and shares two cores; nothing that locks depend on.
        config.setThreads(4).setNettyThreads(4);
        connect(config, args[0]);
        RedissonClient redisson = Redisson.create(config);
        answer("0", "ok redisson " + version() + " " + redisson.getId());

        Commands commands = new Commands(redisson);
        Map<String, Label> labels = new HashMap<>();
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split("\\s+");
            if (words.length < 3) {
                answer(words[0], "err usage ID LABEL VERB ARGUMENTS");
            } else if (words[2].equals("crash")) {
                Runtime.getRuntime().halt(KILLED);
            } else if (words[2].equals("quit")) {
                redisson.shutdown();
                answer(words[0], "ok");
                Runtime.getRuntime().halt(0);
            } else {
                Label label = labels.computeIfAbsent(words[1], Label::new);
                if (words[2].equals("blocked")) {
                    answer(words[0], "ok " + label.isBlocked());
                } else {
                    label.execute(() -> run(commands, words));
                }
            }
        }
        // Whoever drove us is gone: as a crash, so that no test is helped by a tidy end.
        Runtime.getRuntime().halt(KILLED);
    }

    private static void connect(Config config, String url) {
        String[] parts = url.split("://", 2);
        String[] hosts = parts[1].split("/")[0].split(",");
        switch (parts[0]) {
            case "redis+cluster" -> {
                ClusterServersConfig cluster = config.useClusterServers();
                for (String host : hosts) {
                    cluster.addNodeAddress("redis://" + host);
                }
                cluster.setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(2);
            }
            case "redis+sentinel" -> {
                SentinelServersConfig sentinels = config.useSentinelServers();
                for (String host : hosts) {
                    sentinels.addSentinelAddress("redis://" + host);
                }
                sentinels.setMasterName(parts[1].split("/")[1]);
                sentinels.setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(2);
            }
            default -> config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(2);
        }
    }

    private static void run(Commands commands, String[] words) {
        try {
            String value = commands.run(new Words(words));
            answer(words[0], value.isEmpty() ? "ok" : "ok " + value);
        } catch (Exception | LinkageError error) {
            String text = String.valueOf(error.getMessage()).replaceAll("\\s+", " ");
            answer(words[0], "err " + error.getClass().getSimpleName() + " " + text);
        }
    }

    /** One write per line, so that lines of different threads do not mix. */
    private static synchronized void answer(String id, String text) {
        OUT.print("@ " + id + " " + text + "\n");
        OUT.flush();
    }

    /** From the name of the jar: its manifest does not say it in every version. */
    static String version() {
        String jar = Redisson.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        return jar.replaceAll(".*/redisson-|\\.jar$", "");
    }
}
