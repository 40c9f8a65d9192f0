import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The official Java client under load, for benchmarks/client.py: prints one line of JSON with what
 * it did. Arguments: the name server, what to do (send, consume, idle), the topic, seconds, how
 * many sends are in flight, a word it does not need, and seconds of warm-up.
 */
public final class Bench {
    private static final byte[] BODY = new byte[128];

    private final String namesrv;
    private final String topic;
    private final double seconds;
    private final double warmSeconds;
    private final AtomicInteger errors = new AtomicInteger();
    private final CountDownLatch over = new CountDownLatch(1);
    private long began;
    private long before;
    private long cpuBefore;
    private long counted;
    private String figures;

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
        try {
            switch (args[1]) {
                case "send": bench.send(Integer.parseInt(args[4])); break;
                case "consume": bench.consume(); break;
                case "idle": bench.idle(); break;
                default: throw new IllegalArgumentException(args[1]);
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1); // the client's own threads would go on
        }
        out.println(bench.figures);
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void send(int window) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-senders");
        producer.setNamesrvAddr(namesrv);
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(8000);
        producer.start();
        producer.send(new Message(topic, BODY));
        Semaphore free = new Semaphore(window);
        while (over.getCount() > 0) {
            free.acquire();
            producer.send(new Message(topic, BODY), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    free.release();
                    add(1);
                }

                @Override
                public void onException(Throwable error) {
                    errors.incrementAndGet();
                    free.release();
                    add(1);
                }
            });
        }
    }

    private DefaultMQPushConsumer consumer() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + UUID.randomUUID());
        consumer.setNamesrvAddr(namesrv);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (org.apache.rocketmq.common.message.MessageExt message : messages) {
                if (message.getBody().length != BODY.length) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private void consume() throws Exception {
        consumer();
        if (!over.await(60 + (long) (warmSeconds + seconds), TimeUnit.SECONDS)) {
            throw new IllegalStateException(counted + " messages came after the warm-up, then none");
        }
    }

    private void idle() throws Exception {
        consumer();
        Thread.sleep(10_000);
        long cpu = cpuNanos();
        Thread.sleep((long) (seconds * 1000));
        figures = line(0, seconds, (cpuNanos() - cpu) / 1e9);
    }

    private synchronized void add(int count) {
        counted += count;
        long now = System.nanoTime();
        if (began == 0) {
            began = now + (long) (warmSeconds * 1e9);
        }
        if (now < began || figures != null) {
            return;
        }
        if (before == 0) {
            before = now;
            cpuBefore = cpuNanos();
            counted = 0;
        } else if (now - before >= seconds * 1e9) {
            figures = line(counted, (now - before) / 1e9, (cpuNanos() - cpuBefore) / 1e9);
            over.countDown();
        }
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private String line(long messages, double wall, double cpu) {
        return String.format(java.util.Locale.ROOT,
            "{\"messages\": %d, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"errors\": %d}",
            messages, wall, cpu, errors.get());
    }
}
