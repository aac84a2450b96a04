package lockkeeper.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * The unmodified Apache Curator, driven by lines. {@code ../README.md} has the protocol.
 *
 * <p>Curator's owner is a thread, so each label is one thread of its own: commands of one label run
 * in order, commands of different labels at the same time, and a blocked label blocks nobody else.
 *
 * <p>Arguments: the connection string, and the session's time-out in milliseconds.
 */
public final class Peer {
    private static final PrintStream OUT =
            new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final int KILLED = 137;

    private Peer() {}

    public static void main(String[] args) throws Exception {
        CuratorFramework curator = connect(args[0], Integer.parseInt(args[1]));
        answer("0", "ok curator " + version());

        Commands commands = new Commands(curator);
        Map<String, ExecutorService> labels = new HashMap<>();
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split("\\s+");
            if (words.length < 3) {
                answer(words[0], "err usage ID LABEL VERB ARGUMENTS");
            } else if (words[2].equals("crash")) {
                Runtime.getRuntime().halt(KILLED);
            } else if (words[2].equals("quit")) {
                curator.close();
                answer(words[0], "ok");
                Runtime.getRuntime().halt(0);
            } else {
                labels.computeIfAbsent(words[1], Peer::thread).execute(() -> run(commands, words));
            }
        }
        // Whoever drove us is gone: as a crash, so that no test is helped by a tidy end.
        Runtime.getRuntime().halt(KILLED);
    }

    static CuratorFramework connect(String servers, int session) throws InterruptedException {
        CuratorFramework curator = CuratorFrameworkFactory.newClient(
                servers, session, 5000, new ExponentialBackoffRetry(50, 10));
        curator.start();
        curator.blockUntilConnected();
        return curator;
    }

    private static ExecutorService thread(String label) {
        return Executors.newSingleThreadExecutor(task -> {
            Thread thread = new Thread(task, "label-" + label);
            thread.setDaemon(true);
            return thread;
        });
    }

    private static void run(Commands commands, String[] words) {
        try {
            String value = commands.run(words);
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

    static String version() {
        String jar = CuratorFramework.class
                .getProtectionDomain().getCodeSource().getLocation().getPath();
        return jar.replaceAll(".*/curator-framework-|\\.jar$", "");
    }
}
