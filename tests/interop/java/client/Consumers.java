import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers by name, and one-shot reads with the two pull consumers. */
final class Consumers {
    private final String namesrv;
    private final Map<String, Runnable> running = new HashMap<>();

    Consumers(String namesrv) {
        this.namesrv = namesrv;
    }

    Object start(JSONObject command) throws Exception {
        String name = command.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"),
            Signing.hook(), new AllocateMessageQueueAveragely(),
            command.getBooleanValue("trace"), null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        if (command.containsKey("retries_max")) {
            consumer.setMaxReconsumeTimes(command.getIntValue("retries_max"));
        }
        consumer.setVipChannelEnabled(false);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setPullTimeDelayMillsWhenException(500);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setAllocateMessageQueueStrategy(new Reporting(name, command.getString("topic")));
        subscribe(consumer, command);
        listen(consumer, command, name);
        consumer.start();
        running.put(name, consumer::shutdown);
        return null;
    }

    private static void subscribe(DefaultMQPushConsumer consumer, JSONObject command)
            throws Exception {
        String topic = command.getString("topic");
        if (command.containsKey("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql(command.getString("sql")));
        } else if (command.containsKey("class_source")) {
            consumer.subscribe(topic, command.getString("expression"),
                command.getString("class_source"));
        } else {
            consumer.subscribe(topic, command.getString("expression"));
        }
    }

    private void listen(DefaultMQPushConsumer consumer, JSONObject command, String name)
            throws Exception {
        String mode = command.getString("mode");
        long paceMs = command.getLongValue("pace_ms");
        if ("orderly".equals(mode)) {
            consumer.setSuspendCurrentQueueTimeMillis(500);
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                accept(name, messages.get(0), paceMs) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            return;
        }
        if ("broadcast".equals(mode)) {
            beBroadcasting(consumer);
        }
        if ("assigned".equals(mode) || "pop".equals(mode)) { // only RocketMQ 5 has these two
            set(consumer, "setClientRebalance", boolean.class, false);
            set(consumer, "setPopInvisibleTime", long.class, 10_000L);
        }
        DefaultMQProducer replier = "reply".equals(mode) ? replier(name) : null;
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean done = accept(name, messages.get(0), paceMs);
            if (done && replier != null) {
                reply(replier, messages.get(0));
            }
            return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
    }

    private static void set(Object of, String method, Class<?> type, Object value) throws Exception {
        of.getClass().getMethod(method, type).invoke(of, value);
    }

    /** Reports the message; false for the first delivery of "retry…" and for each of "dead…". */
    private static boolean accept(String name, MessageExt message, long paceMs) {
        Map<String, Object> event = Messages.received(message);
        event.put("event", "message");
        event.put("consumer", name);
        Client.emit(event);
        try {
            Thread.sleep(paceMs);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        boolean fails = body.startsWith("retry") && message.getReconsumeTimes() == 0;
        return !fails && !body.startsWith("dead");
    }

    private DefaultMQProducer replier(String name) throws Exception {
        DefaultMQProducer replier = new DefaultMQProducer("replier-" + name, Signing.hook());
        replier.setNamesrvAddr(namesrv);
        replier.setVipChannelEnabled(false);
        replier.start();
        running.put("replier-" + name, replier::shutdown);
        return replier;
    }

    private static void reply(DefaultMQProducer replier, MessageExt message) {
        try {
            byte[] body = ("reply to " + new String(message.getBody())).getBytes();
            replier.send(MessageUtil.createReplyMessage(message, body), 5000);
        } catch (Exception error) {
            throw new IllegalStateException("the reply was not sent", error);
        }
    }

    /** The enumeration of the message models has another package in each line of RocketMQ. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void beBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class<Enum> model = (Class<Enum>) method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
            }
        }
    }

    Object stop(String name) {
        running.remove(name).run();
        Runnable replier = running.remove("replier-" + name);
        if (replier != null) {
            replier.run();
        }
        return null;
    }

    /** All messages of a topic, with the pull consumer of the old kind; commits what it read. */
    @SuppressWarnings("deprecation")
    Object pull(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer =
            new DefaultMQPullConsumer(command.getString("group"), Signing.hook());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("pull-" + command.getString("group"));
        consumer.setVipChannelEnabled(false);
        consumer.start();
        try {
            List<Object> found = new ArrayList<>();
            for (MessageQueue queue :
                    consumer.fetchSubscribeMessageQueues(command.getString("topic"))) {
                long next = drain(consumer, queue, command.getString("expression"), found);
                consumer.updateConsumeOffset(queue, next);
            }
            return found;
        } finally {
            consumer.shutdown();
        }
    }

    @SuppressWarnings("deprecation")
    private static long drain(DefaultMQPullConsumer consumer, MessageQueue queue,
            String expression, List<Object> found) throws Exception {
        long next = Math.max(0, consumer.fetchConsumeOffset(queue, true));
        while (true) {
            PullResult result = consumer.pull(queue, expression, next, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                result.getMsgFoundList().forEach(m -> found.add(Messages.received(m)));
            }
            if (result.getPullStatus() == PullStatus.NO_NEW_MSG
                    || result.getNextBeginOffset() >= result.getMaxOffset()) {
                return result.getNextBeginOffset();
            }
            next = result.getNextBeginOffset();
        }
    }

    /** Polls until so many messages came or the time is up; commits. */
    Object litePull(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(command.getString("group"), Signing.hook());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("lite-" + command.getString("group"));
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(command.getString("topic"), command.getString("expression"));
        consumer.start();
        try {
            List<Object> found = new ArrayList<>();
            long deadline = System.currentTimeMillis() + command.getLongValue("within_ms");
            while (found.size() < command.getIntValue("count")
                    && System.currentTimeMillis() < deadline) {
                consumer.poll(500).forEach(message -> found.add(Messages.received(message)));
                consumer.commitSync();
            }
            return found;
        } finally {
            consumer.shutdown();
        }
    }

    void close() {
        new ArrayList<>(running.keySet()).forEach(this::stop);
    }

    /** Allocates as all members do, and reports each change of the member's own queues. */
    private static final class Reporting implements AllocateMessageQueueStrategy {
        private final AllocateMessageQueueStrategy averagely = new AllocateMessageQueueAveragely();
        private final String consumer;
        private final String topic;
        private List<Integer> before;

        Reporting(String consumer, String topic) {
            this.consumer = consumer;
            this.topic = topic;
        }

        @Override
        public List<MessageQueue> allocate(String group, String clientId, List<MessageQueue> all,
                List<String> clients) {
            List<MessageQueue> mine = averagely.allocate(group, clientId, all, clients);
            if (all.get(0).getTopic().equals(topic)) {
                report(mine);
            }
            return mine;
        }

        private void report(List<MessageQueue> mine) {
            List<Integer> numbers = new ArrayList<>();
            mine.forEach(queue -> numbers.add(queue.getQueueId()));
            if (numbers.equals(before)) {
                return;
            }
            before = numbers;
            Map<String, Object> event = new HashMap<>();
            event.put("event", "queues");
            event.put("consumer", consumer);
            event.put("queues", numbers);
            event.put("now_ms", System.currentTimeMillis());
            Client.emit(event);
        }

        @Override
        public String getName() {
            return averagely.getName();
        }
    }
}
