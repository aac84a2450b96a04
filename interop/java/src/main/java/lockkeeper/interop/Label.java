package lockkeeper.interop;

import java.util.Arrays;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;

/** An owner of its own: one thread, which does one thing after the other. */
final class Label implements Executor {
    private final LinkedBlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>();
    private final Thread thread;

    Label(String name) {
        thread = new Thread(this::work, "label-" + name);
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void execute(Runnable task) {
        tasks.add(task);
    }

    /**
     * Whether it waits for a message that wakes it. Between its last attempt and that moment Redisson
     * misses the message that wakes all: whoever sends it must wait for this, or wait for the lease.
     */
    boolean isBlocked() {
        StackTraceElement[] stack = thread.getStackTrace();
        return stack.length > 0
                && stack[0].getMethodName().equals("park")
                && Arrays.stream(stack)
                        .anyMatch(at -> at.getClassName().equals(Semaphore.class.getName()));
    }

    private void work() {
        try {
            while (true) {
                tasks.take().run();
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
