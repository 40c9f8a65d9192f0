import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Locale;
import java.util.UUID;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official Java client under load, for benchmarks/client.py: prints one line of JSON with what
 * it did. Arguments: the name server, the work (send, awaited, handler, consume, idle), the topic,
 * seconds, how many sends are in flight, a word it does not need, and seconds of warm-up.
 */
public final class Bench {
    private static final byte[] BODY = new byte[128];
    private static final int MORE_SECONDS_MAX = 60;
    private static final int SETTLE_SECONDS = 10;

    private final String namesrv;
    private final String topic;
    private final double seconds;
    private final double warmSeconds;
    private final LongAdder count = new LongAdder();
    private final LongAdder errors = new LongAdder();

    private Bench(String namesrv, String topic, double seconds, double warmSeconds) {
        this.namesrv = namesrv;
        this.topic = topic;
        this.seconds = seconds;
        this.warmSeconds = warmSeconds;
    }

    public static void main(String[] args) throws Exception {
        java.io.PrintStream out = System.out;
        System.setOut(System.err);
        Arrays.fill(BODY, (byte) 'x');
        Bench bench = new Bench(args[0], args[2], Double.parseDouble(args[3]),
            Double.parseDouble(args[6]));
        String figures;
        try {
            switch (args[1]) {
                case "send":
                case "awaited": // as many threads that wait cost more than callbacks
                    figures = bench.send(Integer.parseInt(args[4]));
                    break;
                case "handler":
                    figures = bench.consume(1);
                    break;
                case "consume":
                    figures = bench.consume(32);
                    break;
                case "idle":
                    figures = bench.idle();
                    break;
                default: throw new IllegalArgumentException(args[1]);
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1); // the client's own threads would go on
            return;
        }
        out.println(figures);
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    private String send(int window) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-senders");
        producer.setNamesrvAddr(namesrv);
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(8000);
        producer.start();
        producer.send(new Message(topic, BODY));
        Semaphore free = new Semaphore(window);
        Thread sends = new Thread(() -> {
            try {
                while (true) {
                    free.acquire();
                    producer.send(new Message(topic, BODY), new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            free.release();
                            count.increment();
                        }

                        @Override
                        public void onException(Throwable error) {
                            errors.increment();
                            onSuccess(null);
                        }
                    });
                }
            } catch (Exception failure) {
                failure.printStackTrace();
                errors.increment();
            }
        });
        sends.start();
        return underLoad();
    }

    private DefaultMQPushConsumer consumer(int batchMax, Runnable onMessage) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + UUID.randomUUID());
        consumer.setNamesrvAddr(namesrv);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batchMax);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getBody().length != BODY.length) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                onMessage.run();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private String consume(int batchMax) throws Exception {
        consumer(batchMax, count::increment);
        return underLoad();
    }

    /** The figures from the end of the warm-up on; see client_programs/meter.py. */
    private String underLoad() throws Exception {
        waitForMore(0);
        Thread.sleep((long) (warmSeconds * 1000));
        long began = System.nanoTime();
        long cpu = cpuNanos();
        long before = count.sum();
        Thread.sleep((long) (seconds * 1000));
        double wall = (System.nanoTime() - began) / 1e9;
        double used = (cpuNanos() - cpu) / 1e9;
        long after = count.sum();
        waitForMore(after);
        return String.format(Locale.ROOT,
            "{\"messages\": %d, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"errors\": %d}",
            after - before, wall, used, errors.sum());
    }

    private void waitForMore(long messages) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(MORE_SECONDS_MAX);
        while (count.sum() <= messages) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("no message came after " + messages + " messages");
            }
            Thread.sleep(10);
        }
    }

    private String idle() throws Exception {
        consumer(1, () -> { });
        Thread.sleep(SETTLE_SECONDS * 1000L);
        long cpu = cpuNanos();
        Thread.sleep((long) (seconds * 1000));
        double used = (cpuNanos() - cpu) / 1e9;
        return String.format(Locale.ROOT,
            "{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"mib\": %.3f}",
            seconds, used, anonymousKib() / 1024.0);
    }

    private static long anonymousKib() throws Exception {
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
            if (line.startsWith("RssAnon:")) {
                return Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        throw new IllegalStateException("/proc/self/status has no RssAnon");
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
